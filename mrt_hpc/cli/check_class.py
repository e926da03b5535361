"""``mrt-hpc check``: a class of the user's own on a stored iteration."""

from __future__ import annotations

from pathlib import Path

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.completion import RUN
from mrt_hpc.errors import ExitCode


@click.command(short_help="Try a class of your own on a stored iteration.")
@click.argument("name", metavar="MODULE:CLASS")
@click.option("--run", type=RUN, required=True, help="A run with rollouts, such as runs/quickstart.")
@click.option(
    "--iteration", type=click.IntRange(min=0), help="The iteration, counted from 0. Default: the last sampled."
)
@options.overrides
def check(name: str, run: Path, iteration: int | None, overrides: tuple[str, ...]) -> None:
    """Try an algorithm, a prover, a verifier or a way of evaluating of your own on rollouts that RUN has stored, in
    seconds, without a server and without a GPU.

    The class is put into the recipe of RUN, without the prover there where an algorithm makes no use of one. An
    algorithm learns the iteration; a prover and a way of evaluating get stored tokens for answers; a verifier judges
    stored and odd texts. The exit status is 0 if the class keeps what a run takes for granted, and 2 otherwise.

    \b
    Examples:
      mrt-hpc check my_method:LastEpisode --run runs/quickstart
      mrt-hpc check my_method:LastEpisode --run runs/quickstart --set algorithm.weight=0.5
      mrt-hpc check my_verifier:same_words --run runs/quickstart --iteration 0
    """
    from mrt_hpc.evaluate.class_check import ClassCheck

    asked = ClassCheck.of(name, run, iteration, overrides)
    click.echo(f"{name} in the recipe of {run}, with {len(asked.rollouts)} rollouts of iteration {asked.iteration}")
    broken = False
    for promise in asked.promises():
        stops = bool(promise.broken) and promise.stops
        broken |= stops
        word, colour = ("failed", "red") if stops else ("doubt", "yellow") if promise.broken else ("ok", "green")
        click.secho(f"{word:<7}", fg=colour, nl=False)
        click.echo(f"{promise.text}{promise.broken and f': {promise.broken}'}")
    if broken:
        click.get_current_context().exit(int(ExitCode.FATAL))
