"""Seconds of a training step of mrt-hpc and of TRL's GRPOTrainer with colocated vLLM, in turn, by phase.

Both train the embedded small world's model on the same problems, with the same number of rollouts, the same limit of
tokens, the same reward, the same number format (32 bits) and one optimiser step an iteration. TRL is no dependency of
mrt-hpc; it lies in a folder of its own, beside the packages of this environment:

    .venv/bin/uv pip install --python .venv/bin/python --target build/trl --no-deps -r benchmarks/trl.lock.txt
    python benchmarks/bench_against_trl.py --trl build/trl

Each turn is a step of both, and a sampling of as many traces with vLLM alone, without seeds and text. The first turn
is not counted. Generation is told by the generated token, as the sampled lengths differ a little between the sides.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarking import in_turn, options, spread, written
from benchmarking import table as markdown
from step_worker import SAMPLE, Load, Measured, Side, side

from mrt_hpc.inference.server_start import cpu_environment, is_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Turn:
    ours: Measured
    theirs: Measured
    fastest: Measured  # sampling alone, as fast as vLLM can

    @property
    def others(self) -> float:
        """The most cores that other processes used during a step."""
        return max(m.others for m in (self.ours, self.theirs, self.fastest))

    def __str__(self) -> str:
        sides = f"mrt-hpc {self.ours}; TRL {self.theirs}; vLLM alone {self.fastest}"
        return f"{sides}; others used {self.others:.2f} cores"


ROWS: dict[str, Callable[[Measured], float]] = {
    "total": lambda m: m.per_token(),
    "generation": lambda m: m.per_token("generation"),
    "generation and rewards": lambda m: m.per_token("generation") + 1e3 * m.phases.get("rewards", 0.0) / m.tokens,
    "update": lambda m: m.per_token("update"),
    "weights": lambda m: m.per_token("weights"),
    "total, processor time": lambda m: m.cpu_per_token("total"),
    "generation, processor time": lambda m: m.cpu_per_token("generation"),
}


def run_turns(ours: Side, theirs: Side, count: int) -> list[Turn]:
    ways = {"ours": ours.measure, "theirs": theirs.measure, "fastest": lambda: theirs.measure(SAMPLE)}
    turns = []
    for number in range(count + 1):
        turn = Turn(**{name: ways[name]() for name in in_turn(ways, number)})
        print(f"turn {number}: {turn}", flush=True)
        turns.append(turn)
    return turns[1:]


HEAD = ("ms a generated token", "mrt-hpc, best", "median", "TRL, best", "median", "ratio, median (extremes)")


def table(turns: list[Turn]) -> list[str]:
    """Milliseconds a generated token by phase, and the ratio in the same turn."""
    pairs = {name: [(value(t.ours), value(t.theirs)) for t in turns] for name, value in ROWS.items()}
    alone = "generation beside vLLM alone"
    pairs[f"{alone}, wall"] = [(ROWS["generation"](t.ours), t.fastest.per_token()) for t in turns]
    pairs[f"{alone}, processor time"] = [
        (ROWS["generation, processor time"](t.ours), t.fastest.cpu_per_token("total")) for t in turns
    ]
    return markdown(HEAD, [_row(name, of) for name, of in pairs.items()])


def by_process(turns: list[Turn]) -> list[str]:
    """The processor time of our generation by process, beside that of vLLM alone, which samples in one process."""
    names = sorted({name for t in turns for name in t.ours.cpu if name.startswith("generation, ")})
    rows = {name: [1e3 * t.ours.cpu.get(name, 0.0) / t.ours.tokens for t in turns] for name in names}
    rows["vLLM alone"] = [t.fastest.cpu_per_token("total") for t in turns]
    head = ("ms of a processor for a generated token", "best", "median")
    return markdown(head, [[name, f"{min(v):.4f}", f"{statistics.median(v):.4f}"] for name, v in rows.items()])


def _row(name: str, pairs: list[tuple[float, float]]) -> list[str]:
    sides = [f"{of(values):.4f}" for values in zip(*pairs, strict=True) for of in (min, statistics.median)]
    return [name, *sides, spread([ours / theirs for ours, theirs in pairs])]


def measure(load: Load, trl: Path) -> list[Turn]:
    from step_of_mrt_hpc import make_run  # takes seconds to import

    with tempfile.TemporaryDirectory(prefix="bench-against-trl-") as scratch, ExitStack() as stack:
        root = Path(scratch)
        layout = make_run(root / "run", load)
        threads = cpu_environment(load.threads) if is_on_cpu() else {}
        common = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        paths = [str(trl.resolve()), *sys.path[1:]]
        commands = {
            "mrt-hpc": (["step_of_mrt_hpc.py", str(layout.root)], {"OMP_NUM_THREADS": str(load.threads)}),
            "TRL": (
                ["step_of_trl.py", str(layout.root), str(load)],
                threads | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)},
            ),
        }
        ours, theirs = (
            stack.enter_context(
                side(name, [sys.executable, str(HERE / script), *rest], common | own, root / f"{name}.log")
            )
            for name, ((script, *rest), own) in commands.items()
        )
        return run_turns(ours, theirs, load.steps - 1)


def main() -> None:
    """Measure, print, and write the table; in a quiet turn others use at most so many cores."""
    given = options(__doc__, trl=Path("build/trl"), quiet=0.2, output=Path, load=Load)
    if not (given.trl / "trl").is_dir():
        sys.exit(f"no trl in {given.trl}; install it with:\n{str(__doc__).split(chr(10) * 2)[2]}")
    load, turns = given.load, measure(given.load, given.trl)
    quiet = [t for t in turns if t.others <= given.quiet]
    lines = ["# A training step beside TRL's", "", f"{load}", ""]
    for name, chosen in (("all turns", turns), (f"turns in which others used at most {given.quiet} cores", quiet)):
        lines += [f"{len(chosen)} {name}:", "", *(table(chosen) if chosen else []), ""]
    lines += ["By process, all turns:", "", *by_process(turns)]
    written("\n".join(lines), given.output)


if __name__ == "__main__":
    main()
