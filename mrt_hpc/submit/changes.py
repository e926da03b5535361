"""Compares a later submission's recipe with the run's. Changes that leave all results the same are accepted, others
refused with the reason and what to type instead.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.hub_models import MODEL_FIELDS, is_same_model
from mrt_hpc.recipe.lock import FREE_FIELDS, FREE_SECTIONS, RECORDED_SECTIONS, differences, read_lock
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.sections import PromptLimits
from mrt_hpc.run.layout import COLLECTION, RunLayout
from mrt_hpc.run.problems import omitted_problems
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.weights import published_versions
from mrt_hpc.training.settings import warmup_steps

MODELS = tuple(".".join(field) for field in MODEL_FIELDS)
PROMPT_LIMITS = ("sampling.max_prompt_tokens", "sampling.long_prompts")
NAMED = 6
"""Options that an advice names."""
ITERATIONS = "schedule.iterations"
OF_THE_RESULT = "it decides what the run has done"
"""Why most fields cannot be changed."""


@dataclass(frozen=True)
class Change:
    field: str
    """Dotted path."""
    old: Any
    """As in JSON."""
    new: Any
    """As in JSON."""
    refused: str | None = None
    """Why it cannot be changed; None where it can."""

    def __str__(self) -> str:
        return f"{self.field} was {json.dumps(self.old)} and is {json.dumps(self.new)}"

    @property
    def refusal(self) -> str:
        return f"{self}: {self.refused}"

    @property
    def may_be_forked(self) -> bool:
        """Whether a fork takes the new value: it already has a model, and a removed field has none."""
        return self.field.partition(".")[0] != "model" and self.new is not None

    @property
    def option(self) -> Advice:
        return Advice("--set {setting}", setting=f"{self.field}={json.dumps(self.new)}")


def changes(layout: RunLayout, recipe: Experiment) -> list[Change]:
    """Fields in which a submission differs from the run, each with the reason of a refusal, if any."""
    locked = read_lock(layout.recipe_lock)
    differing = differences(locked.model_dump(mode="json"), recipe.model_dump(mode="json"))
    return [Change(*change, _change_objection(layout, locked, recipe, *change)) for change in differing]


def refuse_other_recipe(layout: RunLayout, recipe: Experiment) -> None:
    """Refuse a recipe that would change existing results: a run directory holds one experiment."""
    if refused := [change for change in changes(layout, recipe) if change.refused is not None]:
        lines = "".join(f"\n    {change.refusal}" for change in refused)
        raise UserError(
            f"the run directory was made from another recipe, and this would change what was done:{lines}",
            where=layout.root,
            advice=_instead(layout, refused)
            if recipe.trains
            else "type the eval command again that made it, which makes another directory, or put the files back",
        )


def _instead(layout: RunLayout, refused: Sequence[Change]) -> Advice:
    """What to type in place of a refused submission."""
    advice = Advice(
        "{again} continues it as it began; --run DIR with the recipe begins another one", again=layout.again
    )
    has_trained = max(published_versions(layout), default=0) > 0
    done = iterations_done(layout)
    forked = [replace(c, new=c.new - done if c.new > done else None) if c.field == ITERATIONS else c for c in refused]
    if has_trained and len(forked) <= NAMED and all(change.may_be_forked for change in forked):
        return Advice(
            "mrt-hpc fork {run} --at last {options} begins another run with its last weights; {advice}",
            run=layout.root,
            options=[change.option for change in forked],
            advice=advice,
        )
    return advice


def _change_objection(
    layout: RunLayout, locked: Experiment, wanted: Experiment, field: str, old: Any, new: Any
) -> str | None:
    if field in MODELS and isinstance(old, str) and isinstance(new, str) and is_same_model(old, new):
        return None  # the same model of the hub in a moved cache
    if not isinstance(locked, Recipe) or not isinstance(wanted, Recipe):
        if field.startswith("inputs."):
            return "this file has changed since the evaluation began"
        return None if field.partition(".")[0] in (*FREE_SECTIONS, "expected") else OF_THE_RESULT
    if field.partition(".")[0] in (*FREE_SECTIONS, *RECORDED_SECTIONS) or field in FREE_FIELDS:
        return None
    if field == ITERATIONS:
        return _iterations_objection(layout, locked, wanted)
    if field == "training.warmup_steps":
        same = _warmup_steps(locked) == _warmup_steps(wanted) or iterations_done(layout) == 0
        return None if same else OF_THE_RESULT
    if field in PROMPT_LIMITS:
        return _prompts_objection(layout, locked.sampling, wanted.sampling)
    return OF_THE_RESULT


def _prompts_objection(layout: RunLayout, locked: PromptLimits, wanted: PromptLimits) -> str | None:
    """Refuse a prompt limit that changes training problems after sampling."""
    if not published_versions(layout) and not any(list_directory(layout.groups(i)) for i in (COLLECTION, 0)):
        return None  # nothing was ever sampled
    if wanted.max_prompt_tokens < locked.max_prompt_tokens:
        return "problems with longer prompts may have been sampled already"
    if come_back := returning_problems(layout.train_data, wanted):
        return f"training problems that were left out would come back: {', '.join(come_back[:8])}"
    return None


def returning_problems(path: Path, wanted: PromptLimits) -> list[str]:
    """Problems left out of a file of the run that a recipe would not leave out."""
    dropped = wanted.long_prompts == "drop"
    return [
        name for name, tokens in omitted_problems(path).items() if not dropped or tokens <= wanted.max_prompt_tokens
    ]


def _iterations_objection(layout: RunLayout, locked: Recipe, wanted: Recipe) -> str | None:
    """Refuse iterations that change the learning rate of a taken step."""
    done = iterations_done(layout)
    if wanted.schedule.iterations < done:
        return f"{done} iterations are done already"
    if done == 0:
        return None
    if done >= locked.schedule.iterations and not any(map(layout.step_of, list_directory(layout.checkpoints))):
        return "it has no checkpoint to continue from (cleaning removes the last one of a finished run if asked to)"
    if wanted.training.schedule != "constant":
        return (
            f"with training.schedule: {wanted.training.schedule} the learning rate of every step follows from the "
            "number of iterations, and steps have been taken (with schedule: constant it could be changed)"
        )
    if _warmup_steps(locked) != _warmup_steps(wanted):
        return f"the warm-up would have another length; it began with training.warmup_steps={_warmup_steps(locked)}"
    return None


def _warmup_steps(recipe: Recipe) -> int:
    return warmup_steps(recipe.schedule.iterations * recipe.training.optimizer_steps_per_iteration, recipe.training)


def iterations_done(layout: RunLayout) -> int:
    """Updates that a checkpoint or weights version holds."""
    checkpoints = [layout.step_of(path) or 0 for path in list_directory(layout.checkpoints)]
    return max([0, *published_versions(layout), *checkpoints])


def keep_warmup(layout: RunLayout, locked: Recipe, wanted: Recipe) -> Recipe:
    """The recipe with the length of a warm-up that has begun, which other iterations would change."""
    constant = wanted.training.schedule == locked.training.schedule == "constant"
    unnamed = wanted.training.warmup_steps is None and wanted.training.warmup_ratio == locked.training.warmup_ratio
    begun = iterations_done(layout) > 0 and wanted.schedule.iterations != locked.schedule.iterations
    if not (constant and unnamed and begun) or (steps := _warmup_steps(locked)) == _warmup_steps(wanted):
        return wanted
    training = wanted.training.model_copy(update={"warmup_steps": steps})
    return wanted.model_copy(update={"training": training})
