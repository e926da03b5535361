"""Imports go only downwards, and the light half of the package loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "mrt_hpc"
LEAVES = {"cluster", "view", "evaluate", "images", "datasets"}
"""The rooms that only the command line imports: the core, from a submission to an update, runs without them."""
LAYERS = [
    {"cli"},
    LEAVES,
    {"submit"},
    {"backends"},
    {"attempt"},
    {"roles"},
    {"algorithms"},
    {"provers"},
    {"hub"},
    {"modes"},
    {"inference", "training", "domains", "analysis"},
    {"plan"},
    {"mrt"},
    {"run"},
    {"recipe"},
    {"errors"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
HEAVY = [
    "torch", "vllm", "deepspeed", "ray", "submitit", "transformers", "datasets", "matplotlib", "scipy", "pandas",
    "wandb", "sympy", "math_verify", "huggingface_hub",
]  # fmt: skip
HELP_OF_ALL = """
from click import Group
from mrt_hpc.cli.main import main
def show(words, command):
    main([*words, "--help"], standalone_mode=False)
    for name, below in command.commands.items() if isinstance(command, Group) else ():
        show([*words, name], below)
show([], main)
"""


def imports(path: Path) -> set[str]:
    """Sub-packages of mrt_hpc that a module imports, wherever in it the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in found if name.startswith("mrt_hpc.")}


def test_imports_go_downwards() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own not in ("__init__", "__main__"):
            for other in imports(path) - {own}:
                assert LEVEL[other] > LEVEL[own], f"{path} imports {other}, which does not lie below {own}"


def test_the_core_imports_no_leaf() -> None:
    """Wherever the import stands: also within a function."""
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own not in {*LEAVES, "cli"}:
            assert not imports(path) & LEAVES, path


def test_every_folder_has_a_layer() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    modules = {path.stem for path in PACKAGE.glob("[!_]*.py")}
    assert folders | modules == set(LEVEL)


@pytest.mark.parametrize("package", ["recipe", "run", "mrt", "plan", "algorithms"])
def test_the_light_half_imports_nothing_heavy(package: str) -> None:
    modules = [
        "mrt_hpc." + ".".join(p.relative_to(PACKAGE).with_suffix("").parts) for p in (PACKAGE / package).rglob("*.py")
    ]
    assert_light("import " + ", ".join(sorted(modules)))


def test_the_help_of_every_command_loads_nothing_heavy() -> None:
    assert_light(HELP_OF_ALL, [*HEAVY, "pyarrow", "numpy", "pydantic"])


@pytest.mark.parametrize("recipe", ["quickstart", "mrt_online"])
def test_plan_loads_nothing_heavy(recipe: str) -> None:
    assert_light(
        f"from mrt_hpc.cli.main import main; main(['plan', {recipe!r}], standalone_mode=False)", [*HEAVY, "pyarrow"]
    )


def test_plan_on_a_cluster_loads_submitit_at_most() -> None:
    """It asks sbatch with the scripts of a submission; here no command of Slurm is found."""
    code = "import os; os.environ['PATH'] = ''; from mrt_hpc.cli.main import main\n"
    code += "main(['plan', 'quickstart', '--site', 'example'], standalone_mode=False)"
    assert_light(code, [name for name in [*HEAVY, "pyarrow"] if name != "submitit"])


@pytest.mark.parametrize(
    "module",
    [
        "cli.status",
        "cli.submit",
        "view.explain",
        "view.run_list",
        "backends.slurm.backend",
        "backends.local.backend",
    ],
)
def test_submissions_and_status_load_nothing_heavy(module: str) -> None:
    """submitit is loaded where sbatch texts are made, and pyarrow where records are read, and not before."""
    assert_light(f"import mrt_hpc.{module}", [*HEAVY, "pyarrow"])


def assert_light(code: str, names: list[str] = HEAVY) -> None:
    check = f"import sys; heavy = [m for m in {names!r} if m in sys.modules]; sys.exit(str(heavy) if heavy else 0)"
    root = PACKAGE.parent
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, cwd=root, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", sorted((PACKAGE / "mrt").glob("[!_]*.py")), ids=lambda p: p.stem)
def test_every_function_of_the_method_tells_its_source_and_its_errors(path: Path) -> None:
    functions = [f for f in ast.parse(path.read_text()).body if isinstance(f, ast.FunctionDef)]
    for function in (f for f in functions if not f.name.startswith("_")):
        told = ast.get_docstring(function) or ""
        assert "\nSource: " in told, f"{function.name} does not say where it is from"
        raises = any(isinstance(node, ast.Raise) for node in ast.walk(function))
        assert not raises or "\nRaises:" in told, f"{function.name} does not tell of its errors"
