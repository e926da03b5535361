"""How many gold answers of ``../shared/data`` are right in each of their usual spellings, by the verifier of a run and
by math-verify alone.

math-verify alone gets both answers in a box, with its defaults. The verifier is strict, as in training. Every pair that
the verifier refuses is printed.

    python tests/benchmarks/bench_spellings.py
    python tests/benchmarks/bench_spellings.py --files math500 --sample 200
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from math_verify import parse, verify

sys.path.append(str(Path(__file__).parents[1] / "support"))

from spellings import FILES, SPELLINGS, gold_answers, spelt

from mrt_hpc.domains.math import math_verify_changes
from mrt_hpc.domains.math.verifier import MathVerifier

DATA = Path(__file__).parents[3] / "shared" / "data"
VERIFIER = MathVerifier(strict=True)


@dataclass(frozen=True)
class Spelt:
    """The verdicts on one gold answer in one spelling."""

    gold: str
    spelling: str
    answer: str
    right: bool
    math_verify: bool


def right(answer: str, gold: str) -> bool:
    """The verdict of a run's verifier."""
    certain = VERIFIER.certain(answer, gold)
    return VERIFIER.judge(answer, gold).correct if certain is None else certain


def by_math_verify(answer: str, gold: str) -> bool:
    """The verdict of math-verify as it is installed."""
    math_verify_changes.uninstall_two_stages()
    math_verify_changes.uninstall_values()
    try:
        expected, given = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, answer))
        return bool(verify(expected, given, timeout_seconds=None))
    finally:
        math_verify_changes.install_two_stages()
        math_verify_changes.install_values()


def graded(gold: str) -> list[Spelt]:
    """All spellings of a gold answer, graded."""
    logging.disable(logging.WARNING)
    return [
        Spelt(gold, name, answer, right(answer, gold), by_math_verify(answer, gold))
        for name, answer in spelt(gold).items()
    ]


def counted(found: list[Spelt]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """By spelling: all pairs, those that are right, and those that are right by math-verify alone."""
    return (
        Counter(one.spelling for one in found),
        Counter(one.spelling for one in found if one.right),
        Counter(one.spelling for one in found if one.math_verify),
    )


def main() -> None:
    """Grade and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES)
    parser.add_argument("--sample", type=int, help="gold answers, drawn at random; all by default")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if not DATA.is_dir():
        raise SystemExit(f"no gold answers: {DATA} is not there")
    golds = gold_answers(DATA, arguments.files)
    if arguments.sample is not None:
        golds = random.Random(0).sample(golds, min(arguments.sample, len(golds)))
    with multiprocessing.Pool(arguments.processes) as pool:
        found = [one for several in pool.map(graded, golds, chunksize=16) for one in several]
    for one in found:
        if not one.right:
            print(f"refused, {one.spelling}: {one.answer!r} for {one.gold!r}; math-verify says {one.math_verify}")
    total, ours, theirs = counted(found)
    print(f"{len(golds)} gold answers, each once")
    print(f"{'spelling':24} {'pairs':>6} {'right':>6} {'math-verify':>11}")
    for name in SPELLINGS:
        print(f"{name:24} {total[name]:6} {ours[name]:6} {theirs[name]:11}")
    print(f"{'all':24} {total.total():6} {ours.total():6} {theirs.total():11}")


if __name__ == "__main__":
    main()
