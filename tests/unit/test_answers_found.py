"""How many traces have an answer at all is measured and shown: without one a reward is 0, and no error says why."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import typed
from run_of import bare_run, publish_some, run_of
from samples import rollout

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, RunSummary, few_answers, sampler_mismatch
from mrt_hpc.analysis.report.content import RunRecord
from mrt_hpc.analysis.report.render import write_markdown
from mrt_hpc.roles.sampling.round_sampler import SHOWN, trace_in_words
from mrt_hpc.roles.training.metrics import rollout_measures

UNANSWERED = replace(rollout("p", 0, "So it is\n\x1b[31m \\boxed{10}", reward=0.0), answer=None)


def metrics(share: float | None, **trainer: float) -> IterationMetrics:
    return IterationMetrics(iteration=0, reward_mean=0.0, tokens_per_rollout=3.0, answered_share=share, trainer=trainer)


def test_the_share_is_of_the_rollouts_with_an_answer_right_or_wrong() -> None:
    wrong, forced = replace(UNANSWERED, answer="3"), replace(UNANSWERED, forced=1)
    batch = Batch([UNANSWERED, wrong, UNANSWERED, UNANSWERED, forced], [{}] * 5, [], "", np.zeros(0), [])
    assert rollout_measures(0, batch, {})["answered_share"] == 0.25


def test_the_report_has_the_share_and_the_warning(tmp_path: Path) -> None:
    def report(share: float | None) -> str:
        evaluation = EvaluationSummary(
            version=0, benchmark="b", problems=1, samples=1, accuracy=0.0, low=0.0, high=1.0, per_problem={"p": 0.0},
            answered_share=share,
        )  # fmt: skip
        measured = {"iterations": (metrics(share),), "evaluations": (evaluation,)}
        summary = RunSummary(recipe="r", algorithm="grpo", model="m", iterations_planned=1, **measured)
        return write_markdown(bare_run(tmp_path).root, [RunRecord("r", summary)]).read_text()

    assert str(few_answers(0.0, "iteration 0")) in report(0.0)
    assert not any("prompt.thought_start" in report(share) for share in (0.5, None))
    tables = [line for line in report(0.5).splitlines() if line.startswith("|")]
    assert sum("50.0 %" in line for line in tables) == 2


@pytest.mark.parametrize(
    ("share", "trainer", "few", "far"),
    [
        (None, {}, False, False),
        (0.09, {}, True, False),
        (0.1, {"mismatch_kl": 0.001, "importance_capped_share": 0.002}, False, False),
        (0.5, {"mismatch_kl": 0.2}, False, True),
        (0.5, {"mismatch_kl": 0.0, "importance_capped_share": 0.08}, False, True),
    ],
)
def test_status_and_explain_warn_of_few_answers_and_of_a_policy_far_from_the_one_that_sampled(
    share: float | None, trainer: dict[str, float], few: bool, far: bool, tmp_path: Path
) -> None:
    warnings = few_answers(share, "iteration 0"), sampler_mismatch(trainer, "iteration 0")
    assert [warning is not None for warning in warnings] == [few, far]
    run = run_of(tmp_path / "run")
    publish_some(run, 1)
    metrics(share, **trainer).write(run.metrics(0))
    for command in ("status", "explain"):
        shown = " ".join(typed(command, run.root).output.split())
        assert [warning for warning in warnings if warning and warning not in shown] == []
        assert shown.count("warning:") == few + far


def test_a_trace_is_shown_escaped_and_shortened() -> None:
    shown = trace_in_words(UNANSWERED)
    assert (r"So it is\n\x1b[31m \\boxed{10}" in shown, "'10'" in shown) == (True, False)
    assert "'10'" in trace_in_words(replace(UNANSWERED, answer="10"))
    long = trace_in_words(replace(UNANSWERED, text="a" * SHOWN + "b" * 5000 + "c" * SHOWN))
    assert f"{'a' * SHOWN} [5,000 characters] {'c' * SHOWN}" in long
