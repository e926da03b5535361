"""The quickstart as README's first command runs it, with one seed: it reaches its report and has learned, and README's
tour can be typed on it.

How long it takes and how it does over several seeds is for `tests/benchmarks/bench_learning.py --quickstart`.
"""

import pytest
from commands import typed
from documents import README, Command, commands

from mrt_hpc.analysis.intervals import paired_difference
from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest

LOOKS = {"status", "explain", "logs", "report", "cost", "compare"}  # commands that only look at a run
TOUR = [
    command
    for command in commands(README, of_text=False)
    if command.words[0] in LOOKS and "runs/quickstart" in command.words and "runs/alpha" not in command.words
]


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


@pytest.mark.parametrize("command", TOUR, ids=str)
def test_the_tour_of_readme_can_be_typed(quickstart: RunLayout, command: Command) -> None:
    typed(*(quickstart.root if word == "runs/quickstart" else word for word in command.words))


def test_the_tour_has_all_looks() -> None:
    assert {command.words[0] for command in TOUR} == LOOKS
