"""Seconds and memory of the commands that read whole runs, on made-up runs that are large.

    python benchmarks/bench_large_runs.py --iterations 5000 --runs 20 --problems 500 --samples 50

- ``report, long``: a run of so many iterations.
- ``report, many traces``: a run whose two evaluated versions have so many traces of each problem, with values, on two
  benchmarks.
- ``compare``: so many runs with an evaluation of 30 problems each, beside the first.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarking import command_usage, options, table, written
from synthetic_run import Shape, SyntheticRun

if TYPE_CHECKING:
    from collections.abc import Sequence


def measured(name: str, *words: str | Path) -> list[str]:
    """A row of the table: wall and processor seconds of a command, and the memory that it had at most."""
    processor, seconds, gib = command_usage([sys.executable, "-m", "mrt_hpc", *words])
    row = [name, f"{seconds:.1f}", f"{processor:.1f}", f"{gib:.2f}"]
    print(row, flush=True)
    return row


def made(root: Path, shape: Shape) -> Path:
    SyntheticRun(root, shape).write()
    return root


def rows(folder: Path, iterations: int, runs: int, problems: int, samples: int) -> Sequence[list[str]]:
    long = made(folder / "long", Shape(iterations=iterations, evaluated_every=max(1, iterations // 10), paragraphs=2))
    found = [measured(f"report, {iterations:,} iterations", "report", long)]
    shape = Shape(iterations=4, evaluated_every=4, paragraphs=2)
    many = made(folder / "many", replace(shape, problems=problems, samples=samples))
    page = many / "report.html"
    found.append(measured(f"report, {problems * samples * 4:,} traces", "report", many))
    print(f"the page has {page.stat().st_size / 2**20:.1f} MiB", flush=True)
    several = [made(folder / f"run-{n}", replace(shape, seed=n)) for n in range(runs)]
    found.append(measured(f"compare, {runs} runs", "compare", *several))
    return found


def main() -> None:
    given = options(__doc__, iterations=5000, runs=20, problems=500, samples=50, output=Path)
    with tempfile.TemporaryDirectory(prefix="bench-large-runs-") as scratch:
        found = rows(Path(scratch), given.iterations, given.runs, given.problems, given.samples)
    head = ("command", "seconds", "processor seconds", "GiB at most")
    written("\n".join(table(head, found)), given.output)


if __name__ == "__main__":
    main()
