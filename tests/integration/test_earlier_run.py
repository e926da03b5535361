"""A run directory that an earlier version made: this version continues it to its end."""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING

from conftest import ROOT, submit

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from pathlib import Path

DATA = ROOT / "tests" / "data"


def test_a_run_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    shutil.unpack_archive(DATA / "begun_run.tar.xz", layout.root)
    (layout.secrets / "server_key").write_text(secrets.token_hex(16))  # the archive holds no key
    first = (layout.root / "iterations" / "000000" / "groups.zip").read_bytes()

    printed = submit(DATA / "begun_run.yaml", layout.root)

    assert str(layout.report) in printed
    assert "2 of 2 iterations done" in layout.report.read_text()
    [resumed] = read_events(layout.events, EventKind.RESUMED)
    assert resumed["iteration"] == 1
    assert (layout.root / "iterations" / "000000" / "groups.zip").read_bytes() == first
    assert IterationMetrics.read(layout.metrics(1)).rollouts == 16
    for version in (0, 2):
        assert EvaluationSummary.read(layout.evaluation_summary(version, "held-out")).version == version
