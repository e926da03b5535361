"""Seconds of a training step of mrt-hpc and of TRL's GRPOTrainer with colocated vLLM, in turn, by phase.

Both train the embedded small world's model on the same problems, with the same number of rollouts, the same limit of
tokens, the same reward, the same number format (32 bits) and one optimiser step an iteration. TRL is no dependency of
mrt-hpc; it lies in a folder of its own, beside the packages of this environment:

    .venv/bin/uv pip install --python .venv/bin/python --target build/trl --no-deps -r tests/benchmarks/trl.lock.txt
    python tests/benchmarks/bench_against_trl.py --trl build/trl

Each turn is a step of both, and a sampling of as many traces with vLLM alone, without seeds and text. The first turn
is not counted. Generation is told by the generated token, as the sampled lengths differ a little between the sides.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from step_worker import SAMPLE, Load, Measured, Side, side

from mrt_hpc.inference.server_start import cpu_environment, on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Turn:
    """One step of each side."""

    ours: Measured
    theirs: Measured
    fastest: Measured
    """Sampling alone, as fast as vLLM can."""

    @property
    def others(self) -> float:
        """The most cores that other processes used during a step."""
        return max(m.others for m in (self.ours, self.theirs, self.fastest))


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
    """Turns in alternating order; prints each."""
    turns = []
    for number in range(count + 1):
        found = {}
        for name in ("ours", "theirs", "fastest")[:: -1 if number % 2 else 1]:
            found[name] = {"ours": ours.measure, "theirs": theirs.measure}.get(name, lambda: theirs.measure(SAMPLE))()
        turn = Turn(**found)
        print(f"turn {number}: {in_words(turn)}", flush=True)
        turns.append(turn)
    return turns[1:]


def in_words(turn: Turn) -> str:
    """The seconds of a turn."""
    sides = (("mrt-hpc", turn.ours), ("TRL", turn.theirs), ("vLLM alone", turn.fastest))
    told = (f"{n} {m.seconds:.2f} s, {m.tokens} tokens, {_phases(m)}" for n, m in sides)
    return f"{'; '.join(told)}; others used {turn.others:.2f} cores"


def _phases(measured: Measured) -> str:
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in measured.phases.items())


def table(turns: list[Turn]) -> list[str]:
    """Milliseconds a generated token by phase, and the ratio in the same turn."""
    lines = [
        "| ms a generated token | mrt-hpc, best | median | TRL, best | median | ratio, median (extremes) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [_row(name, [(value(t.ours), value(t.theirs)) for t in turns]) for name, value in ROWS.items()]
    alone = {"wall": lambda m: m.per_token(), "processor time": lambda m: m.cpu_per_token("total")}
    ours = {"wall": ROWS["generation"], "processor time": ROWS["generation, processor time"]}
    for kind, of_vllm in alone.items():
        pairs = [(ours[kind](t.ours), of_vllm(t.fastest)) for t in turns]
        lines.append(_row(f"generation beside vLLM alone, {kind}", pairs))
    return lines


def _row(name: str, pairs: list[tuple[float, float]]) -> str:
    ours, others = zip(*pairs, strict=True)
    ratios = [o / t for o, t in pairs]
    return f"| {name} | {_best_and_median(ours)} | {_best_and_median(others)} | {_ratio(ratios)} |"


def _best_and_median(values: Sequence[float]) -> str:
    return f"{min(values):.4f} | {statistics.median(values):.4f}"


def _ratio(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def measure(load: Load, trl: Path) -> list[Turn]:
    """Make the model, load both sides, and take the turns."""
    from step_of_mrt_hpc import make_run  # takes seconds to import

    with tempfile.TemporaryDirectory(prefix="bench-against-trl-") as scratch, ExitStack() as stack:
        root = Path(scratch)
        layout = make_run(root / "run", load)
        threads = cpu_environment(load.threads) if on_cpu() else {}
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
    """Measure, print, and write the table."""
    options = parse_arguments()
    if not (options.trl / "trl").is_dir():
        sys.exit(f"no trl in {options.trl}; install it with:\n{__doc__.split(chr(10) * 2)[2]}")
    load = Load(
        problems=options.problems,
        rollouts=options.rollouts,
        max_tokens=options.tokens,
        micro_batch_rows=options.trl_rows,
        threads=options.threads,
        steps=options.turns + 1,
    )
    turns = measure(load, options.trl)
    quiet = [t for t in turns if t.others <= options.quiet]
    lines = [f"{load}", ""]
    for name, chosen in (("all turns", turns), (f"turns in which others used at most {options.quiet} cores", quiet)):
        lines += [f"{len(chosen)} {name}:", "", *(table(chosen) if chosen else []), ""]
    print("\n".join(lines))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "table.md").write_text("\n".join(["# A training step beside TRL's", "", *lines]))


def parse_arguments() -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, default=Path("build/trl"), help="the folder that TRL is installed in")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=160, help="the most tokens of a rollout")
    parser.add_argument("--trl-rows", type=int, default=32, help="sequences of a micro-batch of TRL")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each side's computation")
    parser.add_argument("--quiet", type=float, default=0.2, help="cores that others may use in a quiet turn")
    parser.add_argument("--output", type=Path, help="the folder for table.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
