"""The group of all commands: it shows a user's error as its text, and every other error as a defect of the program."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import click

from mrt_hpc.attempt.python_look import light_installation
from mrt_hpc.cli.terminal import ClosedPipe, echo, prepare_streams
from mrt_hpc.errors import Advice, ExitCode, UserError, error_line
from mrt_hpc.run.atomic import finished_name
from mrt_hpc.run.process import forget_other_pythons
from mrt_hpc.run.retries import FLEETING, FULL, error_number, filesystem_advice, shortage

WITHHELD = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The file's owner or filesystem does not let it be used."""
NO_PLACE = frozenset(
    {
        errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO,
        errno.ENOTEMPTY,
    }
)  # fmt: skip
"""The path is wrong, and not the program."""
SECTIONS = {
    "Make a run": (
        "init", "doctor", "recipes", "fields", "check", "data", "model", "container", "plan", "submit",
        "fork",
    ),
    "Watch it": ("status", "runs", "explain", "logs", "cost", "cancel"),
    "See what came of it": ("report", "traces", "eval", "compare", "analyze", "regrade", "judge"),
    "Clean up": ("clean", "sync"),
}  # fmt: skip
CONTINUED = frozenset({"submit", "resume", "fork", "eval", "analyze"})
"""They go on with what they have begun."""


class CommandGroup(click.Group):
    """Shows a user's error as its text, and every other error as a defect of the program."""

    def main(self, *words: Any, **options: Any) -> Any:
        """Where click itself met a closed pipe, as in a help page, the exit code is ours."""
        stream = sys.stdout  # in whose place click puts another one then
        try:
            return super().main(*words, **options)
        except SystemExit:
            if sys.stdout is not stream:
                sys.exit(int(ExitCode.CLOSED_PIPE))
            raise

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """``resume`` stands in the help of ``submit``."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(formatter.width)) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        forget_other_pythons()
        prepare_streams()
        try:
            return super().invoke(ctx)
        except UserError as error:
            self._show(ctx, error)
        except ModuleNotFoundError as error:
            if (light := light_installation(error)) is None:
                raise
            self._show(ctx, light)
        except OSError as error:
            # A working directory that is gone: the system then names no file.
            is_gone = isinstance(error, FileNotFoundError) and error.filename is None
            if not is_gone and error_number(error) not in FULL | FLEETING | WITHHELD | NO_PLACE:
                raise
            self._show(ctx, filesystem_error(error))
        except ClosedPipe:
            ctx.exit(int(ExitCode.CLOSED_PIPE))
        except KeyboardInterrupt:
            goes_on = "; the same command continues the run" if ctx.invoked_subcommand in CONTINUED else ""
            echo(f"stopped{goes_on}", err=True)
            ctx.exit(int(ExitCode.INTERRUPTED))
        except SystemExit as error:  # click itself ends with another exception; a code of 0 would read as success
            self._show(ctx, ended_python(error))

    @staticmethod
    def _show(ctx: click.Context, error: UserError) -> None:
        echo("error: ", "bold red", err=True, end="")
        echo(error.message(), err=True)
        ctx.exit(int(error.exit_code))


def ended_python(error: SystemExit) -> UserError:
    """A class of the user's own, or a library, has ended the command."""
    return UserError(
        "this command has not finished: code that it called ended Python",
        where=error_line(error),
        expected="code that returns, or raises an error",
        advice="replace the call of sys.exit there, and type the same command again",
    )


def filesystem_error(error: OSError) -> UserError:
    """The filesystem refuses a file or folder; tasks of a run wait for space instead."""
    number = error_number(error)
    advice = filesystem_advice(error)
    if number in WITHHELD:
        advice = Advice("{advice}; or name another file or folder", advice=advice)
    elif number not in FULL | FLEETING:
        advice = Advice("change to a directory that exists and that you own, or name another file or folder")
    return UserError(
        f"{shortage(error).what if number in FULL else 'the file or folder cannot be used'}: {error.strerror or error}",
        where=_place(error) or "the working directory",
        advice=Advice("{advice}: no partial file was left", advice=advice) if number in FULL else advice,
        exit_code=ExitCode.RETRYABLE if number in FULL | FLEETING else ExitCode.FATAL,
    )


def _place(error: OSError) -> Path | None:
    """By the name that its user knows."""
    return finished_name(Path(os.fsdecode(error.filename))) if isinstance(error.filename, str | bytes) else None
