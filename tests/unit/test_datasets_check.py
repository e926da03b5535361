"""A check of data files tells every repeat, every problem that two files share, and every answer that is unreadable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.cli.main import main
from mrt_hpc.datasets.check import (
    GRAM_WORDS,
    Check,
    CheckReport,
    FindingKind,
    Place,
    SimilarPair,
    check,
    similar_pairs,
    words,
)
from mrt_hpc.datasets.prepare import Order, prepare, record_file
from mrt_hpc.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG = "A train leaves the station at noon and travels at a constant speed of sixty miles an hour to a town at"
"""22 words."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name: str, *rows: tuple[str, str, str | list[str]]) -> Path:
    """A data file of (id, problem, answer)."""
    path = Path(name)
    lines = [json.dumps({"id": id_, "problem": problem, "answer": answer}) for id_, problem, answer in rows]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def checked(*files: Path, against: Sequence[Path] = (), verifier: str = "exact") -> CheckReport:
    return check(Check(files, tuple(against), verifier))


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["data", "check", *map(str, arguments)])


def places(report: CheckReport, kind: FindingKind) -> list[list[tuple[str, int]]]:
    """File and line of each finding of a kind."""
    return [[(p.file, p.line) for p in finding.places] for finding in report.findings if finding.kind is kind]


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is  $1 + 1$?", "what is $1+1$"),
        (r"Find $\dfrac{1}{2}\,x$.", r"find \( \frac{1}{2} x \)"),
        (r"Let $\left( x \right)$ be\quad even!", r"Let $(x)$ be even !"),
        ("Find $x^{2}$: now", "Find $x^2$, now"),
        ("He said “no”.", 'He said "no"'),
        ("3 − 2", "3-2"),
        ("one\n\ntwo", "One two"),
        (r"a \\[2pt] b", r"a \\ [2pt] b"),
    ],
)
def test_problems_of_the_same_words(one: str, other: str) -> None:
    assert words(one) == words(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("3-2", "3+2"), ("3-2", "32"), ("5!", "5"), ("1.5", "15"), ("1,2", "12"), ("ab", "cd"), (r"\leftarrow", "")],
)
def test_problems_of_other_words(one: str, other: str) -> None:
    assert words(one) != words(other)


def test_words_are_commands_words_numbers_and_signs() -> None:
    assert words(r"Find $\dfrac{a_1}{2.5}$, then stop.") == ("find", r"\frac", "a", "_", "1", "2.5", "then", "stop")


# -- overlap ----------------------------------------------------------------------------------------------------------


def test_the_overlap_is_the_share_of_common_5_grams() -> None:
    one = tuple("abcdefghijklmn")  # 14 words: 10 grams
    other = (*one[:13], "z")  # the last gram differs: 9 in common, 11 in all
    assert similar_pairs([one, other], 0.8) == [SimilarPair(0, 1, 9 / 11)]
    assert similar_pairs([one, other], 0.82) == []


def test_an_overlap_of_just_the_least_is_told() -> None:
    one, other = tuple("abcdefgh"), tuple("abcdefghi")  # 4 and 5 grams, 4 in common
    assert similar_pairs([one, other]) == [SimilarPair(0, 1, 0.8)]


def test_short_texts_have_no_overlap() -> None:
    assert similar_pairs([tuple("abcd"), tuple("abcd"), ()]) == []
    assert similar_pairs([]) == []


def every_pair(texts: list[tuple[str, ...]], least: float) -> list[SimilarPair]:
    """All pairs, each compared."""
    grams = [{t[i : i + GRAM_WORDS] for i in range(len(t) - GRAM_WORDS + 1)} for t in texts]
    return [
        SimilarPair(i, j, len(grams[i] & grams[j]) / len(grams[i] | grams[j]))
        for j in range(len(texts))
        for i in range(j)
        if grams[i] and grams[j] and len(grams[i] & grams[j]) / len(grams[i] | grams[j]) >= least
    ]


@given(
    texts=st.lists(st.lists(st.sampled_from("ab"), max_size=14).map(tuple), max_size=12),
    least=st.sampled_from([0.2, 0.5, 0.75, 0.8, 1.0]),
)
def test_no_pair_is_missed(texts: list[tuple[str, ...]], least: float) -> None:
    expected = every_pair(texts, least)
    assert similar_pairs(texts, least) == sorted(expected, key=lambda pair: (pair.first, pair.second))


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_clean_file_is_told_so() -> None:
    path = written("a.jsonl", ("1", "What is 1+1?", "2"), ("2", "What is 1+2?", "3"))
    assert checked(path).clean
    result = invoke(path)
    assert result.exit_code == ExitCode.OK
    assert "nothing was found" in result.output


def test_all_findings_are_told_where_a_run_would_stop_at_the_first() -> None:
    path = written("a.jsonl", ("1", "What is 1+1?", "2"), ("1", "What is 1+2?", "3"), ("2", "what is  $1+1$", "two"))
    with path.open("a") as stream:
        stream.write('{"id": "3", "problem": "x"}\n\nnonsense\n{"id": "1", "problem": "y", "answer": "4"}\n')
    report = checked(path)
    assert places(report, FindingKind.REPEATED_ID) == [[("a.jsonl", 1), ("a.jsonl", 2), ("a.jsonl", 7)]]
    assert places(report, FindingKind.REPEATED_PROBLEM) == [[("a.jsonl", 1), ("a.jsonl", 3)]]
    assert places(report, FindingKind.BAD_LINE) == [[("a.jsonl", 4)], [("a.jsonl", 6)]]
    details = [finding.detail for finding in report.findings if finding.detail]
    assert "answer is missing" in details[0]
    assert "not a line of JSON" in details[1]
    assert details[2] == "the answers differ: '2', 'two'"
    assert len(report.findings) == 4
    assert report.files[0].problems == 4


def test_an_empty_file_is_a_finding_and_a_missing_one_an_error() -> None:
    empty = written("a.jsonl")
    assert [finding.detail for finding in checked(empty).findings] == ["the file holds nothing"]
    assert "no such data file" in invoke("none.jsonl").stderr


def test_similar_problems_are_told_apart_from_repeated_ones() -> None:
    """23 words have 19 grams; the last word stands in one of them, so that 18 of 20 are common."""
    path = written("a.jsonl", ("1", f"{LONG} 180.", "3"), ("2", f"{LONG} 240.", "4"))
    report = checked(path)
    assert places(report, FindingKind.SIMILAR_PROBLEM) == [[("a.jsonl", 1), ("a.jsonl", 2)]]
    assert report.findings[0].overlap == 18 / 20
    assert report.findings[0].detail == "the answers differ: '3', '4'"
    assert places(report, FindingKind.REPEATED_PROBLEM) == []


def test_problems_of_training_that_stand_in_a_benchmark() -> None:
    train = written("train.jsonl", ("t1", "What is 1+1?", "2"), ("t2", f"{LONG} 180.", "3"), ("t3", "x", "1"))
    test = written("test.jsonl", ("b1", f"{LONG} 200.", "3"), ("b2", "WHAT IS $1 + 1$", "2"), ("b3", "y", "1"))
    report = checked(train, against=[test])
    assert places(report, FindingKind.SHARED_PROBLEM) == [[("train.jsonl", 1), ("test.jsonl", 2)]]
    assert places(report, FindingKind.SHARED_SIMILAR_PROBLEM) == [[("train.jsonl", 2), ("test.jsonl", 1)]]
    assert [finding.detail for finding in report.findings] == ["", ""]
    assert report.findings[0].places[1] == Place("test.jsonl", 2, "b2")
    assert report.compared == (("train.jsonl", "test.jsonl"),)
    assert places(checked(train, test), FindingKind.SHARED_PROBLEM) == [[("train.jsonl", 1), ("test.jsonl", 2)]]


def test_of_files_to_compare_with_only_bad_lines_are_told() -> None:
    train = written("train.jsonl", ("t1", "x", "1"))
    test = written("test.jsonl", ("b1", "y", "1"), ("b1", "y", "1"))
    assert checked(train, against=[test]).clean
    with test.open("a") as stream:
        stream.write("nonsense\n")
    assert places(checked(train, against=[test]), FindingKind.BAD_LINE) == [[("test.jsonl", 3)]]


def test_two_files_to_compare_with_are_not_compared_with_each_other() -> None:
    files = [written(f"{name}.jsonl", (name, problem, "1")) for name, problem in (("a", "x"), ("b", "y"), ("c", "y"))]
    report = checked(files[0], against=files[1:])
    assert report.clean
    assert report.compared == (("a.jsonl", "b.jsonl"), ("a.jsonl", "c.jsonl"))


def test_a_file_that_is_named_twice_is_not_compared_with_itself(folder: Path) -> None:
    path = written("a.jsonl", ("1", "x", "1"))
    report = checked(path, folder / "a.jsonl", against=[path])
    assert report.clean
    assert len(report.files) == 1


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers_that_are_no_letter_of_a_choice() -> None:
    path = written("a.jsonl", ("1", "x", "B"), ("2", "y", "Paris"), ("3", "z", "(D)"), ("4", "w", "E"))
    report = checked(path, verifier="choice")
    assert [(f.kind, f.places[0].line, f.detail) for f in report.findings] == [
        (FindingKind.UNREADABLE_ANSWER, 2, "Paris"),
        (FindingKind.UNREADABLE_ANSWER, 4, "E"),
    ]
    assert checked(path, verifier="exact").clean


def test_each_of_several_gold_answers_is_checked() -> None:
    path = written("a.jsonl", ("1", "x", ["A", "Paris"]), ("2", "y", ["A", "B"]), ("3", "z", ["Rome", "E"]))
    report = checked(path, verifier="choice")
    found = [(f.kind, f.places[0].line, f.detail) for f in report.findings]
    assert found == [
        (FindingKind.UNREADABLE_ANSWER, line, gold) for line, gold in ((1, "Paris"), (3, "Rome"), (3, "E"))
    ]


@pytest.mark.parametrize(
    ("one", "other", "detail"),
    [
        (["1", "2"], ["2", "1"], ""),
        (["1", "2"], ["1", " 2 "], ""),
        (["1", "2"], "1", "the answers differ: '1 or 2', '1'"),
        ("1", "1.", ""),
        ("1", "2", "the answers differ: '1', '2'"),
    ],
)
def test_repeats_with_several_gold_answers_differ_where_one_lacks_a_gold_answer(
    one: str | list[str], other: str | list[str], detail: str
) -> None:
    (finding,) = checked(written("a.jsonl", ("1", "What?", one), ("2", "What?", other))).findings
    assert (finding.kind, finding.detail) == (FindingKind.REPEATED_PROBLEM, detail)


def test_answers_that_mathematics_cannot_read() -> None:
    """The real grader judges them in its processes; nothing that an answer holds ends the check."""
    answers = ["7", r"\frac{1}{2}", r"\left(\frac{1}{", "x+1", "9^{9^{9^{9}}}!+1"]
    rows = [(f"p{number}", f"problem {number}", answer) for number, answer in enumerate(answers)]
    report = checked(written("a.jsonl", *rows), verifier="math")
    lines = [line for ((_, line),) in places(report, FindingKind.UNREADABLE_ANSWER)]
    assert 3 in lines
    assert not {1, 2, 4} & set(lines)


def test_texts_that_a_tokenizer_reads_as_special_tokens(folder: Path) -> None:
    rows = [("a", "What is 1 < 2 | 3 > 2?", "3"), ("b", "Say </s> now.", "3"), ("c", "2<|im_end|>\n<|mine|>", "3")]
    path = written("p.jsonl", *rows, ("d", "Use [MINE]", "3"), ("e", "</think>", "3"))
    report = checked(path)
    assert places(report, FindingKind.SPECIAL_TOKEN) == [[("p.jsonl", 2)], [("p.jsonl", 3)], [("p.jsonl", 5)]]
    assert "--model DIR" in report.of(FindingKind.SPECIAL_TOKEN, "p.jsonl")[0].detail
    added = [{"id": 1, "content": "[MINE]", "special": True}, {"id": 2, "content": "now", "special": False}]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": added}))
    report = check(Check((path,), verifier="exact", model=folder))
    assert places(report, FindingKind.SPECIAL_TOKEN) == [[("p.jsonl", 4)], [("p.jsonl", 5)]]
    assert report.of(FindingKind.SPECIAL_TOKEN, "p.jsonl")[0].detail == "[MINE]"
    with pytest.raises(UserError, match="special tokens of the model cannot be read"):
        check(Check((path,), verifier="exact", model=folder / "none"))


def test_a_verifier_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples"))
    path = written("a.jsonl", ("1", "x", "B"))
    assert checked(path, verifier="my_verifier:LastLineChoice").clean


def test_verifiers_of_the_users_own_may_lie_in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path("own")
    here.mkdir()
    (here / "of_a_check.py").write_text("def same(answer: str, gold: str) -> bool:\n    return answer == gold\n")
    path = written("a.jsonl", ("1", "x", "B")).absolute()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert checked(path, verifier="of_a_check:same").clean


def test_a_verifier_may_have_fields() -> None:
    path = written("a.jsonl", ("1", "x", "F"))
    assert not checked(path, verifier="choice").clean, "there are four choices by default"
    assert checked(path, verifier="{type: choice, choices: 6}").clean


def test_an_unknown_verifier_is_refused() -> None:
    path = written("a.jsonl", ("1", "x", "1"))
    for name in ("maths", "no_module:Verifier"):
        with pytest.raises(UserError, match="no such verifier"):
            checked(path, verifier=name)


WITHOUT_GRADER = """
import sys
sys.modules["pebble"] = sys.modules["math_verify"] = None  # as where only the base dependencies are installed
from mrt_hpc.cli.main import main
main(["data", "check", sys.argv[1]])
"""


def test_a_login_node_checks_numbers_and_says_what_other_answers_need() -> None:
    numbers = written("numbers.jsonl", ("1", "x", "7"), ("2", "y", "-2.5"), ("3", "z", "1,080"))
    others = written("others.jsonl", ("1", "x", "x+1"))
    command = [sys.executable, "-c", WITHOUT_GRADER]
    checks = [
        subprocess.run([*command, path], capture_output=True, text=True, check=False) for path in (numbers, others)
    ]
    assert [done.returncode for done in checks] == [ExitCode.OK, ExitCode.FATAL]
    assert "the grader is not installed" in checks[1].stderr
    assert "--verifier exact" in checks[1].stderr


# -- records ----------------------------------------------------------------------------------------------------------


def test_a_file_that_has_changed_since_it_was_prepared() -> None:
    written("rows.jsonl", ("1", "x", "1"))
    prepare(Order("rows.jsonl", Path("a.jsonl")))
    report = checked(Path("a.jsonl"))
    assert report.clean
    assert report.files[0].recorded
    written("a.jsonl", ("1", "x", "2"))
    assert places(checked(Path("a.jsonl")), FindingKind.CHANGED_FILE) == [[("a.jsonl", 0)]]
    record_file(Path("a.jsonl")).write_text("{}")
    (finding,) = checked(Path("a.jsonl")).findings
    assert finding.kind is FindingKind.CHANGED_FILE
    assert "the record of a data file cannot be read" in finding.detail


# -- the command ------------------------------------------------------------------------------------------------------


def test_findings_end_with_status_2_and_are_counted_in_tables() -> None:
    train = written("train.jsonl", ("t1", "What is 1+1?", "2"), ("t1", "what is 1 + 1", "2"))
    test = written("test.jsonl", ("b1", "What is 1+1?", "2"))
    result = invoke(train, "--against", test)
    assert result.exit_code == ExitCode.FATAL
    assert "1 of 1 pairs of files share problems" in result.output
    assert "repeated ids: train.jsonl\n  line 1 (t1), line 2 (t1)" in result.output
    assert "problems in both: train.jsonl and test.jsonl\n  line 1 (t1), line 2 (t1), line 1 (b1)" in result.output
    assert "3 findings" in result.output


def test_long_lists_are_cut_and_told_whole_as_json() -> None:
    rows = [(str(number), f"number {number % 12}", "1") for number in range(24)]
    path = written("a.jsonl", *rows)
    assert "and 2 more; --json tells all" in invoke(path).output
    told: dict[str, Any] = json.loads(invoke(path, "--json").output)
    assert told["clean"] is False
    assert [finding["kind"] for finding in told["findings"]] == ["repeated_problem"] * 12
    assert [place["line"] for place in told["findings"][0]["places"]] == [1, 13]
    assert told["files"][0]["problems"] == 24


def test_what_a_file_holds_is_printed_as_text() -> None:
    path = written("a.jsonl", ("[red]\x1b[2J\ud800", "x", "1"), ("[red]\x1b[2J\ud800", "y", "1"))
    result = invoke(path)
    assert result.exit_code == ExitCode.FATAL
    assert r"line 1 ([red]\x1b[2J\ud800)" in result.output
    assert "\x1b" not in result.output
    assert json.loads(invoke(path, "--json").output)["findings"][0]["kind"] == "repeated_id"


@pytest.mark.parametrize("command", [["data"], ["data", "prepare"], ["data", "check"]])
def test_the_commands_have_help_with_examples(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output


# -- the shared sets --------------------------------------------------------------------------------------------------

BENCHMARKS = ("aime24", "aime25", "amc23", "math500", "minerva_math")


def test_the_shared_benchmarks_share_no_problem_with_each_other(shared_data: Path) -> None:
    report = checked(*(shared_data / f"{name}.jsonl" for name in BENCHMARKS))
    assert {finding.kind for finding in report.findings} <= {FindingKind.SIMILAR_PROBLEM}


def test_the_shared_training_set_holds_old_problems_of_the_aime(shared_data: Path) -> None:
    """MATH has taken problems from the AIME: this is what contamination looks like, and the check tells it."""
    report = checked(shared_data / "math_train.jsonl", against=[shared_data / "aime_1983_2023.jsonl"])
    shared = {(f.places[0].id, f.places[-1].id) for f in report.findings if f.kind is FindingKind.SHARED_PROBLEM}
    assert ("math-train-5216", "aime-1983-1-6") in shared
    assert len(shared) == 322
