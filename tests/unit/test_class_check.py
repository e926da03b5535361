"""`mrt-hpc check`: the examples keep what a run takes for granted of them, and each way of breaking it is found."""

from pathlib import Path

import numpy as np
import pytest
from basics import RECIPES, ROOT
from commands import typed
from run_of import run_of
from samples import rollout, sampled
from tables import tables
from warm_start import build_tokenizer

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.problems import write_problems
from mrt_hpc.run.records import Problem
from mrt_hpc.testing.promises import algorithm_contract

TABLES = tables("class_check")

EXAMPLES = ROOT / "tests" / "examples"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with one stored iteration, in the folder above which modules of the user are looked for."""
    layout = run_of(tmp_path / "run", "sampling.problems_per_iteration=2")
    for position in range(2):
        rollouts = [rollout(f"p-{position}", sample, reward=float(sample)) for sample in range(2)]
        commit_group(layout.group(3, position), sampled(*rollouts))
    write_problems(layout.train_data, [Problem(f"p-{position}", "?", "7") for position in range(3)])
    build_tokenizer().save_pretrained(layout.weights_version(0))
    monkeypatch.chdir(tmp_path)
    return layout.root


def written(run: Path, code: str) -> str:
    """The name of a module with this code in the working directory; modules are imported once."""
    module = f"mine_{run.parent.name}"
    (run.parent / f"{module}.py").write_text(code)
    return module


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


@pytest.mark.parametrize(("body", "told"), TABLES["algorithms"])
def test_an_algorithm_learns_a_stored_iteration(run: Path, body: str, told: str) -> None:
    module = written(run, ALGORITHM.replace("BODY", body))
    done = typed("check", f"{module}:Mine", "--run", run, exits=2 if told else 0)
    assert "4 rollouts of iteration 3" in done.output
    failed = [line for line in done.output.splitlines() if line.startswith("failed")]
    assert len(failed) == bool(told) and all(told in line for line in failed), done.output
    if "AttributeError" in told:
        assert f"({module}.py:12)" in failed[0], "the line of the module"


def test_fields_of_the_class_are_set_and_an_update_of_nothing_is_a_doubt(run: Path) -> None:
    words = ("check", f"{written(run, ALGORITHM.replace('BODY', 'w = self.weight'))}:Mine", "--run", run)
    assert "doubt  some advantage" in typed(*words, "--set", "algorithm.weight=0").output
    assert "weight is the nearest" in typed(*words, "--set", "algorithm.wieght=0", exits=2).stderr
    assert "iteration" in typed(*words, "--iteration", 0, exits=2).stderr


FUNCTIONS = """

def partial(answer, gold):
    return 1.9


def deaf(answer, gold):
    return answer == gold or answer.index("x") > 0
"""


def test_a_verifier_judges_stored_and_odd_texts(run: Path) -> None:
    module = written(run, (EXAMPLES / "my_verifier.py").read_text() + FUNCTIONS)
    for name, exits, told in (
        ("same_words", 0, "ok     `judge`"),
        ("LastLineChoice", 0, "doubt  some stored text has an answer"),
        ("partial", 2, "returned 1.9, which is none of true"),
        ("deaf", 0, "doubt  `judge` of"),
    ):
        assert told in typed("check", f"{module}:{name}", "--run", run, exits=exits).output, name


@pytest.mark.parametrize("name", ["grpo", "length_penalty", "mrt_online"])
def test_algorithms_of_the_package_keep_what_is_asked_of_a_users(name: str) -> None:
    recipe = load_recipe(RECIPES / "small_world" / f"{name}.yaml")
    rollouts = [rollout("p", sample, reward=float(sample % 2)) for sample in range(4)]
    batch = Batch(rollouts, [{0: 0.25, 1: 0.5}] * 4, [], "0" * 64, np.zeros(4), [])
    promises = algorithm_contract(require_kind(recipe.algorithm, RolloutAlgorithm), recipe, batch)
    assert [promise for promise in promises if promise.broken and promise.stops] == []


PROVER = """
from mrt_hpc.mrt.values import Estimate
from mrt_hpc.provers.sampled_answers import ForcedAnswer, MonteCarlo


class Endless(MonteCarlo):
    def estimate(self, graded):
        return Estimate(float("inf") if graded.plan.boundary else 0.5, 0.0)


class Mine(ForcedAnswer):
    type: str

    def estimator(self, tools):
        return Endless(super().estimator(tools).branches, 2)
"""
MODE = f"""
{(EXAMPLES / "my_mode.py").read_text()}


class Mine(OneMoreLook):
    def longest(self, prompter, sampling):
        return LIMIT

    def tokens_held(self, sampling):
        return LIMIT
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (PROVER, "boundary 1: Estimate(value=inf"),
        (MODE.replace("LIMIT", "1"), "`longest` says 1"),
        (MODE.replace("LIMIT", "0"), "tokens_held is 0"),
    ],
)
def test_a_prover_and_a_way_of_evaluating_are_tried_on_stored_tokens(run: Path, code: str, told: str) -> None:
    """Those of the examples keep their promises: tests/unit/test_api.py."""
    assert told in typed("check", f"{written(run, code)}:Mine", "--run", run, exits=2).output
