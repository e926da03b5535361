"""Problems: wrong data files are refused with line and field; draws depend on the seed alone and repeat nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.errors import UserError
from mrt_hpc.run.data import draw_problems, read_problems, share, write_problems
from mrt_hpc.run.records import Problem, gold_text
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    from pathlib import Path

PROBLEMS = [Problem(f"p{i}", f"What is {i}+1?", str(i + 1)) for i in range(10)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_problems(tmp_path / "d.jsonl", PROBLEMS)
    assert read_problems(tmp_path / "d.jsonl") == PROBLEMS
    assert read_problems(tmp_path / "d.jsonl", 3) == PROBLEMS[:3]


def test_several_gold_answers_are_kept_and_one_stays_a_text(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    write_problems(path, [Problem("a", "x", "1"), Problem("b", "y", ("1/2", "0.5"))])
    one, several = path.read_text().splitlines()
    assert one == '{"id": "a", "problem": "x", "answer": "1"}', "its bytes decide the fingerprint of results"
    assert several == '{"id": "b", "problem": "y", "answer": ["1/2", "0.5"]}'
    assert read_problems(path) == [Problem("a", "x", "1"), Problem("b", "y", ("1/2", "0.5"))]
    assert [gold_text(problem.answer) for problem in read_problems(path)] == ["1", "1/2 or 0.5"]
    path.write_text(one.replace('"1"', '["1"]'))
    assert read_problems(path) == [Problem("a", "x", "1")]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ('{"id": "b", "problem": "x", "answer": []}', ["line 2", "answer", "a list of different texts"]),
        ('{"id": "b", "problem": "x", "answer": ["1", " 1"]}', ["line 2", "answer", "a list of different texts"]),
        ('{"id": "b", "problem": "x", "answer": ["1", " "]}', ["line 2", "answer", "not empty"]),
        ('{"id": "b", "problem": "x", "answer": ["1", 2]}', ["line 2", "answer", "2"]),
        ('{"id": "b", "problem": "x", "answer": [["1"]]}', ["line 2", "answer"]),
        ("{", ["line 2", "JSON"]),
        ("[]", ["line 2", "object"]),
        ('{"id": "b", "problm": "x", "answer": "1"}', ["line 2", "problem", "problm"]),
        ('{"id": "b", "problem": "x", "answer": 1}', ["line 2", "answer", "1"]),
        ('{"id": "a", "problem": "x", "answer": "1"}', ["line 2", "line 1", "'a'"]),
        ('{"id": "b", "problem": " ", "answer": "1"}', ["line 2", "problem"]),
        ("\xff", ["line 2"]),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, second: str, words: list[str]) -> None:
    path = tmp_path / "d.jsonl"
    first = json.dumps({"id": "a", "problem": "x", "answer": "1"})
    path.write_bytes((first + "\n" + second + "\n").encode("latin-1"))
    with pytest.raises(UserError) as caught:
        read_problems(path)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.advice, "the error ends with what to do"


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such data file"):
        read_problems(tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match="holds nothing"):
        read_problems(tmp_path / "d.jsonl")


@given(seed=st.integers(0, 99), iteration=st.integers(0, 30), count=st.integers(1, 10))
def test_a_draw_repeats_no_problem_and_is_the_same_every_time(seed: int, iteration: int, count: int) -> None:
    drawn = draw_problems(PROBLEMS, seed, iteration, count)
    assert len({p.id for p in drawn}) == count
    assert drawn == draw_problems(PROBLEMS, seed, iteration, count)


@given(seed=st.integers(0, 99), count=st.sampled_from([1, 2, 5, 10]))
def test_a_pass_through_the_data_meets_every_problem_once(seed: int, count: int) -> None:
    drawn = [p.id for i in range(len(PROBLEMS) // count) for p in draw_problems(PROBLEMS, seed, i, count)]
    assert sorted(drawn) == sorted(p.id for p in PROBLEMS)


def test_more_problems_an_iteration_than_there_are_repeat_them_evenly() -> None:
    drawn = [p.id for p in draw_problems(PROBLEMS, 0, 0, 25)]
    assert {drawn.count(p.id) for p in PROBLEMS} == {2, 3}


@given(shards=st.integers(1, 12))
def test_shares_are_disjoint_and_complete(shards: int) -> None:
    parts = [share(PROBLEMS, s, shards) for s in range(shards)]
    assert sorted(p.id for part in parts for p in part) == sorted(p.id for p in PROBLEMS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_seeds_differ_by_every_part_and_stay_the_same_over_versions() -> None:
    assert derive_seed(0, "rollout", 1, "p", 2) != derive_seed(0, "rollout", 1, "p", 3)
    assert derive_seed(0, "rollout", 1, "p", 2) != derive_seed(0, "rollout", 12, "p")
    assert derive_seed(0, 1) != derive_seed(0, "1")
    assert derive_seed(0, "rollout", 1, "p", 2) == 1358820838
    assert all(0 <= derive_seed(s, "x") < 2**31 for s in range(100))


@pytest.mark.parametrize(
    "name", ["aime24", "aime25", "amc23", "math500", "minerva_math", "math_train", "aime_1983_2023"]
)
def test_the_shared_data_sets_are_readable(shared_data: Path, name: str) -> None:
    assert len(read_problems(shared_data / f"{name}.jsonl")) >= 30
