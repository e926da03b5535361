"""The quickstart as README's first command runs it, with one seed: it reaches its report and has learned.

How long it takes and how it does over several seeds is for `benchmarks/bench_learning.py --quickstart`.
"""

import csv
import shutil
from pathlib import Path

import pytest
from conftest import printed

from mrt_hpc.analysis.intervals import paired_difference
from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest


@pytest.mark.timeout(2700)
def test_accuracy_rises_clear_of_chance_and_the_traces_stay_sound(quickstart: RunLayout) -> None:
    last = read_recipe_lock(quickstart.recipe_lock).schedule.iterations
    first, trained = (EvaluationSummary.read(quickstart.evaluation_summary(v, "held-out")) for v in (0, last))
    assert first.problems == trained.problems == 500
    assert 0.2 <= first.accuracy <= 0.6
    assert paired_difference(first.per_problem, trained.per_problem).low > 0
    for share in ("well_formed", "right_checks"):
        assert trained.quality[share] >= first.quality[share] - 0.05
    before, after = (read_manifest(quickstart.weights_version(version)).digest for version in (last - 1, last))
    assert before != after, "the last iteration teaches"


def test_the_report_shows_it(quickstart: RunLayout) -> None:
    text = quickstart.report.read_text()
    assert "interval excludes zero" in text
    for plot in ("accuracy", "reward", "progress", "tokens", "time", "quality"):
        assert f"plots/{plot}.png" in text
        assert (quickstart.plots / f"{plot}.png").stat().st_size > 10_000


def test_gradients_of_its_groups_are_measured_at_equal_cost(quickstart: RunLayout, tmp_path: Path) -> None:
    """In a copy with eight groups of the last iteration, whose step Adam's averages in the last checkpoint are of."""
    copy = RunLayout(tmp_path / "copy")
    shutil.copytree(quickstart.root, copy.root)
    for group in sorted(copy.groups(19).iterdir())[8:]:
        shutil.rmtree(group)
    shown = printed("analyze", "gradients", f"{copy.root}@last", "--out", tmp_path / "out")
    assert "signal to noise of mrt_online" in shown and "the step of iteration 19" in shown
    with (tmp_path / "out" / "gradients.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["gradient"] for row in rows} == {"plain", "through Adam"}
    batches = {(row["estimator"], row["counting"]): float(row["batch"]) for row in rows}
    own, grpo = ([batches[name, f"{what} tokens"] for what in ("generated", "generated and prefilled")]
                 for name in ("mrt_online, the run's own", "grpo"))  # fmt: skip
    assert own == [8, 8] and 8 < grpo[0] < grpo[1]
    assert (tmp_path / "out" / "gradients.svg").is_file()
