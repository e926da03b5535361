"""The public names: tables of a run, comparisons and submissions, their borders, and that pages and examples use no
others.
"""

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
from basics import ROOT
from commands import python, refusal, typed
from documents import DOCS, README, blocks
from run_of import run_of
from synthetic_run import BRANCHES, EPISODES, SAMPLES, Shape, SyntheticEvaluation, SyntheticRun

import mrt_hpc
from mrt_hpc import Run, compare, open_run, submit_recipe
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.registry import NotImported
from mrt_hpc.run.access import open_to_group
from mrt_hpc.run.family import Axis, Family
from mrt_hpc.run.problems import read_problems
from mrt_hpc.testing import check_algorithm, check_mode, check_prover, check_verifier

EXAMPLES = sorted((ROOT / "recipes" / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
GROUPS, PROBLEMS = 8, 4
SMALL = {"iterations": 4, "evaluated_every": 2, "problems": PROBLEMS, "paragraphs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples and finished runs."""
    here = tmp_path_factory.mktemp("api")
    for example in EXAMPLES:
        shutil.copy(example, here)
    runs = here / "runs"
    for seed, name in enumerate(("quickstart", "grpo", "mrt-online")):
        SyntheticRun(runs / name, Shape(**SMALL, name=name, seed=0 if name == "quickstart" else seed)).write()
    (here / "family").mkdir()
    Family((Axis("seed", ("0", "1")),)).record(here / "family")
    return here


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def run(here: Path) -> Run:
    return open_run(here / "runs" / "quickstart")


# -- tables


def test_every_table_of_a_run_has_what_its_files_have(run: Run) -> None:
    assert run.iterations == [0, 2, 3] and run.path == run.layout.root
    metrics = run.metrics()
    assert metrics["iteration"].to_pylist() == [0, 1, 2, 3]
    assert {"seconds.generation", "quality.well_formed", "loss"} <= {*metrics.column_names}
    for table, rows in ((run.rollouts, SAMPLES), (run.branches, SAMPLES * (EPISODES + 1) * BRANCHES)):
        assert len(table(2)) == GROUPS * rows and len(table()) == 3 * GROUPS * rows
        assert pc.unique(table(2)["iteration"]).to_pylist() == [2]
    assert len(run.values(2)) == GROUPS * SAMPLES * (EPISODES + 1)
    assert hasattr(run.values(), "__arrow_c_stream__"), "by which polars takes it"
    assert run.rollouts(2)["inserted"].to_pylist()[0] == [], "a column that the file lacks has its default"
    evaluations, samples = run.evaluations(), run.samples()
    assert [*zip(evaluations["benchmark"].to_pylist(), evaluations["version"].to_pylist(), strict=True)] == [
        (name, version) for name in ("aime24", "math500") for version in (0, 2, 4)
    ]
    assert len(samples) == 2 * 2 * PROBLEMS * SAMPLES  # version 2 has a summary alone
    aime = run.samples(4, "aime24")
    accuracy = evaluations.filter((pc.field("version") == 4) & (pc.field("benchmark") == "aime24"))["accuracy"][0]
    assert pc.mean(aime["reward"]).as_py() == pytest.approx(accuracy.as_py())
    assert set(aime["problem_id"].to_pylist()) == {p.id for p in read_problems(run.layout.benchmark_data("aime24"))}


def test_a_batch_is_what_an_algorithm_learns_and_status_is_what_the_command_prints(run: Run) -> None:
    rollouts = run.rollouts(3)
    stored = zip(*(rollouts[name].to_pylist() for name in ("problem_id", "sample", "reward")), strict=True)
    assert sorted((r.problem_id, r.sample, r.reward) for r in run.batch(3).rollouts) == sorted(stored)
    printed = json.loads(typed("status", run.path, "--json").output)
    assert {**run.status().model_dump(mode="json"), "time": 0.0} == {**printed, "time": 0.0}


def test_a_run_that_has_not_begun_has_empty_tables_with_columns(tmp_path: Path) -> None:
    new = open_run(run_of(tmp_path / "new").root)
    for table in (new.metrics, new.rollouts, new.branches, new.values, new.evaluations, new.samples):
        assert len(table()) == 0 and table().column_names, table
    assert "reward" in new.rollouts().column_names and "accuracy" in new.evaluations().column_names
    assert "seconds.generation" in new.metrics().column_names


def test_an_evaluation_on_its_own_is_read_as_a_run_is(tmp_path: Path) -> None:
    run = open_run(SyntheticEvaluation(tmp_path / "alone").write().root)
    assert run.recipe.model_names == ["first", "second"] and len(run.metrics()) == 0
    assert pc.unique(run.samples(1, "aime24")["stage"]).to_pylist() == [0, 1]
    assert {"stages.first attempt", "stages.second attempt"} <= {*run.evaluations().column_names}


def test_code_of_a_run_is_not_imported_when_it_is_read(here: Path, tmp_path: Path) -> None:
    written = "extends: small_world/mrt_online\nname: mine\nalgorithm: {type: 'my_method:LastEpisode'}\n"
    (here / "my_recipe.yaml").write_text(written)
    layout = run_of(tmp_path / "mine", recipe=load_recipe(here / "my_recipe.yaml"))
    (layout.code / "my_method.py").write_text("raise SystemExit('the code of the run was imported')\n")
    assert isinstance(open_run(layout.root).recipe.algorithm, NotImported)  # type: ignore[union-attr]
    code = "run.recipe, run.status(), run.metrics(), run.rollouts(), run.evaluations(), run.samples()"
    in_fresh_python(f"import mrt_hpc; run = mrt_hpc.open_run({str(layout.root)!r}); {code}", tmp_path)


# -- compare, submit, testing


@pytest.mark.usefixtures("here")
def test_a_comparison_has_the_numbers_that_the_command_prints() -> None:
    found = compare("runs/grpo", "runs/mrt-online", measures=["pass@1", "tokens"])
    words = ("runs/grpo", "runs/mrt-online", "--measure", "pass@1", "--measure", "tokens", "--json")
    printed = json.loads(typed("compare", *words).output)
    assert [dict(row) for row in found.rows] == printed["comparisons"] and [*found.notes] == printed["notes"]
    assert found.table().num_rows == len(found.rows) == 5, "of tokens there is no mean"
    assert len(compare("runs/quickstart").rows) == 3, "its first version with its last, and the mean"
    assert {row["first"] for row in compare(arms={"a": ["runs/quickstart@0"], "b": "runs/mrt-online@0"}).rows} == {"a"}


def test_a_recipe_is_submitted_and_its_run_is_returned(here: Path, tmp_path: Path) -> None:
    site, said = tmp_path / "myhost.yaml", list[str]()
    shutil.copy(here / "my_queue.py", tmp_path)
    site.write_text(f"type: 'my_queue:ScriptSite'\nname: myhost\nfolder: {tmp_path / 'scripts'}\n")
    run = submit_recipe("quickstart", "seed=7", site=str(site), run=tmp_path / "run", say=said.append)
    assert run.recipe.seed == 7 and run.plan.jobs and said
    assert len([*(tmp_path / "scripts").glob("*.sh")]) == run.plan.tasks
    open_to_group(run.path)
    assert submit_recipe(run.path, site=str(site)).path == run.path, "it is continued"
    (tmp_path / "later").touch(mode=0o666)
    assert (tmp_path / "later").stat().st_mode & 0o777 == 0o644, "the process has its own umask again"


def test_a_class_is_tried_by_its_name_or_itself(here: Path) -> None:
    import my_method
    import my_verifier

    assert check_algorithm("my_method:LastEpisode", "runs/quickstart", "algorithm.weight=0.5") == []
    assert check_algorithm("my_method:GainsOnly", "runs/quickstart", "algorithm.alpha=0.5") == []
    assert check_algorithm(my_method.LastEpisode, here / "runs" / "quickstart", iteration=0) == []
    check_prover(my_method.Cautious, "runs/quickstart", "prover.max_tokens=4")
    check_verifier(my_verifier.same_words, "runs/quickstart")
    check_mode("my_mode:OneMoreLook", "runs/quickstart")
    (here / "wrong_method.py").write_text((here / "my_method.py").read_text().replace("- self.weight", "/ self.weight"))
    with pytest.raises(AssertionError, match="finite"):
        check_algorithm("wrong_method:LastEpisode", "runs/quickstart", "algorithm.weight=0")


# -- wrong inputs: an error with a next step

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no such folder": (lambda: open_run("nowhere"), "not a run directory"),
    "an empty path": (lambda: open_run(""), "no path"),
    "a path with a zero byte": (lambda: open_run("a\0b"), "no path"),
    "a user that is not there": (lambda: open_run("~nobody-of-this-name/run"), "home directory"),
    "a folder of runs": (lambda: open_run("runs"), "runs/quickstart"),
    "a family": (lambda: open_run("family"), "family"),
    "an iteration that is not there": (lambda: open_run("runs/grpo").rollouts(99), "one of 0, 2, 3"),
    "a batch that is not there": (lambda: open_run("runs/grpo").batch(1), "one of 0, 2, 3"),
    "a version that is not there": (lambda: open_run("runs/grpo").samples(3), "version 2 on aime24"),
    "a benchmark that is not there": (lambda: open_run("runs/grpo").samples(benchmark="aime"), "on math500"),
    "nothing to compare": (lambda: compare(), "nothing is named"),
    "no difference": (lambda: compare("runs/grpo", difference=0), "above 0"),
    "a directory that is a number": (lambda: submit_recipe("quickstart", run=5), "no path"),  # type: ignore[arg-type]
    "no such shape": (lambda: submit_recipe("quickstart", shape="one_gpus"), "one_gpu"),
    "a class without a module": (lambda: check_algorithm("LastEpisode", "runs/grpo"), "module:Class"),
    "a class of another kind": (lambda: check_prover("my_method:LastEpisode", "runs/grpo"), "check_algorithm"),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("what", WRONG)
def test_wrong_inputs_give_an_error_with_a_next_step(what: str) -> None:
    work, told = WRONG[what]
    error = refusal(work)
    assert told in error.message() and error.advice, error.message()


DAMAGED: dict[str, Callable[[Run], object]] = {
    "plan.json": lambda run: run,
    "recipe.lock.yaml": lambda run: run.recipe,
    "iterations/000000/groups.zip": lambda run: run.rollouts(0),
    "iterations/000002/metrics.json": lambda run: run.metrics(),
    "evals/v000002/aime24/summary.json": lambda run: run.evaluations(),
    "evals/v000004/aime24/shard-00000/rollouts.parquet": lambda run: run.samples(),
}


@pytest.mark.parametrize("file", DAMAGED)
def test_a_damaged_file_is_named_with_a_next_step(here: Path, tmp_path: Path, file: str) -> None:
    damaged = Path(shutil.copytree(here / "runs" / "quickstart", tmp_path / "run")) / file
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    error = refusal(lambda: DAMAGED[file](open_run(tmp_path / "run")))
    assert damaged.name in error.message() and error.advice, error.message()


# -- light, and the only names of examples and pages


def in_fresh_python(code: str, place: Path) -> str:
    return python("-c", code, cwd=place, MPLBACKEND="Agg").stdout


def test_the_package_is_imported_in_half_a_second_and_reads_runs_without_heavy_modules(folder: Path) -> None:
    tables = "run.metrics(), run.rollouts(), run.values(), run.evaluations(), run.samples(), run.status(), run.recipe"
    code = (
        "import time; began = time.process_time(); from mrt_hpc import Run, compare, open_run, submit_recipe; "
        "print(time.process_time() - began); import mrt_hpc; [getattr(mrt_hpc, n) for n in mrt_hpc.__all__]; "
        f"run = open_run('runs/grpo'); {tables}; compare('runs/grpo'); "
        "import sys; print(*sorted({'torch', 'vllm', 'transformers', 'deepspeed', 'ray'} & {*sys.modules}))"
    )
    seconds, heavy = in_fresh_python(code, folder).split("\n")[:2]
    assert float(seconds) < 0.5 and heavy == ""


def test_public_names_are_those_of_the_stub_and_no_name_of_a_room_hides_one() -> None:
    stub = ast.parse((ROOT / "mrt_hpc" / "__init__.pyi").read_text())
    named = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {*mrt_hpc.__all__} == named <= {*dir(mrt_hpc)}
    rooms = {path.stem for path in (ROOT / "mrt_hpc").iterdir()}
    assert named & rooms == set(), "the module would hide the name once it is imported"
    with pytest.raises(AttributeError):
        _ = mrt_hpc.no_such_name


def test_what_a_class_to_extend_must_define_takes_and_returns_public_classes() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "mrt_hpc").rglob("*.py"))
    defined, public = {*re.findall(r"^class (\w+)", code, re.MULTILINE)}, {*mrt_hpc.__all__}
    seen = set()
    for name in public:
        extended = getattr(mrt_hpc, name)
        for method in getattr(extended, "__abstractmethods__", ()):
            named = {*re.findall(r"\b[A-Z]\w+", str(getattr(extended, method).__annotations__))} & defined
            assert named <= public, f"{name}.{method}"
            seen.add(method)
    assert {"learnt", "samples", "estimator", "judge", "sampler", "submit"} <= seen


def cells(notebook: Path) -> list[str]:
    parts = json.loads(notebook.read_text())["cells"]
    return ["".join(part["source"]) for part in parts if part["cell_type"] == "code"]


def test_examples_pages_and_notebooks_import_from_the_public_names_alone() -> None:
    seen, pages = set(), [*DOCS, README, ROOT / "CONTRIBUTING.md"]
    written = [(path.name, path.read_text()) for path in EXAMPLES]
    written += [(page.name, text) for page in pages for language, text in blocks(page) if language == "python"]
    written += [(path.name, cell) for path in NOTEBOOKS for cell in cells(path)]
    for name, code in written:
        for node in ast.walk(ast.parse(code)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            own = [module for module in modules if module.partition(".")[0] == "mrt_hpc"]
            assert {*own} <= {"mrt_hpc", "mrt_hpc.testing"}, f"{name} imports {own}"
            seen |= {name} if own else set()
    assert {path.name for path in (*EXAMPLES, *NOTEBOOKS)} | {"api.md", "running.md", "extending.md"} == seen


def test_the_page_names_columns_that_the_tables_have(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "api.md"
    rows = re.findall(r"^\| `run\.(\w+)\(.*?\)` \|[^|]*\| (.*) \|$", page.read_text(), re.MULTILINE)
    assert {method for method, _ in rows} == {"metrics", "rollouts", "branches", "values", "evaluations", "samples"}
    for method, columns in rows:
        assert {*re.findall(r"`([\w.]+)`", columns)} <= {*getattr(run, method)().column_names}, method
    for language, code in blocks(page):
        if language == "python":
            exec(code, {})
    assert "stopped" in capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(folder: Path, tmp_path: Path, notebook: Path) -> None:
    assert not any(part.get("outputs") for part in json.loads(notebook.read_text())["cells"]), "without outputs"
    (tmp_path / "runs").symlink_to(folder / "runs")
    in_fresh_python("\n\n".join(cells(notebook)), tmp_path)
