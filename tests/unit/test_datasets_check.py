"""A check of data files finds every repeat, every problem that two files share, and every answer that is unreadable."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
from commands import python, refusal, typed
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.datasets.check import GRAM_WORDS, CheckReport, FindingKind, check, similar_pairs, words
from mrt_hpc.datasets.conversion import Order, prepare, record_file
from mrt_hpc.errors import ExitCode

LONG = "A train leaves the station at noon and travels at a constant speed of sixty miles an hour to a town at"
"""22 words; with one more it has 19 grams, and 18 of 20 are in common where only the last word differs."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name: str, *rows: tuple[str, str, str | list[str]]) -> Path:
    """A data file of (id, problem, answer)."""
    path = Path(name)
    lines = [json.dumps({"id": id_, "problem": problem, "answer": answer}) for id_, problem, answer in rows]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def checked(*files: Path, against: Sequence[Path] = (), verifier: str = "exact") -> CheckReport:
    return check(files, against, verifier)


def printed(*arguments: str | Path, code: ExitCode = ExitCode.FATAL) -> str:
    return typed("data", "check", *arguments, exits=code).output


def places(report: CheckReport, kind: FindingKind) -> list[list[tuple[str, int]]]:
    return [[(p.file, p.line) for p in finding.places] for finding in report.findings if finding.kind is kind]


SAME = [
    ("What is  $1 + 1$?", "what is $1+1$"), (r"Find $\dfrac{1}{2}\,x$.", r"find \( \frac{1}{2} x \)"),
    (r"Let $\left( x \right)$ be\quad even!", r"Let $(x)$ be even !"), ("Find $x^{2}$: now", "Find $x^2$, now"),
    ("He said “no”.", 'He said "no"'), ("3 − 2", "3-2"), ("one\n\ntwo", "One two"), (r"a \\[2pt] b", r"a \\ [2pt] b"),
]  # fmt: skip
OTHERS = [("3-2", "3+2"), ("3-2", "32"), ("5!", "5"), ("1.5", "15"), ("1,2", "12"), ("ab", "cd"), (r"\leftarrow", "")]


def test_words_are_commands_words_numbers_and_signs() -> None:
    assert words(r"Find $\dfrac{a_1}{2.5}$, then stop.") == ("find", r"\frac", "a", "_", "1", "2.5", "then", "stop")
    assert [pair for pair in (*SAME, *OTHERS) if words(pair[0]) == words(pair[1])] == SAME


def test_the_overlap_is_the_share_of_common_5_grams() -> None:
    one = tuple("abcdefghijklmn")  # 14 words: 10 grams
    other = (*one[:13], "z")  # the last gram differs: 9 in common, 11 in all
    assert (similar_pairs([one, other], 0.8), similar_pairs([one, other], 0.82)) == ([(0, 1, 9 / 11)], [])
    assert similar_pairs([one[:8], one[:9]]) == [(0, 1, 0.8)], "4 of 5 grams: just the least"
    assert similar_pairs([one[:4], one[:4], ()]) == similar_pairs([]) == []


@given(
    texts=st.lists(st.lists(st.sampled_from("ab"), max_size=14).map(tuple), max_size=12),
    least=st.sampled_from([0.2, 0.5, 0.75, 0.8, 1.0]),
)
def test_no_pair_is_missed(texts: list[tuple[str, ...]], least: float) -> None:
    grams = [{t[i : i + GRAM_WORDS] for i in range(len(t) - GRAM_WORDS + 1)} for t in texts]
    pairs = combinations([(index, found) for index, found in enumerate(grams) if found], 2)
    overlaps = [(i, j, len(a & b) / len(a | b)) for (i, a), (j, b) in pairs]
    assert similar_pairs(texts, least) == [pair for pair in overlaps if pair[2] >= least]


def test_all_findings_are_listed_where_a_run_would_stop_at_the_first() -> None:
    path = written("a.jsonl", ("1", "What is 1+1?", "2"), ("1", "What is 1+2?", "3"), ("2", "what is  $1+1$", "two"))
    with path.open("a") as stream:
        stream.write('{"id": "3", "problem": "x"}\n\nnonsense\n{"id": "1", "problem": "y", "answer": "4"}\n')
    report = checked(path)
    assert places(report, FindingKind.REPEATED_ID) == [[("a.jsonl", 1), ("a.jsonl", 2), ("a.jsonl", 7)]]
    assert places(report, FindingKind.REPEATED_PROBLEM) == [[("a.jsonl", 1), ("a.jsonl", 3)]]
    assert places(report, FindingKind.BAD_LINE) == [[("a.jsonl", 4)], [("a.jsonl", 6)]]
    assert [len(report.findings), report.files[0].problems] == [4, 4]
    assert places(checked(written("a.jsonl")), FindingKind.BAD_LINE) == [[("a.jsonl", 0)]], "an empty file"
    assert "no such data file" in printed("none.jsonl")


def test_problems_of_training_that_stand_in_a_benchmark_and_similar_ones_of_one_file() -> None:
    train = written("train.jsonl", ("t1", "What is 1+1?", "2"), ("t2", f"{LONG} 180.", "3"), ("t3", "x", "1"))
    test = written("test.jsonl", ("b1", f"{LONG} 200.", "3"), ("b2", "WHAT IS $1 + 1$", "2"), ("b3", "y", "1"))
    for report in (checked(train, against=[test]), checked(train, test)):
        assert places(report, FindingKind.SHARED_PROBLEM) == [[("train.jsonl", 1), ("test.jsonl", 2)]]
        assert places(report, FindingKind.SHARED_SIMILAR_PROBLEM) == [[("train.jsonl", 2), ("test.jsonl", 1)]]
        assert [place.id for place in report.findings[0].places] == ["t1", "b2"]
        assert report.compared == (("train.jsonl", "test.jsonl"),)
    (finding,) = checked(written("a.jsonl", ("1", f"{LONG} 180.", "3"), ("2", f"{LONG} 240.", "4"))).findings
    assert (finding.kind, [place.line for place in finding.places]) == (FindingKind.SIMILAR_PROBLEM, [1, 2])
    assert (finding.overlap, "'3', '4'" in finding.detail) == (18 / 20, True)


def test_of_files_to_compare_with_only_bad_lines_are_findings(folder: Path) -> None:
    """And they are not compared with each other, nor a file with itself that is named twice."""
    train, test = written("train.jsonl", ("t", "x", "1")), written("test.jsonl", ("b", "y", "1"), ("b", "y", "1"))
    report = checked(folder / "train.jsonl", train, against=[train, test, written("more.jsonl", ("c", "y", "1"))])
    assert (report.clean, len(report.files)) == (True, 1)
    assert report.compared == (("train.jsonl", "test.jsonl"), ("train.jsonl", "more.jsonl"))
    with test.open("a") as stream:
        stream.write("nonsense\n")
    assert places(checked(train, against=[test]), FindingKind.BAD_LINE) == [[("test.jsonl", 3)]]


def test_a_file_that_has_changed_since_it_was_prepared() -> None:
    written("rows.jsonl", ("1", "x", "1"))
    path = prepare(Order("rows.jsonl", Path("a.jsonl"))).output
    assert (checked(path).clean, checked(path).files[0].recorded) == (True, True)
    written("a.jsonl", ("1", "x", "2"))
    assert places(checked(path), FindingKind.CHANGED_FILE) == [[("a.jsonl", 0)]]
    record_file(path).write_text("{}")
    assert places(checked(path), FindingKind.CHANGED_FILE) == [[("a.jsonl", 0)]]


def unreadable(report: CheckReport) -> list[tuple[int, str]]:
    """The line and the text of each answer that cannot be read; nothing else was found."""
    assert {finding.kind for finding in report.findings} <= {FindingKind.UNREADABLE_ANSWER}
    return [(finding.places[0].line, finding.detail) for finding in report.findings]


def test_answers_that_a_verifier_cannot_read() -> None:
    """Each of several gold answers is checked; a verifier may have fields, as how many choices there are. The real
    grader judges mathematics in its processes, and nothing that an answer holds ends the check.
    """
    path = written("a.jsonl", ("1", "x", "B"), ("2", "y", "Paris"), ("3", "z", "(D)"), ("4", "w", ["Rome", "F", "A"]))
    assert unreadable(checked(path, verifier="choice")) == [(2, "Paris"), (4, "Rome"), (4, "F")]
    assert unreadable(checked(path, verifier="{type: choice, choices: 6}")) == [(2, "Paris"), (4, "Rome")]
    assert checked(path, verifier="exact").clean
    answers = ["7", r"\frac{1}{2}", r"\left(\frac{1}{", "x+1", "9^{9^{9^{9}}}!+1"]
    rows = [(f"p{number}", f"problem {number}", answer) for number, answer in enumerate(answers)]
    assert {3} <= {line for line, _ in unreadable(checked(written("a.jsonl", *rows), verifier="math"))} <= {3, 5}


def test_answers_that_no_answer_reaches_and_pictures_that_problems_lack() -> None:
    answers = [r"\textbf{(B)}\ 12", r"\textbf{(C)}\ D", "3,5", "x+1", "1{,}75", "2, 3", r"I(0)e^{-t}"]
    rows = [(f"p{number}", f"problem {number}", answer) for number, answer in enumerate(answers)]
    rows += [("q", "<image>What is it?", "1"), ("r", "Find x in ![](https://a.b/c.png)", "1"), ("s", "3 < 4 > 1?", "2")]
    report = checked(written("a.jsonl", *rows), verifier="math")
    assert places(report, FindingKind.DOUBTFUL_ANSWER) == [[("a.jsonl", 2)], [("a.jsonl", 3)]]
    assert places(report, FindingKind.MISSING_PICTURE) == [[("a.jsonl", 8)], [("a.jsonl", 9)]]
    assert len(report.findings) == 4
    shown = typed("data", "check", "a.jsonl", exits=ExitCode.FATAL).output
    assert "doubtful answers: a.jsonl: 2 of 10 problems, 20.0%" in shown and "a decimal is 3.5" in shown


def test_repeats_with_several_gold_answers_differ_where_one_lacks_a_gold_answer() -> None:
    cases: list[tuple[str | list[str], str | list[str], str]] = [
        (["2", "1"], ["1", " 2 "], ""), (["1", "2"], "1", "'1 or 2', '1'"), ("1", "1.", ""), ("1", "2", "'1', '2'"),
    ]  # fmt: skip
    for one, other, differ in cases:
        (finding,) = checked(written("a.jsonl", ("1", "What?", one), ("2", "What?", other))).findings
        assert (finding.kind, finding.detail.partition(": ")[2]) == (FindingKind.REPEATED_PROBLEM, differ)


def test_verifiers_of_the_users_own_may_lie_in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    path = written("a.jsonl", ("1", "x", "B")).absolute()
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[2] / "recipes" / "examples")])
    assert checked(path, verifier="my_verifier:LastLineChoice").clean
    (here := Path("own")).mkdir()
    (here / "of_a_check.py").write_text("def same(answer: str, gold: str) -> bool:\n    return answer == gold\n")
    monkeypatch.chdir(here)
    assert checked(path, verifier="of_a_check:same").clean
    for name in ("maths", "no_module:Verifier"):
        assert refusal(partial(checked, path, verifier=name)).where == "--verifier"


WITHOUT_GRADER = """
import sys
sys.modules["pebble"] = sys.modules["math_verify"] = None  # as where only the base dependencies are installed
from mrt_hpc.cli.main import main
main(["data", "check", sys.argv[1]])
"""


def test_a_login_node_checks_numbers_and_says_what_other_answers_need() -> None:
    numbers = written("numbers.jsonl", ("1", "x", "7"), ("2", "y", "-2.5"), ("3", "z", "1,080"))
    others = written("others.jsonl", ("1", "x", "x+1"))
    python("-c", WITHOUT_GRADER, numbers, exits=ExitCode.OK)
    assert "--verifier exact" in python("-c", WITHOUT_GRADER, others, exits=ExitCode.FATAL).stderr


def test_findings_end_with_status_2_and_are_counted_and_listed_or_whole_as_json() -> None:
    train = written("train.jsonl", ("t1", "What is 1+1?", "2"), ("t1", "what is 1 + 1", "2"))
    test = written("test.jsonl", ("b1", "What is 1+1?", "2"))
    shown = printed(train, "--against", test)
    for line in ("1 of 1 pairs", "\n  line 1 (t1), line 2 (t1)\n", "line 1 (t1), line 2 (t1), line 1 (b1)\n", "3 find"):
        assert line in shown
    assert "│ train.jsonl and test.jsonl │ │ │ │ 1 │" in " ".join(shown.split()), "one problem is in both"
    printed(test, code=ExitCode.OK)
    path = written("a.jsonl", *((str(number), f"number {number % 12}", "1") for number in range(24)))
    assert "2 more; --json" in printed(path)
    whole = json.loads(printed(path, "--json"))
    assert [finding["kind"] for finding in whole["findings"]] == ["repeated_problem"] * 12
    assert (whole["clean"], whole["files"][0]["problems"]) == (False, 24)


def test_what_a_file_holds_is_printed_as_text() -> None:
    shown = printed(written("a.jsonl", ("[red]\x1b[2J", "x", "1"), ("[red]\x1b[2J", "y", "1")))
    assert ("line 1 ([red]␛[2J)" in shown, "\x1b" in shown) == (True, False)
