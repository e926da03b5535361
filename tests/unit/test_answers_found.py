"""How many traces have an answer at all is measured and shown: without one a reward is 0, and no error says why."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import typed
from run_of import publish_some, run_of
from samples import rollout

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.analysis.measures import IterationMetrics, few_answers, sampler_mismatch
from mrt_hpc.roles.sampling.round_sampler import SHOWN, trace_in_words
from mrt_hpc.roles.training.metrics import rollout_measures

UNANSWERED = replace(rollout("p", 0, "So it is\n\x1b[31m \\boxed{10}", reward=0.0), answer=None)


def metrics(share: float | None, **trainer: float) -> IterationMetrics:
    return IterationMetrics(iteration=0, reward_mean=0.0, tokens_per_rollout=3.0, answered_share=share, trainer=trainer)


def test_the_share_is_of_the_rollouts_with_an_answer_right_or_wrong() -> None:
    wrong, forced = replace(UNANSWERED, answer="3"), replace(UNANSWERED, forced=1)
    batch = Batch([UNANSWERED, wrong, UNANSWERED, UNANSWERED, forced], [{}] * 5, [], "", np.zeros(0), [])
    assert rollout_measures(0, batch, {})["answered_share"] == 0.25


@pytest.mark.parametrize(
    ("share", "trainer", "few", "far"),
    [
        (None, {}, False, False),
        (0.09, {}, True, False),
        (0.1, {"mismatch_kl": 0.001, "importance_capped_share": 0.002}, False, False),
        (0.5, {"mismatch_kl": 0.2}, False, True),
        (0.5, {"mismatch_kl": 0.0, "importance_capped_share": 0.08}, False, True),
        (0.5, {"mismatch_kl": 0.01, "effective_sample_share": 0.2}, False, True),
        (0.5, {"mismatch_kl": 0.01, "effective_sample_share": 0.9}, False, False),
        (0.5, {"mismatch_kl": 0.0, "effective_sample_share": 0.0}, False, False),
    ],
)
def test_status_explain_and_report_warn_of_few_answers_and_of_a_policy_far_from_the_one_that_sampled(
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
    typed("report", run.root)
    assert (f"Few answers: {warnings[0]}" in run.report.read_text()) is few


def test_a_trace_is_shown_escaped_and_shortened() -> None:
    shown = trace_in_words(UNANSWERED)
    assert (r"So it is\n\x1b[31m \\boxed{10}" in shown, "'10'" in shown) == (True, False)
    assert "'10'" in trace_in_words(replace(UNANSWERED, answer="10"))
    long = trace_in_words(replace(UNANSWERED, text="a" * SHOWN + "b" * 5000 + "c" * SHOWN))
    assert f"{'a' * SHOWN} [5,000 characters] {'c' * SHOWN}" in long
