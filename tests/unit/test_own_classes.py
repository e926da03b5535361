"""Classes that the package does not know: what a run keeps of them, and what `mrt-hpc check` finds."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from basics import RECIPES, ROOT, TRAINER
from commands import python, refusal, typed
from run_of import run_of, task_of
from samples import rollout, sampled
from tables import tables
from warm_start import build_tokenizer

from mrt_hpc import Batch, ExitCode, Problem, RolloutAlgorithm
from mrt_hpc.domains.base import grader_digest
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.recipe.lock import lock_text
from mrt_hpc.recipe.user_code import changed_modules, own_code
from mrt_hpc.roles.training.iteration_data import RolloutReader, Samples
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.problems import write_problems
from mrt_hpc.testing.promises import algorithm_contract

TABLES = tables("own_classes")

EXAMPLE = ROOT / "recipes" / "examples" / "my_method.py"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A recipe with the example beside it, under a module name of its own: modules are imported once."""
    name = f"method_{tmp_path.name}"
    shutil.copy(EXAMPLE, tmp_path / f"{name}.py")
    algorithm = f"algorithm: {{type: '{name}:LastEpisode', weight: 0.5}}"
    prover = f"prover: {{type: '{name}:Cautious', branches: 2}}"
    (tmp_path / "mine.yaml").write_text(f"extends: small_world/mrt_online\n{algorithm}\n{prover}\n")
    return tmp_path / "mine.yaml"


def test_an_advantage_that_is_not_a_number_is_refused_with_its_place(recipe_file: Path, tmp_path: Path) -> None:
    (module,) = tmp_path.glob("method_*.py")
    module.write_text(
        module.read_text() + "\n\nclass Spoiled(LastEpisode):\n    def learnt(self, batch):\n"
        "        import numpy\n        from mrt_hpc.algorithms.batch import rollout_sequences\n"
        "        return rollout_sequences(batch, [numpy.full(3, numpy.nan) for _ in batch.rollouts])\n"
    )
    recipe_file.write_text(recipe_file.read_text().replace(":LastEpisode", ":Spoiled"))
    recipe = load_recipe(recipe_file, ("sampling.problems_per_iteration=1", "sampling.rollouts_per_problem=2"))
    layout = run_of(tmp_path / "run", recipe=recipe)
    commit_group(layout.group(0, 0), sampled(rollout("p-7", 0), rollout("p-7", 1)))
    refused = refusal(RolloutReader(task_of(layout, TRAINER), 0, problem_ids=lambda: ["p-7"]).data)
    assert ":Spoiled" in refused.what and "adv" in refused.what
    assert (refused.where, refused.exit_code) == ("iteration 0, group p-7", ExitCode.FATAL)


def test_samples_that_are_drawn_are_the_same_in_each_attempt_and_rank(tmp_path: Path) -> None:
    (tmp_path / f"drawn_{tmp_path.name}.py").write_text(
        "import random\nfrom mrt_hpc.algorithms.sft import SftSuffix\n\nclass Shuffled(SftSuffix):\n    type: str\n"
        "    def samples(self, source):\n        found = list(super().samples(source))\n"
        "        random.shuffle(found)\n        return iter(found)\n"
    )
    own = f"extends: small_world/sft_suffix\nalgorithm: {{type: 'drawn_{tmp_path.name}:Shuffled'}}\n"
    (tmp_path / "mine.yaml").write_text(own)
    recipe = load_recipe(tmp_path / "mine.yaml", ("data.samples=16", "algorithm.sequences_per_iteration=4"))
    layout = run_of(tmp_path / "run", recipe=recipe)
    shutil.copytree(STARTING_MODEL, layout.weights_version(0))
    assert len({Samples.of(task_of(layout, TRAINER, rank=rank)).digest for rank in (0, 1, 0)}) == 1


def naming(folder: Path, section: str, *lines: str) -> tuple[Path, int]:
    """A recipe, or a site, with these lines in a section, and the number of the last line."""
    above = section.split(".") if section else []
    text = ["extends: small_world/mrt_online" if section else "name: here"]
    text += ["  " * depth + f"{step}:" for depth, step in enumerate(above)] + ["  " * len(above) + x for x in lines]
    (path := folder / "mine.yaml").write_text("\n".join(text) + "\n")
    return path, len(text)


@pytest.mark.parametrize(("section", "file", "name", "field", "beyond", "bound", "near"), TABLES["faults"])
def test_a_fault_in_a_class_of_any_kind_is_named_with_its_line_and_by_the_class_itself(
    tmp_path: Path, section: str, file: str, name: str, field: str, beyond: int, bound: str, near: str
) -> None:
    module = f"{file}_{tmp_path.name}"
    shutil.copy(EXAMPLE.with_name(f"{file}.py"), tmp_path / f"{module}.py")
    for kind, setting, at, told in (
        (f"{module}:{name}", f"{field}: {beyond}", field, bound),
        (f"{module}:{name}", f"{near}: 2", near, f"{field} is the nearest; one of"),
        (f"{module}:{name[:-1]}", f"{field}: 2", "type", f"{name} is the nearest"),
        (f"{module[1:]}:{name}", f"{field}: 2", "type", f"{module}:{name} is the nearest"),
        (f"{module}:Path", f"{field}: 2", "type", name),
    ):
        path, line = naming(tmp_path, section, f'type: "{kind}"', setting)
        refused = refusal(load_recipe if section else load_site, path)
        faults = {fault.what.partition(":")[0]: fault for fault in (refused, *refused.others)}
        fault = faults[f"{section}.{at}".removeprefix(".")]
        assert told in str(fault.expected), faults
        assert fault.where == f"{path}, line {line - (at == 'type')}"
        assert "alpha" not in refused.message(), "fields of the package's own classes are not named"


def test_a_way_of_evaluating_and_a_function_are_checked_as_classes_are(tmp_path: Path) -> None:
    for module in ("my_mode", "my_verifier"):
        shutil.copy(EXAMPLE.with_name(f"{module}.py"), tmp_path / f"{module}_{tmp_path.name}.py")
    (tmp_path / "mine.yaml").write_text("extends: small_world/grpo\n")
    where = "evaluation.benchmarks=[{name: b, problems: {type: small_world}, mode: {type: 'my_mode_%s:%s', word: %s}}]"
    mode = "evaluation.benchmarks.0.mode"
    for option, field, told in (
        (where % (tmp_path.name, "OneMoreLook", 3), f"{mode}.word:", "which make it text: text: The word."),
        (where % (tmp_path.name, "OneMoreLok", "a"), f"{mode}.type:", "OneMoreLook is the nearest"),
        (f"data.verifier=my_verifier_{tmp_path.name}:same_wrds", "data", "same_words is the nearest"),
    ):
        refused = refusal(load_recipe, tmp_path / "mine.yaml", (option,))
        assert refused.what.startswith(field) and told in str(refused.expected)
        assert refused.where == f"--set {option}"


def test_a_module_that_fails_or_lacks_something_is_refused(recipe_file: Path) -> None:
    for number, (code, told) in enumerate(TABLES["broken"]):
        name = f"broken_{number}_{recipe_file.parent.name}"
        (recipe_file.parent / f"{name}.py").write_text(code)
        refused = refusal(load_recipe, recipe_file, (f"algorithm.type={name}:Mine",))
        assert refused.what.startswith("algorithm.type:") and told in str(refused.expected)


def test_what_its_check_refuses_is_refused_beside_the_other_faults(recipe_file: Path) -> None:
    settings = ("episodes.max_episodes=1", "training.offload_optimizer=true", "training.zero_stage=0")
    refused = refusal(load_recipe, recipe_file, settings)
    assert [fault.where for fault in (refused, *refused.others)] == [f"--set {setting}" for setting in settings[:2]]


def test_its_fields_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"listed_{tmp_path.name}"
    shutil.copy(EXAMPLE, tmp_path / f"{module}.py")
    monkeypatch.chdir(tmp_path)
    weight = f"algorithm[{module}:LastEpisode].weight"
    for asked in (f"{module}:LastEpisode", f"algorithm.{module}:LastEpisode", weight):
        assert weight in typed("fields", asked).output.splitlines()
    assert "LastEpisode is the nearest" in typed("fields", f"{module}:LastEpisod", exits=2).stderr


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
    assert changed_modules(recipe, layout.code) == []
    original.write_text(original.read_text() + "\n# another day\n")
    assert changed_modules(recipe, layout.code) == [original]
    original.unlink()
    assert python("-c", READ, layout.recipe_lock).stdout.split() == [str(layout.code / original.name), "0.5"]
    assert lock_text(recipe) == layout.recipe_lock.read_text()


def test_what_a_module_imports_from_beside_it_is_kept_and_decides_verdicts(recipe_file: Path, tmp_path: Path) -> None:
    own = f"rules_{tmp_path.name}"
    (tmp_path / own).mkdir()
    (tmp_path / own / "__init__.py").touch()
    (tmp_path / own / "rules.py").write_text(f"import beside_{own}\n\n\ndef same(a, b):\n    return a == b\n")
    (tmp_path / own / "judge.py").write_text("from .rules import same\n\n\ndef judge(a, b):\n    return same(a, b)\n")
    (tmp_path / f"beside_{own}.py").write_text("import json, numpy\n")
    (tmp_path / "numpy.py").write_text("raise ImportError\n")  # what is installed comes first
    recipe = load_recipe(recipe_file, (f"data.verifier={{type: '{own}.judge:judge'}}",))
    verifier = verifier_of(recipe.data, recipe.grading)
    before = grader_digest(verifier, 2.0, 1.0)
    layout = run_of(tmp_path / "run", recipe=recipe)
    assert {path.name for path in layout.code.iterdir()} == {own, f"beside_{own}.py", f"method_{tmp_path.name}.py"}
    for changed_file in (tmp_path / own / "rules.py", tmp_path / f"beside_{own}.py"):
        changed_file.write_text(changed_file.read_text() + "\nx = 1\n")
        assert before != (before := grader_digest(verifier, 2.0, 1.0)), changed_file
    assert [path.name for path in changed_modules(recipe, layout.code)] == ["rules.py", f"beside_{own}.py"]


# -- `mrt-hpc check`


EXAMPLES = ROOT / "recipes" / "examples"


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
    for name, exits, told in TABLES["verifiers"]:
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


@pytest.mark.parametrize(("code", "told"), [
    (PROVER, "boundary 1: Estimate(value=inf"),
    (MODE.replace("LIMIT", "1"), "`longest` says 1"),
    (MODE.replace("LIMIT", "0"), "tokens_held is 0"),
])  # fmt: skip
def test_a_prover_and_a_way_of_evaluating_are_tried_on_stored_tokens(run: Path, code: str, told: str) -> None:
    """Those of the examples keep their promises: tests/unit/test_api.py."""
    assert told in typed("check", f"{written(run, code)}:Mine", "--run", run, exits=2).output
