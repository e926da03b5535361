"""An algorithm and a prover that the package does not know: one file beside the recipe, named there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from basics import RECIPES, ROOT, TRAINER
from commands import refusal
from ruamel.yaml import YAML
from run_of import run_of, task_of
from samples import rollout, sampled

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.errors import ExitCode
from mrt_hpc.inference.traces import BoundaryPlan
from mrt_hpc.provers.base import GradedBoundary
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.kinds import ALGORITHMS
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text
from mrt_hpc.recipe.user_code import changed, own_code
from mrt_hpc.roles.training.iteration_data import RolloutReader
from mrt_hpc.run.groups import commit_group

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = ROOT / "tests" / "examples" / "my_method.py"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A recipe with the example beside it, under a module name of its own: modules are imported once."""
    name = f"method_{tmp_path.name}"
    shutil.copy(EXAMPLE, tmp_path / f"{name}.py")
    yaml = YAML(typ="safe", pure=True)
    recipe = yaml.load(RECIPES / "small_world" / "mrt_online.yaml")
    recipe["algorithm"] = {"type": f"{name}:LastEpisode", "weight": 0.5}
    recipe["prover"] = {"type": f"{name}:Cautious", "branches": 2}
    yaml.default_flow_style = False
    yaml.dump(recipe, tmp_path / "mine.yaml")
    return tmp_path / "mine.yaml"


def test_a_recipe_names_a_method_that_is_learnt_and_a_prover_that_values_a_boundary(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file)
    assert (type(recipe.algorithm).__name__, type(recipe.prover).__name__) == ("LastEpisode", "Cautious")
    assert recipe.algorithm.type.endswith(":LastEpisode")
    assert recipe.algorithm.sampled_tokens(recipe, 0) > 0
    assert not any("method" in where for where in ALGORITHMS.built_in.values()), "the package names none of them"
    batch = Batch([rollout("p", 0)], [{0: 0.4, 1: 1.0}], [], "", np.zeros(0), [])
    (sequence,) = as_kind(recipe.algorithm, RolloutAlgorithm).learnt(batch).sequences
    assert sequence.advantages == pytest.approx([0.8] * 3), "the reward less half of the value before the last episode"
    estimator = sys.modules[type(recipe.prover).__module__].CautiousMean(branches=None, count=2)  # nothing is asked
    assert estimator.estimate(GradedBoundary(BoundaryPlan(0, 0, 0.0), [], [])).value == 0.5


def test_an_advantage_that_is_not_a_number_is_refused_with_its_place(recipe_file: Path, tmp_path: Path) -> None:
    (module,) = tmp_path.glob("method_*.py")
    module.write_text(
        module.read_text() + "\n\nclass Spoiled(LastEpisode):\n    def learnt(self, batch):\n"
        "        import numpy\n        from mrt_hpc.algorithms.batch import rollout_sequences\n"
        "        return rollout_sequences(batch, [numpy.full(3, numpy.nan) for _ in batch.rollouts])\n"
    )
    recipe_file.write_text(recipe_file.read_text().replace(":LastEpisode", ":Spoiled"))
    recipe = load_recipe(recipe_file, ("sampling.problems_per_iteration=1",))
    layout = run_of(tmp_path / "run", recipe=recipe)
    commit_group(layout.group(0, 0), sampled(rollout("p-7", 0)))
    refused = refusal(RolloutReader(task_of(layout, TRAINER), 0, problem_ids=lambda: ["p-7"]).data)
    assert ":Spoiled" in refused.what and "adv" in refused.what
    assert (refused.where, refused.exit_code) == ("iteration 0, group p-7", ExitCode.FATAL)


@pytest.mark.parametrize(
    "option",
    [
        "algorithm.weight=-1", "algorithm.wieght=1", "episodes.max_episodes=1", "algorithm.type=method_nowhere:Mine",
        "algorithm.type=pathlib:Path",
    ],
)  # fmt: skip
def test_its_fields_are_checked_as_those_of_the_package_are(recipe_file: Path, option: str) -> None:
    message = refusal(load_recipe, recipe_file, (option,)).message()
    assert option.partition("=")[0] in message and option in message


READ = """
import sys
from pathlib import Path
from mrt_hpc.recipe.lock import read_recipe_lock
recipe = read_recipe_lock(Path(sys.argv[1]))
print(sys.modules[type(recipe.algorithm).__module__].__file__, recipe.algorithm.weight)
"""


def test_a_run_keeps_the_code_and_its_tasks_use_the_copy(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file)
    layout = run_of(tmp_path / "run", recipe=recipe)
    (original,) = own_code(recipe)
    assert changed(recipe, layout.code) == []
    original.write_text(original.read_text() + "\n# another day\n")
    assert changed(recipe, layout.code) == [original]
    original.unlink()
    read = subprocess.run(
        [sys.executable, "-c", READ, str(layout.recipe_lock)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert read.returncode == 0, read.stderr
    assert read.stdout.split() == [str(layout.code / original.name), "0.5"]
    assert lock_text(recipe) == layout.recipe_lock.read_text()
