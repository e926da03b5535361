"""``mrt-hpc traces``: prints traces with their episodes, values, progress and advantages."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.options import RunPath, RunUse
from mrt_hpc.cli.status import open_run
from mrt_hpc.cli.terminal import Terminal, echo, echo_json
from mrt_hpc.errors import Advice, UserError

if TYPE_CHECKING:
    from mrt_hpc.roles.run_samples import AskedTrace

NOTICEABLE = 0.05
"""Less progress than this, up or down, has no colour."""


@click.command(short_help="Read traces with values, progress and advantages.")
@click.argument("run", type=RunPath(RunUse.LOOKS))
@click.option("--iteration", type=click.IntRange(min=0), metavar="N", help="Rollouts of this one. Default: the last.")
@click.option("--evaluation", type=click.IntRange(min=0), metavar="VERSION", help="Samples of this weights version.")
@click.option("--benchmark", metavar="NAME", help="The benchmark of --evaluation. Default: the first.")
@click.option("--problem", metavar="ID", help="Traces of this problem only.")
@click.option("--wrong", is_flag=True, help="Wrong traces only.")
@click.option("-n", "--most", type=click.IntRange(min=1), default=4, show_default=True, help="Traces at most.")
@options.as_json
@options.trust
def traces(
    run: Path,
    iteration: int | None,
    evaluation: int | None,
    benchmark: str | None,
    problem: str | None,
    wrong: bool,
    most: int,
    as_json: bool,
    trust: bool,
) -> None:
    """Print traces of RUN: each episode with the value before it, its progress and its mean advantage, and the verdict.

    \b
    Examples:
      mrt-hpc traces runs/quickstart --wrong
      mrt-hpc traces runs/quickstart --iteration 19 --problem train-00017
      mrt-hpc traces runs/quickstart --evaluation 20 --benchmark held-out --wrong -n 20
    """
    from mrt_hpc.roles.run_samples import WantedTraces, traces_of_evaluation, traces_of_iteration
    from mrt_hpc.run.archive import sampled_iterations
    from mrt_hpc.run.prompt_files import read_experiment

    if iteration is not None and evaluation is not None:
        raise UserError("--iteration and --evaluation are two sources", expected="one of them", advice="leave one out")
    layout, _ = open_run(run)
    recipe, asked = read_experiment(layout, trust=trust), WantedTraces(problem, wrong)
    if evaluation is not None:
        names = [b.name for b in recipe.evaluation.benchmarks]
        found = traces_of_evaluation(layout, recipe, evaluation, benchmark or (names or [""])[0], asked)
    else:
        last = iteration if iteration is not None else next(sampled_iterations(layout), 0)
        found = traces_of_iteration(layout, recipe, last, asked)
    shown = list(islice(found, most + 1))
    if as_json:
        echo_json([asdict(one) for one in shown[:most]])
        return
    if not shown:
        echo("there is no such trace: none of them is wrong")
        return
    _print(shown[:most])
    if wrong:
        echo(Advice("\nwhy an answer is wrong: mrt-hpc judge ANSWER GOLD --recipe {run}", run=run))
    if len(shown) > most:
        more = "there are more: -n {most}, or for a page to read them on mrt-hpc report {run}"
        echo(Advice(more, most=4 * most, run=run))


def _print(shown: "list[AskedTrace]") -> None:
    """Each problem once, in colour on a terminal."""
    console, before = Terminal(sys.stdout), ""
    for one in shown:
        if one.trace.problem != before:
            before = one.trace.problem
            console.rule(f"{one.trace.source}, {before}", align="left")
            console.print(f"{one.problem.text}\ngold: {one.problem.gold}")
        for text, style in _lines(one):
            console.print(text, style=style)


def _lines(one: "AskedTrace") -> Iterator[tuple[str, str]]:
    """With their styles."""
    from mrt_hpc.analysis.report.content import progress_of, verdict_of

    trace, advantages = one.trace, one.advantages
    answer = "no answer found" if trace.answer is None else f"answer {trace.answer!r}"
    verdict = f"{verdict_of(trace)}, {answer}, {trace.tokens} tokens"
    cut = ", cut by the token limit" if trace.cut else ""
    yield f"\nsample {trace.sample}: {verdict}{cut}", "bold green" if trace.right else "bold red"
    if not trace.marked:
        yield "its episodes cannot be marked: its tokens do not give its text", "dim"
    pairs = zip(trace.episodes, trace.boundaries, progress_of(trace.boundaries), strict=False)
    for number, (text, boundary, progress) in enumerate(pairs):
        facts = [_fact("V", boundary.value, ".2f"), _fact("progress", progress, "+.2f")]
        facts.append(_fact("advantage", advantages[number] if advantages else None, "+.3f"))
        yield f"[episode {number}] {', '.join(filter(None, facts)) or 'not valued'}", "dim"
        gain = progress or 0.0
        yield text.strip("\n"), "green" if gain >= NOTICEABLE else "red" if gain <= -NOTICEABLE else ""
    facts = [_fact("V", trace.boundaries[-1].value, ".2f"), _fact("advantage", (advantages or (None,))[-1], "+.3f")]
    place = "after the thought" if trace.rest.strip() else "the thought did not end, or nothing follows it"
    yield f"[{place}] {', '.join(filter(None, facts))}".rstrip(), "dim"
    yield trace.rest.strip("\n"), ""


def _fact(name: str, number: float | None, form: str) -> str:
    return "" if number is None or isnan(number) else f"{name} {number:{form}}"
