"""``mrt-hpc doctor``: check that a run can start, before it is submitted."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from mrt_hpc.cli import options
from mrt_hpc.cli.options import site_of_command
from mrt_hpc.cli.terminal import Terminal, echo, echo_json, table_of
from mrt_hpc.cluster.doctor.checks import CheckResult, CheckVerdict
from mrt_hpc.errors import Advice, ExitCode, UserError
from mrt_hpc.recipe.find import RECIPES, find
from mrt_hpc.run.layout import RunLayout, run_path

if TYPE_CHECKING:
    from mrt_hpc.cluster.doctor.situation import Situation

COLOURS = {"fails": "red", "doubtful": "yellow", "not checked": "dim", "ok": "green"}
"""In the order in which verdicts are printed."""


@click.command(short_help="Check that a run can start here.")
@options.site
@click.option("--recipe", "recipe_name", metavar="RECIPE", help="The recipe to check: a path, or a name in recipes.")
@options.overrides
@options.run_directory
@click.option("--on-node", is_flag=True, help="Also ask a compute node of each partition, with a small job.")
@click.option(
    "--wait",
    "wait_minutes",
    type=click.FloatRange(min=0.5),
    default=10.0,
    show_default=True,
    metavar="MINUTES",
    help="How long the small jobs may wait and run.",
)
@click.option("--all", "everything", is_flag=True, help="Also print the checks that are ok.")
@click.option("--json", "as_json", is_flag=True, help="Print all checks as JSON, for programs.")
def doctor(
    site: str | None,
    recipe_name: str | None,
    overrides: tuple[str, ...],
    run: Path | None,
    on_node: bool,
    wait_minutes: float,
    everything: bool,
    as_json: bool,
) -> None:
    """Check the cluster, the site profile, the run directory's filesystem, and the inputs of a recipe.

    Each check has a verdict, what was seen, and what to do. What fails comes first, then what is doubtful or was not
    checked; what is ok is counted. The exit status is 0 if a run can start, and 2 if a check fails. Nothing is kept:
    files that are tried are removed.

    \b
    Examples:
      mrt-hpc doctor
      mrt-hpc doctor --recipe mrt_online --run /shared/me/runs/mrt-online --on-node
      mrt-hpc doctor --recipe quickstart --json
    """
    from mrt_hpc.cluster.doctor.diagnosis import can_start, diagnose
    from mrt_hpc.cluster.doctor.situation import situation_of
    from mrt_hpc.plan.site_limits import check_segments
    from mrt_hpc.recipe.load import load_recipe

    recipe = None if recipe_name is None else load_recipe(find(RECIPES, recipe_name), overrides)
    if recipe is not None:
        check_segments(recipe)
    root = run_path(recipe.name if recipe else "doctor", run)
    chosen = site_of_command(site, RunLayout(root))
    situation = situation_of(chosen.site, recipe, root)
    if on_node:
        situation = _add_node_answers(situation, wait_minutes * 60)
    results = diagnose(situation)
    if (error := chosen.refusal()) is not None:  # nothing names this machine, from which a cluster is used
        results.insert(0, CheckResult("site", CheckVerdict.FAILS, error.evidence, str(error.advice)))
    if as_json:
        echo_json({"can_start": can_start(results), "checks": [asdict(result) for result in results]})
    else:
        print_checks(results, everything=everything)
        echo(_conclusion(results, site, recipe_name, run, asked=on_node or situation.slurm is None))
    if not can_start(results):
        click.get_current_context().exit(int(ExitCode.FATAL))


def _add_node_answers(situation: "Situation", wait_s: float) -> "Situation":
    """The same with the answers of a Slurm cluster's nodes."""

    from mrt_hpc.cluster.doctor.on_node import ask_nodes

    if situation.slurm is None:
        advice = "mrt-hpc doctor --site SITE --on-node"
        raise UserError("this site has no nodes to ask", where="--on-node", advice=advice)
    return replace(situation, answers=ask_nodes(situation, wait_s, lambda sentence: echo(sentence, err=True)))


def print_checks(results: Sequence[CheckResult], *, everything: bool) -> None:
    """The worst verdict first: as a table on a terminal; elsewhere a line for each check, and one for its remedy. Those
    that are ok need ``everything``.
    """
    sorted_by_verdict = sorted(results, key=lambda result: [*COLOURS].index(result.verdict))
    if shown := [result for result in sorted_by_verdict if everything or result.verdict is not CheckVerdict.OK]:
        _print_table(shown)
    if len(shown) < len(results):
        echo("What is ok is printed with --all.")


def _print_table(results: Sequence[CheckResult]) -> None:
    if not sys.stdout.isatty():
        for result in results:
            echo(f"{result.verdict}: {result.check}: {result.evidence}")
            if result.remedy:
                echo(f"  next: {result.remedy}")
        return
    table = table_of(None, "verdict", "what was seen, and what to do")
    for result in results:
        seen = Text.assemble((f"{result.check}: ", "bold"), result.evidence)
        if result.remedy:
            seen.append_text(Text.assemble(("\nnext: ", "bold"), result.remedy))
        table.add_row(Text(result.verdict, COLOURS[result.verdict]), seen)
    Terminal(sys.stdout).print(table)


def _conclusion(
    results: Sequence[CheckResult], site: str | None, recipe: str | None, run: Path | None, *, asked: bool
) -> str:
    counts = {verdict: sum(result.verdict is verdict for result in results) for verdict in CheckVerdict}
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    place = [*(["--site", site] if site else []), *(["--run", run] if run else [])]
    if counts[CheckVerdict.FAILS]:
        return f"{counted}: a run cannot start. Do what stands below failed checks, then type the same command again."
    if not asked:
        options = [*(["--recipe", recipe] if recipe else []), *place, "--on-node"]
        more = Advice("mrt-hpc doctor {options}", options=options)
        return f"{counted}: a run can start. To ask compute nodes too, type {more}"
    submit = Advice("mrt-hpc submit {words}", words=[recipe or "quickstart", *place])
    return f"{counted}: a run can start. Type {submit}"
