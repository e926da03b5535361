"""Imports go only downwards, and the light half of the package loads nothing heavy."""

import ast
import re
import sys
from pathlib import Path

import pytest
from basics import ROOT
from commands import HELP, python

PACKAGE = ROOT / "mrt_hpc"
LEAVES = {"cluster", "view", "evaluate", "images", "datasets", "testing"}
"""The rooms that only the commands and the API import: the core, from a submission to an update, runs without them."""
LAYERS = [
    {"cli"}, {"api"}, LEAVES, {"submit"}, {"backends"}, {"attempt"}, {"roles"}, {"algorithms"}, {"provers"}, {"hub"},
    {"modes"}, {"inference", "training", "domains", "analysis"}, {"plan"}, {"run"}, {"recipe"}, {"errors", "mrt"},
]  # fmt: skip
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
HEAVY = [
    "torch", "vllm", "deepspeed", "ray", "submitit", "transformers", "datasets", "matplotlib", "scipy", "pandas",
    "wandb", "sympy", "math_verify", "huggingface_hub",
]  # fmt: skip


def imports(path: Path) -> set[str]:
    """Sub-packages of mrt_hpc that a module imports, also within a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom | ast.Import):
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            found.update(f"{above}{alias.name}" for alias in node.names)
    return {name.split(".")[1] for name in found if name.startswith("mrt_hpc.")}


def test_imports_go_downwards_and_the_core_imports_no_leaf() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own not in ("__init__", "__main__"):
            for other in imports(path) - {own}:
                assert LEVEL[other] > LEVEL[own], f"{path} imports {other}, which does not lie below {own}"
            assert own in {*LEAVES, "cli", "api"} or not imports(path) & LEAVES, path


def test_no_room_names_a_domain() -> None:
    named = re.compile(r"domains[.]small_world|SmallWorld")
    others = (path for path in PACKAGE.rglob("*.py") if path.parts[len(PACKAGE.parts)] not in ("domains", "recipe"))
    assert [path for path in others if named.search(path.read_text())] == []


def test_the_method_imports_numpy_and_the_standard_library_alone() -> None:
    for path in sorted((PACKAGE / "mrt").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                modules = [f"{'.' * node.level}{node.module}"]
            else:
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                top = module.partition(".")[0]
                own = f"{module}.".startswith("mrt_hpc.mrt.")
                assert own or top == "numpy" or top in sys.stdlib_module_names, f"{path} imports {module}"


def test_every_folder_has_a_layer() -> None:
    assert {*(p.parent.name for p in PACKAGE.glob("*/*.py")), *(p.stem for p in PACKAGE.glob("[!_]*.py"))} == set(LEVEL)


def import_of(room: str) -> str:
    modules = (PACKAGE / room).rglob("*.py")
    return "import " + ", ".join(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules)


LOOKS = [*HEAVY, "pyarrow"]
MAIN = "import os; os.environ['PATH'] = ''; from mrt_hpc.cli.main import main; main(%r, standalone_mode=False)"
LOOKING = [
    "api", "cli.status", "cli.submit", "view.explain", "view.run_list", "backends.slurm.backend",
    "backends.local.backend",
]  # fmt: skip
SAMPLING = (
    "import mrt_hpc.roles.inference, mrt_hpc.roles.evaluation; from importlib.metadata import version; "
    "from mrt_hpc.domains.small_world import STARTING_MODEL; from mrt_hpc.inference.tokens import load_tokenizer; "
    "from mrt_hpc.inference.server_start import is_on_cpu; load_tokenizer(STARTING_MODEL); "
    "version('torch').endswith('+cpu') and is_on_cpu()"
)
LOADS = {
    "rooms": ("\n".join(map(import_of, ("recipe", "run", "mrt", "plan", "algorithms"))), HEAVY),
    "help": (HELP, [*LOOKS, "numpy", "pydantic"]),
    **{f"plan {recipe}": (MAIN % ["plan", recipe], LOOKS) for recipe in ("quickstart", "mrt_online")},
    # it asks sbatch with the scripts of a submission; here no command of Slurm is found
    "plan on a cluster": (MAIN % ["plan", "quickstart", "--site", "example"], [m for m in LOOKS if m != "submitit"]),
    # submitit is loaded where sbatch texts are made, and pyarrow where records are read, and not before
    "commands": (f"import mrt_hpc.{', mrt_hpc.'.join(LOOKING)}", LOOKS),
    # a task that samples needs torch only to look for a GPU, where its build can use one
    "sampling": (SAMPLING, ["torch", "sympy"]),
}


@pytest.mark.parametrize("what", LOADS)
def test_the_light_half_of_the_package_and_what_only_looks_load_nothing_heavy(what: str) -> None:
    code, names = LOADS[what]
    check = f"import sys; heavy = [m for m in {names!r} if m in sys.modules]; sys.exit(str(heavy) if heavy else 0)"
    python("-c", f"{code}\n{check}", cwd=ROOT)


LIGHT = """
import importlib, sys, tomllib
from pathlib import Path
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
stack = {line.partition(">")[0].replace("-", "_") for line in project["optional-dependencies"]["stack"]} | {"vllm"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in stack:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        print(name)
from mrt_hpc.recipe.load import load_recipe
for recipe in ("quickstart", "mrt_online", "backtracking"):
    load_recipe(Path("recipes", f"{recipe}.yaml"))
"""
ON_NODES = {"training", "inference", "roles"}
"""Rooms that only tasks on compute nodes import."""
GRADERS = {"grader_queue", "math.equivalence", "math.math_verify_changes", "math.preload"}
OF_THE_STACK = {
    "mrt_hpc.evaluate.regrade", "mrt_hpc.testing.class_in_run", "mrt_hpc.testing.promises",
    "mrt_hpc.testing.referee", "mrt_hpc.testing.worlds",
    *(f"mrt_hpc.domains.{name}" for name in GRADERS),
}  # fmt: skip
"""All other modules that a light installation cannot import: what commands need is not among them."""


def test_a_light_installation_can_import_what_commands_need_and_read_recipes() -> None:
    files = [path.relative_to(ROOT).with_suffix("") for path in PACKAGE.rglob("[!_]*.py")]
    names = sorted(".".join(file.parts) for file in files if file.parts[1] not in ON_NODES)
    assert {*python("-c", LIGHT, *names, cwd=ROOT).stdout.split()} == OF_THE_STACK


@pytest.mark.parametrize("path", sorted((PACKAGE / "mrt").glob("[!_]*.py")), ids=lambda p: p.stem)
def test_every_function_of_the_method_states_its_source_and_its_errors(path: Path) -> None:
    functions = [f for f in ast.parse(path.read_text()).body if isinstance(f, ast.FunctionDef)]
    for function in (f for f in functions if not f.name.startswith("_")):
        stated = ast.get_docstring(function) or ""
        assert "\nSource: " in stated, f"{function.name} does not say where it is from"
        raises = any(isinstance(node, ast.Raise) for node in ast.walk(function))
        assert not raises or "\nRaises:" in stated, f"{function.name} does not state its errors"


def test_what_other_programs_print_may_be_text_in_any_encoding() -> None:
    """``text=True`` ends a command with UnicodeDecodeError where a site's program prints another encoding."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            called = getattr(call.func, "id", getattr(call.func, "attr", ""))
            options = {keyword.arg for keyword in call.keywords}
            if called in ("run", "Popen", "check_output"):
                strict = options & {"text", "universal_newlines", "encoding"} and "errors" not in options
                assert not strict, f"{path}, line {call.lineno}"
