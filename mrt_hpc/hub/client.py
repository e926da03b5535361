"""Tells the errors of the hub's client as errors that a user can fix."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mrt_hpc.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def hub_errors(asked: str, elsewhere: str) -> Iterator[None]:
    """Turn the errors of the hub's client within the block into errors that a user can fix.

    Args:
        asked: the name that was asked for.
        elsewhere: what to do where this node has no network.

    Raises:
        UserError: the client is not installed, the hub refuses or cannot be reached, or a file arrived incomplete.
    """
    try:
        from huggingface_hub import errors
    except ModuleNotFoundError as error:
        raise UserError(
            "the client of the hub is not installed",
            value=error.name,
            expected="the package huggingface-hub, which only fetching needs",
            advice="type the command with the .venv that env/setup makes, or: pip install huggingface-hub",
        ) from error
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise UserError(
            f"the hub refuses: {_first_line(error)}",
            value=asked,
            advice="correct the name or the revision; where the hub asks who you are, type: hf auth login",
        ) from error
    except (
        errors.HTTPError,
        errors.OfflineModeIsEnabled,
        errors.LocalEntryNotFoundError,
        errors.XetDownloadError,
    ) as error:
        raise UserError(
            f"the hub cannot be reached: {_first_line(error)}",
            value=asked,
            advice=elsewhere,
            exit_code=ExitCode.RETRYABLE,
        ) from error
    except OSError as error:
        if error.errno is not None:  # an error of the system, such as a full disk
            raise
        raise UserError(
            f"a file was not downloaded completely: {_first_line(error)}",
            value=asked,
            advice="the same command again: it fetches only what is missing",
            exit_code=ExitCode.RETRYABLE,
        ) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
