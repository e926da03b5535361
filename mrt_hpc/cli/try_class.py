"""``mrt-hpc check``: try a class that a recipe may name."""

import sys
from pathlib import Path

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.options import RunPath, RunUse
from mrt_hpc.cli.terminal import Terminal, echo, table_of
from mrt_hpc.errors import Advice, ExitCode, UserError


@click.command(short_help="Try a class of your own on a stored iteration, or in worlds that are known exactly.")
@click.argument("name", metavar="MODULE:CLASS")
@click.option("--run", type=RunPath(RunUse.LOOKS), help="A run with rollouts, such as runs/quickstart.")
@click.option(
    "--iteration", type=click.IntRange(min=0), help="The iteration, counted from 0. Default: the last sampled."
)
@click.option("--referee", is_flag=True, help="Compare an algorithm with the exact gradient, without a run.")
@options.overrides
def check(name: str, run: Path | None, iteration: int | None, referee: bool, overrides: tuple[str, ...]) -> None:
    """Try an algorithm, a prover, a loss, a verifier or a way of evaluating of your own on rollouts that RUN has
    stored, in seconds, without a server and without a GPU.

    The class is put into the recipe of RUN, without a prover that an algorithm does not use. An algorithm learns the
    iteration; a prover and a way of evaluating get stored tokens for answers; a loss gets made-up tokens; a verifier
    judges stored and odd texts. The exit status is 0 if the class keeps what a run takes for granted, and 2 otherwise.

    With --referee an algorithm learns worlds of a few decisions, in which all values and the gradient of the expected
    reward are known: does it lead to more reward, at what cost, and with more signal than on shuffled progress?

    \b
    Examples:
      mrt-hpc check my_method:LastEpisode --run runs/quickstart
      mrt-hpc check my_method:LastEpisode --run runs/quickstart --set algorithm.weight=0.5
      mrt-hpc check my_verifier:same_words --run runs/quickstart --iteration 0
      mrt-hpc check my_method:GainsOnly --referee
    """
    if referee:
        _compare_in_worlds(name, overrides)
    elif run is None:
        raise UserError(
            "a class is tried on a run or in small worlds, and neither is named",
            value=name,
            advice=Advice("mrt-hpc check {name} --run RUN, or --referee in its place", name=name),
        )
    else:
        _check_in_run(name, run, iteration, overrides)


def _check_in_run(name: str, run: Path, iteration: int | None, overrides: tuple[str, ...]) -> None:
    from mrt_hpc.testing.class_in_run import ClassInRun

    asked = ClassInRun.of(name, run, iteration, overrides)
    echo(f"{name} in the recipe of {run}, with {len(asked.rollouts)} rollouts of iteration {asked.iteration}")
    broken = False
    for promise in asked.promises():
        stops = bool(promise.broken) and promise.stops
        broken |= stops
        word, colour = ("failed", "red") if stops else ("doubt", "yellow") if promise.broken else ("ok", "green")
        echo(f"{word:<7}", colour, end="")
        echo(f"{promise.text}{promise.broken and f': {promise.broken}'}")
    if broken:
        click.get_current_context().exit(int(ExitCode.FATAL))


def _compare_in_worlds(name: str, overrides: tuple[str, ...]) -> None:
    from mrt_hpc.analysis.estimator_signals import interval_text
    from mrt_hpc.testing import referee

    columns = ("world", "estimator", "signal to noise", "over grpo", "at equal tokens", "cosine with the gradient")
    table = table_of(f"A batch of {referee.BATCH_GROUPS} problems with {referee.ROLLOUTS} rollouts each", *columns)
    verdicts = []
    for finding in referee.world_findings(referee.judged_class(name, overrides), name):
        for number, estimator in enumerate(finding.names[1:], 1):
            ratios = finding.ratio(number, referee.GRPO), finding.ratio_for_tokens(number, referee.GRPO)
            cells = (finding.snr(number), *ratios, finding.cosine(number))
            table.add_row(finding.world.name, estimator, *map(interval_text, cells))
        verdicts.append(finding.verdict)
    Terminal(sys.stdout).print(table)
    for verdict in verdicts:
        echo(verdict)
