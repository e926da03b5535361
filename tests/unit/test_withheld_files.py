"""A file that the filesystem withholds may be whole: no command advises to remove it, or ends with a traceback."""

import errno
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from basics import TRAINER
from canned_queue import CannedRun, submitted_run
from click.testing import CliRunner
from commands import refusal
from situations import FAILED
from submitted import age

from mrt_hpc.attempt.ledger import newest_numbers, record_cancellation, record_site, remember_site, submissions
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import ExitCode
from mrt_hpc.run.manifest import unreadable
from mrt_hpc.run.retries import filesystem_advice

_withheld: dict[str, int] = {}
"""The errors with which the files of these paths are not opened in this process."""


def _withhold(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.scandir") and _withheld and (number := _withheld.get(os.fspath(arguments[0]))):  # type: ignore[call-overload]
        raise OSError(number, os.strerror(number), arguments[0])


sys.addaudithook(_withhold)


@contextmanager
def withheld(path: Path, number: int) -> Iterator[None]:
    _withheld[str(path)] = number
    try:
        yield
    finally:
        _withheld.clear()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    """A run whose trainer has failed, with all records that a cluster leaves."""
    run = submitted_run(tmp_path, monkeypatch)
    for record in (record_site, remember_site):
        record(run.layout, SlurmSite(name="cluster"))
    record_cancellation(run.layout, newest_numbers(run.layout), stopped=True)
    run.command("scontrol", "echo 'ClusterName = cluster'")
    age(run.layout)
    run.claim(2**22 + 1, started="1")
    run.task(TRAINER, *FAILED[:1], attempt="13.0", message=FAILED[1])
    run.events(TRAINER, "13.0", {"kind": "use", "use": "waiting"})
    run.log(f"{TRAINER}/13_0_log.out", "begun\n")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return run


REMOVING = re.compile(r"\b(?:rm|mv) (?:-r|/|')|another --run")


def test_no_command_advises_to_remove_a_file_that_cannot_be_opened(run: CannedRun) -> None:
    files = [path for path in run.layout.root.rglob("*") if path.is_file()]
    assert len(files) > 15
    met = 0
    for path in files:
        for words in ("status", "explain", "logs", "cost", "cancel", "submit"):
            age(run.layout)  # a job that was sent just now is asked about again, for minutes
            with withheld(path, errno.EKEYEXPIRED):
                done = CliRunner().invoke(main, [words, str(run.layout.root)])
            assert done.exception is None or isinstance(done.exception, SystemExit), (words, path, done.exception)
            met += os.strerror(errno.EKEYEXPIRED) in done.output
            assert REMOVING.findall(done.output) == [], (words, path, done.output)
    assert met > 20


def test_what_was_read_and_is_wrong_keeps_its_own_advice(run: CannedRun) -> None:
    entry = run.layout.jobs / "queued-000001.json"
    with withheld(entry, errno.EKEYEXPIRED):
        told = refusal(submissions, run.layout)
    assert (told.exit_code, "kinit" in str(told.advice)) == (ExitCode.RETRYABLE, True)
    entry.write_text("{")
    told = refusal(submissions, run.layout)
    assert (told.exit_code, f"rm -r {entry}" in str(told.advice)) == (ExitCode.FATAL, True)


def test_each_error_has_the_advice_of_its_filesystem(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    for number, words in (
        (errno.EKEYEXPIRED, "kinit"), (errno.EACCES, f"ls -ld '{path}'"), (errno.ESTALE, f"df '{path}'"),
        (errno.EROFS, f"findmnt --target '{path}'"), (errno.ENOSPC, "df "),
    ):  # fmt: skip
        error = OSError(number, os.strerror(number), str(path))
        assert words in filesystem_advice(error), number
        assert filesystem_advice(error) == unreadable(path, error).advice


def test_a_log_folder_that_cannot_be_read_ends_no_command(run: CannedRun) -> None:
    run.log("segment-000.inference/12_0_0_log.out", "sampling\n")
    with withheld(run.layout.logs / TRAINER, errno.EACCES):
        text = CliRunner().invoke(main, ["explain", str(run.layout.root)]).output
        assert "loss is not finite" in text
        assert f"logs cannot be read: Permission denied ({run.layout.logs / TRAINER})" in text
        assert "sampling" in CliRunner().invoke(main, ["logs", str(run.layout.root)]).output
        text = CliRunner().invoke(main, ["logs", str(run.layout.root), "trainer"]).output
        assert "no such log can be read" in text and "yet" not in text
