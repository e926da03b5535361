"""The options that several commands share, what a shell completes for them, and the group that shows errors."""

import errno
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.shell_completion import CompletionItem
from rich.console import Console

from mrt_hpc.attempt.python_look import light_installation
from mrt_hpc.errors import ExitCode, UserError, in_a_line, nearest, word
from mrt_hpc.recipe.find import RECIPES, SITES, SUITES, Kind, expanded, find, known_names
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import FULL, error_number, shortage

if TYPE_CHECKING:
    from rich.table import Table

    from mrt_hpc.backends.sites import ChosenSite


# -- completion --------------------------------------------------------------------------------------------------------
# What the shell offers after TAB. Nothing here raises: an error in the middle of a command line would only be noise.


RUNS = Path("runs")
"""The folder in which submissions make run directories by default."""
INDICES = 100
"""The most tasks of a job that are offered."""


def _named(kind: Kind, incomplete: str, *more: str) -> list[CompletionItem]:
    """The names of files of a kind, and any file."""
    names = [*more, *known_names(kind)]
    return [
        CompletionItem(incomplete, type="file"),
        *(CompletionItem(name) for name in names if name.startswith(incomplete)),
    ]


def complete_recipe(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of recipes, and files."""
    return _named(RECIPES, incomplete)


def complete_recipe_or_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of recipes, run directories, and files."""
    runs = map(CompletionItem, runs_beginning(incomplete))
    return [*complete_recipe(ctx, param, incomplete), *runs]


def complete_site(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of site profiles, and files."""

    return _named(SITES, incomplete, "local")


def complete_suite(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of suites, and files."""

    return _named(SUITES, incomplete)


def complete_run(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Run directories in ``runs``, and in the folder that was typed so far; and any folder."""
    return [CompletionItem(incomplete, type="dir"), *(CompletionItem(run) for run in runs_beginning(incomplete))]


def runs_beginning(incomplete: str) -> list[str]:
    """The run directories whose paths begin with a text, as they would be typed."""
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    runs = {str(run) for place in (RUNS, folder.expanduser()) for run in _runs_in(place)}
    return sorted(run for run in runs if run.startswith(incomplete))


def _runs_in(folder: Path) -> Iterator[Path]:
    try:
        yield from (plan.parent for plan in folder.glob("*/plan.json"))
    except OSError:
        return


class RunPath(click.Path):
    """A run directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Run directories, and any folder."""
        return complete_run(ctx, param, incomplete)


RUN = RunPath()


def complete_task(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The jobs of the run that was typed before, and tasks of one after its name and ``[``."""
    from mrt_hpc.plan.jobs import read_plan

    try:
        plan = read_plan(Path(ctx.params["run"]) / "plan.json")
    except (UserError, KeyError, TypeError):
        return []
    job_name = incomplete.partition("[")[0]
    if "[" not in incomplete:
        return _beginning((job.name for job in plan.jobs), incomplete)
    tasks = (f"{job.name}[{n}]" for job in plan.jobs if job.name == job_name for n in range(min(job.tasks, INDICES)))
    return _beginning(tasks, incomplete)


def complete_override(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of fields for ``--set``, each with its equals sign; nothing once a value is being typed."""
    if "=" in incomplete:
        return []
    return _beginning((f"{name}=" for name in _recipe_fields()), incomplete)


def complete_fields(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Kinds of files, sections and fields, for ``mrt-hpc fields``."""
    names = _recipe_fields()
    sections = {name.partition(".")[0] for name in names}
    return _beginning(["recipe", "site", *sorted(sections), *names], incomplete)


def _recipe_fields() -> list[str]:
    """Dotted names of the fields of a recipe, without the types of sections, as an override takes them."""
    from mrt_hpc.cli.fields import recipe_fields

    return list(dict.fromkeys(re.sub(r"\[\w+\]", "", field.name) for field in recipe_fields()))


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


# -- options and arguments ---------------------------------------------------------------------------------------------


FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
ROLES = ["prepare", "inference", "trainer", "colocated", "evaluation", "report"]


def checked_run_directory(_: click.Context, __: click.Parameter, text: str | None) -> Path | None:
    """The path given, with ``~`` expanded.

    Raises:
        UserError: the text is empty, which would be the working directory, or the place is a file or below one.
    """
    if text is None:
        return None
    if not text.strip():
        raise UserError("the run directory is empty text", value=text, where="--run", advice="--run runs/NAME")
    path = expanded(text)
    for place in (path, *path.parents):
        if os.path.lexists(place) and not place.is_dir():
            what = "the run directory would be what is no directory, or below it"
            raise UserError(what, where=place, expected="a directory, or nothing yet", advice="--run runs/NAME")
    return path


def _recipe_file(_: click.Context, __: click.Parameter, name: str) -> Path:
    """The recipe of this path or name, which is printed where it is not the path typed.

    Raises:
        UserError: there is none.
    """
    path = find(RECIPES, name)
    if path != expanded(name):
        click.echo(f"recipe: {path}", err=True)
    return path


def _recipe_or_run(context: click.Context, parameter: click.Parameter, name: str) -> Path:
    """The recipe of this path or name, or the run directory of this path.

    Raises:
        UserError: there is neither, or a bare name means both.
    """
    path = expanded(name)
    layout = RunLayout(path)
    if layout.recipe_lock.exists() or layout.plan.exists():
        if name in known_names(RECIPES):
            raise UserError(
                "both a recipe and a run directory have this name",
                value=name,
                expected=f"{find(RECIPES, name)} for the recipe, ./{name} for the run",
                advice=f"mrt-hpc {context.info_name} ./{word(path)}",
            )
        return path
    try:
        return _recipe_file(context, parameter, name)
    except UserError as error:
        if path.is_dir():
            return path  # which is no run, as the command will say
        if (run := nearest(name, map(str, runs_beginning(f"{path.parent}/")))) is None:
            raise error.in_other_words("there is no such recipe or run directory") from error
        raise UserError(
            "there is no such recipe or run directory",
            value=name,
            expected=f"{run} is the nearest",
            advice=f"mrt-hpc {context.info_name} {shlex.quote(run)}",
        ) from error


recipe = click.argument("recipe", callback=_recipe_file, shell_complete=complete_recipe)
option_recipe = click.option(
    "--recipe",
    default="quickstart",
    show_default=True,
    callback=_recipe_or_run,
    shell_complete=complete_recipe_or_run,
    help="The recipe that says how, or a run: its recipe does.",
)
recipe_or_run = click.argument(
    "recipe", metavar="RECIPE|RUN", callback=_recipe_or_run, shell_complete=complete_recipe_or_run
)
site = click.option(
    "--site",
    metavar="SITE",
    shell_complete=complete_site,
    help="Site profile: a path, a name in slurm/sites or ~/.config/mrt-hpc/sites, or local for this machine. Default: "
    "the site of the run, MRT_HPC_SITE, the one in ~/.config/mrt-hpc/settings.yaml, or this machine.",
)
here = click.option(
    "--site", metavar="local", help="Work on this machine, also where jobs of a cluster are submitted from it."
)
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    shell_complete=complete_override,
    help="Set one field of the recipe, as in training.learning_rate=2e-6. Repeatable.",
)
run_directory = click.option(
    "--run",
    type=click.Path(),
    callback=checked_run_directory,
    help="Run directory, on a filesystem that all nodes share. Default: runs/NAME, NAME being the recipe's.",
)
trust = click.option(
    "--trust",
    is_flag=True,
    help="Run the code of a run that another user owns or can change: classes of its own that its recipe names.",
)
WHAT = (
    "WHAT is a run, or an evaluation on its own: RUN@VERSION is a weights version by its number, or the first or last "
    "that its recipe evaluates; RUN is the last; EVALDIR is all models of an evaluation, EVALDIR@NAME one of them. "
    "Runs and evaluations may be mixed."
)
"""How models are named, for the help of the commands that read their samples."""
what = click.argument("what", nargs=-1, required=True, metavar="WHAT...", shell_complete=complete_run)


arms = click.option(
    "--arm",
    "arms",
    multiple=True,
    metavar="NAME=RUN,...",
    help="Runs of one recipe with several training seeds, as one arm. Repeatable.",
)
results = click.option(
    "--results",
    type=FOLDER,
    default=Path("results"),
    show_default=True,
    help="The results folder: samples that are in it are not generated again.",
)
data_folder = click.option("--data", type=FOLDER, help="The folder of all data files, in place of those named.")


def run_path(name: str, run: Path | None) -> Path:
    """The run directory: the one given, or the default for a recipe's name."""
    return (run if run is not None else Path("runs") / name).absolute()


# -- errors: those of the user are shown as text, all others as defects of the program


NO_PLACE = frozenset(
    {
        errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS,
        errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ESTALE, errno.EIO, errno.ETIMEDOUT,
    }
)  # fmt: skip
"""The errors of the system that mean a wrong path or a filesystem that fails, not a defect of the program."""


SECTIONS = {
    "Make a run": (
        "init", "doctor", "recipes", "fields", "validate", "check", "data", "model", "container", "plan", "submit",
        "extend", "fork", "serve",
    ),
    "Watch it": ("status", "runs", "explain", "logs", "cost", "cancel"),
    "See what came of it": ("report", "traces", "eval", "compare", "analyze", "regrade", "judge"),
    "Clean up": ("clean", "sync"),
}  # fmt: skip
"""The commands in the order of their use, by what they are for."""


class CommandGroup(click.Group):
    """Shows a user's error as its text, and every other error as a defect of the program."""

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands section by section; ``resume`` stands in the help of ``submit``."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(formatter.width)) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a UserError becomes its text and exit code."""
        _forget_no_width()
        _print_any_text()
        try:
            return super().invoke(ctx)
        except UserError as error:
            self._show(ctx, error)
        except ModuleNotFoundError as error:
            if (light := light_installation(error)) is None:
                raise
            self._show(ctx, light)
        except OSError as error:
            if error_number(error) in FULL:
                self._show(ctx, full_disk(error))
            # A working directory that is gone: the system then names no file.
            elif error_number(error) in NO_PLACE or (isinstance(error, FileNotFoundError) and error.filename is None):
                self._show(ctx, no_place(error))
            else:
                raise
        except KeyboardInterrupt:
            click.echo("stopped; the same command continues the run", err=True)
            ctx.exit(int(ExitCode.INTERRUPTED))
        except SystemExit as error:  # click itself ends with another exception; a code of 0 would read as success
            self._show(ctx, ended_python(error))

    @staticmethod
    def _show(ctx: click.Context, error: UserError) -> None:
        click.secho("error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(error.message(), err=True)
        ctx.exit(int(error.exit_code))


def _forget_no_width() -> None:
    """Drop a variable COLUMNS that is no width, such as the 0 of a shell without a terminal: tables would be empty."""
    width = os.environ.get("COLUMNS", "")
    if not width.isdecimal() or int(width) == 0:
        os.environ.pop("COLUMNS", None)


def _print_any_text() -> None:
    """Print characters that the terminal's encoding lacks by their numbers: what sites and problems say holds any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def ended_python(error: SystemExit) -> UserError:
    """The error of a command that was ended by what it has called: a class of the user's own, or a library."""
    return UserError(
        "this command has not finished: code that it called ended Python",
        where=in_a_line(error),
        expected="code that returns, or raises an error",
        advice="replace the call of sys.exit there, and type the same command again",
    )


def full_disk(error: OSError) -> UserError:
    """The error of a command that cannot write; tasks of a run wait for space instead."""
    lacking = shortage(error)
    return UserError(
        f"{lacking.what}: {error.strerror or error}",
        where=error.filename,
        advice=f"{lacking.next} ({lacking.shown_by} shows what is left), and type the same command again: no partial "
        "file was left",
        exit_code=ExitCode.RETRYABLE,
    )


def no_place(error: OSError) -> UserError:
    """The error of a command if a file or folder is missing, has another kind, or may not be read or written."""
    where = error.filename if error.filename is not None else "the working directory"
    return UserError(
        f"the file or folder cannot be used: {error.strerror or error}",
        where=where,
        advice="change to a directory that exists and that you own, or name another place where the command has an "
        "option for it (--run DIRECTORY, --output FILE)",
    )


# -- what commands print to


FILE_WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


def console_of(stream: TextIO) -> Console:
    """A console as wide as the terminal or as the variable COLUMNS says; wide where there is neither."""
    return Console(file=stream, width=None if stream.isatty() or os.environ.get("COLUMNS") else FILE_WIDTH)


def table_of(title: str | None, *columns: str, right: Collection[str] = ()) -> "Table":
    """A table without rows, whose columns fold long texts; the numbers of some stand on the right."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def print_notes(notes: Iterable[str]) -> None:
    """Print what a reader has to know beside the numbers, a line each."""
    for note in notes:
        click.echo(f"note: {note}")


def site_of_command(name: str | None, *runs: RunLayout, trust: bool = False) -> "ChosenSite":
    """The site of a command as :func:`chosen_site` finds it, which is printed where the command does not name it.

    Raises:
        UserError: there is no such site.
    """
    from mrt_hpc.backends.sites import chosen_site

    chosen = chosen_site(name, *runs, trust=trust)
    if chosen.why:
        click.echo(chosen.text, err=True)
    return chosen
