"""Processor seconds of the commands that a user types most, beside those of ``import pydantic, numpy``, in turn.

    python benchmarks/bench_light_commands.py --repeats 12

``status`` and ``explain`` look at a run of the quickstart of which nothing has begun.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarking import command_usage, options, spread, table, turns, written
from run_of import run_of

REFERENCE = "import pydantic, numpy"


def main() -> None:
    given = options(__doc__, repeats=12, output=Path)
    with tempfile.TemporaryDirectory(prefix="bench-light-commands-") as scratch:
        folder = Path(scratch)
        run_of(folder / "run")
        mrt_hpc = [sys.executable, "-m", "mrt_hpc"]
        commands = {
            REFERENCE: [sys.executable, "-c", REFERENCE],
            "--help": [*mrt_hpc, "--help"],
            "plan quickstart": [*mrt_hpc, "plan", "quickstart", "--site", "local"],
            "status": [*mrt_hpc, "status", "run"],
            "explain": [*mrt_hpc, "explain", "run"],
        }
        used = turns({name: partial(command_usage, c, folder) for name, c in commands.items()}, given.repeats)
    measured = {name: [processor for processor, *_ in each] for name, each in used.items()}
    reference = measured.pop(REFERENCE)
    rows = [[f"`{REFERENCE}`", spread(reference), "1"]]
    for name, seconds in measured.items():
        ratios = [mine / other for mine, other in zip(seconds, reference, strict=True)]
        rows.append([f"`mrt-hpc {name}`", spread(seconds), f"{statistics.median(ratios):.2f}"])
    head = ("command", "processor seconds, median (extremes)", f"beside `{REFERENCE}`")
    written("\n".join(table(head, rows)), given.output)


if __name__ == "__main__":
    main()
