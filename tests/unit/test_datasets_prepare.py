"""A data file is made from sources of other kinds and columns, and the record beside it says where it is from."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hub_server import COMMIT, Repository, serving

import mrt_hpc
from mrt_hpc.cli.main import main
from mrt_hpc.datasets.columns import Asked, BadRowError, Columns, find_columns, gold_answer, problem_text
from mrt_hpc.datasets.prepare import Order, Prepared, SourceRecord, prepare, record_file
from mrt_hpc.datasets.sources import Selection, choose, hub_name, open_source
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.records import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
ROWS = [
    {"Question": "What is 1+1?", "Answer": 2, "level": 1},
    {"Question": "Half of 5?", "Answer": 2.5, "level": 1},
    {"Question": "Half of 8?", "Answer": 4.0, "level": 2},
]
PROBLEMS = [
    Problem("mine-0", "What is 1+1?", "2"),
    Problem("mine-1", "Half of 5?", "2.5"),
    Problem("mine-2", "Half of 8?", "4"),
]


def json_lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[Any]) -> bytes:
    stream = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["data", "prepare", *map(str, arguments)])


def prepared(source: str | Path, **options: Any) -> Prepared:
    return prepare(Order(str(source), Path("mine.jsonl"), **options))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", json_lines(ROWS)),
        ("rows.ndjson", json_lines(ROWS).replace(b"\n", b"\n\n")),
        ("rows.json", json.dumps(ROWS).encode()),
        ("rows.json", json.dumps(ROWS, indent=1).encode()),
        ("rows.json", json.dumps({"version": "1", "data": ROWS}, indent=1).encode()),
        ("rows.json", json.dumps({"version": "1", "data": ROWS}).encode()),
        ("rows.json", json_lines(ROWS)),
    ],
)
def test_each_kind_of_file_makes_the_same_problems(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    prepared(name)
    assert read_problems(Path("mine.jsonl")) == PROBLEMS


def test_a_parquet_file_makes_the_same_problems(folder: Path) -> None:
    rows = [{**row, "Answer": float(row["Answer"])} for row in ROWS]
    (folder / "rows.parquet").write_bytes(parquet(rows))
    prepared("rows.parquet")
    assert read_problems(Path("mine.jsonl")) == PROBLEMS


def test_the_record_tells_source_columns_numbers_and_checksums(folder: Path) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines([*ROWS, {"Question": "", "Answer": 1}]))
    prepared("rows.jsonl", drop_bad=True)
    assert json.loads((folder / "mine.jsonl.source.json").read_text()) == {
        "source": "rows.jsonl",
        "revision": None,
        "config": None,
        "split": None,
        "files": [{"name": "rows.jsonl", "sha256": hashlib.sha256(Path("rows.jsonl").read_bytes()).hexdigest()}],
        "columns": {"problem": "Question", "answer": "Answer", "id": None, "choices": None},
        "rows": 4,
        "problems": 3,
        "dropped": 1,
        "kept": None,
        "sample_seed": None,
        "sampled_of": None,
        "sha256": hashlib.sha256(Path("mine.jsonl").read_bytes()).hexdigest(),
        "mrt_hpc_version": mrt_hpc.__version__,
    }


def test_the_same_input_gives_the_same_bytes(folder: Path) -> None:
    (folder / "rows.json").write_text(json.dumps(ROWS))
    written = []
    for _ in range(2):
        prepared("rows.json", force=True)
        written.append([path.read_bytes() for path in (Path("mine.jsonl"), record_file(Path("mine.jsonl")))])
    assert written[0] == written[1]


def test_an_output_that_is_there_stays_without_force(folder: Path) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines(ROWS))
    (folder / "mine.jsonl").write_text("precious")
    refused = invoke("rows.jsonl", "mine.jsonl")
    assert refused.exit_code == ExitCode.FATAL
    assert "--force" in refused.stderr
    assert (folder / "mine.jsonl").read_text() == "precious"
    assert not record_file(folder / "mine.jsonl").exists()
    assert invoke("rows.jsonl", "mine.jsonl", "--force").exit_code == 0
    assert read_problems(folder / "mine.jsonl") == PROBLEMS


def test_the_source_is_never_replaced(folder: Path) -> None:
    (folder / "mine.jsonl").write_bytes(json_lines(ROWS))
    with pytest.raises(UserError, match="would replace the source"):
        prepared("mine.jsonl", force=True)
    assert (folder / "mine.jsonl").read_bytes() == json_lines(ROWS)


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["id", "problem", "answer"], Columns("problem", "answer", "id")),
        (["Problem", "Answer", "ID"], Columns("Problem", "Answer", "ID")),
        (["prompt", "solution"], Columns("prompt", "solution", None)),
        (["prompt", "question", "solution", "final_answer"], Columns("question", "final_answer", None)),
        (["problem", "solution", "answer", "unique_id", "subject"], Columns("problem", "answer", "unique_id")),
        (["Answer", "answer", "problem"], Columns("problem", "Answer", None)),
    ],
)
def test_known_columns_are_found(names: list[str], columns: Columns) -> None:
    assert find_columns(names, Asked()) == columns


def test_named_columns_come_first() -> None:
    names = ["id", "key", "problem", "text", "answer", "label"]
    assert find_columns(names, Asked("text", "label", "key")) == Columns("text", "label", "key")
    assert find_columns(names, Asked(new_ids=True)) == Columns("problem", "answer", None)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked(), ["no column has a known name for the answer", "--answer COLUMN"]),
        (Asked(answer="lable"), ["lable", "--answer label"]),
        (Asked(answer="label", problem="text"), ["text", "--problem COLUMN"]),
    ],
)
def test_a_column_that_is_missing_is_named(asked: Asked, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        find_columns(["problem", "label"], asked)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("value", "column", "answer"),
    [
        ("7", "answer", "7"),
        (" 7\n", "answer", "7"),
        (7, "answer", "7"),
        (-3.0, "answer", "-3"),
        (0.125, "answer", "0.125"),
        (["7"], "answer", "7"),
        (r"$\frac{1}{2}$", "answer", r"$\frac{1}{2}$"),
        (r"\boxed{7}", "answer", "7"),
        (r"First \boxed{1}, so in all \boxed{\frac{1}{2}}.", "solution", r"\frac{1}{2}"),
        ("Natalia sold 48/2 = 24.\nIn all 72.\n#### 72", "answer", "72"),
        ("#### Step 1\nwe add\n#### 1,080\n", "answer", "1,080"),
        ("#### Step 1\nwe add", "answer", "#### Step 1\nwe add"),
    ],
)
def test_the_answer_of_a_value(value: object, column: str, answer: str) -> None:
    assert gold_answer(value, Columns("problem", column, None), None) == answer


@pytest.mark.parametrize(
    ("value", "column", "reason"),
    [
        (None, "answer", "missing"),
        (float("nan"), "answer", "no finite number"),
        ("  ", "answer", "empty"),
        (True, "answer", "bool"),
        (["1", "2"], "answer", "list"),
        ("so it is 7", "solution", "no \\boxed{}"),
        (r"\boxed{ }", "solution", "no \\boxed{}"),
        ("\ud800", "answer", "half of a character"),
    ],
)
def test_what_is_no_answer(value: object, column: str, reason: str) -> None:
    with pytest.raises(BadRowError) as caught:
        gold_answer(value, Columns("problem", column, None), None)
    assert reason in str(caught.value)


def test_a_chat_with_one_message_of_the_user_is_a_problem() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1+1?"}]
    assert problem_text(messages, "prompt") == "What is 1+1?"
    with pytest.raises(BadRowError, match="2 messages of the user"):
        problem_text([messages[1], messages[1]], "prompt")


def test_a_name_with_a_point_reaches_into_a_column(folder: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2", "style": "rule"}}]
    (folder / "rows.parquet").write_bytes(parquet(rows))
    assert invoke("rows.parquet", "mine.jsonl", "--answer", "reward_model.ground_truth").exit_code == 0
    assert read_problems(folder / "mine.jsonl") == [Problem("mine-0", "1+1?", "2")]


BAD = [
    {"id": "a", "problem": "1+1?", "answer": "2"},
    {"id": "b", "problem": " ", "answer": "2"},
    {"id": "a", "problem": "1+2?", "answer": "3"},
    ["no", "object"],
    {"id": "c", "problem": "2+2?"},
    {"id": "d", "problem": "2+3?", "answer": "5"},
]


def test_a_bad_row_is_refused_by_its_place(folder: Path) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines(BAD))
    refused = invoke("rows.jsonl", "mine.jsonl")
    assert refused.exit_code == ExitCode.FATAL
    for word in ("rows.jsonl, line 2", "problem is empty", "3 more rows", "--drop-bad"):
        assert word in refused.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["rows.jsonl"]


def test_bad_rows_are_left_out_and_each_is_told(folder: Path) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines(BAD))
    done = invoke("rows.jsonl", "mine.jsonl", "--drop-bad")
    assert done.exit_code == 0
    assert [problem.id for problem in read_problems(folder / "mine.jsonl")] == ["a", "d"]
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        f"left out rows.jsonl, line {number}" for number in (2, 3, 4, 5)
    ]
    assert "2 problems of 6 rows" in done.stdout


def test_repeated_ids_are_replaced_by_new_ones(folder: Path) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines([BAD[0], BAD[2]]))
    with pytest.raises(UserError, match="--new-ids"):
        prepared("rows.jsonl")
    prepared("rows.jsonl", columns=Asked(new_ids=True))
    assert [problem.id for problem in read_problems(Path("mine.jsonl"))] == ["mine-0", "mine-1"]


SVAMP = [
    {
        "ID": "chal-1",
        "Body": "Ann has 3 bags.",
        "Question": "How many are there?",
        "Equation": "( 3.0 - 0.0 )",
        "Answer": 3.0,
    },
    {
        "ID": "chal-2",
        "Body": "Bob has 4 bags.",
        "Question": "How many are there?",
        "Equation": "( 4.0 - 0.0 )",
        "Answer": 4.0,
    },
]
ASDIV = [{"@ID": "n-1", "body": "Seven apples and two more.", "question": "How many apples?", "answer": "9 (apples)"}]
MMLU = [{"question": "Which is prime?", "subject": "mathematics", "choices": ["4", "6", "7", "8"], "answer": 2}]
AQUA = [
    {"question": "1+20?", "options": ["A)21", "B)21.5", "C)22", "D)22.5", "E)23"], "rationale": "Add.", "correct": "A"},
    {"question": "20+3?", "options": ["A)21", "B)21.5", "C)22", "D)22.5", "E)23"], "rationale": "Add.", "correct": "E"},
]
OLYMPIAD = [
    {"id": 1, "question": "x?", "context": None, "final_answer": ["2"], "error": None, "unit": ""},
    {"id": 2, "question": "y?", "context": None, "final_answer": ["3.1"], "error": "1e-1", "unit": "m"},
]


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (SVAMP, [], ["['Body']", "--problem Body+Question", "--ignore 'Body'"]),
        (ASDIV, [], ["['body']", "--problem body+question"]),
        (MMLU, [], ["['choices']", "--choices choices"]),
        (AQUA, ["--answer", "correct"], ["['options']", "--choices options"]),
        (OLYMPIAD, [], ["decide whether an answer is right", "['error', 'unit']", "--ignore 'unit'"]),
        ([{**OLYMPIAD[1], "context": "A map."}], [], ["['context']", "--problem context+question"]),
        ([{**OLYMPIAD[1], "error": "0.1,0.2"}], [], ["['error', 'unit']"]),
    ],
)
def test_columns_that_the_question_needs_are_not_dropped(
    folder: Path, rows: list[Any], options: list[str], words: list[str]
) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines(rows))
    refused = invoke("rows.jsonl", "mine.jsonl", *options)
    assert refused.exit_code == ExitCode.FATAL
    for word in words:
        assert word in refused.stderr
    assert not (folder / "mine.jsonl").exists()


def test_a_parquet_file_with_context_is_refused_too(folder: Path) -> None:
    (folder / "rows.parquet").write_bytes(parquet(SVAMP))
    assert "--problem Body+Question" in invoke("rows.parquet", "mine.jsonl").stderr


def test_several_columns_make_a_problem_and_the_rest_is_named(folder: Path) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines(SVAMP))
    done = invoke("rows.jsonl", "mine.jsonl", "--problem", "Body+Question")
    assert done.exit_code == 0
    assert read_problems(folder / "mine.jsonl") == [
        Problem("chal-1", "Ann has 3 bags.\n\nHow many are there?", "3"),
        Problem("chal-2", "Bob has 4 bags.\n\nHow many are there?", "4"),
    ]
    assert "not read: Equation" in done.stdout
    assert SourceRecord.read(record_file(folder / "mine.jsonl")).columns.problem == "Body+Question"


def test_a_column_may_be_left_out_by_its_name(folder: Path) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines(OLYMPIAD))
    assert invoke("rows.jsonl", "mine.jsonl", "--ignore", "unit", "--ignore", "error").exit_code == 0
    assert [problem.answer for problem in read_problems(folder / "mine.jsonl")] == ["2", "3.1"]
    assert "no such column" in invoke("rows.jsonl", "other.jsonl", "--ignore", "units").stderr


@pytest.mark.parametrize(
    ("rows", "options", "problems"),
    [
        (MMLU, [], [Problem("mine-0", "Which is prime?\n\nA. 4\nB. 6\nC. 7\nD. 8", "C")]),
        (
            AQUA,
            ["--answer", "correct"],
            [
                Problem("mine-0", "1+20?\n\nA. 21\nB. 21.5\nC. 22\nD. 22.5\nE. 23", "A"),
                Problem("mine-1", "20+3?\n\nA. 21\nB. 21.5\nC. 22\nD. 22.5\nE. 23", "E"),
            ],
        ),
        (
            [{"question": "q?", "choices": {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, "answer": "2"}],
            [],
            [Problem("mine-0", "q?\n\nA. x\nB. y\nC. z", "B")],
        ),
        (
            [{"question": "q?", "choices": {"A": "x", "B": "y"}, "answer": "B"}],
            [],
            [Problem("mine-0", "q?\n\nA. x\nB. y", "B")],
        ),
        ([{**MMLU[0], "answer": "7"}], [], [Problem("mine-0", "Which is prime?\n\nA. 4\nB. 6\nC. 7\nD. 8", "C")]),
    ],
)
def test_choices_stand_below_the_problem_and_the_gold_answer_is_a_letter(
    folder: Path, rows: list[Any], options: list[str], problems: list[Problem]
) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines(rows))
    column = "options" if "options" in rows[0] else "choices"
    done = invoke("rows.jsonl", "mine.jsonl", "--choices", column, *options)
    assert done.exit_code == 0
    assert read_problems(folder / "mine.jsonl") == problems
    assert "for the verifier choice" in done.stdout


@pytest.mark.parametrize(
    ("choices", "answer"),
    [
        (["5", "6", "1"], "1"),
        ({"text": ["x", "y"], "label": ["1"]}, "1"),
        (["1", "2"], 2),
        (["1", "2"], "F"),
        (["1"], 0),
        ("1, 2", 0),
    ],
)
def test_choices_without_the_gold_answer_are_refused(folder: Path, choices: object, answer: object) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines([{"question": "x?", "choices": choices, "answer": answer}]))
    assert "a row makes no problem" in invoke("rows.jsonl", "mine.jsonl", "--choices", "choices").stderr


def test_a_part_that_few_problems_have_may_be_empty(folder: Path) -> None:
    rows = [
        {"context": None, "question": "1+1?", "answer": "2"},
        {"context": "x = 1", "question": "x+2?", "answer": "3"},
    ]
    (folder / "rows.jsonl").write_bytes(json_lines(rows))
    assert invoke("rows.jsonl", "mine.jsonl", "--problem", "context+question").exit_code == 0
    assert [problem.problem for problem in read_problems(folder / "mine.jsonl")] == ["1+1?", "x = 1\n\nx+2?"]


@pytest.mark.parametrize("more", [{"A": "1", "B": "2"}, {"A": 1, "B": 2}, {"tolerance": 0.01}, {"precision": 2}])
def test_parts_that_hold_numbers_are_parts_too(folder: Path, more: dict[str, object]) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines([{"question": "q?", "answer": "B", **more}]))
    refused = invoke("rows.jsonl", "mine.jsonl")
    assert refused.exit_code != 0
    assert f"--ignore '{next(iter(more))}'" in refused.stderr


def test_ids_in_some_rows_only_are_replaced_by_new_ones(folder: Path) -> None:
    rows = [{"id": 1, "question": "1+1?", "answer": "2"}, {"question": "1+2?", "answer": "3"}]
    (folder / "rows.jsonl").write_bytes(json_lines(rows))
    assert "--new-ids" in invoke("rows.jsonl", "mine.jsonl").stderr
    assert invoke("rows.jsonl", "mine.jsonl", "--new-ids").exit_code == 0
    assert [problem.id for problem in read_problems(folder / "mine.jsonl")] == ["mine-0", "mine-1"]


def test_of_several_gold_answers_one_is_named_or_each_is_right(folder: Path) -> None:
    golds = [[r"\boxed{\frac{1}{2}}", "0.5", " 0.5 "], ["2"], [3, 3.0], ["4"]]  # as in rllm's file of Minerva
    rows = [{"problem": f"{n}?", "ground_truth": gold} for n, gold in enumerate(golds)]
    (folder / "rows.json").write_text(json.dumps(rows))
    refused = invoke("rows.json", "mine.jsonl")
    assert refused.exit_code != 0
    assert "a list of 2 different answers: --any-answer takes each of them as right" in refused.stderr
    assert "--answer ground_truth.0 the first alone" in refused.stderr
    assert invoke("rows.json", "first.jsonl", "--answer", "ground_truth.0").exit_code == 0
    assert [problem.answer for problem in read_problems(folder / "first.jsonl")] == [r"\frac{1}{2}", "2", "3", "4"]
    assert invoke("rows.json", "mine.jsonl", "--any-answer").exit_code == 0
    assert [p.answer for p in read_problems(folder / "mine.jsonl")] == [(r"\frac{1}{2}", "0.5"), "2", "3", "4"]
    first, second, *_ = (folder / "mine.jsonl").read_text().splitlines()
    assert json.loads(first)["answer"] == [r"\frac{1}{2}", "0.5"]
    assert second == '{"id": "mine-1", "problem": "1?", "answer": "2"}'


def test_each_of_several_letters_is_right_where_it_is_said(folder: Path) -> None:
    row = {"question": "Which is even?", "choices": ["two", "three", "four"], "answer": ["A", 2]}
    (folder / "rows.jsonl").write_bytes(json_lines([row]))
    asked = ("rows.jsonl", "mine.jsonl", "--choices", "choices")
    assert "--any-answer" in invoke(*asked).stderr
    assert invoke(*asked, "--any-answer").exit_code == 0
    assert read_problems(folder / "mine.jsonl")[0].answer == ("A", "C")


def test_a_solution_with_several_answers_is_told(folder: Path) -> None:
    rows = [
        {"problem": "x^2=9?", "solution": r"\boxed{3} or \boxed{-3}"},
        {"problem": "1+1?", "solution": r"It is \boxed{2}, \boxed{2}."},
    ]
    (folder / "rows.jsonl").write_bytes(json_lines(rows))
    done = invoke("rows.jsonl", "mine.jsonl")
    assert "1 solutions box different answers" in done.stdout
    assert "rows.jsonl, line 1" in done.stdout


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz", "rows.csv.gz", "rows.jsonl.zst"])
def test_compressed_files_make_the_same_problems(folder: Path, name: str) -> None:
    content = json.dumps(ROWS).encode() if ".json." in name else json_lines(ROWS)
    if ".csv" in name:
        content = b"Question,Answer\nWhat is 1+1?,2\nHalf of 5?,2.5\nHalf of 8?,4\n"
    packed = gzip.compress(content) if name.endswith(".gz") else pa.compress(content, codec="zstd", asbytes=True)
    (folder / name).write_bytes(packed)
    prepared(name)
    assert read_problems(Path("mine.jsonl")) == PROBLEMS
    (folder / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match=r"cannot be read whole|not JSON|not a CSV"):
        prepared(name, force=True)


def test_a_csv_field_may_be_long(folder: Path) -> None:
    (folder / "rows.csv").write_text(f"problem,answer,solution\n1+1?,2,{'so ' * 100_000}\n")
    prepared("rows.csv")
    assert read_problems(Path("mine.jsonl")) == [Problem("mine-0", "1+1?", "2")]


def test_a_row_that_is_left_out_changes_no_other_id(folder: Path) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines([{"problem": "", "answer": "1"}, {"problem": "x?", "answer": "1"}]))
    prepared("rows.jsonl", drop_bad=True)
    assert [problem.id for problem in read_problems(Path("mine.jsonl"))] == ["mine-1"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.txt", b"problem,answer\n", "not a kind of data file"),
        ("rows.csv", b"problem,answer\n1+1?,2,3\n", "more cells than there are columns"),
        ("rows.csv", b"problem,answer\n\xff,2\n", "not a CSV file"),
        ("rows.jsonl", b'{"problem": "x", "answer": "1"}\n{"prob', "line 2"),
        ("rows.json", b'{"a": [], "b": []}', "no single list"),
        ("rows.json", b"7", "no single list"),
        ("rows.json", b"[1, ", "not JSON"),
        ("rows.parquet", b"PAR1 and no more", "not a parquet file"),
        ("rows.jsonl", b"\n\n", "no rows with columns"),
        ("rows.jsonl", b'{"problem": "", "answer": "1"}\n', "no row makes a problem"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(folder: Path, name: str, content: bytes, words: str) -> None:
    (folder / name).write_bytes(content)
    refused = invoke(name, "mine.jsonl", "--drop-bad")
    assert refused.exit_code == ExitCode.FATAL
    assert words in refused.stderr
    assert not (folder / "mine.jsonl").exists()


def test_options_that_a_file_does_not_have_are_refused(folder: Path) -> None:
    (folder / "rows.jsonl").write_bytes(json_lines(ROWS))
    for option in ("--split", "--config", "--revision"):
        assert f"leave out {option}" in invoke("rows.jsonl", "mine.jsonl", option, "test").stderr
    assert "no such source" in invoke("none.jsonl", "mine.jsonl").stderr


def test_the_commands_of_the_page_work(folder: Path) -> None:
    section = (ROOT / "docs" / "data.md").read_text().split("## Prepare data of your own\n")[1]
    commands = [line.split("#")[0].split()[1:] for line in section.splitlines() if line.startswith("mrt-hpc")]
    (folder / "rows.parquet").write_bytes(parquet([{"question": "1+1?", "solution": r"It is $\boxed{2}$."}]))
    (folder / "rows.json").write_text(json.dumps([{"text": "1+2?", "label": 3}, {"text": "1+3?", "label": None}]))
    (folder / "svamp.json").write_text(json.dumps(SVAMP))
    (folder / "quiz.jsonl.gz").write_bytes(gzip.compress(json_lines(AQUA)))
    (folder / "data").mkdir()
    (folder / "data" / "math500.jsonl").write_bytes(json_lines([{"id": "a", "problem": "1+4?", "answer": "5"}]))
    here = [command for command in commands if "hub:HuggingFaceH4/MATH-500/test" not in command]
    assert len(here) == len(commands) - 1 == 5
    for command in here:
        assert CliRunner().invoke(main, command).exit_code == 0
    assert read_problems(folder / "data" / "mine.jsonl") == [Problem("mine-0", "1+1?", "2")]
    assert read_problems(folder / "data" / "other.jsonl") == [Problem("other-0", "1+2?", "3")]


# -- the parts of a data set ------------------------------------------------------------------------------------------

CARD = """---
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: main/train-*
  - {split: test, path: [main/test-*]}
- config_name: socratic
  data_files:
  - {split: train, path: "socratic/**/*.parquet"}
---
# A data set
"""
DECLARED = ["main/train-0.jsonl", "main/test-0.jsonl", "socratic/a/b.parquet"]
SHARDED = [f"data/{part}.parquet" for part in ("train-00001-of-00002", "train-00000-of-00002", "test-00000-of-00001")]

HARD = "data/hard-00000-of-00001.parquet"


def set_of(folder: Path, names: list[str], card: str = "") -> str:
    """A folder with the files of a data set."""
    for name in names:
        (folder / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "set" / name).write_bytes(parquet(ROWS) if name.endswith(".parquet") else json_lines(ROWS))
    (folder / "set" / "README.md").write_text(card)
    return str(folder / "set")


@pytest.mark.parametrize(
    ("names", "card", "asked", "part", "chosen"),
    [
        (["test.jsonl"], "", Selection(), ("default", "test"), ["test.jsonl"]),
        (["deepscaler.json"], "", Selection(), ("default", "train"), ["deepscaler.json"]),
        (SHARDED, "", Selection(split="train"), ("default", "train"), [SHARDED[1], SHARDED[0]]),
        ([HARD], "", Selection(), ("default", "hard"), [HARD]),
        (["dev/a.json", "train/a.json"], "", Selection(split="validation"), ("default", "validation"), ["dev/a.json"]),
        (DECLARED, CARD, Selection(split="test"), ("main", "test"), ["main/test-0.jsonl"]),
        (DECLARED, CARD, Selection(config="socratic"), ("socratic", "train"), ["socratic/a/b.parquet"]),
        ([".cache/train.jsonl", "test.jsonl"], "", Selection(), ("default", "test"), ["test.jsonl"]),
        (["test.jsonl", "more.jsonl", "test.csv"], "", Selection(split="test"), ("default", "test"), ["test.jsonl"]),
    ],
)  # fmt: skip
def test_the_files_of_a_split(
    folder: Path, names: list[str], card: str, asked: Selection, part: tuple[str, str], chosen: list[str]
) -> None:
    place = set_of(folder, names, card)
    assert choose(place, asked, "here") == (*part, [f"{place}/{name}" for name in chosen])


@pytest.mark.parametrize(
    ("names", "card", "asked", "words"),
    [
        (["train.jsonl", "test.jsonl"], "", Selection(), "name one split"),
        (["train.jsonl", "test.jsonl"], "", Selection(split="tset"), "no such split"),
        (DECLARED, CARD.replace("  default: true\n", ""), Selection(), "socratic"),
        (DECLARED, CARD, Selection(config="platonic"), "platonic"),
        (["loader.py"], "", Selection(), "no files that can be chosen"),
        (DECLARED, "---\nconfigs: [\n---\n", Selection(), "no files that can be chosen"),
    ],
)
def test_a_choice_that_is_open_is_refused(
    folder: Path, names: list[str], card: str, asked: Selection, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        choose(set_of(folder, names, card), asked, "here")
    assert words in str(caught.value)


def test_a_csv_file_and_a_list_keep_their_answers(folder: Path) -> None:
    """The library that chooses the files would read 7, no answer, and ten digits."""
    (folder / "set").mkdir()
    (folder / "set" / "train.csv").write_text("question,answer\n3+4?,007\nIs there one?,None\n")
    prepared("set")
    assert [problem.answer for problem in read_problems(Path("mine.jsonl"))] == ["007", "None"]
    (folder / "list.json").write_text(json.dumps([{"question": "pi?", "answer": 3.14159265358979}]))
    prepared("list.json", force=True)
    assert read_problems(Path("mine.jsonl"))[0].answer == "3.14159265358979"


def test_a_folder_is_a_source(folder: Path) -> None:
    (folder / "set" / "data").mkdir(parents=True)
    (folder / "set" / "data" / "train.jsonl").write_bytes(json_lines(ROWS[:1]))
    (folder / "set" / "data" / "test.jsonl").write_bytes(json_lines(ROWS))
    assert invoke("set", "mine.jsonl", "--split", "test").exit_code == 0
    assert read_problems(folder / "mine.jsonl") == PROBLEMS
    record = SourceRecord.read(record_file(folder / "mine.jsonl"))
    assert (record.config, record.split) == ("default", "test")
    assert [file.name for file in record.files] == ["data/test.jsonl"]


# -- the hub ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "name"),
    [
        ("hub:a/b", Selection(), ("a/b", Selection())),
        ("hub:a/b.c-d/test", Selection(config="x"), ("a/b.c-d", Selection(None, "x", "test"))),
        ("hub:a/b@v1.0/test", Selection(), ("a/b", Selection("v1.0", None, "test"))),
        ("hub:a/b@v1", Selection(split="test"), ("a/b", Selection("v1", None, "test"))),
        ("hub:a/b", Selection("refs/convert/parquet"), ("a/b", Selection("refs/convert/parquet"))),
    ],
)
def test_names_of_the_hub(text: str, options: Selection, name: tuple[str, Selection]) -> None:
    assert hub_name(text, options) == name


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("hub:b", Selection(), "hub:OWNER/NAME"),
        ("hub:a/b/test/more", Selection(), "hub:OWNER/NAME"),
        ("hub:a/b/test", Selection(split="train"), "two different ones"),
    ],
)
def test_wrong_names_of_the_hub(text: str, options: Selection, words: str) -> None:
    with pytest.raises(UserError, match=words):
        hub_name(text, options)


SHARDS = {
    "README.md": b"# no front matter\n",
    "data/train-00000-of-00001.parquet": parquet(ROWS[:1]),
    "data/test-00000-of-00002.parquet": parquet([{"Question": "What is 1+1?", "Answer": 2.0}]),
    "data/test-00001-of-00002.parquet": parquet(
        [{"Question": "Half of 5?", "Answer": 2.5}, {"Question": "Half of 8?", "Answer": 4.0}]
    ),
}


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of a hub with one data set."""
    yield from serving(Repository("lab/sums", SHARDS, ("main", "v1", COMMIT)))


def on_hub(endpoint: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command with a hub of its own: the client of the hub reads its variables when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "0"}
    environment.pop("HF_HUB_CACHE", None)
    command = [sys.executable, "-m", "mrt_hpc.cli.main", "data", "prepare", *arguments, "mine.jsonl"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hub:lab/none", "the hub refuses"),
        ("hub:lab/sums@v9/test", "the hub refuses"),
        ("hub:lab/sums", "name one split"),
        ("hub:lab--x/sums", "the hub refuses"),
    ],
)
def test_what_the_hub_does_not_have(endpoint: str, folder: Path, name: str, words: str) -> None:
    done = on_hub(endpoint, folder, name)
    assert done.returncode == ExitCode.FATAL
    assert words in done.stderr


def test_a_hub_that_is_away_may_be_tried_again(folder: Path) -> None:
    done = on_hub("http://127.0.0.1:9", folder, "hub:lab/sums")
    assert done.returncode == ExitCode.RETRYABLE
    assert "cannot be reached" in done.stderr
    assert "hf download --repo-type dataset lab/sums" in done.stderr


def test_the_command_prepares_a_data_set_of_the_hub(endpoint: str, folder: Path) -> None:
    done = on_hub(endpoint, folder, "hub:lab/sums@v1/test")
    assert done.returncode == 0, done.stderr
    assert read_problems(folder / "mine.jsonl") == PROBLEMS
    record = SourceRecord.read(record_file(folder / "mine.jsonl"))
    assert (record.source, record.revision, record.split) == ("hub:lab/sums@v1/test", COMMIT, "test")
    assert [(file.name, file.sha256) for file in record.files] == [
        (name, hashlib.sha256(content).hexdigest()) for name, content in SHARDS.items() if "test" in name
    ]


def test_a_light_installation_says_what_a_folder_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="the library of data sets is not installed") as caught:
        open_source(set_of(folder, ["test.jsonl"]), Selection())
    assert "pip install datasets" in str(caught.value)


SHARED = ["aime24", "aime25", "amc23", "math500", "minerva_math", "math_train", "aime_1983_2023"]


@pytest.mark.parametrize("name", SHARED)
def test_a_prepared_shared_set_has_the_same_problems(shared_data: Path, folder: Path, name: str) -> None:
    source = shared_data / f"{name}.jsonl"
    prepared(source)
    expected = [Problem(p.id, p.problem.strip(), p.answer.strip()) for p in read_problems(source)]
    assert read_problems(folder / "mine.jsonl") == expected
