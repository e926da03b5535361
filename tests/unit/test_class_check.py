"""`mrt-hpc check`: the examples keep what a run takes for granted of them, and each way of breaking it is found."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from basics import RECIPES, ROOT
from commands import typed
from run_of import run_of
from samples import rollout, rollout_with, sampled
from warm_start import build_tokenizer

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import Request, SamplingSettings
from mrt_hpc.inference.sampler import RolloutPlan, TraceCutter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, Start
from mrt_hpc.modes.base import Mode
from mrt_hpc.modes.writer import Writer
from mrt_hpc.mrt.values import Estimate
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.provers.sampled_answers import ForcedAnswer, MonteCarlo
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.registry import import_name
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.problems import write_problems
from mrt_hpc.run.records import Problem
from mrt_hpc.testing.promises import Promise, Replay, algorithm_contract, mode_contract, prover_contract

EXAMPLES = ROOT / "tests" / "examples"
TOKENIZER = build_tokenizer()
PROMPTER = Prompter(TOKENIZER, Prompt(instruction=""), (TOKENIZER.eos_token_id,))
PROBLEM = Problem("p", "Solve 2*x+1=15", "7")
TEXT = "x=3.\n\nWait, x=4.\n\nWait, x=7\n</think>\n\n\\boxed{7}"
THOUGHTS = [
    rollout_with([*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id], text=text, problem_id="p")
    for text in (TEXT, TEXT.replace("7", "5"))
]


def broken(promises: Iterable[Promise]) -> list[str]:
    return [f"{promise.text}: {promise.broken}" for promise in promises if promise.broken and promise.stops]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with one stored iteration, and the examples in the working directory under names of their own."""
    layout = run_of(tmp_path / "run", "sampling.problems_per_iteration=2")
    for position in range(2):
        rollouts = [rollout(f"p-{position}", sample, reward=float(sample)) for sample in range(2)]
        commit_group(layout.group(3, position), sampled(*rollouts))
    write_problems(layout.train_data, [Problem(f"p-{position}", "?", "7") for position in range(3)])
    for module in ("my_method", "my_verifier"):
        shutil.copy(EXAMPLES / f"{module}.py", tmp_path / f"{module}_{tmp_path.name}.py")
    monkeypatch.chdir(tmp_path)
    return layout.root


ALGORITHM = """
import numpy, random
from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Learnt, rollout_sequences


class Mine(RolloutAlgorithm):
    type: str
    weight: float = 1.0

    def learnt(self, batch):
        BODY
        return Learnt(rollout_sequences(batch, [numpy.full(len(r.token_ids), w * r.reward) for r in batch.rollouts]))
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("w = self.weight", ""),
        ("w = numpy.nan", "must be finite"),
        ("w = random.random()", "gives the same sequences again"),
        ("w = 1.0; batch.rollouts[0].boundaries.append(9)", "stays as it was"),
        ("return [1.0]", "it returned list"),
        ("return Learnt([])", "no sequence"),
        ("w = batch.reward", r"AttributeError"),
    ],
)
def test_an_algorithm_learns_a_stored_iteration(run: Path, body: str, told: str) -> None:
    module = f"mine_{run.parent.name}"
    (run.parent / f"{module}.py").write_text(ALGORITHM.replace("BODY", body))
    done = typed("check", f"{module}:Mine", "--run", run, exits=2 if told else 0)
    assert "4 rollouts of iteration 3" in done.output
    failed = [line for line in done.output.splitlines() if line.startswith("failed")]
    assert len(failed) == bool(told) and all(told in line for line in failed), done.output
    if "AttributeError" in told:
        assert f"({module}.py:12)" in failed[0], "the line of the module"


def test_fields_of_the_class_are_set_and_an_update_of_nothing_is_a_doubt(run: Path) -> None:
    module = f"mine_{run.parent.name}"
    (run.parent / f"{module}.py").write_text(ALGORITHM.replace("BODY", "w = self.weight"))
    assert (
        "doubt  some advantage" in typed("check", f"{module}:Mine", "--run", run, "--set", "algorithm.weight=0").output
    )
    refused = typed("check", f"{module}:Mine", "--run", run, "--set", "algorithm.wieght=0", exits=2)
    assert "weight is the nearest" in refused.stderr
    assert "iteration" in typed("check", f"{module}:Mine", "--run", run, "--iteration", 0, exits=2).stderr


FUNCTIONS = """

def partial(answer, gold):
    return 0.9


def deaf(answer, gold):
    return answer == gold or answer.index("x") > 0
"""


def test_a_verifier_judges_stored_and_odd_texts(run: Path) -> None:
    module = f"my_verifier_{run.parent.name}"
    (run.parent / f"{module}.py").write_text((EXAMPLES / "my_verifier.py").read_text() + FUNCTIONS)
    for name, exits, told in (
        ("same_words", 0, "ok     `judge`"),
        ("LastLineChoice", 0, "doubt  some stored text has an answer"),
        ("partial", 2, "0.9, which is neither true nor false"),
        ("deaf", 0, "doubt  `judge` of"),
    ):
        assert told in typed("check", f"{module}:{name}", "--run", run, exits=exits).output, name


@pytest.mark.parametrize("name", ["grpo", "length_penalty", "mrt_online"])
def test_algorithms_of_the_package_keep_what_is_asked_of_a_users(name: str) -> None:
    recipe = load_recipe(RECIPES / "small_world" / f"{name}.yaml")
    rollouts = [rollout("p", sample, reward=float(sample % 2)) for sample in range(4)]
    batch = Batch(rollouts, [{0: 0.25, 1: 0.5}] * 4, [], "", np.zeros(4), [])
    assert broken(algorithm_contract(require_kind(recipe.algorithm, RolloutAlgorithm), recipe, batch)) == []


class Endless(MonteCarlo):
    def estimate(self, graded: Any) -> Estimate:
        return Estimate(float("inf") if graded.plan.boundary else 0.5, 0.0)


class Hopeful(ForcedAnswer):
    def estimator(self, tools: Any) -> MonteCarlo:
        return Endless(super().estimator(tools).branches, 2)


@pytest.mark.parametrize(("prover", "told"), [("my_method:Cautious", ""), (None, "boundary 1: Estimate(value=inf")])
def test_a_prover_values_stored_traces(monkeypatch: pytest.MonkeyPatch, prover: str | None, told: str) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    section = Hopeful() if prover is None else import_name(prover)(type=prover, max_tokens=4)
    settings = SamplingSettings(400, 1.0, stop_token_ids=PROMPTER.stop_token_ids)
    start = Start(PROMPTER.encode_problem(PROBLEM.problem), 1, settings)
    group, replay = PromptedGroup(PROBLEM, start.context_ids, (start,)), Replay(THOUGHTS)
    completion = replay._completion(Request(start.context_ids, [0], settings), 0, 0, 0)
    trace = TraceCutter(TokenBytes(TOKENIZER), RolloutPlan(0, 0, 1)).cut(group, start, 0, completion)
    assert len(trace.boundaries) > 1
    found = broken(prover_contract(ProverFactory.of(section, ProverModel.of(PROMPTER), 0), [trace], replay))
    assert (told in " ".join(found), bool(found)) == (True, bool(told)), found


@pytest.mark.parametrize(("limit", "told"), [(None, ""), (9, "`longest` says 9"), (0, "tokens_held")])
def test_a_way_of_evaluating_samples_from_stored_tokens(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, told: str
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    kind = import_name("my_mode:OneMoreLook")
    how = load_recipe(RECIPES / "small_world" / "grpo.yaml")
    sampling = how.sampling_of(how.evaluation.benchmarks[0])
    settings = SamplingSettings(sampling.max_tokens, 1.0, stop_token_ids=PROMPTER.stop_token_ids)
    if limit is not None:
        monkeypatch.setattr(kind, "longest", lambda *_: limit)
        monkeypatch.setattr(kind, "tokens_held", lambda *_: limit)
    mode: Mode = kind(type="my_mode:OneMoreLook")
    plan = RolloutPlan(0, 0, 1)
    writer = Writer(Replay(THOUGHTS), PROMPTER, TraceCutter(TokenBytes(TOKENIZER), plan), settings)
    ids = PROMPTER.encode_problem(PROBLEM.problem)
    groups = [PromptedGroup(PROBLEM, ids, (Start(ids, 1, settings),))]
    found = broken(mode_contract(mode, writer, sampling, groups))
    assert (told in " ".join(found), bool(found)) == (True, bool(told)), found
