"""What commands show of errors: those of the user as text, all others as defects of the program."""

from __future__ import annotations

import errno
import os
import sys
from io import TextIOWrapper
from typing import Any

import click

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.retries import FULL, error_number, shortage

NO_PLACE = frozenset(
    {
        errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS,
        errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ESTALE, errno.EIO, errno.ETIMEDOUT,
    }
)  # fmt: skip
"""The errors of the system that mean a wrong path or a filesystem that fails, not a defect of the program."""


class CommandGroup(click.Group):
    """Shows a user's error as its text, and every other error as a defect of the program."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a UserError becomes its text and exit code."""
        _forget_no_width()
        _print_any_text()
        try:
            return super().invoke(ctx)
        except UserError as error:
            self._tell(ctx, error)
        except ModuleNotFoundError as error:
            from mrt_hpc.launch.python_look import light_installation

            if (light := light_installation(error)) is None:
                raise
            self._tell(ctx, light)
        except OSError as error:
            if error_number(error) in FULL:
                self._tell(ctx, full_disk(error))
            elif error_number(error) in NO_PLACE or _working_directory_is_gone(error):
                self._tell(ctx, no_place(error))
            else:
                raise
        except KeyboardInterrupt:
            click.echo("stopped; the same command continues the run", err=True)
            ctx.exit(int(ExitCode.INTERRUPTED))

    @staticmethod
    def _tell(ctx: click.Context, error: UserError) -> None:
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


def _working_directory_is_gone(error: OSError) -> bool:
    """Whether the working directory does not exist: the system then names no file."""
    return isinstance(error, FileNotFoundError) and error.filename is None


def no_place(error: OSError) -> UserError:
    """The error of a command if a file or folder is missing, has another kind, or may not be read or written."""
    where = error.filename if error.filename is not None else "the working directory"
    return UserError(
        f"the file or folder cannot be used: {error.strerror or error}",
        where=where,
        advice="change to a directory that exists and that you own, or name another place where the command has an "
        "option for it (--run DIRECTORY, --output FILE)",
    )
