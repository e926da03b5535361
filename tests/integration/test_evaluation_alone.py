"""An evaluation on its own, of a weights version of a run: what is in the results folder is never generated again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.analysis.collect import read_summary
from mrt_hpc.run.events import EventKind, read_events
from mrt_hpc.run.groups import read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest

if TYPE_CHECKING:
    from mrt_hpc.run.records import Rollout

ROOT = Path(__file__).parents[2]
PROBLEMS = "evaluation.benchmarks.0.problems.problems=6"


def evaluate(quickstart: RunLayout, folder: Path, run: str, samples: int, *options: str) -> RunLayout:
    """Evaluate weights version 0 of the quickstart with a results folder of this test."""
    command = [sys.executable, "-m", "mrt_hpc.cli.main", "eval", f"{quickstart.root}@0", "--suite", "small_world"]
    command += ["--results", str(folder / "results"), "--run", str(folder / run), "--set", PROBLEMS]
    command += ["--set", f"evaluation.benchmarks.0.samples={samples}", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return RunLayout(folder / run)


def servers(layout: RunLayout) -> int:
    """The number of servers that an evaluation has started."""
    return sum(event["kind"] == EventKind.SERVER_STARTED for event in read_events(layout.events))


def rollouts(layout: RunLayout) -> list[Rollout]:
    return read_group(layout.evaluation_shard(0, "held-out", 0)).rollouts


@pytest.mark.timeout(1500)
def test_samples_are_shared_and_added_to(quickstart: RunLayout, tmp_path: Path) -> None:
    first = evaluate(quickstart, tmp_path, "first", 2)
    assert servers(first) == 1
    assert read_summary(first, 0, "held-out").problems == 6
    assert "quickstart@0" in first.report.read_text() or "run@0" in first.report.read_text()

    again = evaluate(quickstart, tmp_path, "again", 2)
    assert servers(again) == 0, "all samples are in the results folder"
    assert [r.token_ids for r in rollouts(again)] == [r.token_ids for r in rollouts(first)]
    assert read_summary(again, 0, "held-out").per_problem == read_summary(first, 0, "held-out").per_problem

    more = evaluate(quickstart, tmp_path, "more", 3)
    assert servers(more) == 1
    drawn = {(r.problem_id, r.sample): r.token_ids for r in rollouts(more)}
    assert len(drawn) == 18
    assert {(r.problem_id, r.sample): r.token_ids for r in rollouts(first)}.items() <= drawn.items()
    (store,) = (tmp_path / "results").iterdir()
    batches = {path.name.partition(".")[0] for path in store.glob("problems/*/*")}
    assert batches == {"00000-00002", "00002-00003"}, "the third sample was added to the two that were there"

    fresh = evaluate(quickstart, tmp_path, "fresh", 3, "--results", str(tmp_path / "none"))
    assert {(r.problem_id, r.sample): r.token_ids for r in rollouts(fresh)} == drawn, "as if sampled at once"

    rule = "evaluation.benchmarks.0.problems.extraction=any_box"
    judged = evaluate(quickstart, tmp_path, "judged", 2, "--set", rule)
    assert servers(judged) == 0, "another grader judges what is there"
    assert [r.token_ids for r in rollouts(judged)] == [r.token_ids for r in rollouts(first)]
    graders = {read_manifest(path).about["grader"] for path in store.glob("problems/*/*")}
    assert len(graders) == 2
