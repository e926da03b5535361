"""An algorithm and a prover that the package does not know: one file beside the recipe, named there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from basics import ROOT
from commands import refusal
from ruamel.yaml import YAML
from samples import rollout, sampled

from mrt_hpc.algorithms.base import rollout_algorithm
from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.errors import ExitCode
from mrt_hpc.inference.traces import BoundaryPlan
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.provers.base import GradedBoundary
from mrt_hpc.recipe.kinds import ALGORITHMS
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text
from mrt_hpc.recipe.user_code import changed, own_code
from mrt_hpc.roles.training.iteration_data import RolloutReader
from mrt_hpc.run.groups import commit_group
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = ROOT / "tests" / "examples" / "my_method.py"
BASE = ROOT / "recipes" / "small_world" / "mrt_online.yaml"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A recipe with the example beside it, under a module name of its own: modules are imported once."""
    name = f"method_{tmp_path.name}"
    shutil.copy(EXAMPLE, tmp_path / f"{name}.py")
    yaml = YAML(typ="safe", pure=True)
    recipe = yaml.load(BASE)
    recipe["algorithm"] = {"type": f"{name}:LastEpisode", "weight": 0.5}
    recipe["prover"] = {"type": f"{name}:Cautious", "branches": 2}
    yaml.default_flow_style = False
    yaml.dump(recipe, tmp_path / "mine.yaml")
    return tmp_path / "mine.yaml"


def test_a_recipe_names_an_algorithm_and_a_prover_beside_it(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file)
    assert (type(recipe.algorithm).__name__, type(recipe.prover).__name__) == ("LastEpisode", "Cautious")
    assert recipe.algorithm.type.endswith(":LastEpisode")
    jobs = [job.name for job in compile_plan(recipe, LocalSite()).jobs]
    assert jobs[:3] == ["prepare", "segment-000.inference", "segment-000.trainer"]
    assert recipe.algorithm.sampled_tokens(recipe, 0) > 0
    assert not any("method" in where for where in ALGORITHMS.built_in.values()), "the package names none of them"


def test_its_method_is_what_is_learnt_and_its_estimate_the_value_of_a_boundary(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file)
    batch = Batch([rollout("p", 0)], [{0: 0.4, 1: 1.0}], [], "", np.zeros(0), [])
    (sequence,) = rollout_algorithm(recipe).learnt(batch).sequences
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
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    commit_group(layout.group(0, 0), sampled(rollout("p-7", 0)))
    task = load_task(layout, "segment-000.trainer", 0, Placement(0, 1, 0, "a"))
    refused = refusal(RolloutReader(task, 0, problem_ids=lambda: ["p-7"]).data)
    assert ":Spoiled" in refused.what and "adv" in refused.what
    assert (refused.where, refused.exit_code) == ("iteration 0, group p-7", ExitCode.FATAL)


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("algorithm.weight=-1", "algorithm.weight"),
        ("algorithm.wieght=1", "algorithm.wieght"),
        ("episodes.max_episodes=1", "episodes.max_episodes"),
        ("algorithm.type=method_nowhere:Mine", "algorithm.type"),
        ("algorithm.type=pathlib:Path", "algorithm.type"),
    ],
)
def test_its_fields_are_checked_as_those_of_the_package_are(recipe_file: Path, option: str, field: str) -> None:
    refused = refusal(load_recipe, recipe_file, (option,))
    assert field in refused.message() and option in refused.message()


def test_a_fault_names_the_line(recipe_file: Path) -> None:
    recipe_file.write_text(recipe_file.read_text().replace("weight: 0.5", "weight: much"))
    line = next(n for n, text in enumerate(recipe_file.read_text().splitlines(), 1) if "much" in text)
    refused = refusal(load_recipe, recipe_file)
    assert refused.what.startswith("algorithm.weight")
    assert str(refused.where).endswith(f"line {line}")


READ = """
import sys
from pathlib import Path
from mrt_hpc.recipe.lock import read_recipe_lock
recipe = read_recipe_lock(Path(sys.argv[1]))
print(sys.modules[type(recipe.algorithm).__module__].__file__, recipe.algorithm.weight)
"""


def test_a_run_keeps_the_code_and_its_tasks_use_the_copy(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file)
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
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
