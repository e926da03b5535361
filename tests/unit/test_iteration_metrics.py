"""What the trainer tells of an iteration: each figure once, under one name."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, get_type_hints

import numpy as np

from mrt_hpc.algorithms.batch import Batch, Learnt
from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.recipe.sections import Training
from mrt_hpc.roles.training.metrics import Timeline, iteration_metrics
from mrt_hpc.run.records import FinishReason, Rollout
from mrt_hpc.training.settings import TrainerSettings, TrainingSequence
from mrt_hpc.training.update_statistics import UpdateStats

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = {name: number for number, name in enumerate(f.name for f in fields(UpdateStats))}
STATS = UpdateStats(**NUMBERS)  # type: ignore[arg-type]
SEQUENCE = TrainingSequence(
    [1], [2, 3], np.ones(2, np.float32), np.zeros(2, np.float32), np.ones(2, dtype=bool), group="0"
)


ROLLOUT = Rollout(
    iteration=0, problem_id="p", sample=0, seed=0, weights_version=0, prompt_ids=[1], forced=0, token_ids=[2, 3],
    logprobs=[-0.5] * 2, finish_reason=FinishReason.STOP, text="7", answer="7", reward=1.0, boundaries=[0, 2],
    started=0.0, seconds=0.0,
)  # fmt: skip
ROLLOUTS = Batch([ROLLOUT], [{}], [], "digest", np.zeros(0), [])


def told(batch: Batch | None = ROLLOUTS) -> IterationMetrics:
    """Of an iteration that learnt rollouts, or one given sample."""
    return iteration_metrics(3, Learnt([SEQUENCE], digest="digest", batch=batch), STATS, Timeline(), {})


def test_given_samples_are_compared_with_no_server() -> None:
    metrics = told(None)
    assert metrics.mismatch_mean is None
    assert metrics.mismatch_max is None
    assert metrics.clip_fraction is None
    assert metrics.loss is not None
    assert not {"mismatch_kl", "importance_capped_share"} & metrics.trainer.keys()


def test_each_figure_of_the_update_is_told_once() -> None:
    metrics = told()
    assert not metrics.trainer.keys() & IterationMetrics.model_fields.keys()
    named = metrics.model_dump(include=NUMBERS.keys() - metrics.trainer.keys())
    assert named | metrics.trainer == NUMBERS
    assert {"loss", "grad_norm", "learning_rate", "entropy", "clip_fraction"} <= named.keys()


def test_a_share_of_truncated_rollouts_is_no_share_of_importance_weights() -> None:
    assert "truncated_share" not in NUMBERS
    stats = replace(STATS, importance_capped_share=0.5)
    capped = iteration_metrics(0, Learnt([SEQUENCE], digest="d", batch=ROLLOUTS), stats, Timeline(), {})
    assert capped.truncated_share == 0.0
    assert capped.trainer["importance_capped_share"] == 0.5


def test_the_seconds_are_those_of_the_phases() -> None:
    assert set(told().seconds) == set(Phase)


def test_metrics_that_repeat_figures_are_still_read(tmp_path: Path) -> None:
    older = told().model_dump(mode="json")
    older["trainer"] |= {"loss": 1.0, "seconds": 2.0, "truncated_share": 0.25}
    path = tmp_path / "metrics.json"
    path.write_text(IterationMetrics.model_validate(older, strict=False).model_dump_json())
    assert IterationMetrics.read(path).trainer["truncated_share"] == 0.25


def test_the_trainer_has_no_second_list_of_the_recipes_fields() -> None:
    assert not get_type_hints(TrainerSettings, localns={"Training": Training}).keys() & Training.model_fields.keys()


def test_what_is_not_finite_is_left_out_as_not_measured() -> None:
    stats = replace(STATS, entropy=math.nan, mismatch_max=math.inf, mismatch_kl=math.inf)
    found = iteration_metrics(0, Learnt([SEQUENCE], digest="digest", batch=ROLLOUTS), stats, Timeline(), {})
    assert (found.entropy, found.mismatch_max, found.loss) == (None, None, STATS.loss)
    assert "mismatch_kl" not in found.trainer and found.skipped_steps == STATS.skipped_steps
