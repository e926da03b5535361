"""Verdicts a second of the grader pool with a cold cache, and how long answers wait, with and without hostile answers
among them.

The answers are made of the gold answers of the benchmarks in ``../shared/data``: each as it stands, in another
spelling, and that of another problem. Hostile ones (towers of powers, factorials, long sums, deep nesting) take the
place of every twentieth. All are handed over at the pace of a sampler, some groups at a time, as a run does. With
``--chars`` each answer ends a completion of so many characters, from which it is extracted first; hostile completions
are then made of unclosed boxes and formulas.

    python benchmarks/bench_grading.py
    python benchmarks/bench_grading.py --processes 4 --repeats 5 --lenient
    python benchmarks/bench_grading.py --chars 4000 --extraction last_mathematics
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarking import DATA, options

from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.math.equivalence import certain_verdict
from mrt_hpc.domains.verifiers import MathVerifier
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SPELLINGS = ("{}.", "x = {}", "\\left({}\\right)", "\\dfrac{{{}}}{{1}}", "{} + 0", "{}\\text{{ units}}")
HOSTILE = (
    "{0}^{{{0}^{{{0}^{{9}}}}}}", "10^{{10^{{1{0}}}}}", "({0}00000000)!",
    "\\sum_{{n=1}}^{{10^{{9}}}} \\frac{{{0}}}{{n^2}}",
    "\\left(\\left(\\left({0}^{{99999}}\\right)^{{99999}}\\right)^{{99999}}\\right)",
)  # fmt: skip
THOUGHT = "Wait, let me check $x = {0}$ again: \\boxed{{{0}}} or \\frac{{{0}}}{{2}}, which is {0} + 3 = 7?\n\n"
HOSTILE_THOUGHTS = ("\\boxed{", "\\(", "$ ", "{", "\\frac{1", "answer 5 ", "1,", "5 + ")
"""Repeated in the completion of a hostile answer: what a search that is not linear stumbles over."""
NESTED = 250  # parentheses around a number: the parser takes long


@dataclass(frozen=True)
class Measured:
    """One pass over all answers."""

    rate: float
    """Verdicts a second, until 99 % of the answers that are not hostile have theirs: one that hangs delays no other."""
    waits: list[float]  # of the answers that are not hostile: seconds from handing over to the verdict


def gold_answers() -> list[str]:
    """Of all benchmarks, each once.

    Raises:
        SystemExit: there are none beside this checkout.
    """
    if not DATA.is_dir():
        raise SystemExit(f"no benchmarks: {DATA} is not there")
    lines = [line for path in sorted(DATA.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return list(dict.fromkeys(str(json.loads(line)["answer"]) for line in lines))


def pairs_of(golds: Sequence[str], count: int, per_gold: int, rng: random.Random) -> list[tuple[str, str]]:
    """``count`` distinct pairs of answer and gold answer: equal, spelt otherwise, and wrong; so many in a row for one
    gold answer, as the rollouts of a group come.
    """
    pairs: dict[tuple[str, str], None] = {}
    while len(pairs) < count:
        gold, *others = rng.sample(list(golds), 1 + per_gold)
        for other in others:
            answer = rng.choice((gold, rng.choice(SPELLINGS).format(gold), other, rng.choice(SPELLINGS).format(other)))
            pairs[answer, gold] = None
    return list(pairs)


def with_hostile(pairs: Sequence[tuple[str, str]], share: float, rng: random.Random) -> list[tuple[str, str, bool]]:
    """The pairs, of which a share gets a hostile answer; whether each has one."""
    found = []
    for number, (answer, gold) in enumerate(pairs):
        hostile = rng.random() < share
        if hostile:
            kind = number % (len(HOSTILE) + 1)
            nested = "(" * NESTED + str(number) + ")" * NESTED
            answer = nested if kind == len(HOSTILE) else HOSTILE[kind].format(100 + number)
        found.append((answer, gold, hostile))
    return found


def completion_of(answer: str, number: int, chars: int, hostile: bool) -> str:
    """A completion of so many characters that ends with a boxed answer."""
    end = f"</think>\n\nThe answer is \\boxed{{{answer}}}."
    unit = HOSTILE_THOUGHTS[number % len(HOSTILE_THOUGHTS)] if hostile else THOUGHT.format(number)
    room = max(0, chars - len(end))
    return (unit * (room // len(unit) + 1))[:room] + end


async def graded(
    pool: GraderPool, pairs: Sequence[tuple[str, str, bool]], at_once: int, completions: Sequence[str] | None
) -> Measured:
    """Grade all, so many at a time; an answer is extracted from its completion, where there is one."""
    room, waits, ends = asyncio.Semaphore(at_once), list[float](), list[float]()

    async def one(number: int, answer: str, gold: str, hostile: bool) -> None:
        async with room if not hostile else asyncio.Semaphore(1):
            handed = time.perf_counter()
            found = answer if completions is None else pool.verifier.extract(completions[number], thinking=True)
            await pool.grade([(found, gold)], log_failures=False)
            if not hostile:
                ends.append(time.perf_counter())
                waits.append(ends[-1] - handed)

    started = time.perf_counter()
    others = [asyncio.create_task(one(n, *pair)) for n, pair in enumerate(pairs) if not pair[2]]
    hostile = [asyncio.create_task(one(n, *pair)) for n, pair in enumerate(pairs) if pair[2]]
    await asyncio.gather(*others)
    nearly_all = int(0.99 * len(ends))
    seconds = ends[nearly_all - 1] - started
    for task in hostile:  # what is left of them is no wait of anybody
        task.cancel()
    await asyncio.gather(*hostile, return_exceptions=True)
    return Measured(nearly_all / seconds, waits)


def measured(pairs: Sequence[tuple[str, str, bool]], given: argparse.Namespace) -> Measured:
    """One pass with new processes and an empty cache."""
    completions = None
    if given.chars:
        completions = [completion_of(a, n, given.chars, hostile) for n, (a, _, hostile) in enumerate(pairs)]
    verifier = MathVerifier(strict=not given.lenient).with_extraction(given.extraction)
    with GraderPool(verifier, given.processes) as pool:
        return asyncio.run(graded(pool, pairs, given.at_once, completions))


def quantile(waits: Sequence[float], share: float) -> float:
    """The wait that a share of the answers does not exceed."""
    return sorted(waits)[min(len(waits) - 1, int(share * len(waits)))]


def main() -> None:
    given = options(
        __doc__,
        pairs=3000,
        processes=2,
        hostile=0.05,
        repeats=3,
        at_once=64,  # answers handed over and not graded yet
        per_gold=4,  # answers to one gold answer
        lenient=False,  # as with grading.strict: false
        chars=0,  # characters of a completion; 0 grades answers alone
        extraction=DEFAULT_EXTRACTION,  # how answers are found in them
    )
    pairs = pairs_of(gold_answers(), given.pairs, given.per_gold, random.Random(0))
    asked = sum(certain_verdict(*pair, strict=not given.lenient) is None for pair in pairs) / len(pairs)
    told = f" in completions of {given.chars} characters, rule {given.extraction}" if given.chars else ""
    print(f"{len(pairs)} pairs{told}, {asked:.0%} of them for math-verify; {given.processes} processes")
    print("hostile  verdicts a second: median (all)    wait of the others, s: median  99 %  longest")
    for share in (0.0, given.hostile):
        mixed = with_hostile(pairs, share, random.Random(1))
        passes = [measured(mixed, given) for _ in range(given.repeats)]
        rates, waits = [p.rate for p in passes], [w for p in passes for w in p.waits]
        every = ", ".join(f"{rate:.0f}" for rate in rates)
        print(
            f"{share:7.0%}  {statistics.median(rates):8.0f} ({every})    "
            f"{quantile(waits, 0.5):.3f}  {quantile(waits, 0.99):.3f}  {max(waits):.3f}"
        )


if __name__ == "__main__":
    main()
