"""How many traces have an answer at all is measured and told: without one a reward is 0, and no error tells why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, RunSummary, few_answers
from mrt_hpc.analysis.report.content import RunRecord
from mrt_hpc.analysis.report.render import write_markdown
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling.round_sampler import SHOWN, trace_in_words
from mrt_hpc.roles.training.metrics import rollout_measures
from mrt_hpc.run.records import FinishReason, Rollout
from mrt_hpc.run.weights import publish
from mrt_hpc.submit.create import create_or_open

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
WORDS = "an answer was found in 0% of the traces of"
ROLLOUT = Rollout(
    iteration=0,
    problem_id="p",
    sample=0,
    seed=0,
    weights_version=0,
    prompt_ids=[1],
    forced=0,
    token_ids=[10, 11, 12],
    logprobs=[-0.5] * 3,
    finish_reason=FinishReason.STOP,
    text="So it is\n\x1b[31m \\boxed{10}",
    answer=None,
    reward=0.0,
    boundaries=[0, 2, 3],
    started=0.0,
    seconds=0.0,
)


def metrics(share: float | None) -> IterationMetrics:
    return IterationMetrics(iteration=0, reward_mean=0.0, tokens_per_rollout=3.0, answered_share=share)


def evaluation(share: float | None) -> EvaluationSummary:
    return EvaluationSummary(
        version=0, benchmark="b", problems=1, samples=1, accuracy=0.0, low=0.0, high=1.0, per_problem={"p": 0.0},
        answered_share=share,
    )  # fmt: skip


@pytest.mark.parametrize(("share", "warned"), [(None, False), (0.0, True), (0.09, True), (0.1, False), (1.0, False)])
def test_a_share_near_none_is_warned_of(share: float | None, warned: bool) -> None:
    assert (few_answers(share, "iteration 3") is not None) == warned


def test_the_share_is_of_the_rollouts_with_an_answer_right_or_wrong() -> None:
    wrong = dataclasses.replace(ROLLOUT, answer="3")
    forced = dataclasses.replace(ROLLOUT, forced=1)
    batch = Batch([ROLLOUT, wrong, ROLLOUT, ROLLOUT, forced], [{}] * 5, [], "", np.zeros(0), [])
    assert rollout_measures(0, batch, {})["answered_share"] == 0.25


def test_the_report_has_the_share_and_the_warning(tmp_path: Path) -> None:
    def report(share: float | None) -> str:
        summary = RunSummary(
            recipe="r", algorithm="grpo", model="m", iterations_planned=1, iterations=(metrics(share),),
            evaluations=(evaluation(share),),
        )  # fmt: skip
        return write_markdown(tmp_path, [RunRecord("r", summary)]).read_text()

    assert f"{WORDS} iteration 0" in report(0.0)
    assert "Few answers" not in report(0.5)
    assert "Few answers" not in report(None)
    tables = [line for line in report(0.5).splitlines() if line.startswith("|")]
    assert sum("answered" in line for line in tables) == 2
    assert sum("50.0 %" in line for line in tables) == 2


@pytest.mark.parametrize(("share", "warned"), [(0.0, True), (0.5, False), (None, False)])
def test_status_warns(share: float | None, warned: bool, tmp_path: Path) -> None:
    recipe = load_recipe(QUICKSTART)
    run = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    publish(run, 1, lambda directory: (directory / "config.json").write_text("{}") and None)
    metrics(share).write(run.metrics(0))
    shown = " ".join(CliRunner().invoke(main, ["status", str(run.root)]).output.split())
    assert (f"{WORDS} iteration 0" in shown) == warned


@pytest.mark.parametrize(
    ("trainer", "warned"),
    [
        ({"mismatch_kl": 0.001, "importance_capped_share": 0.002}, False),
        ({"mismatch_kl": 0.2}, True),
        ({"mismatch_kl": 0.0, "importance_capped_share": 0.08}, True),
        ({}, False),
    ],
)
def test_a_policy_far_from_the_one_that_sampled_is_warned_of(
    trainer: dict[str, float], warned: bool, tmp_path: Path
) -> None:
    recipe = load_recipe(QUICKSTART)
    run = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    publish(run, 1, lambda directory: (directory / "config.json").write_text("{}") and None)
    metrics(0.5).model_copy(update={"trainer": trainer}).write(run.metrics(0))
    for command in ("status", "explain"):
        shown = " ".join(CliRunner().invoke(main, [command, str(run.root)]).output.split())
        assert ("warning: the policy that the trainer holds is far from the one that sampled iteration 0" in shown) == (
            warned
        )


def test_metrics_of_before_are_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"iteration": 0, "reward_mean": 0.0, "tokens_per_rollout": 3.0}')
    assert IterationMetrics.read(tmp_path / "metrics.json").answered_share is None


def test_what_a_trace_looks_like_is_told_escaped_and_shortened() -> None:
    told = trace_in_words(ROLLOUT)
    assert "3 tokens, ended by stop, 2 episodes, no answer found, reward 0:" in told
    assert r"So it is\n\x1b[31m \\boxed{10}" in told
    assert "answer '10'" in trace_in_words(dataclasses.replace(ROLLOUT, answer="10"))
    long = trace_in_words(dataclasses.replace(ROLLOUT, text="a" * SHOWN + "b" * 5000 + "c" * SHOWN))
    assert f"{'a' * SHOWN} [5,000 characters] {'c' * SHOWN}" in long
