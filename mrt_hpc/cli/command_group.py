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
_WRONG_PATHS = "ENOENT EEXIST ENOTDIR EISDIR ENAMETOOLONG ELOOP ENXIO ENOTEMPTY"
NO_PLACE = frozenset(getattr(errno, name) for name in _WRONG_PATHS.split())
"""The path is wrong, and not the program."""
SECTIONS = {
    "Make a run": "init doctor recipes fields check data model container plan submit fork",
    "Watch it": "status runs explain logs cost cancel",
    "See what came of it": "report traces eval compare analyze regrade judge",
    "Clean up": "clean sync",
}
CONTINUED = frozenset({"submit", "resume", "fork", "eval", "analyze"})
"""They go on with what they have begun."""
KEEPS_NOTHING = "mrt_hpc.keeps_nothing"  # in the context of a command that does not


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
                helps = ((name, self.commands[name].get_short_help_str(formatter.width)) for name in names.split())
                formatter.write_dl(list(helps))

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
            goes_on = ctx.invoked_subcommand in CONTINUED and KEEPS_NOTHING not in ctx.meta
            echo(f"stopped{'; the same command continues the run' if goes_on else ''}", err=True)
            ctx.exit(int(ExitCode.INTERRUPTED))
        except SystemExit as error:  # click itself ends with another exception; a code of 0 would read as success
            what = "this command has not finished: code that it called ended Python"
            advice = "replace the call of sys.exit there, and type the same command again"
            expected = "code that returns, or raises an error"
            self._show(ctx, UserError(what, where=error_line(error), expected=expected, advice=advice))

    @staticmethod
    def _show(ctx: click.Context, error: UserError) -> None:
        echo("error: ", "bold red", err=True, end="")
        echo(error.message(), err=True)
        ctx.exit(int(error.exit_code))


def filesystem_error(error: OSError) -> UserError:
    """The filesystem refuses a file or folder; tasks of a run wait for space instead."""
    number = error_number(error)
    advice = filesystem_advice(error)
    if number in WITHHELD:
        advice = Advice("{advice}; or name another file or folder", advice=advice)
    elif number not in FULL | FLEETING:
        advice = Advice("change to a directory that exists and that you own, or name another file or folder")
    name = error.filename
    # by the name that its user knows
    where = finished_name(Path(os.fsdecode(name))) if isinstance(name, str | bytes) else "the working directory"
    return UserError(
        f"{shortage(error).what if number in FULL else 'the file or folder cannot be used'}: {error.strerror or error}",
        where=where,
        advice=Advice("{advice}: no partial file was left", advice=advice) if number in FULL else advice,
        exit_code=ExitCode.RETRYABLE if number in FULL | FLEETING else ExitCode.FATAL,
    )
