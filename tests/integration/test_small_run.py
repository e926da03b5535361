"""The smallest run that has every role in it, from the recipe to the report: the one whole run of `env/test --fast`."""

from pathlib import Path

from conftest import ROOT, submit

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.run.layout import RunLayout

SMALLEST = {
    "schedule.iterations": 1, "schedule.iterations_per_job": 1, "sampling.problems_per_iteration": 4,
    "sampling.rollouts_per_problem": 4, "sampling.max_tokens": 96, "serving.kv_cache_gib": 0.25,
    "evaluation.benchmarks": "[{name: b, samples: 1, problems: {type: small_world, split: held_out, problems: 4}}]",
    "evaluation.max_tokens": 96, "resources.evaluation.time_limit_minutes": 10,
}  # fmt: skip


def test_a_run_of_one_iteration_ends_with_its_report(tmp_path: Path) -> None:
    options = [word for field, value in SMALLEST.items() for word in ("--set", f"{field}={value}")]
    layout = RunLayout(tmp_path / "run")
    assert str(layout.report) in submit(ROOT / "recipes" / "small_world" / "mrt_online.yaml", layout.root, *options)
    metrics = IterationMetrics.read(layout.metrics(0))
    assert (metrics.problems, metrics.rollouts) == (4, 16)
    assert (metrics.branches or 0) > 0
    for version in (0, 1):
        assert EvaluationSummary.read(layout.evaluation_summary(version, "b")).version == version
    assert "1 of 1 iterations done" in layout.report.read_text()
