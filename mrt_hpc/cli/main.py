"""The ``mrt-hpc`` command. Every command imports what it needs when it runs, so that help and plan answer at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mrt_hpc
from mrt_hpc.cli import options
from mrt_hpc.cli.analyze import analyze
from mrt_hpc.cli.command_group import CommandGroup
from mrt_hpc.cli.completion import complete_fields, complete_suite
from mrt_hpc.cli.container import container
from mrt_hpc.cli.cost import cost
from mrt_hpc.cli.data import data, model
from mrt_hpc.cli.doctor import doctor
from mrt_hpc.cli.init import init
from mrt_hpc.cli.judge import judge
from mrt_hpc.cli.life import cancel, clean, fork, sync
from mrt_hpc.cli.logs import logs
from mrt_hpc.cli.options import RunName, RunPath, RunUse
from mrt_hpc.cli.printed_traces import traces
from mrt_hpc.cli.recipes import recipes
from mrt_hpc.cli.status import explain, report, runs, status
from mrt_hpc.cli.terminal import echo
from mrt_hpc.cli.try_class import check
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.run.layout import RunLayout, run_path

if TYPE_CHECKING:
    from mrt_hpc.run.family import Axis


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(mrt_hpc.__version__, prog_name="mrt-hpc")
def main() -> None:
    """Meta Reinforcement Fine-Tuning of language models on Slurm clusters.

    \b
    A first run, on this machine, without Slurm or GPU:
      mrt-hpc submit quickstart
    \b
    On a cluster:
      mrt-hpc init   mycluster
      mrt-hpc doctor --on-node
      mrt-hpc plan   mrt_online
      mrt-hpc submit mrt_online
      mrt-hpc status runs/mrt-online-1.5b
    \b
    Shell completion (bash; zsh and fish alike):
      eval "$(_MRT_HPC_COMPLETE=bash_source mrt-hpc)"
    """


@main.command(short_help="Show what a recipe would submit.")
@options.recipes_or_run(RunUse.LOOKS)
@click.option("--sbatch", "show_sbatch", is_flag=True, help="Print the exact sbatch texts; job ids are placeholders.")
@click.option("--json", "as_json", is_flag=True, help="Jobs, expected hours and memory as one JSON object.")
def plan(
    what: list[Path], axes: "list[Axis]", site: str | None, *, show_sbatch: bool, as_json: bool, **typed: Any
) -> None:
    """Print the jobs of RECIPE (or of RUN, as it is) without submitting them: arrays, dependencies, resources,
    GPU-hours, and memory by role. Of several recipes, or with --sweep, print the jobs and hours of the whole family.

    \b
    Examples:
      mrt-hpc plan mrt_online
      mrt-hpc plan mrt_online --site mycluster --sbatch
      mrt-hpc plan mrt_online --shape one_gpu
      mrt-hpc plan mrt_online --set schedule.iterations_per_job=62
      mrt-hpc plan grpo mrt_online_look_ahead --sweep seed=0..4
    """
    from mrt_hpc.cli.plan import print_plan
    from mrt_hpc.cli.submit import plan_sweep
    from mrt_hpc.cli.sweep_plan import print_sweep

    if (axes or len(what) > 1) and show_sbatch:
        raise click.UsageError("--sbatch prints the texts of one run: name one recipe, and leave --sweep out")
    if axes or len(what) > 1:
        print_sweep(plan_sweep(what, axes, **typed), site, as_json=as_json)
    else:
        print_plan(what[0], site, show_sbatch=show_sbatch, as_json=as_json, **typed)


@main.command("submit", short_help="Run a recipe, here or on Slurm; or continue a run.")
@options.recipes_or_run(RunUse.WRITES)
@click.option(
    "--at-once",
    type=click.IntRange(1),
    help="Runs of a sweep that go side by side; on this machine they go one after the other. Default: all.",
)
def submit_recipe(what: list[Path], axes: "list[Axis]", at_once: int | None, site: str | None, **typed: Any) -> None:
    """Run RECIPE at a site: a Slurm cluster, or this machine. Or continue RUN, a run directory.

    `mrt-hpc init` describes a cluster, and makes it the site of all your commands. A run that is continued stays where
    it is; --site moves it. Finished results stay. `mrt-hpc resume RUN` is the same command.

    --sweep makes a family: a directory with a run for each combination of values. So do several recipes, each of which
    is run with each of these values. Each is a run like any other; `plan` says before what all of them take, and
    `submit`, `status`, `explain`, `cost`, `cancel`, `compare` and `report` take the directory of the family too.

    \b
    Examples:
      mrt-hpc submit quickstart
      mrt-hpc submit quickstart --set seed=1 --run runs/quickstart-1
      mrt-hpc submit quickstart --site local
      mrt-hpc submit runs/quickstart
      mrt-hpc submit quickstart --sweep seed=0..2 --sweep algorithm.alpha=0.5,1
      mrt-hpc submit grpo mrt_online_look_ahead --sweep seed=0..4 --at-once 2
    """
    from mrt_hpc.cli.submit import plan_sweep, submit, submit_sweep

    if axes or len(what) > 1:
        submit_sweep(plan_sweep(what, axes, **typed), site, at_once)
    else:
        submit(what[0], site, **typed)


main.add_command(submit_recipe, "resume")


@main.command("eval", short_help="Evaluate models or weights versions on a suite.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL_OR_RUN...", type=RunName(RunUse.COPIES))
@click.option(
    "--suite", required=True, shell_complete=complete_suite, help="The suite: a path, or a name in recipes/suites."
)
@options.site
@options.overrides
@options.results
@options.data_folder
@options.run_directory
@click.option("--plan", "plan_only", is_flag=True, help="Show the jobs without submitting them.")
def evaluate(
    models: tuple[str, ...], suite: str, site: str | None, run: Path | None, plan_only: bool, **typed: Any
) -> None:
    """Evaluate models on a suite: model directories, models of the hub (hub:OWNER/NAME), and weights versions of runs.

    RUN means its last weights version, RUN@first,20,last the ones named. Versions that a queued training will publish
    are waited for. Samples that the results folder has are used, also those of other runs and users.

    \b
    Examples:
      mrt-hpc eval runs/quickstart@0,last --suite small_world
      mrt-hpc eval models/DeepSeek-R1-Distill-Qwen-1.5B runs/grpo --suite paper_20
      mrt-hpc eval runs/grpo --suite paper_20 --plan
    """
    from mrt_hpc.cli.plan import print_whole
    from mrt_hpc.cli.submit import listener
    from mrt_hpc.evaluate.asked_models import models_asked, refuse_lost_models
    from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe, submit_evaluation
    from mrt_hpc.plan.compile import evaluation_plan

    asked = models_asked(models)
    recipe = evaluation_recipe(asked, suite, **typed)
    root = run_path(recipe.name, run)
    chosen = options.site_of_command(site, RunLayout(root))
    if plan_only:
        refuse_lost_models(recipe, root)
        print_whole(evaluation_plan(recipe, chosen.site), recipe, chosen, RunLayout(root), "eval")
        return
    submit_evaluation(recipe, asked.awaited, chosen.ensure_usable().site, root, listener())
    echo(f"run directory: {root}")


@main.command(short_help="Judge stored samples again with today's grader.")
@click.argument("runs", nargs=-1, required=True, type=RunPath(RunUse.WRITES), metavar="RUN...")
@options.here
def regrade(runs: tuple[Path, ...], site: str | None) -> None:
    """Judge the samples of the evaluations of RUN again on this machine, without generating anything, and show which
    verdicts changed.

    \b
    Examples:
      mrt-hpc regrade runs/quickstart
    """
    from mrt_hpc.backends.sites import refuse_work_here
    from mrt_hpc.cli.compare import regrade as regrade_runs

    refuse_work_here(site)
    regrade_runs(runs)


@main.command(short_help="Compare models or recipes problem by problem.", epilog=options.WHAT)
@click.argument("what", nargs=-1, metavar="[WHAT]...", type=RunName(RunUse.LOOKS))
@options.arms
@click.option(
    "--benchmark", "benchmarks", multiple=True, metavar="NAME", help="Repeatable. Default: all that the models share."
)
@click.option(
    "--measure",
    "measures",
    multiple=True,
    default=("pass@1",),
    show_default=True,
    metavar="NAME",
    help="pass@K, maj@K, regret@TOKENS or tokens. Repeatable.",
)
@click.option(
    "--difference",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="POINTS",
    help="How many problems or samples show this difference? Per cent of the first model's tokens for tokens.",
)
@click.option("--csv", type=options.FILE, help="Also write the numbers to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
@click.option("--published", is_flag=True, help="Print the published results of MRT beside.")
@click.option("--paired", is_flag=True, help="Compare arms seed by seed, whose runs of one seed began alike.")
@options.trust
def compare(what: tuple[str, ...], arms: tuple[str, ...], **asked: Any) -> None:
    """Compare evaluated models, or arms of several training seeds, with the first one named, paired by problem.

    A single RUN compares its first version with its last, a single EVALDIR its first model with the others. Every
    difference has a 95 % interval, and a verdict that says what the number of problems and seeds can show. A verdict
    on a single run is about a trained model, and not about its recipe.

    \b
    Examples:
      mrt-hpc compare runs/quickstart
      mrt-hpc compare runs/grpo@last runs/mrt@last runs/mrt-online@last --measure pass@1 --measure maj@8
      mrt-hpc compare runs/mrt@0 runs/mrt@248 --measure regret@8192 --difference 0.5 --csv regret.csv
      mrt-hpc compare runs/eval-paper_20@grpo@248 runs/paper-20@mrt@248
      mrt-hpc compare --arm grpo=runs/grpo-0,runs/grpo-1,runs/grpo-2 --arm mrt=runs/mrt-0,runs/mrt-1,runs/mrt-2
    """
    from mrt_hpc.cli.compare import print_comparison

    if not (what or arms):
        raise click.UsageError("name what is compared: WHAT..., or --arm NAME=RUN,...")
    print_comparison(what, arms, **asked)


@main.command(short_help="List the fields of a recipe or a site profile.")
@click.argument("words", nargs=-1, metavar="[recipe|site] [FIELD]", shell_complete=complete_fields)
@click.option(
    "--markdown", type=options.FOLDER, metavar="DIRECTORY", help="Write all of them to pages in this folder instead."
)
@options.as_json
def fields(words: tuple[str, ...], markdown: Path | None, as_json: bool) -> None:
    """List the fields of a recipe (or a site profile), with values, defaults and meanings: all, those of one section,
    those whose name holds a word, or those that TRL, verl or prime-rl call by another name.

    \b
    Examples:
      mrt-hpc fields
      mrt-hpc fields training
      mrt-hpc fields clip
      mrt-hpc fields num_generations
      mrt-hpc fields algorithm.mrt_online
      mrt-hpc fields site
      mrt-hpc fields --markdown docs/reference
    """
    from mrt_hpc.cli.fields import print_fields, write_reference

    if markdown is None:
        print_fields(words, as_json=as_json)
        return
    if words:
        advice = Advice("mrt-hpc fields --markdown {markdown}", markdown=markdown)
        raise UserError("the pages hold all fields", value=" ".join(words), advice=advice)
    for path in write_reference(markdown):
        echo(f"written: {path}")


for command in (
    analyze, cancel, check, clean, container, cost, data, doctor, explain, fork, init, judge, logs, model,
    recipes, report, runs, status, sync, traces,
):  # fmt: skip
    main.add_command(command)
