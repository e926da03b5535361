"""An evaluation on its own, of a weights version of a run: what is in the results folder is never generated again."""

from pathlib import Path

import pytest
from conftest import printed_by_forks
from run_of import read_events

from mrt_hpc.analysis.measures import read_summary
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest


def evaluate(models: str, folder: Path, run: str, samples: int, *options: str) -> RunLayout:
    where = ("--suite", "small_world", "--results", folder / "results", "--run", folder / run)
    few = ("--set", "evaluation.benchmarks.0.problems.problems=6", "--set", "serving.kv_cache_gib=0.25")
    printed_by_forks("eval", models, *where, *few, "--set", f"evaluation.benchmarks.0.samples={samples}", *options)
    return RunLayout(folder / run)


def servers(layout: RunLayout) -> int:
    return sum(event["kind"] == EventKind.SERVER_STARTED for event in read_events(layout.events))


def drawn(layout: RunLayout) -> dict[tuple[str, int], list[int]]:
    rollouts = read_group(layout.evaluation_shard(0, "held-out", 0)).rollouts
    return {(r.problem_id, r.sample): r.token_ids for r in rollouts}


@pytest.mark.timeout(1500)
def test_samples_are_shared_and_added_to(quickstart: RunLayout, tmp_path: Path) -> None:
    start, both = f"{quickstart.root}@0", f"{quickstart.root}@0,last"
    first = evaluate(start, tmp_path, "first", 1)
    assert servers(first) == 1 and len(drawn(first)) == 6
    assert read_summary(first, 0, "held-out").problems == 6
    assert "quickstart@0" in first.report.read_text() or "run@0" in first.report.read_text()

    (store,) = (tmp_path / "results").iterdir()
    more = evaluate(both, tmp_path, "more", 2)
    assert servers(more) == 2 and len(drawn(more)) == 12
    assert drawn(first).items() <= drawn(more).items()
    assert {read_summary(more, model, "held-out").problems for model in (0, 1)} == {6}
    batches = {path.name.partition(".")[0] for path in store.glob("problems/*/*")}
    assert batches == {"00000-00001", "00001-00002"}, "the second sample was added to the one that was there"

    at_once = drawn(quickstart)  # the run itself has sampled both at once, beside those of many other problems
    assert sum(ids == at_once[place] for place, ids in drawn(more).items()) >= 11, "rounding may decide at one place"

    judged = evaluate(start, tmp_path, "judged", 2, "--set", "evaluation.benchmarks.0.problems.extraction=any_box")
    assert servers(judged) == 0, "all samples are in the results folder; another grader judges them"
    assert drawn(judged) == drawn(more)
    assert len({read_manifest(path).about["grader"] for path in store.glob("problems/*/*")}) == 2
