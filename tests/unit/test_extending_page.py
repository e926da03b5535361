"""What docs/extending.md tells to add can be added as it says: every block of it is run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.data import read_problems
from mrt_hpc.submit.create import create_or_open

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(heading: str) -> dict[str, str]:
    """The blocks of one section, by their language."""
    section = TEXT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return dict(BLOCK.findall(section))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user writes a recipe; the examples lie beside it under their own names."""
    for example in ("my_method.py", "my_mode.py", "my_verifier.py"):
        shutil.copy(ROOT / "tests" / "examples" / example, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "heading",
    [
        "Add an algorithm",
        "Add a prover",
        "Add a verifier",
        "Add a verifier that is a function",
        "Add a benchmark",
        "Add a way of evaluating",
    ],
)
def test_what_is_added_to_a_recipe_makes_a_run(folder: Path, heading: str) -> None:
    found = blocks(heading)
    (folder / "my_recipe.yaml").write_text(found["yaml"])
    (folder / "sums.jsonl").write_text(found.get("json", ""))
    recipe = load_recipe(folder / "my_recipe.yaml")
    layout = create_or_open(folder / "run", recipe, compile_plan(recipe, LocalSite()))
    kept = {path.name for path in layout.code.glob("*.py")}
    assert kept == {f"{module}.py" for module in re.findall(r'"(my_\w+):', found["yaml"])}
    if "json" in found:
        assert [p.answer for p in read_problems(layout.benchmark_data("sums"))] == ["4", "7"]


def test_a_site_is_a_file(folder: Path) -> None:
    (folder / "mycluster.yaml").write_text(blocks("Add a site")["yaml"])
    command = ["plan", "mrt_online", "--site", str(folder / "mycluster.yaml"), "--sbatch"]
    printed = CliRunner().invoke(main, command, catch_exceptions=False)
    assert printed.exit_code == 0
    assert "#SBATCH --account=my-project" in printed.output
    assert "module load python" in printed.output


def test_a_back_end_is_a_module_beside_its_site_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    shutil.copy(ROOT / "tests" / "examples" / "my_queue.py", folder)
    (folder / "myhost.yaml").write_text(blocks("Add a back end")["yaml"])
    printed = CliRunner().invoke(
        main, ["plan", "quickstart", "--site", str(folder / "myhost.yaml"), "--sbatch"], catch_exceptions=False
    )
    assert printed.exit_code == 0
    assert "mrt_hpc.attempt.ranks" in printed.output


def test_a_data_set_has_the_fields_that_it_shows(folder: Path) -> None:
    conversation, suffix = blocks("Add a data set")["text"].splitlines()
    for name, line in (("conversations", conversation), ("suffixes", suffix)):
        (folder / f"{name}.jsonl").write_text(line)
        form = "sft_conversations" if name == "conversations" else "sft_suffix"
        (folder / "my_recipe.yaml").write_text(
            f"extends: small_world/{form}\nname: mine\ndata: {{type: {name}, path: {name}.jsonl, limit: null}}\n"
        )
        recipe = load_recipe(folder / "my_recipe.yaml")
        layout = create_or_open(folder / name, recipe, compile_plan(recipe, LocalSite()))
        assert len(layout.train_data.read_text().splitlines()) == 1
