"""What a field takes is said in words, by ``mrt-hpc fields`` and by the refusal of a value; numbers have ranges."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from basics import ROOT
from commands import recipe, refusal, typed
from pydantic import BaseModel
from ruamel.yaml import YAML
from tables import tables

from mrt_hpc.cli.fields import OTHER_NAMES, recipe_fields
from mrt_hpc.recipe.field_docs import documented_fields, models_of, whole_annotation
from mrt_hpc.recipe.load import load_site
from mrt_hpc.recipe.schema import EvaluationRecipe, Recipe
from mrt_hpc.recipe.site import SITES

TABLES = tables("field_words")

JARGON = re.compile(
    r"Input|input|Field required|should (be|have|match)|Undefined|pydantic|\^|Extra |valid (string|int|num)"
)

NUMBER_WITHOUT_BOUNDS = re.compile(r"\bnumber\b(?! (from \S+ to|above \S+ and) )")


def test_every_field_and_all_choices_of_an_enumeration_have_words_of_their_own_and_every_number_two_bounds() -> None:
    for field in chain.from_iterable(map(documented_fields, (Recipe, EvaluationRecipe, *SITES.classes))):
        assert field.values, field.name
        assert not re.search(r"Annotated|typing|<|\[A-Z|=", field.values), f"{field.name}: {field.values}"
        assert not JARGON.search(field.values), f"{field.name}: {field.values}"
        assert not NUMBER_WITHOUT_BOUNDS.search(field.values), f"{field.name}: {field.values}"
        assert "Undefined" not in (field.default or ""), field.name
        assert all(choice.value in field.values for choice in field.choices), field.name
        assert len(field.choices) in (0, len(field.values.removeprefix("one of ").split(", "))), field.name


@pytest.mark.parametrize(("setting", "field", "expected"), TABLES["settings"])
def test_a_wrong_value_is_refused_with_field_range_meaning_and_option(setting: str, field: str, expected: str) -> None:
    refused = refusal(recipe, "quickstart", setting)
    assert refused.what.partition(":")[0] == field
    assert expected in str(refused.expected) and not JARGON.search(f"{refused.what} {refused.expected}")
    assert refused.advice == f"change the option --set {setting}"


@pytest.mark.parametrize(("line", "field", "expected"), TABLES["profiles"])
def test_a_profile_holds_what_sbatch_and_shells_can_use(tmp_path: Path, line: str, field: str, expected: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(f"type: slurm\nname: here\n{line}\n")
    refused = refusal(load_site, path)
    assert refused.what.startswith(field)
    assert expected in str(refused.expected)
    assert refused.where == f"{path}, line 3"


def settings_and_places(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, field in model.model_fields.items():
        owner = next(base for base in model.__mro__ if name in vars(base).get("__annotations__", {}))
        below = models_of(whole_annotation(field))
        for section in below:
            yield from settings_and_places(section, (*above, name))
        if not below and name != "type":
            yield f"{owner.__name__}.{name}", (*above, name)


def places_in(data: object, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, value in data.items() if isinstance(data, dict) else ():
        yield (*above, name)
        yield from places_in(value, (*above, name))
    for item in data if isinstance(data, list) else ():
        yield from places_in(item, above)


def test_every_setting_is_set_by_a_recipe_or_named_by_a_page() -> None:
    """A setting that nobody sets and no guide advises is a constant."""
    files = {path: path.read_text() for path in (ROOT / "recipes").rglob("*.yaml")}
    parts = {path: ("evaluation",) if path.parent.name == "suites" else () for path in files}
    used = {place for path, text in files.items() for place in places_in(YAML(typ="safe").load(text), parts[path])}
    pages = (ROOT / "README.md", ROOT / "recipes" / "README.md", *(ROOT / "docs").glob("*.md"))
    text = "\n".join(
        [path.read_text() for path in pages] + [line.partition("#")[2] for line in "".join(files.values()).splitlines()]
    )
    places: dict[str, set[tuple[str, ...]]] = {}
    for setting, place in settings_and_places(Recipe):
        places.setdefault(setting, set()).add(place)
    for setting, there in places.items():
        names = "|".join(re.escape(".".join(place[-2:])) for place in there)
        written = rf"\b({names})\b|[`{{,]\s*{setting.partition('.')[2]}:\s"
        assert there & used or re.search(written, text), f"no recipe sets {setting}, and no page says when to set it"


def test_fields_can_be_narrowed() -> None:
    for words, there, absent in TABLES["narrowed"]:
        lines = typed("fields", *words).output.splitlines()
        assert there in lines and absent not in lines


def test_a_field_is_found_by_a_part_of_its_name_and_by_its_name_elsewhere() -> None:
    assert {"training.clip_low", "training.gradient_clip"} <= set(typed("fields", "clip").output.splitlines())
    assert OTHER_NAMES.keys() <= {field.name for field in recipe_fields()}
    for other in {word for theirs in OTHER_NAMES.values() for word in theirs.split()}:
        assert not any(field.is_within(other) for field in recipe_fields()), other
    shown = typed("fields", "actor_rollout_ref.actor.clip-ratio").output.splitlines()
    assert shown[1] == "training.clip_low" and "training.clip_high" in shown
    assert "nearest to it" in typed("fields", "lora").output and "nearest to it" in typed("fields", "ppo_epochs").output


def test_each_name_of_another_trainer_in_the_table_is_found() -> None:
    table = (ROOT / "docs" / "coming-from.md").read_text().partition("## Their name and ours")[2].partition("## ")[0]
    pairs = 0
    for line in (line for line in table.splitlines() if line.startswith("| ")):
        *theirs, ours = line.split("|")[1:-1]
        wanted = set(re.findall(r"`([a-z_]+\.[a-z_]+)", ours))
        for name in re.findall(r"(?<!of )`(\w+)(?:: \w+)?`", " ".join(theirs)) if wanted else ():
            found = {re.sub(r"\[\w+\]", "", line) for line in typed("fields", name).output.splitlines()}
            assert wanted & found, f"{name} is none of {wanted}"
            pairs += 1
    assert pairs > 50
