"""How many traces have an answer at all is measured and shown: without one a reward is 0, and no error says why."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from commands import typed
from run_of import publish_some, run_of
from samples import rollout

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.analysis.measures import IterationMetrics, few_answers, sampler_mismatch
from mrt_hpc.roles.sampling.round_sampler import SHOWN, trace_in_words
from mrt_hpc.roles.training.metrics import rollout_measures

UNANSWERED = replace(rollout("p", 0, "So it is\n\x1b[31m \\boxed{10}", reward=0.0), answer=None)


def test_the_share_is_of_the_rollouts_with_an_answer_right_or_wrong() -> None:
    wrong, forced = replace(UNANSWERED, answer="3"), replace(UNANSWERED, forced=1)
    batch = Batch([UNANSWERED, wrong, UNANSWERED, UNANSWERED, forced], [{}] * 5, [], "", np.zeros(0), [])
    assert rollout_measures(0, batch, {})["answered_share"] == 0.25


def test_few_answers_and_a_policy_far_from_the_one_that_sampled_are_told(tmp_path: Path) -> None:
    near, far = ({"mismatch_kl": 0.001, "importance_capped_share": share} for share in (0.002, 0.08))
    assert [few_answers(share, "iteration 0") is not None for share in (None, 0.09, 0.1)] == [False, True, False]
    assert [sampler_mismatch(of, "x") is not None for of in ({}, near, {"mismatch_kl": 0.2})] == [False, False, True]
    for share, warned in ((0.2, True), (0.9, False), (0.0, False)):
        assert (sampler_mismatch({"effective_sample_share": share}, "x") is not None) is warned, share
    run = run_of(tmp_path / "run")
    publish_some(run, 1)
    warnings = few_answers(0.09, "iteration 0"), sampler_mismatch(far, "iteration 0")
    for share, trainer, expected in ((0.1, near, ()), (0.09, far, warnings)):
        measured = IterationMetrics(iteration=0, reward_mean=0.0, tokens_per_rollout=3.0, answered_share=share)
        measured.model_copy(update={"trainer": trainer}).write(run.metrics(0))
        for command in ("status", "explain"):
            shown = " ".join(typed(command, run.root).output.split())
            assert all(str(warning) in shown for warning in expected) and shown.count("warning:") == len(expected)
        typed("report", run.root)
        assert (f"Few answers: {warnings[0]}" in run.report.read_text()) is bool(expected)


def test_a_trace_is_shown_escaped_and_shortened() -> None:
    shown = trace_in_words(UNANSWERED)
    assert (r"So it is\n\x1b[31m \\boxed{10}" in shown, "'10'" in shown) == (True, False)
    assert "'10'" in trace_in_words(replace(UNANSWERED, answer="10"))
    long = trace_in_words(replace(UNANSWERED, text="a" * SHOWN + "b" * 5000 + "c" * SHOWN))
    assert f"{'a' * SHOWN} [5,000 characters] {'c' * SHOWN}" in long
