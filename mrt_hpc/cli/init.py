"""``mrt-hpc init``: describe a cluster in a site profile."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mrt_hpc.attempt.python_look import fields_without_gpus
from mrt_hpc.cli import options
from mrt_hpc.cli.terminal import echo
from mrt_hpc.cluster.login_node import LoginNode, look_at_login_node
from mrt_hpc.errors import Advice, UserError, visible
from mrt_hpc.recipe.find import absolute

if TYPE_CHECKING:
    from mrt_hpc.backends.slurm.survey import Survey
    from mrt_hpc.cluster.questions import Question, Wishes


@click.command(short_help="Describe this cluster in a site profile.")
@click.argument("name", required=False)
@click.option("--yes", is_flag=True, help="Ask nothing: take the proposed value wherever there is a choice.")
@click.option("--account", help="The account that jobs are charged to.")
@click.option("--partition", help="The partition of jobs without GPUs.")
@click.option("--gpu-partition", help="The partition of jobs with GPUs.")
@click.option("--qos", help="The quality of service of jobs.")
@click.option("--gpu-type", help="The GPU type that jobs ask for, as in a100.")
@click.option("--python", help="The Python of the compute nodes. Default: the one that runs this command.")
@click.option("--image", help="An Apptainer image in which tasks run.")
@click.option("--scratch", help="A folder on each node for temporary files, as in '/scratch/$USER/$SLURM_JOB_ID'.")
@click.option("--setup", multiple=True, metavar="LINE", help="A shell line before each task. Repeatable.")
@click.option("--output", type=options.FILE, help="The file to write. Default: ~/.config/mrt-hpc/sites/NAME.yaml.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def init(name: str | None, yes: bool, image: str | None, output: Path | None, force: bool, **wished: Any) -> None:
    """Look at the cluster, and write a site profile NAME with the reason beside each value.

    Asks what Slurm does not say, and where there is a choice. NAME is the cluster's own name unless it is given. The
    profile is a text file: change it as you like. It becomes the site of all your commands, unless --output names a
    file. The line `site:` of ~/.config/mrt-hpc/settings.yaml names another, and so does the variable MRT_HPC_SITE.

    \b
    Examples:
      mrt-hpc init
      mrt-hpc init mycluster --yes
      mrt-hpc init mycluster --account my-project --gpu-partition a100 --setup 'module load gcc'
    """
    from mrt_hpc.backends.slurm.survey import survey
    from mrt_hpc.backends.user_settings import read_settings, write_default_site
    from mrt_hpc.cluster.profile_file import profile_path, refuse_existing, site_name, write_profile
    from mrt_hpc.cluster.questions import Wishes, open_questions

    before, surveyed, node = read_settings().site, survey(), look_at_login_node()
    name = site_name(name, surveyed)
    path = profile_path(name) if output is None else absolute(output)
    if not force:
        refuse_existing(path)
    whole = None if image is None else str(absolute(Path(image).expanduser()))  # the profile is read from every folder
    answered = _answer_questions(surveyed, node, Wishes(name, image=whole, **wished), yes=yes)
    write_profile(path, surveyed, node, answered, force=force)
    _print_seen(surveyed, node)
    echo(f"wrote {path}")
    for question in open_questions(surveyed, node, answered):
        echo(f"still open: {question.text}.")
        echo(f"  next: write it into the profile, or type the command again with {question.option} VALUE --force")
    if output is None:
        write_default_site(name)
        _print_default(name, before)
    _print_next(node, None if output is None else path)


def _answer_questions(surveyed: "Survey", node: LoginNode, wishes: "Wishes", *, yes: bool) -> "Wishes":
    """With ``--yes`` the proposed answers, else the user's at a terminal."""
    from mrt_hpc.cluster.questions import open_questions, take_proposals

    if yes:
        return take_proposals(surveyed, node, wishes)
    while questions := open_questions(surveyed, node, wishes):
        question, option = questions[0], questions[0].option
        if not _is_terminal():
            raise UserError(
                f"this has to be asked, and there is no terminal: {question.text}",
                expected=f"one of {', '.join(question.choices)}" if question.choices else None,
                advice=Advice("add {option} VALUE, or --yes to take the proposed value of everything", option=option),
            )
        wishes = wishes.take_answer(question, _answer(question))
    return wishes


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _answer(question: "Question") -> str:
    """An empty answer to a free question leaves the value out."""
    text, choices = visible(question.text), question.choices
    answer: str = (
        click.prompt(text, type=click.Choice(choices), default=question.proposal)
        if choices
        else click.prompt(f"{text}; empty to leave it out", default="", show_default=False)
    )
    return answer


def _print_seen(surveyed: "Survey", node: LoginNode) -> None:
    for problem in dict.fromkeys(surveyed.problems.values()):
        commands = [command.split(" format=")[0] for command, reason in surveyed.problems.items() if reason == problem]
        echo(f"not seen: {problem} ({'; '.join(commands)})")
    if node.filesystems:
        echo("folders for runs, the best first:")
    best = node.place_for_runs
    for disk in sorted(node.filesystems, key=lambda disk: disk is not best):
        echo(f"  {disk.path}: {'shared' if disk.is_shared else 'not known to be shared'}, {disk.facts_text()}")


def _print_default(site: str, before: str | None) -> None:
    from mrt_hpc.backends.user_settings import VARIABLE, settings_file

    was = f" (it was {before})" if before not in (None, site) else ""
    echo(f"all your commands take the site {site} now{was}: it is the line `site:` of {settings_file()}")
    echo(f"  another one: --site SITE for one command, {VARIABLE}=SITE for a shell; `local` is this machine")
    if named := os.environ.get(VARIABLE):
        echo(f"  this shell has {VARIABLE}={named}, which stands above that line: unset {VARIABLE}")


def _print_next(node: LoginNode, profile: Path | None) -> None:
    """A profile in a file of its own applies only to commands that name it; servers of a Python that samples on GPUs
    only need one.
    """
    from mrt_hpc.backends.sites import find_site
    from mrt_hpc.recipe.find import RECIPES, find
    from mrt_hpc.recipe.load import load_recipe

    place = node.place_for_runs
    run = (Path() if place is None else place.path) / "runs" / "quickstart-slurm"
    quickstart = load_recipe(find(RECIPES, "quickstart"))
    site = [] if profile is None else ["--site", profile]
    on_gpus_only = find_site(None if profile is None else str(profile)).backend().samples_on_gpus_only()
    sets = [word for field in fields_without_gpus(quickstart) if on_gpus_only for word in ("--set", f"{field}=1")]
    options = ["--run", run, *site, *sets]
    echo("next:")
    echo(Advice("  mrt-hpc doctor --recipe quickstart {options} --on-node", options=options))
    echo(Advice("  mrt-hpc submit quickstart {options}", options=options))
