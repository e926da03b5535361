"""The pages say what is so, their commands run, and every block of docs/extending.md does."""

import ast
import dataclasses
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from basics import ROOT
from commands import typed
from documents import DOCS, PAGES, README, Command, anchors, blocks, commands, links, options_of, resolved, spans
from run_of import run_of
from samples import rollout, sampled

from mrt_hpc.cli.fields import recipe_fields, reference_pages, site_fields
from mrt_hpc.recipe.find import SUITES, find
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.groups import PARTS, commit_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems

EVERY_COMMAND = [command for page in PAGES for command in commands(page)]
GUIDES = [*DOCS, README]
NAMED = re.compile(r"^# (\w+\.yaml)\n")
"""The first line of a block that is a file of this name."""
FILE = re.compile(r"^(?:mrt_hpc|tests|slurm|env|containers|recipes|docs)(?:/[\w.-]+)+/?$")


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=str)
def test_every_command_and_option_is_there(command: Command) -> None:
    options_of(command.words)


def test_every_command_has_help_and_every_suite_is_there() -> None:
    for words in sorted({command.words[:1] for command in EVERY_COMMAND if command.words}):
        assert words[0].startswith("-") or resolved(words)[0].name in words
        typed(*words, *([] if words[0].startswith("-") else ["--help"]))
    suites = {name for command in EVERY_COMMAND for option, name in pairwise(command.words) if option == "--suite"}
    assert all(find(SUITES, name).is_file() for name in suites - {"NAME"})


def test_readme_is_a_tour_and_leads_to_every_page() -> None:
    assert len(README.read_text().splitlines()) <= 200, "README is a tour of ten minutes; docs/ has the rest"
    for page, folder in ((README, ROOT), (ROOT / "docs" / "index.md", ROOT / "docs")):
        named = {(folder / link.partition("#")[0]).resolve() for link in links(page)}
        assert [other.name for other in DOCS if other.name != "index.md" and other not in named] == []
    example = (ROOT / "recipes" / "examples" / "my_method.py").read_text().splitlines()
    (shown,) = [text.splitlines() for language, text in blocks(README) if language == "python"]
    assert [line for line in shown if line not in example] == [], "the algorithm of README is the example"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_file_and_name_of_a_page_leads_somewhere(page: Path) -> None:
    """A name and its file are those of "`commit_group` in `mrt_hpc/run/groups.py`"."""
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    assert [span for span in spans(page) if FILE.match(span) and not (ROOT / span).exists()] == []
    for name, file in re.findall(r"`(\w+)` in\s+`(\w+/[\w/]+\.py)`", page.read_text()):
        assert re.search(rf"^\s*(?:async )?(?:def |class )?{name}\b", (ROOT / file).read_text(), re.MULTILINE), name


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_field_and_recipe_of_a_page_is_there(page: Path) -> None:
    fields = [*recipe_fields(), *site_fields()]
    sections = {re.split(r"[.\[]", field.name)[0] for field in fields}
    dotted = [span.split(":")[0].split("=")[0] for span in spans(page)]
    asked = [span for span in dotted if re.fullmatch(r"[a-z_]+(?:\.[a-z_]+)+", span) and span.split(".")[0] in sections]
    assert [name for name in asked if not any(field.is_within(name) for field in fields)] == []
    for name in (NAMED.match(text) for language, text in blocks(page) if language == "yaml"):
        assert name, "a block of YAML begins with the name of its file"
        assert name[1] in page.read_text().replace(f"# {name[1]}", "", 1), "a command names it"


def test_the_records_of_a_run_are_read_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "running.md"
    monkeypatch.chdir(tmp_path)
    layout = run_of(tmp_path / "runs" / "quickstart")
    commit_group(layout.group(3, 0), sampled(rollout("p", 0, reward=0.0), rollout("p", 1)))
    (code,) = [text for language, text in blocks(page) if language == "python"]
    exec(code, {})
    assert capsys.readouterr().out == "2 traces, mean reward 0.5\n"
    common, *rows = re.findall(
        r"^(?:All files have the columns|\| `(?:\w+)\.parquet`) .*", page.read_text(), re.MULTILINE
    )
    shared = re.findall(r"`(\w+)`", common.partition("(")[0])
    for row, (part, record) in zip(rows, PARTS.items(), strict=True):
        named = re.findall(r"`([\w.]+)`", row)
        assert named[0] == f"{part}.parquet"
        assert {*shared, *named[1:]} == {field.name for field in dataclasses.fields(record)}, part


def test_architecture_names_every_room_and_classes_that_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "mrt_hpc").glob("*/__init__.py")}
    rooms |= {path.name for path in (ROOT / "mrt_hpc").glob("[!_]*.py")}
    assert set(re.findall(r"^\| `([\w.]+)/?`", text, re.MULTILINE)) == rooms
    diagrams = "".join(re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL))
    classes = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", diagrams)) - {"DeepSpeed"}
    code = "\n".join(path.read_text() for path in (ROOT / "mrt_hpc").rglob("*.py"))
    assert {name for name in classes if f"class {name}" not in code} == set()


def test_every_function_of_the_method_and_every_message_of_troubleshooting_is_in_the_package() -> None:
    found = re.findall(r"`(mrt_hpc/[\w/]+)\.py`: ((?:`\w+`(?:, )?)+)", (ROOT / "docs" / "method.md").read_text())
    assert len(found) >= 12
    for module, names in found:
        nodes = ast.walk(ast.parse((ROOT / f"{module}.py").read_text()))
        functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert set(re.findall(r"`(\w+)`", names)) <= functions, module
    modules = {path.stem for path in (ROOT / "mrt_hpc" / "mrt").glob("*.py")} - {"__init__", "planner"}
    assert {module.rpartition("/")[2] for module, _ in found} >= modules
    trees = [ast.parse(file.read_text()) for file in (ROOT / "mrt_hpc").rglob("*.py")]
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    texts = "\n".join(value for value in constants if isinstance(value, str))
    messages = re.findall(r"^\| `([^`]+)`", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert messages
    assert [message for message in messages if message not in texts] == []


def test_the_reference_is_made_from_the_schema_and_has_every_field(tmp_path: Path) -> None:
    pages = reference_pages()
    typed("fields", "--markdown", tmp_path)
    for folder in (tmp_path, ROOT / "docs" / "reference"):
        assert {path.name: path.read_text() for path in folder.iterdir()} == pages, "mrt-hpc fields --markdown FOLDER"
    for name, fields in (("recipe.md", recipe_fields()), ("site.md", site_fields())):
        named = [field.name for field in fields if field.text and field.values != "a section"]
        assert [field for field in named if field.split("[")[0].split(".")[-1] not in pages[name]] == []
    assert "&lt;think>" not in "".join(re.findall(r"`[^`]*`", pages["recipe.md"])), "code spans stay as they are"
    assert f"mkdir -p {tmp_path / 'none'}" in typed("fields", "--markdown", tmp_path / "none", exits=2).output


def test_the_site_builds_without_a_warning_and_takes_nothing_from_another_host(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    built = {path.relative_to(site).parts[0] for path in site.rglob("index.html")}
    assert built >= {page.stem for page in DOCS} - {"index"} | {"index.html", "reference"}
    loaded = r"<(?:script|img)[^>]+src=\"(https?:[^\"]+)"
    styles = r"<link[^>]+rel=\"(?:stylesheet|preconnect)\"[^>]+href=\"(https?:[^\"]+)"
    assert [url for page in site.rglob("*.html") for url in re.findall(f"{loaded}|{styles}", page.read_text())] == []


# -- docs/extending.md: what it says to add can be added as it says

EXTENDING = (ROOT / "docs" / "extending.md").read_text()


def section(heading: str) -> dict[str, str]:
    text = EXTENDING.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user writes a recipe; the examples lie beside it under their own names."""
    for example in ("my_method.py", "my_loss.py", "my_mode.py", "my_verifier.py", "my_service.py", "my_queue.py"):
        shutil.copy(ROOT / "recipes" / "examples" / example, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(folder: Path, text: str, name: str = "run") -> RunLayout:
    (folder / "my_recipe.yaml").write_text(text)
    return run_of(folder / name, recipe=load_recipe(folder / "my_recipe.yaml"))


ADDED = (
    "algorithm", "prover", "loss", "verifier", "verifier that is a function", "verifier that asks a service",
    "benchmark", "way of evaluating",
)  # fmt: skip


@pytest.mark.parametrize("what", ADDED)
def test_what_is_added_to_a_recipe_makes_a_run(folder: Path, what: str) -> None:
    found = section(f"Add an {what}" if what == "algorithm" else f"Add a {what}")
    (folder / "sums.jsonl").write_text(found.get("json", ""))
    layout = made(folder, found["yaml"])
    kept = {path.name for path in layout.code.glob("*.py")}
    assert kept == {f"{module}.py" for module in re.findall(r'"(my_\w+):', found["yaml"])}
    if "json" in found:
        assert [p.answer for p in read_problems(layout.benchmark_data("sums"))] == ["4", "7"]


def test_a_site_and_a_back_end_are_a_file(folder: Path) -> None:
    for heading, recipe, lines in (
        ("Add a site", "mrt_online", ["#SBATCH --account=my-project", "module load python"]),
        ("Add a back end", "quickstart", ["mrt_hpc.attempt.ranks"]),
    ):
        (folder / "mine.yaml").write_text(section(heading)["yaml"])
        printed = typed("plan", recipe, "--site", folder / "mine.yaml", "--sbatch").output
        assert [line for line in lines if line not in printed] == []


def test_a_data_set_has_the_fields_that_it_shows(folder: Path) -> None:
    rows = section("Add a data set")["text"].splitlines()
    for name, form, row in zip(("conversations", "suffixes"), ("conversations", "suffix"), rows, strict=True):
        (folder / f"{name}.jsonl").write_text(row)
        data = f"{{type: {name}, path: {name}.jsonl, limit: null}}"
        layout = made(folder, f"extends: small_world/sft_{form}\nname: mine\ndata: {data}\n", name)
        assert len(layout.train_data.read_text().splitlines()) == 1
