"""What roles write of a run is what the report reads back, whole or narrowly, and each figure stands once; and traces
without an answer are counted and told: without one a reward is 0, and no error says why.
"""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pyarrow.parquet as pq
from commands import recipe, refusal, typed
from evaluated import evaluated_run
from run_of import bare_run, publish_some, run_of
from samples import rollout, rollout_with, sampled

from mrt_hpc import Batch, Learnt, PrefixValue
from mrt_hpc.analysis import measures
from mrt_hpc.analysis.measures import IterationMetrics, Phase, few_answers, sampler_mismatch
from mrt_hpc.analysis.model_samples import evaluated_problems
from mrt_hpc.analysis.number_formats import span_text
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.recipe.sections import Training
from mrt_hpc.roles.evaluation_summary import _regret
from mrt_hpc.roles.sampling.round_sampler import SHOWN, trace_in_words
from mrt_hpc.roles.training.metrics import Timeline, iteration_metrics, rollout_measures
from mrt_hpc.run.evaluation_settings import EvaluationSettings
from mrt_hpc.run.groups import RolloutOutcome, read_group, read_outcomes
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.parquet import read_part
from mrt_hpc.training.settings import TrainerSettings, TrainingSequence
from mrt_hpc.training.update_statistics import UpdateStats

METRICS = IterationMetrics(
    iteration=3, reward_mean=0.5, tokens_per_rollout=120.5, seconds={Phase.GENERATION: 1.5, Phase.OPTIMISATION: 2.0},
    progress_by_episode=(0.1, -0.05), loss=0.25, quality={"well_formed": 0.9}, trainer={"padding_share": 0.1},
)  # fmt: skip
EVALUATION = summarise_evaluation(3, "held_out", {"a": [1.0, 0.0], "b": [0.0, 0.0]}, quality={"right_checks": 0.8})


def test_records_survive_their_files(tmp_path: Path) -> None:
    unmeasured = METRICS.model_copy(update={"loss": math.nan, "grad_norm": math.inf})
    run = measures.RunSummary(
        recipe="r", algorithm="grpo", model="m", iterations_planned=4, iterations=(METRICS,), evaluations=(EVALUATION,),
        cost=measures.RunCost(gpu_hours=1.5), files=(measures.RunFile(what="weights", path="weights"),),
    )  # fmt: skip
    path = bare_run(tmp_path).root / "deep" / "file.json"
    for record in (EVALUATION, run, unmeasured):
        record.write(path)
        assert repr(type(record).read(path)) == repr(record)
    for text in ('{"iteration": 1, "tokens_per_rollout": 3, "reward_meen": 1}', '{"iteration": '):
        path.write_text(text)
        refused = refusal(IterationMetrics.read, path)
        assert str(path) in str(refused) and refused.advice


def test_a_summary_with_a_number_of_graders_is_read(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    for number, several in ((1, False), (2, True)):
        path.write_text(json.dumps({**EVALUATION.model_dump(mode="json"), "graders": number}))
        assert (measures.several_graders(measures.EvaluationSummary.read(path).graders, "b") is not None) == several


def test_measurements_are_collected_and_gaps_are_named(tmp_path: Path) -> None:
    layout = bare_run(tmp_path)
    for number in (0, 1, 4):
        METRICS.model_copy(update={"iteration": number}).write(layout.metrics(number))
    for version in (0, 5):
        update = {"version": version, "settings": "these"}
        EVALUATION.model_copy(update=update).write(layout.evaluation_summary(version, "held_out"))
    asked = EvaluationSettings("these", "these")
    found = measures.read_measurements(layout, 6, versions=[0, 5], settings={"held_out": asked, "harder": asked})
    assert [metrics.iteration for metrics in found.iterations] == [0, 1, 4]
    assert [evaluation.version for evaluation in found.evaluations] == [0, 5]
    assert found.missing == ("metrics of iterations 2-3, 5 of 6", "evaluation on harder of weights versions 0, 5")
    assert [span_text(numbers) for numbers in ([], [3], [0, 1, 2, 5], [1, 3, 4])] == ["", "3", "0-2, 5", "1, 3-4"]


NUMBERS = {field.name: number for number, field in enumerate(fields(UpdateStats))}
STATS = UpdateStats(**NUMBERS)  # type: ignore[arg-type]
ROLLOUTS = Batch([rollout_with([2, 3])], [{}], [], "digest", np.zeros(0), [])


def metrics_of(batch: Batch | None = ROLLOUTS, **stats: float) -> IterationMetrics:
    ones = np.ones(2, np.float32)
    sequence = TrainingSequence([1], [2, 3], ones, 0 * ones, np.ones(2, dtype=bool), group="0")
    learnt = Learnt([sequence], digest="digest", batch=batch)
    return iteration_metrics(3, learnt, replace(STATS, **stats), Timeline(), {})  # type: ignore[arg-type]


def test_the_length_of_rollouts_leaves_those_out_that_were_forced_to_answer() -> None:
    forced = rollout_with([2], forced=1)
    batch = replace(ROLLOUTS, rollouts=[rollout_with([2, 3, 4]), rollout_with([2]), forced, forced], values=[{}] * 4)
    assert (metrics_of(batch).tokens_per_rollout, metrics_of(None).tokens_per_rollout) == (2.0, 2.0)


def test_no_regret_is_measured_beyond_the_limit_of_a_benchmark() -> None:
    values = [PrefixValue(0, "p", 0, boundary, 0.5, 0.1, 0.1, 2, baseline=0.5) for boundary in range(2)]
    valued = replace(sampled(rollout("p", 0)), values=values)
    how = recipe("quickstart", "evaluation.regret_budgets=[32, 64]").evaluation
    assert {limit: [*_regret([valued], how, limit)] for limit in (31, 63, 64)} == {31: [], 63: [32], 64: [32, 64]}


def test_given_samples_are_compared_with_no_server() -> None:
    metrics = metrics_of(None)
    assert (metrics.mismatch_mean, metrics.mismatch_max, metrics.clip_fraction) == (None, None, None)
    assert not {"mismatch_kl", "importance_capped_share"} & metrics.trainer.keys()


def test_each_figure_of_the_update_stands_once() -> None:
    metrics = metrics_of()
    assert not metrics.trainer.keys() & IterationMetrics.model_fields.keys()
    named = metrics.model_dump(include=NUMBERS.keys() - metrics.trainer.keys())
    assert named | metrics.trainer == NUMBERS
    assert {"loss", "grad_norm", "learning_rate", "entropy", "clip_fraction"} <= named.keys()
    assert set(metrics.seconds) == set(Phase)
    assert not get_type_hints(TrainerSettings, localns={"Training": Training}).keys() & Training.model_fields.keys()


def test_what_is_not_finite_is_left_out_as_not_measured() -> None:
    found = metrics_of(entropy=math.nan, mismatch_max=math.inf, mismatch_kl=math.inf, importance_capped_share=0.5)
    assert (found.entropy, found.mismatch_max, found.loss) == (None, None, STATS.loss)
    assert "mismatch_kl" not in found.trainer and found.skipped_steps == STATS.skipped_steps
    assert (found.truncated_share, found.trainer["importance_capped_share"]) == (0.0, 0.5), "not the weights' share"


# -- the narrow reading of a shard gives what the whole one gives, and sees the same damage


def test_outcomes_are_those_of_the_whole_records_in_any_order_and_damage_is_seen(tmp_path: Path) -> None:
    shard = evaluated_run(tmp_path / "run", 0).evaluation_shard(0, "held-out", 0)
    found = read_outcomes(shard)
    assert evaluated_problems([found]) == evaluated_problems([read_group(shard)])
    assert ([rollout.tokens for rollout in found.rollouts], len(found.branches)) == ([70, 50], 20)
    turned = replace(found, rollouts=found.rollouts[::-1], branches=found.branches[::-1], values=found.values[::-1])
    assert evaluated_problems([turned]) == evaluated_problems([found])
    path = shard / "rollouts.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["reward"]), path)
    assert isinstance(refusal(read_outcomes, shard), DamagedError)
    assert "reward" in str(refusal(read_part, path, RolloutOutcome))
    path.write_bytes(b"nothing")
    assert isinstance(refusal(read_part, path, RolloutOutcome), DamagedError)


# -- how many traces have an answer at all is measured and shown


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
