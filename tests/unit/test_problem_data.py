"""Problems: wrong data files are refused with line and field; draws depend on the seed alone and repeat nothing."""

from itertools import chain
from pathlib import Path

from commands import recipe, refusal
from hypothesis import given
from hypothesis import strategies as st
from samples import draw_problems

from mrt_hpc.run.problems import draw_indices, draw_places, read_problems, share, write_problems
from mrt_hpc.run.records import Problem, gold_text
from mrt_hpc.run.seeds import derive_seed

QUICKSTART = recipe("quickstart")
PROBLEMS = [Problem(f"p{i}", f"What is {i}+1?", str(i + 1)) for i in range(10)]


def test_what_is_written_is_read_with_one_gold_answer_or_several(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    several = [*PROBLEMS, Problem("b", "y", ("1/2", "0.5"))]
    write_problems(path, several)
    assert (read_problems(path), read_problems(path, 3)) == (several, PROBLEMS[:3])
    first, *_, last = path.read_text().splitlines()
    assert first == '{"id": "p0", "problem": "What is 0+1?", "answer": "1"}', "it decides the fingerprint of results"
    assert last == '{"id": "b", "problem": "y", "answer": ["1/2", "0.5"]}'
    assert [gold_text(problem.answer) for problem in several[-2:]] == ["10", "1/2 or 0.5"]
    path.write_text(first.replace('"1"', '["1"]'))
    assert read_problems(path) == PROBLEMS[:1]


def test_a_wrong_line_is_named_and_so_is_a_missing_or_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    assert str(path) in refusal(read_problems, path).message()
    path.write_text("\n\n")
    assert str(path) in refusal(read_problems, path).message()
    for second, facts in (
        *((f'{{"id": "b", "problem": "x", "answer": {answer}}}', ["answer"])
          for answer in ("[]", '["1", " 1"]', '["1", 2]', "1")),
        ("{", []),
        ('{"id": "b", "problm": "x", "answer": "1"}', ["problem", "problm"]),
        ('{"id": "a", "problem": "x", "answer": "1"}', ["line 1", "'a'"]),
        ('{"id": "b", "problem": " ", "answer": "1"}', ["problem"]),
        ("\xff", []),
        ('{"id": "b", "problem": "x", "answer": "1", "answer": "2"}', ["answer stands there twice"]),
        ('{"id": "b", "problem": "x \\ud83d", "answer": "1"}', ["half of a character"]),
    ):  # fmt: skip
        path.write_bytes(f'{{"id": "a", "problem": "x", "answer": "1"}}\n{second}\n'.encode("latin-1"))
        refused = refusal(read_problems, path).message()
        assert [word for word in ["line 2", *facts] if word not in refused] == []


@given(seed=st.integers(0, 99), size=st.integers(1, 40), data=st.data())
def test_each_pass_holds_each_problem_once(seed: int, size: int, data: st.DataObject) -> None:
    """Also where a window of an iteration lies across two."""
    count = data.draw(st.integers(1, size))
    windows = [draw_indices(size, seed, iteration, count) for iteration in range(3 * size // count + 1)]
    assert all(len({*window}) == count for window in windows)
    drawn = [*chain(*windows)]
    for first in range(0, len(drawn) - size, size):
        assert sorted(drawn[first : first + size]) == list(range(size))
    assert windows[0] == draw_indices(size, seed, 0, count), "the same every time"
    sampling = QUICKSTART.sampling.model_copy(update={"problems_per_iteration": count, "resample": "outcome"})
    places = draw_places(range(size), QUICKSTART.model_copy(update={"seed": seed, "sampling": sampling}), 0)
    assert [first for first, *_ in places] == windows[0], "as without resampling"
    assert len({*chain(*places)}) == sum(map(len, places)) == min(size, 3 * count), "no problem has two places"


def test_more_problems_than_there_are_repeat_them_evenly() -> None:
    drawn = draw_problems(PROBLEMS, 3, 0, 25)
    assert {drawn.count(problem) for problem in PROBLEMS} == {2, 3}


def test_shares_are_disjoint_and_complete() -> None:
    for shards in range(1, 13):
        parts = [share(PROBLEMS, s, shards) for s in range(shards)]
        assert sorted(p.id for part in parts for p in part) == sorted(p.id for p in PROBLEMS)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_seeds_differ_by_every_part_and_stay_the_same_over_versions() -> None:
    assert derive_seed(0, "rollout", 1, "p", 2) != derive_seed(0, "rollout", 1, "p", 3)
    assert derive_seed(0, "rollout", 1, "p", 2) != derive_seed(0, "rollout", 12, "p")
    assert derive_seed(0, 1) != derive_seed(0, "1")
    assert derive_seed(0, "rollout", 1, "p", 2) == 1358820838
    assert all(0 <= derive_seed(s, "x") < 2**31 for s in range(100))
