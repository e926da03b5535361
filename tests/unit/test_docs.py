"""The pages say what is so: their commands exist and run, their fields, files, functions and messages are there, the
reference is the one that is made from the schema, and the site builds without a warning.
"""

from __future__ import annotations

import ast
import gzip
import re
import shutil
import subprocess
import sys
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from documents import (
    ARCHITECTURE,
    DOCS,
    PAGES,
    README,
    ROOT,
    Command,
    anchors,
    blocks,
    commands,
    links,
    options_of,
    resolved,
    spans,
)
from ruamel.yaml import YAML

import mrt_hpc
from mrt_hpc.cli.fields import recipe_fields, reference_pages, site_fields
from mrt_hpc.cli.main import main
from mrt_hpc.recipe.find import SUITES, find

if TYPE_CHECKING:
    from pathlib import Path

EVERY_COMMAND = [command for page in PAGES for command in commands(page)]
REHEARSED = {
    "plan": "plan",
    "submit": "plan",
    "validate": "validate",
    "fields": "fields",
    "recipes": "recipes",
    "data": "data",
}
"""The commands that are run, each as this one: ``plan`` checks all that ``submit`` would submit."""
GUIDES = [*DOCS, README]
RUN_PAGES = [*GUIDES, ROOT / "recipes" / "README.md"]
NAMED = re.compile(r"^# (\w+\.yaml)\n")
"""The first line of a block that is a file of this name."""


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=str)
def test_every_command_and_option_is_there(command: Command) -> None:
    options_of(command.words)


@pytest.mark.parametrize("words", sorted({command.words[:1] for command in EVERY_COMMAND if command.words}))
def test_every_command_has_help(words: tuple[str, ...]) -> None:
    if words[0].startswith("-"):
        assert CliRunner().invoke(main, list(words)).exit_code == 0
        return
    command, _ = resolved(words)
    assert command.name in words
    assert CliRunner().invoke(main, [*words, "--help"]).exit_code == 0


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the pages take for granted, and the profile of a cluster."""
    profiles = tmp_path / "config" / "mrt-hpc" / "sites"
    profiles.mkdir(parents=True)
    shutil.copy(ROOT / "slurm" / "sites" / "example.yaml", profiles / "mycluster.yaml")
    (profiles.parent / "settings.yaml").write_text("site: mycluster\n")
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    (work / "rows.jsonl").write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')
    pq.write_table(pa.Table.from_pylist([{"question": "What is 1 + 2?", "answer": "3"}]), work / "rows.parquet")
    (work / "rows.json").write_text('[{"text": "What is 1 + 3?", "label": "4"}]')
    (work / "svamp.json").write_text('[{"Body": "Ann has 5 bags.", "Question": "How many are there?", "Answer": 5}]')
    quiz = b'{"question": "1 + 5?", "options": ["A)6", "B)7"], "rationale": "Add.", "correct": "A"}\n'
    (work / "quiz.jsonl.gz").write_bytes(gzip.compress(quiz))
    (work / "data" / "math500.jsonl").write_text('{"id": "m-0", "problem": "What is 1 + 4?", "answer": "5"}\n')
    for example in (ROOT / "tests" / "examples").glob("*.py"):
        shutil.copy(example, work)
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm to ask
    return work


@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.name)
def test_commands_of_the_pages_run(page: Path, workplace: Path) -> None:
    """Those that need no run, on the recipes that stand beside them, in their order."""
    for language, text in blocks(page):
        if language == "yaml" and (name := NAMED.match(text)):
            (workplace / name[1]).write_text(text)
    for command in commands(page, of_text=False):
        instead = REHEARSED.get(command.words[0])
        if instead is None or "--markdown" in command.words or asks_the_hub(command.words):
            continue
        done = CliRunner().invoke(main, [instead, *command.words[1:]])
        assert done.exit_code == 0, f"{command}\n{done.output}"


def asks_the_hub(words: tuple[str, ...]) -> bool:
    """Whether a command needs a network."""
    fetches = words[:2] == ("data", "fetch") and "--list" not in words
    return fetches or (words[0] == "data" and any(word.startswith("hub:") for word in words))


def test_enough_commands_are_run() -> None:
    run = [command for page in RUN_PAGES for command in commands(page, of_text=False) if command.words[0] in REHEARSED]
    assert len(run) >= 20


def test_readme_is_a_tour_and_leads_to_every_page() -> None:
    assert len(README.read_text().splitlines()) <= 200, "README is a tour of ten minutes; docs/ has the rest"
    named = {(ROOT / link.partition("#")[0]).resolve() for link in links(README)}
    assert [page.name for page in DOCS if page.name != "index.md" and page not in named] == []
    named = {(ROOT / "docs" / link).resolve() for link in links(ROOT / "docs" / "index.md")}
    assert [page.name for page in DOCS if page.name != "index.md" and page not in named] == []


def test_the_algorithm_of_readme_is_the_example() -> None:
    example = (ROOT / "tests" / "examples" / "my_method.py").read_text().splitlines()
    shown = [text.splitlines() for language, text in blocks(README) if language == "python"]
    assert len(shown) == 1
    assert [line for line in shown[0] if line not in example] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_recipe_block_is_a_file_that_a_command_names(page: Path) -> None:
    named = [NAMED.match(text) for language, text in blocks(page) if language == "yaml"]
    for name in named:
        assert name, "a block of YAML begins with the name of its file"
        assert name[1] in page.read_text().replace(f"# {name[1]}", "", 1)


SUITES_NAMED = {name for command in EVERY_COMMAND for option, name in pairwise(command.words) if option == "--suite"}


@pytest.mark.parametrize("name", sorted(SUITES_NAMED - {"NAME"}))
def test_every_suite_is_there(name: str) -> None:
    assert find(SUITES, name).is_file()


FILE = re.compile(r"^(?:mrt_hpc|tests|slurm|env|containers|recipes|docs)(?:/[\w.-]+)+/?$")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    files = [span for span in spans(page) if FILE.match(span)]
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_that_a_page_puts_into_a_file_is_there(page: Path) -> None:
    """As in "`commit_group` in `mrt_hpc/run/groups.py`"."""
    for name, file in re.findall(r"`(\w+)` in\s+`(\w+/[\w/]+\.py)`", page.read_text()):
        assert re.search(rf"^\s*(?:async )?(?:def |class )?{name}\b", (ROOT / file).read_text(), re.MULTILINE), name


def test_architecture_names_every_room_and_classes_that_are_there() -> None:
    text = ARCHITECTURE.read_text()
    rooms = {path.parent.name for path in (ROOT / "mrt_hpc").glob("*/__init__.py")}
    rooms |= {path.name for path in (ROOT / "mrt_hpc").glob("[!_]*.py")}
    assert set(re.findall(r"^\| `([\w.]+)/?`", text, re.MULTILINE)) == rooms
    diagrams = "".join(re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL))
    classes = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", diagrams)) - {"DeepSpeed"}
    code = "\n".join(path.read_text() for path in (ROOT / "mrt_hpc").rglob("*.py"))
    assert {name for name in classes if f"class {name}" not in code} == set()


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_field_that_a_page_names_is_there(page: Path) -> None:
    fields = [*recipe_fields(), *site_fields()]
    sections = {re.split(r"[.\[]", field.name)[0] for field in fields}
    dotted = [span.split(":")[0].split("=")[0] for span in spans(page)]
    asked = [span for span in dotted if re.fullmatch(r"[a-z_]+(?:\.[a-z_]+)+", span) and span.split(".")[0] in sections]
    assert [name for name in asked if not any(field.is_within(name) for field in fields)] == []


def test_every_function_of_the_method_is_in_its_module() -> None:
    page = (ROOT / "docs" / "method.md").read_text()
    found = re.findall(r"`(mrt_hpc/[\w/]+)\.py`: ((?:`\w+`(?:, )?)+)", page)
    assert len(found) >= 12
    for module, names in found:
        file = ROOT / f"{module}.py"
        functions = {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
        assert set(re.findall(r"`(\w+)`", names)) <= functions, module
    modules = {path.stem for path in (ROOT / "mrt_hpc" / "mrt").glob("*.py")} - {"__init__", "planner"}
    assert {module.rpartition("/")[2] for module, _ in found} >= modules


@cache
def texts_of_the_package() -> str:
    """All texts of the package, those of f-strings too, each on a line of its own."""
    texts = []
    for file in (ROOT / "mrt_hpc").rglob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text()))
        texts += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(texts)


MESSAGES = re.findall(r"^\| `([^`]+)`", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_is_one_of_the_package(message: str) -> None:
    assert message in texts_of_the_package()


def test_the_reference_is_made_from_the_schema() -> None:
    folder = ROOT / "docs" / "reference"
    committed = {path.name: path.read_text() for path in folder.iterdir()}
    assert committed == reference_pages(), "type: mrt-hpc fields --markdown docs/reference"


def test_the_reference_has_every_field() -> None:
    pages = reference_pages()
    for name, fields in (("recipe.md", recipe_fields()), ("site.md", site_fields())):
        for field in fields:
            if field.text and field.values != "a section":
                assert field.name.split("[")[0].split(".")[-1] in pages[name]
    assert "| `training.learning_rate` | a number from 1e-12 to 1 | required |" in pages["recipe.md"]
    assert "&lt;think>" not in "".join(re.findall(r"`[^`]*`", pages["recipe.md"])), "code spans stay as they are"


def test_pages_are_written_where_the_command_says(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["fields", "--markdown", str(tmp_path)])
    assert done.exit_code == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == reference_pages()
    missing = CliRunner().invoke(main, ["fields", "--markdown", str(tmp_path / "none")])
    assert missing.exit_code == 2
    assert f"mkdir -p {tmp_path / 'none'}" in missing.output
    both = CliRunner().invoke(main, ["fields", "training", "--markdown", str(tmp_path)])
    assert both.exit_code == 2
    assert f"mrt-hpc fields --markdown {tmp_path}" in both.output


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    built = {path.relative_to(tmp_path / "site").parts[0] for path in (tmp_path / "site").rglob("index.html")}
    assert built >= {page.stem for page in DOCS} - {"index"} | {"index.html", "reference"}


def test_the_site_takes_nothing_from_another_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r"<(?:script|img)[^>]+src=\"(https?:[^\"]+)", page.read_text())
        styles = re.findall(r"<link[^>]+rel=\"(?:stylesheet|preconnect)\"[^>]+href=\"(https?:[^\"]+)", page.read_text())
        assert loaded + styles == []


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = YAML(typ="safe").load(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license"} <= citation.keys()
    assert str(citation["version"]) == mrt_hpc.__version__
    paper = citation["preferred-citation"]
    assert paper["title"] == "Optimizing Test-Time Compute via Meta Reinforcement Fine-Tuning"
    assert paper["identifiers"][0]["value"] == "arXiv:2503.07572"
    assert "CITATION.cff" in README.read_text()
