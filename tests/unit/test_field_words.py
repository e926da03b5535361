"""What a field takes is said in words: by ``mrt-hpc fields``, and by the refusal of a value."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_origin

import pytest
from click.testing import CliRunner, Result

from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.field_docs import documented_fields, models_of, tag_of
from mrt_hpc.recipe.load import SiteFile, load_recipe, load_site
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.source import Source
from mrt_hpc.recipe.validate import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
OF_THE_LIBRARY = re.compile(r"Undefined|pydantic|Annotated|typing|<|\^|\[A-Z|Input should|=")
JARGON = re.compile(
    r"Input|input|Field required|should (be|have|match)|Undefined|pydantic|\^|Extra |valid (string|int|num)"
)


def fields(*words: str, columns: int = 100) -> Result:
    return CliRunner().invoke(main, ["fields", *words], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("model", [Recipe, SlurmSite])
def test_every_field_says_what_it_takes_in_words(model: type[Recipe | SlurmSite]) -> None:
    for field in documented_fields(model):
        assert field.values, field.name
        assert not OF_THE_LIBRARY.search(field.values), f"{field.name}: {field.values}"
        assert field.default is None or "Undefined" not in field.default, field.name


def test_choices_are_told_apart() -> None:
    swaps = next(field for field in documented_fields(Recipe) if field.name == "schedule.weight_swap")
    assert [choice.value for choice in swaps.choices] == ["drain", "keep", "recompute"]
    assert len({choice.text for choice in swaps.choices}) == 3
    printed = fields("schedule.weight_swap").output
    assert "        recompute: As keep, but the new weights compute" in printed
    assert "`" not in printed


@pytest.mark.parametrize("model", [Recipe, SlurmSite])
def test_of_an_enumeration_all_choices_have_a_meaning_or_none(model: type[Recipe | SlurmSite]) -> None:
    for field in documented_fields(model):
        for choice in field.choices:
            assert choice.value in field.values, field.name
        assert len(field.choices) in (0, len(field.values.removeprefix("one of ").split(", "))), field.name


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("name=a/b", "text of letters, digits, dots, underscores and hyphens"),
        ("seed=-1", "a whole number from 0 to 9,223,372,036,854,775,807"),
        ("schedule.iterations=1000001", "a whole number from 1 to 1,000,000"),
        ("training.learning_rate=fast", "a number from 1e-12 to 1"),
        ("training.precision=fp8", "one of fp32, bf16, bf16_autocast"),
        ("training.betas=[0.9, 3]", "a number from 0 to below 1"),
        ("training.betas=3", "a list of 2, each a number from 0 to below 1"),
        ("training.gradient_checkpointing=perhaps", "true or false"),
        ("training.deterministic=3", "true or false, or null"),
        ("evaluation.regret_budgets=[0]", "a whole number from 1 to 10,000,000"),
        ("evaluation.regret_tokens=some", "one of sampled, all"),
        ("algorithm=3", "a section with type: one of grpo"),
        ("prover.branches=2.5", "a whole number from 1 to"),
        ("resources=3", "a section"),
    ],
)
def test_a_wrong_value_is_refused_in_words(setting: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(QUICKSTART, (setting,))
    assert words in str(caught.value.expected)
    assert not re.search(r"Input should|pattern|\^", caught.value.message())


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "grading.processes=1000000",
            "a whole number from 1 to 1,024: The number of grader processes of an array task, on each of its nodes.",
        ),
        (
            "training.warmup_steps=1000001",
            "a whole number from 0 to 1,000,000, or null: The number of optimiser steps of that rise",
        ),
        ("training={}", "a number from 1e-12 to 1: The peak learning rate of AdamW."),
        ("training.learning_rate=-1", "a number from 1e-12 to 1: The peak learning rate of AdamW."),
        (
            "training.warmup_steps=-1",
            "a whole number from 0 to 1,000,000, or null: The number of optimiser steps of that rise",
        ),
        (
            "serving.start_limit_s=0",
            "a number from 0.05 to 604,800: The maximum number of seconds until a server must answer after its start.",
        ),
        ("resources.trainer.memory_gib=0", "a number from 0.001 to 1,000,000: The memory of a process, GiB."),
        ("prover.max_tokens=0", "a whole number from 1 to 10,000,000: The maximum number of tokens of a branch."),
        ("data={type: conversations}", "text: The path of the file."),
        ("training.betas=[0.9]", "a list of 2, each a number from 0 to below 1: The two betas of AdamW."),
        ("training.learning_rate=.inf", "a finite number from 1e-12 to 1: The peak learning rate of AdamW."),
        ("training.learning_rate=.nan", "a finite number from 1e-12 to 1: The peak learning rate of AdamW."),
        ("data={}", "one of jsonl, small_world, conversations, suffixes, small_world_samples"),
        ("data={type: 3}", "one of jsonl, small_world, conversations, suffixes, small_world_samples"),
        ("training={? [a] : b}", "names of fields, each a text"),
        ("training={2: {? [a] : b}}", "names of fields, each a text"),
    ],
)
def test_a_refusal_says_what_the_field_means(setting: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(QUICKSTART, (setting,))
    assert words in str(caught.value.expected)


def wrong_values(field: FieldInfo) -> Iterator[object]:
    """A value of each wrong kind, and those at and beyond each bound."""
    yield from (None, True, 1.5, -1e300, 10**30, math.inf, math.nan, "", "no choice", "a\nb", [], [[]], {}, {"": 0})
    for constraint in field.metadata:
        bounds = [getattr(constraint, name, None) for name in ("ge", "gt", "le", "lt")]
        yield from (sign + bound for bound in bounds if bound is not None for sign in (-1, 0, 1))


def filled(section: type[BaseModel]) -> dict[str, object]:
    """The fields that a section must have."""
    tag = tag_of(section)
    required = {name: field for name, field in section.model_fields.items() if field.is_required()}
    return {**({"type": tag} if tag else {}), **{name: right_value(field) for name, field in required.items()}}


def right_value(field: FieldInfo) -> object:
    """A value that a required field takes."""
    if below := models_of(field.annotation):
        return filled(below[0])
    return {int: 1, float: 0.5, str: "a"}.get(field.annotation) or get_args(field.annotation)[0]  # type: ignore[arg-type]


def sections(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], Callable[[object], object]]]:
    """A kind of file and each section of it, with what lays such a section into an otherwise right file."""
    yield model, lambda section: section
    for name, field in model.model_fields.items():
        many = get_origin(field.annotation) is tuple
        for below in models_of(field.annotation):
            for section, lay in sections(below):
                yield (
                    section,
                    lambda data, lay=lay, name=name, many=many: {  # type: ignore[misc]
                        **filled(model),
                        name: [lay(data)] if many else lay(data),
                    },
                )


@pytest.mark.parametrize("model", [Recipe, SiteFile])
def test_no_wrong_value_of_any_field_is_refused_in_words_of_the_library(model: type[BaseModel]) -> None:
    """Every field of every section gets a value of each wrong kind, and is left out."""
    refused = 0
    for section, lay in sections(model):
        for name, field in section.model_fields.items():
            without = {key: value for key, value in filled(section).items() if key != name}
            for data in map(lay, [without, *({**without, name: value} for value in wrong_values(field))]):
                try:
                    validate(Source(Path("file.yaml"), data, {}), model, data)  # type: ignore[arg-type]
                except UserError as error:
                    refused += 1
                    assert not JARGON.search(f"{error.what} {error.expected}"), f"{name}: {error.message()}"
    assert refused > 100


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("environment: {A B: x}", "text of letters, digits and underscores, the first no digit"),
        ("environment: {A: 3}", "text"),
        ("sbatch: {--qos: x}", "without its two hyphens"),
    ],
)
def test_a_wrong_entry_of_a_profile_is_refused_in_words(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(f"type: slurm\nname: here\n{line}\n")
    with pytest.raises(UserError) as caught:
        load_site(path)
    assert words in str(caught.value.expected)


def test_choices_defaults_and_required_fields_are_listed() -> None:
    told = fields("training").output
    assert "one of fp32, bf16, bf16_autocast; default bf16" in told
    assert "a number from 1e-12 to 1; required" in told
    assert "true or false; default true" in told


@pytest.mark.parametrize(
    ("words", "there", "absent"),
    [
        (["training"], "training.learning_rate", "schedule.iterations"),
        (["recipe", "prover.branches"], "prover[majority].branches", "prover[majority].max_tokens"),
        (["algorithm.mrt_online"], "algorithm[mrt_online].alpha", "algorithm[mrt].alpha"),
        (["site", "environment"], "environment", "partitions"),
    ],
)
def test_fields_can_be_narrowed(words: list[str], there: str, absent: str) -> None:
    lines = fields(*words).output.splitlines()
    assert there in lines
    assert absent not in lines


def test_a_field_that_is_not_there_names_the_nearest() -> None:
    result = fields("trainig")
    assert result.exit_code == 2
    assert "training is the nearest" in result.stderr


@pytest.mark.parametrize("columns", [50, 100])
def test_fields_follow_the_width_of_the_terminal(columns: int) -> None:
    widest = max(map(len, fields("training", columns=columns).output.splitlines()))
    assert columns - 15 < widest <= columns


def test_a_plan_can_be_read_on_a_narrow_terminal() -> None:
    done = CliRunner().invoke(main, ["plan", str(QUICKSTART)], env={"COLUMNS": "60"})
    jobs, _, _ = done.output.partition("iterations in")
    assert "segment-000.trainer, iterations 0-19" in jobs
    assert max(map(len, jobs.splitlines())) <= 60


def test_the_sentences_of_a_plan_are_broken_between_words_on_a_narrow_terminal() -> None:
    done = CliRunner().invoke(main, ["plan", str(QUICKSTART)], env={"COLUMNS": "60"})
    lines = [line for line in done.output.splitlines() if "Run directory" not in line]
    assert max(map(len, lines)) <= 60
    assert "This is no upper bound" in " ".join(done.output.split())
    wide = CliRunner().invoke(main, ["plan", str(QUICKSTART)], env={"COLUMNS": ""})
    assert any("The time limits allot" in line and line.endswith("queued again.") for line in wide.output.splitlines())
