"""Data files are made from sources of other kinds and columns, from the hub, and by names of the paper's data sets."""

import gzip
import hashlib
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from basics import RECIPES
from commands import in_a_process, python, refusal, typed
from data_files import json_lines, parquet
from hub_server import COMMIT, Faults, Repository, serving
from tables import tables

import mrt_hpc
from mrt_hpc.datasets.columns import Asked, BadRowError, Columns, find_columns
from mrt_hpc.datasets.conversion import Order, Sample, SourceRecord, prepare, record_file
from mrt_hpc.datasets.named import BY_NAME, ORDERS, fetch_command, fetch_data
from mrt_hpc.datasets.sources import Selection, choose, hub_name
from mrt_hpc.errors import ExitCode
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import Gold, Problem

TABLES = tables("datasets_prepare")
OUT = Path("mine.jsonl")
TEXTS = [("What is 1+1?", 2), ("Half of 5?", 2.5), ("Half of 8?", 4.0)]
ROWS: list[dict[str, Any]] = [{"Question": text, "Answer": answer, "level": 1} for text, answer in TEXTS]
FLOATS = [{**row, "Answer": float(row["Answer"])} for row in ROWS]  # a column of parquet has one type
PROBLEMS = [Problem(f"mine-{n}", text, f"{answer:g}") for n, (text, answer) in enumerate(TEXTS)]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MRT_HPC_DATA", "data")


def prepared(source: str | Path, *options: str, code: ExitCode = ExitCode.OK) -> str:
    """What the command prints when it makes ``OUT``."""
    return typed("data", "prepare", source, OUT, *options, exits=code, columns=200).output


def of_rows(rows: Sequence[Any], *options: str, code: ExitCode = ExitCode.OK) -> str:
    """The same for a file of these rows, ``rows.jsonl``."""
    Path("rows.jsonl").write_bytes(json_lines(rows))
    return prepared("rows.jsonl", *options, code=code)


def parquet_of(columns: Sequence[Any], names: Sequence[str]) -> bytes:
    stream = BytesIO()
    pq.write_table(pa.Table.from_arrays([*map(pa.array, columns)], names=list(names)), stream)
    return stream.getvalue()


ANSWERED_TWICE = parquet_of([["p1"], ["1"], ["3"]], ["problem", "answer", "answer"])
NOT_UTF_8 = pa.array([b"\xff"]).view(pa.string())
YEAR_146_MILLION = pa.scalar(2**62, type=pa.timestamp("ms"))
SOUND = parquet([{"problem": "p" * 999, "answer": "1"}])
DAMAGED = SOUND[:4] + b"\xff" * 36 + SOUND[40:]
CSV = b"Question,Answer\nWhat is 1+1?,2\nHalf of 5?,2.5\nHalf of 8?,4\n"
SEMICOLONS, TABS = CSV.replace(b",", b";"), CSV.replace(b",", b"\t")
CHAT = [
    {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": rf"So \boxed{{{answer:g}}}."}]}
    for text, answer in TEXTS
]
SHARE_GPT = [{"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": f"Think.\n#### {answer:g}"}]}
             for text, answer in TEXTS]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "options"), [
    ("rows.ndjson", json_lines(ROWS).replace(b"\n", b"\n\n"), ""),
    ("rows.json", json.dumps(ROWS, indent=1).encode(), ""),
    ("rows.json", json.dumps({"version": "1", "data": ROWS}).encode(), ""),
    ("rows.json", json_lines(ROWS), ""),
    ("rows.jsonl", json_lines(CHAT), ""),
    ("rows.parquet", parquet(SHARE_GPT), ""),
    ("rows.csv", CSV.replace(b"\n", b"\r\n").replace(b"Question", b"\xef\xbb\xbfQuestion"), ""),
    ("rows.csv", CSV.replace(b"\n", b",,\n"), ""),
    ("rows.csv", CSV.replace(b"\n", b"," + b"so " * 100_000 + b"\n"), ""),
    ("rows.csv", SEMICOLONS, "--delimiter ;"),
    ("rows.csv", TABS, "--delimiter tab"),
    ("rows.tsv", TABS, ""),
    ("rows.csv", CSV.decode().encode("utf-16"), "--encoding utf-16"),
    ("rows.csv.gz", gzip.compress(CSV, mtime=0), ""),
    ("rows.jsonl.zst", pa.compress(json_lines(ROWS), codec="zstd", asbytes=True), ""),
], ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes")  # fmt: skip
def test_each_kind_of_file_makes_the_same_problems(name: str, content: bytes, options: str) -> None:
    Path(name).write_bytes(content)
    prepared(name, *options.split())
    assert read_problems(OUT) == PROBLEMS
    if name.endswith((".gz", ".zst")):
        Path(name).write_bytes(content[: len(content) // 2])
        assert "cannot be read" in prepared(name, "--force", code=ExitCode.FATAL)


LATIN = 'Größe,Lösung\n"1 ½?",007\n"x\n\n",None\n'.encode("latin-1")
ROW = b'{"problem": "x", "answer": "1"}\n'


@pytest.mark.parametrize(("name", "content", "options", "told"), [
    *TABLES["unreadable"],
    ("rows.parquet", parquet(FLOATS), "--encoding latin-1", "leave out --encoding"),
    ("rows.csv", LATIN, "", "--encoding latin-1"),
    ("rows.csv", LATIN, "--encoding latin-11", "--encoding latin-1,"),
    ("rows.jsonl", json_lines([{"messages": CHAT[0]["messages"] * 2}]), "", "2 messages of the user"),
    ("rows.jsonl", json_lines(CHAT).replace(b"boxed", b"bold"), "", "--answer messages.1.content"),
    ("rows.parquet", parquet_of([NOT_UTF_8, ["1"]], ["problem", "answer"]), "", "rows.parquet"),
    ("rows.parquet", parquet_of([["p"], [YEAR_146_MILLION]], ["problem", "answer"]), "", "rows.parquet"),
    ("rows.parquet", DAMAGED, "", "rows.parquet"),
    ("rows.parquet", ANSWERED_TWICE, "", "answer stands there twice"),
])  # fmt: skip
def test_a_source_that_cannot_be_read_is_refused(name: str, content: Any, options: str, told: str) -> None:
    if content is not None:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert told in prepared(name, "--drop-bad", *options.split(), code=ExitCode.FATAL)
    assert not OUT.exists()


def test_texts_stay_as_they_are() -> None:
    """The library that chooses the files would read 7, no answer, and ten digits."""
    Path("set").mkdir()
    rows = 'Größe;answer\n3+4?;007\n"Is ""it""\r\nthere?";None\npi?;3.14159265358979\n'
    Path("set/train.csv").write_bytes(rows.encode("latin-1"))
    prepared("set", "--delimiter", ";", "--encoding", "latin-1", "--problem", "Größe")
    texts = [("3+4?", "007"), ('Is "it"\r\nthere?', "None"), ("pi?", "3.14159265358979")]
    assert read_problems(OUT) == [Problem(f"mine-{n}", *text) for n, text in enumerate(texts)]


def test_the_record_has_source_columns_numbers_and_checksums_and_the_same_input_gives_the_same_bytes() -> None:
    written = []
    for _ in range(2):
        of_rows([*ROWS, {"Question": "", "Answer": 1}], "--drop-bad", "--force")
        written.append((OUT.read_bytes(), record_file(OUT).read_bytes()))
    assert written[0] == written[1]
    source, made = (hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in ("rows.jsonl", "mine.jsonl"))
    unset = dict.fromkeys(("revision", "config", "split", "kept", "sample_seed", "sampled_of"))
    assert json.loads(Path("mine.jsonl.source.json").read_text()) == unset | {
        "source": "rows.jsonl", "files": [{"name": "rows.jsonl", "sha256": source}], "sha256": made,
        "columns": {"problem": "Question", "answer": "Answer", "id": None, "choices": None, "any_answer": False},
        "rows": 4, "problems": 3, "dropped": 1, "mrt_hpc_version": mrt_hpc.__version__,
    }  # fmt: skip


def test_an_output_that_is_there_stays_without_force_and_the_source_is_never_replaced() -> None:
    OUT.write_text("precious")
    assert "--force" in of_rows(ROWS, code=ExitCode.FATAL)
    assert (OUT.read_text(), record_file(OUT).exists()) == ("precious", False)
    of_rows(ROWS, "--force")
    assert read_problems(OUT) == PROBLEMS
    OUT.write_bytes(json_lines(ROWS))
    assert "would replace the source" in prepared(OUT, "--force", code=ExitCode.FATAL)
    assert OUT.read_bytes() == json_lines(ROWS)


BAD = TABLES["bad"]


def test_a_bad_row_is_refused_by_its_place_or_left_out() -> None:
    assert "rows.jsonl, line 2" in of_rows(BAD, code=ExitCode.FATAL)
    assert [path.name for path in Path().iterdir()] == ["rows.jsonl"]
    shown = of_rows(BAD, "--drop-bad")
    assert [problem.id for problem in read_problems(OUT)] == ["a", "d"]
    assert re.findall(r"left out rows.jsonl, line (\d)", shown) == [*"2345"]


def test_known_columns_are_found_and_named_ones_come_first() -> None:
    many = "id key problem text answer label"
    for names, asked, columns in (
        ("Problem Answer ID", Asked(), Columns("Problem", "Answer", "ID")),
        ("prompt question solution final_answer", Asked(), Columns("question", "final_answer", None)),
        ("Answer answer problem", Asked(), Columns("problem", "Answer", None)),
        (many, Asked("text", "label", "key"), Columns("text", "label", "key")),
        (many, Asked(new_ids=True), Columns("problem", "answer", None)),
    ):
        assert find_columns(names.split(), asked) == columns


ANSWERS = {
    " 7\n": "7", 7: "7", -3.0: "-3", 0.125: "0.125", ("7",): "7", r"$\frac{1}{2}$": r"$\frac{1}{2}$", r"\boxed{7}": "7",
    "Natalia sold 48/2 = 24.\nIn all 72.\n#### 72": "72", "#### Step 1\nwe add\n#### 1,080\n": "1,080",
    "#### Step 1\nwe add": "#### Step 1\nwe add",
}  # fmt: skip
NO_ANSWERS = [None, float("nan"), 2.0**53, Decimal("1e400"), "  ", True, ["1", "2"], "\ud800"]


def test_a_number_keeps_the_digits_of_its_file() -> None:
    written = {
        "1e23": "1" + "0" * 23, "12345678901234567890.0": "12345678901234567890", "27.0": "27", "2.50": "2.5",
        "0.12345678901234567890123": "0.12345678901234567890123", "1e-7": "1e-07",
    }  # fmt: skip
    lines = [f'{{"problem": "{n}?", "answer": {number}}}\n' for n, number in enumerate(written)]
    Path("rows.jsonl").write_text("".join(lines))
    prepared("rows.jsonl")
    assert [problem.answer for problem in read_problems(OUT)] == [*written.values()]


def test_the_texts_of_values() -> None:
    answer, solution = Columns("problem", "answer"), Columns("problem", "solution")

    def gold(columns: Columns, value: object) -> Gold:
        return columns.problem_and_gold({"problem": "x", columns.answer: value})[1]

    for value, expected in ANSWERS.items():
        assert gold(answer, [*value] if isinstance(value, tuple) else value) == expected
    assert gold(solution, r"First \boxed{1}, so in all \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    for columns, value in (*((answer, v) for v in NO_ANSWERS), (solution, "so it is 7"), (solution, r"\boxed{ }")):
        with pytest.raises(BadRowError, match=columns.answer):
            gold(columns, value)


@pytest.mark.parametrize(("rows", "options", "problems"), TABLES["made"])
def test_options_say_how_columns_make_problems(rows: list[Any], options: str, problems: list[Any]) -> None:
    of_rows(rows, *options.split())
    several = [(*named, tuple(gold) if isinstance(gold, list) else gold) for *named, gold in problems]
    assert read_problems(OUT) == [Problem(*one) for one in several]
    columns = SourceRecord.read(record_file(OUT)).columns
    assert ("+" in columns.problem, columns.choices is not None) == ("+" in options, "--choices" in options)


@pytest.mark.parametrize(
    ("rows", "options", "advised"),
    TABLES["refused"],
)  # fmt: skip
def test_what_makes_no_problem_is_refused(rows: list[Any], options: str, advised: list[str]) -> None:
    refused = of_rows(rows, *options.split(), code=ExitCode.FATAL)
    assert [word for word in advised if word not in refused] == []
    assert not OUT.exists()


def set_of(names: list[str], card: str = "") -> str:
    folder = Path("set").absolute()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(parquet(ROWS) if name.endswith(".parquet") else json_lines(ROWS))
    (folder / "README.md").write_text(card)
    return str(folder)


@pytest.mark.parametrize(("names", "card", "asked", "part", "chosen"), TABLES["splits"])
def test_the_files_of_a_split(
    names: list[str], card: str, asked: dict[str, str], part: str, chosen: list[str] | None
) -> None:
    place = set_of(names, card)
    if chosen is not None:
        assert choose(place, Selection(**asked), "here") == (*part.split(), [f"{place}/{name}" for name in chosen])
        return
    refused = refusal(choose, place, Selection(**asked), "here")
    assert (part in str(refused.advice), refused.where) == (True, "here")


def test_a_folder_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    set_of(["data/train.jsonl", "data/test.jsonl"])
    prepared("set", "--split", "test")
    assert read_problems(OUT) == PROBLEMS
    record = SourceRecord.read(record_file(OUT))
    assert (record.config, record.split, [f.name for f in record.files]) == ("default", "test", ["data/test.jsonl"])
    monkeypatch.setitem(sys.modules, "datasets", None)  # as in a light installation
    assert "pip install datasets; or type it with" in prepared("set", "--force", code=ExitCode.FATAL)


def test_names_of_the_hub() -> None:
    for text, options, name in (
        ("hub:a/b.c-d/test", Selection(config="x"), ("a/b.c-d", Selection(None, "x", "test"))),
        ("hub:a/b@v1.0/test", Selection(), ("a/b", Selection("v1.0", None, "test"))),
        ("hub:a/b@v1", Selection(split="test"), ("a/b", Selection("v1", None, "test"))),
    ):
        assert hub_name(text, options) == name
    for wrong in ("hub:b", "hub:a/b/test/more"):
        assert refusal(hub_name, wrong, Selection()).value == wrong
    assert refusal(hub_name, "hub:a/b/test", Selection(split="train")).value == "test and train"
    assert "data prepare hub:a/b OUT" in str(refusal(fetch_data, "hub:a/b", None).advice)


def numina(rows: int) -> list[dict[str, Any]]:
    solutions = (rf"It is $\boxed{{{i + 1}}}$." if i % 5 else "It is clear." for i in range(rows))
    return [{"problem": f"What is {i}+1?", "solution": text, "messages": []} for i, text in enumerate(solutions)]


def problems(rows: int) -> list[dict[str, Any]]:
    return [{"id": 60 + i, "unique_id": f"test/{i}.json", "problem": f"Is it {i}?", "solution": "", "answer": str(i)}
            for i in range(rows)]  # fmt: skip


AIME = "ID,Year,Problem Number,Question,Answer,Part\n" + "".join(
    f'{year}-{i},{year},{i},"Find $x$, if $x = {i}$\nand $y > 0$.",{i:03d},{"I" if year > 1999 else ""}\n'
    for year, count in ((1983, 459), (2023, 460), (2024, 14))
    for i in range(count)
)
FILES = {
    "HuggingFaceH4/aime_2024": {"data/train-00000-of-00001.parquet": parquet(problems(30))},
    "math-ai/aime25": {"test.jsonl": json_lines(problems(30))},
    "math-ai/amc23": {"test-00000-of-00001.parquet": parquet([{"question": f"{i}?", "answer": i} for i in range(40)])},
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
REVISIONS = dict(order.source.removeprefix("hub:").rpartition("/")[0].split("@") for order in ORDERS)
SHARDS = {
    "README.md": b"# no front matter\n",
    "data/train-00000-of-00001.parquet": parquet(FLOATS[:1]),
    "data/test-00000-of-00002.parquet": parquet(FLOATS[:1]),
    "data/test-00001-of-00002.parquet": parquet(FLOATS[1:]),
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a hub with all data sets, and of its cache."""
    home = tmp_path_factory.mktemp("home")
    known = [Repository(n, files, (REVISIONS[n],), commit=REVISIONS[n]) for n, files in FILES.items()]
    for endpoint in serving(Repository("lab/sums", SHARDS, ("main", "v1", COMMIT)), *known):
        yield {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_HUB_OFFLINE": "0"}


def on_hub(hub: dict[str, str], *arguments: str, code: ExitCode = ExitCode.OK) -> str:
    """In a process, as the hub's client reads its variables when it is imported."""
    return in_a_process("data", *arguments, exits=code, **hub)


def test_what_the_hub_does_not_have_or_does_not_answer(hub: dict[str, str]) -> None:
    log_in, wrong = "hf auth login", "correct the name"
    for name, advised in (("lab/none", log_in), ("lab/sums@v9/test", log_in), ("lab--x/sums", wrong)):
        assert advised in on_hub(hub, "prepare", f"hub:{name}", "mine.jsonl", code=ExitCode.FATAL)
    away = {**hub, "HF_ENDPOINT": "http://127.0.0.1:9"}
    shown = on_hub(away, "prepare", "hub:lab/sums", "mine.jsonl", code=ExitCode.RETRYABLE)
    assert "hf download --repo-type dataset lab/sums" in shown


def test_no_answer_of_a_hub_about_a_data_set_is_a_path(hub: dict[str, str], tmp_path: Path) -> None:
    for lie in ({"commit": "../../x"}, {"faults": Faults(tag="../../../outside")}):
        for endpoint in serving(Repository("lab/sums", SHARDS, **lie)):  # type: ignore[arg-type]
            own = {**hub, "HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(tmp_path), "HF_HOME": str(tmp_path)}
            said = on_hub(own, "prepare", "hub:lab/sums@main/test", "mine.jsonl", code=ExitCode.FATAL)
            assert "the hub answers with" in said, said


def test_a_data_set_of_the_hub_is_prepared(hub: dict[str, str]) -> None:
    on_hub(hub, "prepare", "hub:lab/sums@v1/test", "mine.jsonl")
    assert read_problems(OUT) == PROBLEMS
    record = SourceRecord.read(record_file(OUT))
    assert (record.source, record.revision, record.split) == ("hub:lab/sums@v1/test", COMMIT, "test")
    sums = [(name, hashlib.sha256(content).hexdigest()) for name, content in SHARDS.items() if "test" in name]
    assert [(file.name, file.sha256) for file in record.files] == sums


def of(source: str) -> tuple[list[Problem], SourceRecord]:
    path = Path("data") / f"{source}.jsonl"
    return read_problems(path), SourceRecord.read(record_file(path))


FOUND = {
    "aime24": (1, Problem("aime24-1", "Is it 1?", "1")),
    "math500": (1, Problem("test/1.json", "Is it 1?", "1")),
    "aime_1983_2023": (7, Problem("1983-7", "Find $x$, if $x = 7$\nand $y > 0$.", "007")),
}


FETCH_ALL = "from mrt_hpc.datasets.named import ORDERS, fetch_data\nfor o in ORDERS: fetch_data(o.output.stem, None)"


def test_each_name_gives_its_problems_and_is_not_fetched_again(hub: dict[str, str]) -> None:
    python("-c", FETCH_ALL, **hub)
    for order in ORDERS:
        name = order.output.stem
        found, record = of(name)
        assert (len(found), record.source) == (order.problems, order.source)
        number, problem = FOUND.get(name, (0, found[0]))
        assert found[number] == problem
        assert not any(problem.id.startswith("2024-") for problem in found), "AIME ends with 2023"
    (small, record), (large, _) = of("numina_math_4000"), of("numina_math_10000")
    assert (record.rows, record.dropped, record.sampled_of, record.sample_seed) == (20_000, 4_000, 16_000, 0)
    assert set(small) < set(large)
    assert [p.id for p in small] == sorted((p.id for p in small), key=lambda name: int(name.split("-")[1]))
    assert all(p.id == f"numina_math-{int(p.answer) - 1}" for p in small), "whatever the name of the file"
    refused = typed("data", "fetch", "numina_math_10000", "data/numina_math_4000.jsonl", exits=ExitCode.FATAL)
    assert "not of this source" in refused.stderr, "the smaller sample is not taken for the larger one"
    assert not fetch_data("aime25", None).new
    with Path("data/aime25.jsonl").open("a") as stream:
        stream.write("\n")
    assert "--force" in typed("data", "fetch", "aime25", exits=ExitCode.FATAL).stderr
    on_hub(hub, "fetch", "aime25", "--force")
    assert not fetch_data("aime25", None).new


def test_a_source_with_another_number_of_problems_is_refused() -> None:
    Path("rows.jsonl").write_bytes(json_lines(problems(31)))
    refused = refusal(prepare, Order("rows.jsonl", OUT, problems=30))
    assert (refused.value, OUT.exists()) == ("31 problems of 31 rows", False)


def test_every_data_file_of_the_recipes_has_a_command_and_the_number_of_problems_that_they_state() -> None:
    for recipe in sorted(RECIPES.glob("*.yaml")):
        loaded = load_recipe(recipe)
        for source in [loaded.data, *(benchmark.problems for benchmark in loaded.evaluation.benchmarks)]:
            if source.type == "jsonl":
                assert fetch_command(Path(source.path)) is not None, source
                assert source.limit in (None, BY_NAME[Path(source.path).stem].problems), source


def numbered(count: int) -> list[Problem]:
    return [Problem(f"p-{i}", f"What is {i}?", str(i)) for i in range(count)]


def test_a_sample_depends_on_texts_and_seed_alone() -> None:
    every, sample = numbered(1000), Sample(100, seed=5)
    shuffled = random.Random(3).sample(every, 1000)
    assert set(sample.of(every)) == set(sample.of(shuffled)) != set(Sample(100, seed=6).of(every))
    assert set(Sample(40, seed=5).of(every)) < set(sample.of(every))
    assert sample.of(every) == sorted(sample.of(every), key=lambda p: int(p.answer))
    # the smallest of SHA-256("0\nWhat is N?"), worked out by hand with sha256sum
    assert [p.answer for p in Sample(3).of(numbered(10))] == ["1", "3", "9"]
    twice = [*numbered(10), *(replace(p, id=f"again-{p.id}") for p in numbered(10))]
    assert len(Sample(15).of(twice)) == 10, "no text is taken twice"
