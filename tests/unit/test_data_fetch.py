"""The data sets of the paper are fetched by their names: parts, counts and samples, and the record beside each file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hub_server import COMMIT, Repository, serving

from mrt_hpc.cli.main import main
from mrt_hpc.datasets import named
from mrt_hpc.datasets.columns import BadRowError
from mrt_hpc.datasets.named import BY_NAME, SOURCES, NamedSource, fetch_command, fetch_data
from mrt_hpc.datasets.prepare import AtMost, Order, Sample, SourceRecord, prepare, record_file
from mrt_hpc.datasets.sources import SourceFile, read_rows
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.records import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    stream = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def numina(rows: int) -> list[dict[str, Any]]:
    """Rows as those of NuminaMath-CoT; every fifth has no answer in a box."""
    return [
        {
            "source": "olympiads",
            "problem": f"What is {i}+1?",
            "solution": rf"It is $\boxed{{{i + 1}}}$." if i % 5 else "It is clear.",
            "messages": [{"role": "user", "content": f"What is {i}+1?"}],
        }
        for i in range(rows)
    ]


def questions(rows: int) -> list[dict[str, Any]]:
    return [{"id": 60 + i, "question": f"Is it {i}?", "answer": i, "url": ""} for i in range(rows)]


def problems(rows: int) -> list[dict[str, Any]]:
    return [
        {"id": 60 + i, "unique_id": f"test/{i}.json", "problem": f"Is it {i}?", "solution": "", "answer": str(i)}
        for i in range(rows)
    ]


AIME = "ID,Year,Problem Number,Question,Answer,Part\n" + "".join(
    f'{year}-{i},{year},{i},"Find $x$, if $x = {i}$\nand $y > 0$.",{i:03d},{"I" if year > 1999 else ""}\n'
    for year, count in ((1983, 459), (2023, 460), (2024, 14))
    for i in range(count)
)
FILES = {
    "HuggingFaceH4/aime_2024": {"data/train-00000-of-00001.parquet": parquet(problems(30))},
    "math-ai/aime25": {"test.jsonl": json_lines(problems(30))},
    "math-ai/amc23": {"test-00000-of-00001.parquet": parquet(questions(40))},
    "math-ai/minervamath": {"test.jsonl": json_lines([{"question": f"Is it {i}?", "answer": "1"} for i in range(272)])},
    "HuggingFaceH4/MATH-500": {"test.jsonl": json_lines(problems(500))},
    "AI-MO/NuminaMath-CoT": {
        "data/train-00000-of-00002.parquet": parquet(numina(20_000)[:9_000]),
        "data/train-00001-of-00002.parquet": parquet(numina(20_000)[9_000:]),
        "data/test-00000-of-00001.parquet": parquet(numina(100)),
    },
    "di-zhang-fdu/AIME_1983_2024": {"AIME_Dataset_1983_2024.csv": AIME.encode(), "README.md": b"# AIME"},
}
"""Data sets of the layout, the columns and, but for NuminaMath, the numbers of rows of those on the hub."""


def repositories() -> list[Repository]:
    revisions = {source.repository: source.revision for source in SOURCES}
    return [Repository(name, files, (revisions[name],), commit=revisions[name]) for name, files in FILES.items()]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a hub with all data sets, and of its cache."""
    home = str(tmp_path_factory.mktemp("home"))
    mine = Repository("lab/sums", {"test.jsonl": json_lines(problems(3))})
    for endpoint in serving(mine, *repositories()):
        yield {"HF_ENDPOINT": endpoint, "HF_HOME": home, "HF_HUB_OFFLINE": "0"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def fetching(hub: dict[str, str], *arguments: str, code: int = 0) -> str:
    """What the command prints: the client of the hub reads its variables when it is imported."""
    command = [sys.executable, "-m", "mrt_hpc", "data", "fetch", *arguments]
    done = subprocess.run(command, env={**os.environ, **hub}, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_each_name_gives_its_problems(source: NamedSource, hub: dict[str, str], folder: Path) -> None:
    told = fetching(hub, source.name)
    path = folder / "data" / f"{source.name}.jsonl"
    found = read_problems(path)
    assert len(found) == source.problems
    assert f"wrote {path.relative_to(folder)}: {source.problems:,} problems" in told
    record = SourceRecord.read(record_file(path))
    assert (record.source, record.revision, record.split) == (source.source, source.revision, source.split)
    assert f"next: mrt-hpc data check {path.relative_to(folder)}" in told


def test_ids_do_not_depend_on_the_place_of_the_file(hub: dict[str, str], folder: Path) -> None:
    fetching(hub, "aime24", "mine.jsonl")
    assert read_problems(folder / "mine.jsonl")[1] == Problem("aime24-1", "Is it 1?", "1")
    fetching(hub, "math500", "other.jsonl")
    assert read_problems(folder / "other.jsonl")[1] == Problem("test/1.json", "Is it 1?", "1")


def test_aime_ends_with_2023(hub: dict[str, str], folder: Path) -> None:
    told = fetching(hub, "aime_1983_2023")
    found = read_problems(folder / "data" / "aime_1983_2023.jsonl")
    assert {problem.id.split("-")[0] for problem in found} == {"1983", "2023"}
    assert found[7] == Problem("1983-7", "Find $x$, if $x = 7$\nand $y > 0$.", "007")
    assert "919 problems, Year at most 2023" in told


def test_the_smaller_sample_is_a_part_of_the_larger_one(hub: dict[str, str], folder: Path) -> None:
    told = fetching(hub, "numina_math_4000")
    assert "a sample of 16,000 with seed 0" in told
    assert "4,000 rows made no problem" in told
    assert "parquet, row" not in told
    fetching(hub, "numina_math_10000")
    small, large = (read_problems(folder / "data" / f"numina_math_{n}.jsonl") for n in (4000, 10000))
    assert set(small) < set(large)
    assert [p.id for p in small] == sorted((p.id for p in small), key=lambda name: int(name.split("-")[1]))
    assert all(p.id == f"numina_math-{int(p.answer) - 1}" for p in small)


def test_a_file_that_is_there_is_not_fetched_again(hub: dict[str, str], folder: Path) -> None:
    fetching(hub, "aime25")
    assert "there already" in fetching({**hub, "HF_ENDPOINT": "http://127.0.0.1:9"}, "aime25")
    other = fetching(hub, "aime24", "data/aime25.jsonl", code=2)
    assert "not of this source" in other
    with (folder / "data" / "aime25.jsonl").open("a") as stream:
        stream.write("\n")
    changed = fetching(hub, "aime25", code=2)
    assert "was changed since it was made" in changed
    assert "--force" in changed
    fetching(hub, "aime25", "--force")
    assert "there already" in fetching(hub, "aime25")


def test_a_sample_is_not_taken_for_another(hub: dict[str, str], folder: Path) -> None:
    fetching(hub, "numina_math_4000", "n.jsonl")
    assert "not of this source" in fetching(hub, "numina_math_10000", "n.jsonl", code=2)
    assert folder.is_dir()


def test_a_data_set_of_the_hub_by_its_own_name(hub: dict[str, str], folder: Path) -> None:
    fetching(hub, f"hub:lab/sums@{COMMIT}/test")
    assert len(read_problems(folder / "data" / "sums.jsonl")) == 3
    told = fetching(hub, "hub:lab/sums", "main.jsonl")
    assert f"from hub:lab/sums, commit {COMMIT}: 3 rows" in told


def test_a_source_with_another_number_of_problems_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines(problems(31)))
    with pytest.raises(UserError, match="does not hold what its name promises") as caught:
        prepare(Order("rows.jsonl", Path("out.jsonl"), problems=30))
    assert "31 problems of 31 rows" in str(caught.value)
    assert not Path("out.jsonl").exists()
    monkeypatch.setitem(named.BY_NAME, "aime24", replace(BY_NAME["aime24"], repository="b"))
    with pytest.raises(UserError, match="not the name of a data set of the hub"):
        fetch_data("aime24", None)


def test_unknown_names_are_refused_with_the_nearest(folder: Path) -> None:
    refused = invoke("data", "fetch", "aime-24")
    assert refused.exit_code == ExitCode.FATAL
    assert "mrt-hpc data fetch aime24" in refused.stderr
    assert "--list" in invoke("data", "fetch").stderr
    assert not list(folder.iterdir())


def test_the_list_tells_every_name() -> None:
    told = CliRunner().invoke(main, ["data", "fetch", "--list"], env={"COLUMNS": "200"})
    assert told.exit_code == 0
    for source in SOURCES:
        assert source.name in told.stdout
        assert source.repository in told.stdout


def test_plan_and_submit_say_how_to_fetch_data(folder: Path) -> None:
    changes = (
        "--set",
        "data={type: jsonl, path: data/aime24.jsonl, limit: null}",
        "--set",
        "evaluation.benchmarks=[{name: own, samples: 1, problems: {type: jsonl, path: data/own.jsonl}}]",
    )
    (folder / "mine.yaml").write_text("extends: quickstart\nname: mine\n")
    planned = invoke("plan", "mine.yaml", *changes)
    path = (folder / "data" / "aime24.jsonl").resolve()
    assert f"data {path}; next, on a node with network access: mrt-hpc data fetch aime24 {path}\n" in planned.stdout
    assert f"benchmark own {path.with_name('own.jsonl')}\n" in planned.stdout
    refused = invoke("submit", "mine.yaml", *changes[:2])
    assert f"mrt-hpc data fetch aime24 {path}" in refused.stderr
    assert not (folder / "runs").exists()


def test_every_data_file_of_the_recipes_has_a_command() -> None:
    """Those of problems: samples for supervised training are the user's own."""
    for recipe in sorted((ROOT / "recipes").glob("*.yaml")):
        loaded = load_recipe(recipe)
        sources = [loaded.data, *(benchmark.problems for benchmark in loaded.evaluation.benchmarks)]
        for path in (getattr(source, "path", None) for source in sources if source.type == "jsonl"):
            assert path is not None
            assert fetch_command(Path(path)) is not None, path


def test_the_counts_are_those_that_the_recipes_state() -> None:
    for recipe in sorted((ROOT / "recipes").glob("*.yaml")):
        loaded = load_recipe(recipe)
        for source in [loaded.data, *(benchmark.problems for benchmark in loaded.evaluation.benchmarks)]:
            if source.type == "jsonl" and source.limit is not None:
                assert BY_NAME[Path(source.path).stem].problems == source.limit


# -- samples ----------------------------------------------------------------------------------------------------------


def numbered(count: int) -> list[Problem]:
    return [Problem(f"p-{i}", f"What is {i}?", str(i)) for i in range(count)]


def test_a_sample_depends_on_texts_alone() -> None:
    every = numbered(1000)
    shuffled = every.copy()
    random.Random(3).shuffle(shuffled)
    sample = Sample(100, seed=5)
    assert set(sample.of(every)) == set(sample.of(shuffled))
    assert set(sample.of(every)) != set(Sample(100, seed=6).of(every))
    assert set(Sample(40, seed=5).of(every)) < set(sample.of(every))
    assert sample.of(every) == sorted(sample.of(every), key=lambda p: int(p.answer))


def test_a_sample_is_this_one() -> None:
    """The smallest of SHA-256("0\\nWhat is N?"), worked out by hand with sha256sum."""
    assert [p.answer for p in Sample(3).of(numbered(10))] == ["1", "3", "9"]


def test_a_sample_takes_no_text_twice() -> None:
    twice = [*numbered(10), *(replace(p, id=f"again-{p.id}") for p in numbered(10))]
    assert len(Sample(15).of(twice)) == 10
    assert [p.id for p in Sample(4).of(twice)] == [p.id for p in Sample(4).of(numbered(10))]


def test_every_problem_is_about_as_likely() -> None:
    counts = [0] * 20
    for seed in range(2000):
        for problem in Sample(5, seed=seed).of(numbered(20)):
            counts[int(problem.answer)] += 1
    assert all(400 < count < 600 for count in counts)


def test_a_limit_needs_a_number() -> None:
    assert AtMost("Year", 2023).keeps({"Year": "2023"})
    assert not AtMost("Year", 2023).keeps({"Year": 2024})
    with pytest.raises(BadRowError, match="Year is no whole number"):
        AtMost("Year", 2023).keeps({"Year": None})


# -- rows -------------------------------------------------------------------------------------------------------------


def test_only_the_columns_that_are_needed_are_read(folder: Path) -> None:
    (folder / "rows.parquet").write_bytes(parquet(numina(3)))
    rows = list(read_rows(SourceFile("rows.parquet", folder / "rows.parquet"), ["problem", "solution"]))
    assert [sorted(row.value) for row in rows if isinstance(row.value, dict)] == [["problem", "solution"]] * 3


def test_a_csv_file_is_a_source(folder: Path) -> None:
    (folder / "rows.csv").write_bytes(b'\xef\xbb\xbfquestion,answer\r\n"Is ""it"",\r\nso?",2\r\n')
    prepare(Order("rows.csv", Path("mine.jsonl")))
    assert read_problems(Path("mine.jsonl")) == [Problem("mine-0", 'Is "it",\r\nso?', "2")]
