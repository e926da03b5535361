"""Verifiers: what each takes for an answer, which are right, in which spellings, and one of the user."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from basics import RECIPES, ROOT
from commands import refusal
from graded import grade_all, own, recipe_beside
from run_of import run_of
from spellings import FILES, gold_answers, spelt

from mrt_hpc import UserError, Verifier
from mrt_hpc.domains.grader_queue import GraderPool, VerdictStatus
from mrt_hpc.domains.verifiers import ChoiceVerifier, ExactVerifier, MathVerifier, verifier_of
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text, read_recipe_lock
from mrt_hpc.recipe.sections import Grading, JsonlProblems
from mrt_hpc.run.evaluation_settings import settings_of
from mrt_hpc.submit.create import try_own_verifiers

EXAMPLE = ROOT / "recipes" / "examples" / "my_verifier.py"
RECIPE = RECIPES / "small_world" / "grpo.yaml"


def test_letters_of_a_choice_and_exact_text() -> None:
    for answer in ("B", " b ", "(B)", "(B) Paris", "[B]", "B.", "B. Paris", "\\text{B}", "B: Paris"):
        assert ChoiceVerifier().certain(answer, "B") and not ChoiceVerifier().certain(answer, "C"), answer
        assert ChoiceVerifier().judge(answer, "(C)").readable, answer
    for answer in ("E", "Paris", "", "BC", "7", "A and B", "A, C", "(A)(C)", "(A) and (C)", "A, B, C, D",
                   "A: no wait, B", r"\text{A}, \text{B}", "A. B"):  # fmt: skip
        assert not ChoiceVerifier().certain(answer, "B"), answer
        assert not ChoiceVerifier().judge(answer, "B").readable, answer
    for answer in ("E", "$E$", r"\(E\)", r"\boldsymbol{E}", r"\bf E", "**E**", "E - foo", "Option E", r"E\text{: foo}",
                   r"E\,", r"\textbf{(E)}\ 12", "E. A dog", "E. vitamin C", "(E) all of a, b and c"):  # fmt: skip
        assert ChoiceVerifier(choices=5).letter(answer) == "E", answer
    assert ExactVerifier().certain(" Paris\n", "Paris") and not ExactVerifier().certain("paris", "Paris")


HALF, NO_GOLD = "\\frac{1}{2}", "\\left(\\frac{1}{"


@pytest.mark.parametrize(("verifier", "rewards"), [
    (ChoiceVerifier(), {"B": {"(B)": 1, "A": 0, "all": 0}, ("A", "C"): {"(C)": 1, "a": 1, "B": 0}}),
    (ExactVerifier(), {"a": {"a": 1, "b": 0}, ("Paris", "Rome"): {"Rome": 1, "Paris": 1, "Paris or Rome": 0}}),
    (MathVerifier(),
     {HALF: {"\\frac{2}{4}": 1}, ("3", "4"): {"4.0": 1, "3": 1, "5": 0, "7": 0},
      ("x+1", HALF): {"1+x": 1, "0.5": 1, "x": 0}, (NO_GOLD, "x+1"): {"1+x": 1, "x": 0}}),
], ids=lambda value: getattr(value, "type", ""))  # fmt: skip
def test_the_pool_grades_by_its_verifier_and_by_any_of_several_gold_answers(
    verifier: Verifier, rewards: dict[str | tuple[str, ...], dict[str, int]]
) -> None:
    pairs = [(answer, gold, reward) for gold, answers in rewards.items() for answer, reward in answers.items()]
    with GraderPool(verifier, processes=1) as pool:
        verdicts = grade_all(pool, [pair[:2] for pair in pairs])
    assert [verdict.reward for verdict in verdicts] == [reward for _, _, reward in pairs]


def test_the_rule_of_extraction_is_that_of_the_problems_and_strictness_that_of_the_grading() -> None:
    text = "I see \\boxed{7}.</think>It is 8."

    def found(**fields: Any) -> str | None:
        return verifier_of(JsonlProblems(path="p", **fields), Grading()).extract(text, thinking=True)

    assert found() is None
    assert (found(extraction="any_box"), found(extraction="last_mathematics")) == ("7", "8")
    assert found(extraction="any_box", verifier=ExactVerifier()) == "7"
    assert verifier_of(JsonlProblems(path="p"), Grading(strict=False)) == MathVerifier(strict=False)
    lenient = JsonlProblems(path="p", verifier=MathVerifier(strict=False))
    assert verifier_of(lenient, Grading()) == MathVerifier(strict=False)


BOXES = "prover={type: boxed_answer, temperature: 1.0}"


def test_fields_of_a_verifier_are_checked(beside: Path) -> None:
    recipe = beside.with_name("online.yaml")
    recipe.write_text(f"extends: {RECIPE.with_name('mrt_online.yaml')}\nname: online\n")
    boxless = "data.verifier={type: of_the_user:LastLineChoice}"
    for changes, told in (
        (["data.verifier={type: chioce}"], "choice is the nearest"),
        (["data.verifier=chioce"], "choice is the nearest"),
        (["data.verifier=7"], "math, exact, choice"),
        (["data.verifier={type: choice, choices: 1}"], "data.verifier.choices"),
        ([boxless, "data.extraction=any_box"], "data.extraction"),
        ([BOXES, boxless], "boxed_answer"),
    ):
        assert told in str(refusal(load_recipe, recipe, tuple(changes)))
    assert load_recipe(recipe, (BOXES, "data.extraction=any_box")).problems.extraction == "any_box"
    short, long = (load_recipe(RECIPE, (f"data.verifier={v}",)) for v in ("choice", "{type: choice}"))
    assert lock_text(short) == lock_text(long)


def test_evaluations_by_another_verifier_or_rule_are_other_evaluations(tmp_path: Path) -> None:
    layout = run_of(tmp_path / "run", recipe="small_world/grpo")

    def digest(named: str = "") -> str:
        problems = f"{{type: small_world, split: held_out, problems: 4{named}}}"
        recipe = load_recipe(RECIPE, (f"evaluation.benchmarks=[{{name: held-out, samples: 2, problems: {problems}}}]",))
        return settings_of(layout, recipe, recipe.evaluation.benchmarks[0]).sampled

    usual = digest()
    for same in (", verifier: math", ", verifier: {type: math}", ", extraction: null", ", extraction: after_thought"):
        assert digest(same) == usual
    others = (", verifier: exact", ", verifier: choice", ", extraction: any_box", ", extraction: last_mathematics")
    assert len({usual, *map(digest, others)}) == 5


HOSTILE_FUNCTIONS = """
import numpy
def deaf(answer: str) -> bool:
    return True
def partial(answer: str, gold: str) -> float:
    return 1.9
class Shares(LastLineChoice):
    def judge(self, answer: str, gold: str) -> Judgement:
        return Judgement(correct=float("nan"), readable=True)
def needs_words(answer: str, gold: str) -> bool:
    first, second = gold.split()
    return answer == f"{first} {second}"
class Unreadable(Exception):
    def __repr__(self) -> str:
        raise self
ENDS = {"exit": SystemExit(0), "interrupt": KeyboardInterrupt(), "unreadable": Unreadable()}
def bad(answer: str, gold: str) -> object:
    if answer == "hang":
        while True:
            pass
    if answer == "stop":
        import os
        os._exit(3)
    if answer in ENDS:
        raise ENDS[answer]
    return {"right": numpy.bool_(True), "one": "1"}[answer]
"""


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_beside(tmp_path_factory.mktemp("own"), "of_the_user", EXAMPLE.read_text() + HOSTILE_FUNCTIONS)


def test_a_function_that_hangs_crashes_or_answers_neither_yes_nor_no_scores_nothing(
    beside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = ("exit", "interrupt", "unreadable", "right", "hang", "stop", "one", "unknown")
    with GraderPool(own(beside, "of_the_user:bad"), processes=1, time_limit_s=0.5) as pool:
        verdicts = dict(zip(answers, grade_all(pool, [(answer, "g") for answer in answers]), strict=True))
        assert "KeyError" in str(refusal(pool.readable_all, ["right", "unknown"]).where), "before anything is sampled"
    statuses = {"right": VerdictStatus.GRADED, "hang": VerdictStatus.TIMED_OUT}
    for answer, verdict in verdicts.items():
        expected = (float(answer == "right"), statuses.get(answer, VerdictStatus.MALFORMED))
        assert (verdict.reward, verdict.status) == expected, answer
    assert "SystemExit(0) (of_the_user.py:" in str(verdicts["exit"].error) and verdicts["one"].error is not None
    assert re.fullmatch(r"KeyError\('unknown'\) \(of_the_user\.py:\d+\)", str(verdicts["unknown"].error))
    assert "KeyError('unknown')" in caplog.text
    caplog.clear()  # a failed comparison is logged only where no other gold answer takes the answer
    with GraderPool(own(beside, "of_the_user:needs_words"), processes=1) as pool:
        (right,) = grade_all(pool, [("two words", ("one", "two words"))])
        assert (right.reward, right.status, caplog.text) == (1.0, VerdictStatus.GRADED, "")
        (wrong,) = grade_all(pool, [("no word", ("two words", "one"))])
    assert (wrong.reward, wrong.status) == (0.0, VerdictStatus.MALFORMED)
    assert "ValueError" in caplog.text


def test_a_verifier_that_fails_on_gold_answers_is_refused_before_a_run_is_made(beside: Path) -> None:
    """An error may come from the environment of this machine: where tasks run elsewhere, it is a doubt."""
    doubts: list[str] = []
    for name, told in (("partial", "returned 1.9"), ("{type: of_the_user:Shares}", "returned nan")):
        verifier = name if "{" in name else f"of_the_user:{name}"
        recipe = load_recipe(beside, (f"data.verifier={verifier}",))
        for here in (True, False):
            with pytest.raises(UserError, match="when it compared a gold answer with itself") as refused:
                try_own_verifiers(recipe, here=here, warn=doubts.append)
            assert told in str(refused.value.where)
    broken = load_recipe(beside, ("data.verifier=of_the_user:needs_words",))
    assert "raised an error" in str(refusal(lambda: try_own_verifiers(broken, here=True, warn=doubts.append)))
    assert doubts == []
    try_own_verifiers(broken, here=False, warn=doubts.append)
    assert "on this machine" in doubts[0]


def test_a_run_keeps_the_function_and_one_that_cannot_judge_is_refused(beside: Path, tmp_path: Path) -> None:
    recipe = load_recipe(beside, ("data.verifier=of_the_user:same_words",))
    layout = run_of(tmp_path / "run", recipe=recipe)
    assert (layout.code / "of_the_user.py").is_file()
    assert read_recipe_lock(layout.recipe_lock) == recipe
    for name in ("deaf", "nowhere", "LAST_LINE"):
        assert f"of_the_user:{name}" in str(refusal(load_recipe, beside, (f"data.verifier=of_the_user:{name}",)))


VERIFIER = MathVerifier(strict=True)


def right(answer: str, gold: str) -> bool:
    """The verdict in this process, strict as in training."""
    certain = VERIFIER.certain(answer, gold)
    return bool(VERIFIER.judge(answer, gold).correct) if certain is None else certain


@pytest.mark.parametrize("file", FILES)
def test_every_gold_answer_is_right_in_every_spelling(file: str, shared_data: Path) -> None:
    golds = gold_answers(shared_data, [file])
    assert [(a, gold) for gold in golds for a in spelt(gold).values() if not right(a, gold)] == []


def test_no_spelling_of_another_gold_answer_is_right(shared_data: Path) -> None:
    golds = [gold for gold in gold_answers(shared_data, ["aime24", "aime25", "amc23"]) if gold.isdigit()]
    wrong = [(a, gold) for gold, other in pairwise(golds) for a in spelt(other).values()]
    assert len(wrong) > 300
    assert [pair for pair in wrong if right(*pair)] == []
