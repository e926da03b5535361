"""Verifiers: what each takes for an answer, which of them are right, and one that the package does not know."""

from __future__ import annotations

import re
import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from graded import grade_all
from ruamel.yaml import YAML
from sandboxes import needs_sandbox

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.domains.grader_queue import GraderPool, VerdictStatus
from mrt_hpc.domains.math.verifier import MathVerifier
from mrt_hpc.domains.python import PythonVerifier
from mrt_hpc.domains.simple import ChoiceVerifier, ExactVerifier
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text, read_recipe_lock
from mrt_hpc.recipe.sections import Grading, JsonlProblems
from mrt_hpc.run.evaluation_settings import settings_of
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.domains.base import Verifier

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "examples" / "my_verifier.py"
RECIPE = ROOT / "recipes" / "small_world" / "grpo.yaml"
PROGRAM = "def double(x):\n    return 2 * x"
ASSERTIONS = "assert double(3) == 6\nassert double(0) == 0"


@pytest.mark.parametrize("answer", ["B", " b ", "(B)", "(B) Paris", "[B]", "B.", "B. Paris", "\\text{B}", "B: Paris"])
def test_letters_of_a_choice(answer: str) -> None:
    assert ChoiceVerifier().certain(answer, "B")
    assert not ChoiceVerifier().certain(answer, "C")
    assert ChoiceVerifier().judge(answer, "(C)").readable


@pytest.mark.parametrize("answer", ["E", "Paris", "", "BC", "7", "A and B"])
def test_what_is_no_letter_of_a_choice_is_wrong(answer: str) -> None:
    assert not ChoiceVerifier().certain(answer, "B")
    assert not ChoiceVerifier().judge(answer, "B").readable
    assert ChoiceVerifier(choices=5).letter("E") == "E"


def test_exact_text() -> None:
    assert ExactVerifier().certain(" Paris\n", "Paris")
    assert not ExactVerifier().certain("paris", "Paris")
    assert ExactVerifier(ignore_case=True).certain("paris", "Paris")


def test_a_program_is_the_last_whole_block_after_the_thought() -> None:
    verifier = PythonVerifier()
    text = f"```python\nfirst\n```</think>Here:\n```python\n{PROGRAM}\n```\nDone."
    assert verifier.extract(text, thinking=True) == PROGRAM
    assert verifier.extract("```python\nx = 1\n```", thinking=True) is None, "the thought has not ended"
    assert verifier.extract(f"{text}\n```python\ncut of", thinking=True, cut=True) is None
    assert verifier.extract("</think>no code", thinking=True) is None


@pytest.mark.parametrize(
    ("verifier", "pairs", "expected"),
    [
        (ChoiceVerifier(), [("(B)", "B"), ("A", "B"), ("all", "B")], [1.0, 0.0, 0.0]),
        (ExactVerifier(), [("a", "a"), ("b", "a")], [1.0, 0.0]),
        pytest.param(
            PythonVerifier(),
            [(PROGRAM, ASSERTIONS), ("def double(x): return 0", ASSERTIONS), ("(", ASSERTIONS)],
            [1.0, 0.0, 0.0],
            marks=needs_sandbox,
        ),
        (MathVerifier(), [("\\frac{2}{4}", "\\frac{1}{2}")], [1.0]),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_the_pool_grades_by_its_verifier(
    verifier: Verifier, pairs: list[tuple[str | None, str]], expected: list[float]
) -> None:
    with GraderPool(verifier, processes=1) as pool:
        verdicts = grade_all(pool, pairs)
    assert [verdict.reward for verdict in verdicts] == expected


@pytest.mark.parametrize(
    ("verifier", "golds", "expected"),
    [
        (MathVerifier(), ("3", "4"), {"4.0": 1.0, "3": 1.0, "5": 0.0, "7": 0.0}),
        (MathVerifier(), ("x+1", "\\frac{1}{2}"), {"1+x": 1.0, "0.5": 1.0, "x": 0.0}),
        (MathVerifier(), ("\\left(\\frac{1}{", "x+1"), {"1+x": 1.0, "x": 0.0}),
        (ChoiceVerifier(), ("A", "C"), {"(C)": 1.0, "a": 1.0, "B": 0.0}),
        (ExactVerifier(), ("Paris", "Rome"), {"Rome": 1.0, "Paris": 1.0, "Paris or Rome": 0.0}),
        pytest.param(
            PythonVerifier(),
            ("assert double(3) == 7", ASSERTIONS),
            {PROGRAM: 1.0, "def double(x): return 0": 0.0},
            marks=needs_sandbox,
        ),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_an_answer_is_right_where_one_of_several_gold_answers_takes_it(
    verifier: Verifier, golds: tuple[str, ...], expected: dict[str, float]
) -> None:
    with GraderPool(verifier, processes=1) as pool:
        verdicts = grade_all(pool, [(answer, golds) for answer in expected])
    assert [verdict.reward for verdict in verdicts] == list(expected.values())


def test_math_takes_over_how_strict_grading_is() -> None:
    problems = JsonlProblems(path="p")
    assert verifier_of(problems, Grading()) == MathVerifier(strict=True)
    assert verifier_of(problems, Grading(strict=False)) == MathVerifier(strict=False)
    lenient = JsonlProblems(path="p", verifier=MathVerifier(strict=False))
    assert verifier_of(lenient, Grading()) == MathVerifier(strict=False)


def test_the_rule_of_extraction_is_that_of_the_problems() -> None:
    text = "I see \\boxed{7}.</think>It is 8."

    def found(**fields: Any) -> str | None:
        return verifier_of(JsonlProblems(path="p", **fields), Grading()).extract(text, thinking=True)

    assert found() is None
    assert found(extraction="after_thought") is None
    assert found(extraction="any_box") == "7"
    assert found(extraction="last_mathematics") == "8"
    assert found(extraction="any_box", verifier=ExactVerifier()) == "7"
    assert MathVerifier().extract("\\boxed{7}", thinking=True) is None, "a rule of one verifier is not that of another"


def test_a_rule_of_extraction_is_refused_beside_a_verifier_that_has_its_own() -> None:
    with pytest.raises(UserError, match="reads no boxes") as refusal:
        load_recipe(RECIPE, ("data.verifier=python", "data.extraction=any_box"))
    assert "data.extraction" in str(refusal.value)


def test_any_rule_of_extraction_reads_the_boxes_that_provers_open() -> None:
    online = RECIPE.with_name("mrt_online.yaml")
    changes = ("prover={type: boxed_answer, temperature: 1.0}", "data.extraction=any_box")
    assert load_recipe(online, changes).problems.extraction == "any_box"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("data.verifier={type: chioce}", "choice is the nearest"),
        ("data.verifier=chioce", "choice is the nearest"),
        ("data.verifier=7", "one of math, exact, choice, python"),
        ("data.verifier={type: choice, choices: 1}", "data.verifier.choices"),
        ("data.verifier={type: exact, strict: true}", "data.verifier.strict"),
    ],
)
def test_fields_of_a_verifier_are_checked(option: str, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        load_recipe(RECIPE, (option,))
    assert words in str(refusal.value)


def test_a_prover_that_opens_a_box_is_refused_where_no_box_is_read() -> None:
    online = RECIPE.with_name("mrt_online.yaml")
    changes = ("prover={type: boxed_answer, temperature: 1.0}", "data.verifier={type: python}")
    with pytest.raises(UserError, match="one that opens no box"):
        load_recipe(online, changes)


# -- one that the package does not know


@pytest.fixture
def own_recipe(tmp_path: Path) -> Path:
    name = f"verifier_{tmp_path.name}"
    shutil.copy(EXAMPLE, tmp_path / f"{name}.py")
    yaml = YAML(typ="safe", pure=True)
    own = {
        "extends": str(RECIPE),
        "name": "mine",
        "data": {"verifier": {"type": f"{name}:LastLineChoice", "choices": 3}},
    }
    yaml.dump(own, tmp_path / "mine.yaml")
    return tmp_path / "mine.yaml"


def test_a_verifier_beside_the_recipe_grades_in_the_pool(own_recipe: Path) -> None:
    recipe = load_recipe(own_recipe)
    verifier = verifier_of(recipe.problems, recipe.grading)
    assert verifier.extract("<think>B?</think>So it is\nAnswer: (c).", thinking=True) == "C"
    assert verifier.extract("<think>Answer: B", thinking=True) is None
    with GraderPool(verifier, processes=1) as pool:
        right, wrong, beyond, none = grade_all(pool, [("C", "c"), ("A", "C"), ("D", "C"), (None, "C")])
    assert (right.reward, wrong.reward, beyond.reward) == (1.0, 0.0, 0.0)
    assert none.status is VerdictStatus.NO_ANSWER
    with GraderPool(verifier, processes=1) as pool:
        first, second, wrong, beyond = grade_all(pool, [(answer, ("a", "C")) for answer in "ACBD"])
    assert (first.reward, second.reward, wrong.reward, beyond.reward) == (1.0, 1.0, 0.0, 0.0)


# -- a function that the package does not know


@pytest.fixture
def own_function(tmp_path: Path) -> str:
    """The name of a module with functions that lies beside the recipe ``mine.yaml``."""
    name = f"function_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(EXAMPLE.read_text() + HOSTILE_FUNCTIONS)
    (tmp_path / "mine.yaml").write_text(f"extends: {RECIPE}\nname: mine\ndata: {{verifier: '{name}:same_words'}}\n")
    return name


HOSTILE_FUNCTIONS = """

import numpy


def deaf(answer: str) -> bool:
    return True


def needs_words(answer: str, gold: str) -> bool:
    first, second = gold.split()
    return answer == f"{first} {second}"


def bad(answer: str, gold: str) -> object:
    if answer == "hang":
        while True:
            pass
    if answer == "stop":
        import os
        os._exit(3)
    return {"right": numpy.bool_(True), "one": 1}[answer]
"""


def test_a_function_beside_the_recipe_grades_in_the_pool(own_function: str, tmp_path: Path) -> None:
    recipe = load_recipe(tmp_path / "mine.yaml")
    verifier = verifier_of(recipe.problems, recipe.grading)
    assert verifier.type == f"{own_function}:same_words"
    assert verifier.extract("</think>So \\boxed{Paris}", thinking=True) == "Paris"
    with GraderPool(verifier, processes=1) as pool:
        verdicts = grade_all(pool, [("Lyon paris", "Paris Lyon"), ("Paris", "Paris Lyon"), (None, "Paris")])
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.0]


def test_a_function_that_hangs_crashes_or_answers_neither_yes_nor_no_scores_nothing(
    own_function: str, tmp_path: Path
) -> None:
    recipe = load_recipe(tmp_path / "mine.yaml", (f"data.verifier={own_function}:bad",))
    with GraderPool(verifier_of(recipe.problems, recipe.grading), processes=1, time_limit_s=0.5) as pool:
        verdicts = grade_all(pool, [(answer, "g") for answer in ("right", "hang", "stop", "one", "unknown")])
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.0, 0.0, 0.0]
    graded, hung, *unread = [verdict.status for verdict in verdicts]
    assert (graded, hung) == (VerdictStatus.GRADED, VerdictStatus.TIMED_OUT)
    assert set(unread) == {VerdictStatus.MALFORMED}


def test_the_log_says_what_a_function_raised(
    own_function: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = load_recipe(tmp_path / "mine.yaml", (f"data.verifier={own_function}:bad",))
    with GraderPool(verifier_of(recipe.problems, recipe.grading), processes=1) as pool:
        (unknown, one) = grade_all(pool, [("unknown", "g"), ("one", "g")])
    assert unknown.error is not None
    assert re.fullmatch(rf"KeyError\('unknown'\) \({own_function}\.py:\d+\)", unknown.error)
    assert "neither true nor false" in str(one.error)
    assert "KeyError('unknown')" in caplog.text


def test_a_comparison_that_failed_is_told_only_where_no_other_gold_answer_takes_the_answer(
    own_function: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = load_recipe(tmp_path / "mine.yaml", (f"data.verifier={own_function}:needs_words",))
    with GraderPool(verifier_of(recipe.problems, recipe.grading), processes=1) as pool:
        (right,) = grade_all(pool, [("two words", ("one", "two words"))])
        assert (right.reward, right.status, caplog.text) == (1.0, VerdictStatus.GRADED, "")
        (wrong,) = grade_all(pool, [("no word", ("two words", "one"))])
    assert (wrong.reward, wrong.status) == (0.0, VerdictStatus.MALFORMED)
    assert "ValueError" in caplog.text


def test_a_function_that_raises_for_gold_answers_is_refused_before_anything_is_sampled(
    own_function: str, tmp_path: Path
) -> None:
    recipe = load_recipe(tmp_path / "mine.yaml", (f"data.verifier={own_function}:bad",))
    with (
        GraderPool(verifier_of(recipe.problems, recipe.grading), processes=1) as pool,
        pytest.raises(UserError, match="raised an error when it compared a gold answer with itself") as told,
    ):
        pool.readable_all(["right", "unknown"])
    assert "KeyError" in str(told.value.where)


def test_a_run_keeps_the_function_and_its_lock_names_it(own_function: str, tmp_path: Path) -> None:
    recipe = load_recipe(tmp_path / "mine.yaml")
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    assert (layout.code / f"{own_function}.py").is_file()
    assert read_recipe_lock(layout.recipe_lock) == recipe


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deaf", "a function of two texts"),
        ("nowhere", "module:Class or module:function"),
        ("LAST_LINE", "a class of kind verifier"),
    ],
)
def test_a_function_that_cannot_judge_is_refused(own_function: str, tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        load_recipe(tmp_path / "mine.yaml", (f"data.verifier={own_function}:{name}",))
    assert words in str(refusal.value)
    assert f"{own_function}:{name}" in str(refusal.value)


@pytest.mark.parametrize("name", ["math", "exact", "choice", "python"])
def test_a_name_alone_is_a_verifier_without_further_settings(name: str) -> None:
    short, long = (load_recipe(RECIPE, (f"data.verifier={v}",)) for v in (name, f"{{type: {name}}}"))
    assert short == long
    assert lock_text(short) == lock_text(long)


# -- results


def test_evaluations_by_another_verifier_or_rule_are_other_evaluations(tmp_path: Path) -> None:
    """And those of runs that name none keep their digest."""

    folders = (tmp_path / str(number) for number in count())

    def digest(named: str = "") -> str:
        problems = f"{{type: small_world, split: held_out, problems: 4{named}}}"
        recipe = load_recipe(RECIPE, (f"evaluation.benchmarks=[{{name: b, samples: 2, problems: {problems}}}]",))
        layout = create_or_open(next(folders), recipe, compile_plan(recipe, LocalSite()))
        return settings_of(layout, recipe, recipe.evaluation.benchmarks[0]).now.sampled

    usual = digest()
    for same in (", verifier: math", ", verifier: {type: math}", ", extraction: null", ", extraction: after_thought"):
        assert digest(same) == usual
    others = (", verifier: exact", ", verifier: choice", ", extraction: any_box", ", extraction: last_mathematics")
    assert len({usual, *map(digest, others)}) == 5
