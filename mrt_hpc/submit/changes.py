"""Compares the recipe of a later submission with the recipe of the run. A change is accepted if all results of the run
would be the same with it; otherwise it is refused, with the reason and what to type instead.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.hub_models import MODEL_FIELDS, is_same_model
from mrt_hpc.recipe.lock import FREE_FIELDS, FREE_SECTIONS, RECORDED_SECTIONS, differences, read_lock
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.sections import PromptLimits
from mrt_hpc.run.layout import COLLECTION, RunLayout
from mrt_hpc.run.problems import left_out
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.weights import full_versions, published_versions
from mrt_hpc.training.settings import warmup_steps

MODELS = tuple(".".join(field) for field in MODEL_FIELDS)
PROMPT_LIMITS = ("sampling.max_prompt_tokens", "sampling.long_prompts")
NAMED = 6
"""The maximum number of options that an advice names."""
SERVER_IN_USE = "serving.attach"
"""The field of a server that runs already: another server with the same weights samples the same."""
OF_THE_RESULT = "it decides what the run has done"
"""The reason why most fields cannot be changed."""


@dataclass(frozen=True)
class Change:
    """One field whose value in a submission differs from the value in the run."""

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
        """The change and the reason why it is refused."""
        return f"{self}: {self.refused}"

    @property
    def may_be_forked(self) -> bool:
        """Whether a fork of the run takes the new value: it has a model already, and a field that is gone has none."""
        return self.field.partition(".")[0] != "model" and self.new is not None

    @property
    def option(self) -> str:
        """The command-line option that sets the new value."""
        return f"--set {shlex.quote(f'{self.field}={json.dumps(self.new)}')}"


def changes(layout: RunLayout, recipe: Experiment) -> list[Change]:
    """Return the fields in which a submission's recipe differs from the run's, each with the reason why it is refused,
    if it is.

    Raises:
        UserError: the run's lock cannot be read.
    """
    locked = read_lock(layout.recipe_lock)
    differing = differences(locked.model_dump(mode="json"), recipe.model_dump(mode="json"))
    return [
        Change(field, old, new, None if _is_moved(field, old, new) else _against(layout, locked, recipe, field))
        for field, old, new in differing
    ]


def _is_moved(field: str, old: Any, new: Any) -> bool:
    """Whether a field names the same model of the hub, in a cache that is in another place now."""
    return field in MODELS and isinstance(old, str) and isinstance(new, str) and is_same_model(old, new)


def refuse_other_recipe(layout: RunLayout, recipe: Experiment) -> None:
    """Refuse a recipe that would change the results that the run already has: a run directory holds one experiment.

    Raises:
        UserError: naming the fields, their old and new values, and why they cannot be changed.
    """
    if refused := [change for change in changes(layout, recipe) if change.refused is not None]:
        lines = "".join(f"\n    {change.refusal}" for change in refused)
        raise UserError(
            f"the run directory was made from another recipe, and this would change what was done:{lines}",
            where=layout.root,
            advice=_instead(layout, refused)
            if recipe.trains
            else "type the mrt-hpc eval again that made it, which makes another directory, or put the files back",
        )


def _instead(layout: RunLayout, refused: Sequence[Change]) -> str:
    """What to type in place of a submission with refused changes."""
    advice = f"{layout.again} continues it as it began; --run DIR with the recipe begins another one"
    has_trained = max(full_versions(layout), default=0) > 0
    if has_trained and len(refused) <= NAMED and all(change.may_be_forked for change in refused):
        options = " ".join(change.option for change in refused)
        return f"mrt-hpc fork {layout.word} --at last {options} begins another run with its last weights; {advice}"
    return advice


def _against(layout: RunLayout, locked: Experiment, wanted: Experiment, field: str) -> str | None:
    """Why a field cannot be changed; None where it can."""
    if not isinstance(locked, Recipe) or not isinstance(wanted, Recipe):
        if field.startswith("inputs."):
            return "this file has changed since the evaluation began"
        return None if field.partition(".")[0] in (*FREE_SECTIONS, "expected") else OF_THE_RESULT
    if field.partition(".")[0] in (*FREE_SECTIONS, *RECORDED_SECTIONS) or field.startswith(SERVER_IN_USE):
        return None
    if field in FREE_FIELDS:
        return None
    if field == "schedule.iterations":
        return _against_iterations(layout, locked, wanted)
    if field == "training.warmup_steps":
        same = _warmup_steps(locked) == _warmup_steps(wanted) or iterations_done(layout) == 0
        return None if same else OF_THE_RESULT
    if field in PROMPT_LIMITS:
        return _against_prompts(layout, locked.sampling, wanted.sampling)
    return OF_THE_RESULT


def _against_prompts(layout: RunLayout, locked: PromptLimits, wanted: PromptLimits) -> str | None:
    """Refuse another limit of prompts that would change the training problems after something was sampled."""
    if nothing_sampled(layout):
        return None
    if wanted.max_prompt_tokens < locked.max_prompt_tokens:
        return "problems with longer prompts may have been sampled already"
    if come_back := returning(layout.train_data, wanted):
        return f"training problems that were left out would come back: {', '.join(come_back[:8])}"
    return None


def returning(path: Path, wanted: PromptLimits) -> list[str]:
    """Problems that were left out of a file of the run, and that a recipe would not leave out."""
    dropped = wanted.long_prompts == "drop"
    return [name for name, tokens in left_out(path).items() if not dropped or tokens <= wanted.max_prompt_tokens]


def nothing_sampled(layout: RunLayout) -> bool:
    """Whether the run has no weights version yet, and never had one that anything was sampled with."""
    return not published_versions(layout) and not any(list_directory(layout.groups(i)) for i in (COLLECTION, 0))


def _against_iterations(layout: RunLayout, locked: Recipe, wanted: Recipe) -> str | None:
    """Refuse another number of iterations that would change the learning rate of a step that was taken."""
    done = iterations_done(layout)
    if wanted.schedule.iterations < done:
        return f"{done} iterations are done already"
    if done == 0:
        return None
    if done >= locked.schedule.iterations and not any(map(layout.step_of, list_directory(layout.checkpoints))):
        return (
            "it has no checkpoint to continue from (mrt-hpc clean removes the last one of a finished run if asked to)"
        )
    if wanted.training.schedule != "constant":
        return (
            f"with training.schedule: {wanted.training.schedule} the learning rate of every step follows from the "
            "number of iterations, and steps have been taken (with schedule: constant it could be changed)"
        )
    if _warmup_steps(locked) != _warmup_steps(wanted):
        return f"the warm-up would have another length; it began with training.warmup_steps={_warmup_steps(locked)}"
    return None


def _warmup_steps(recipe: Recipe) -> int:
    total = recipe.schedule.iterations * recipe.training.optimizer_steps_per_iteration
    return warmup_steps(total, recipe.training)


def iterations_done(layout: RunLayout) -> int:
    """Return the number of updates that a checkpoint or a weights version holds."""
    checkpoints = [layout.step_of(path) or 0 for path in list_directory(layout.checkpoints)]
    return max([0, *published_versions(layout), *checkpoints])


def with_warmup_begun(layout: RunLayout, locked: Recipe, wanted: Recipe) -> Recipe:
    """A submission's recipe with the length of a warm-up that has begun, where another number of iterations would give
    it another.
    """
    constant = wanted.training.schedule == locked.training.schedule == "constant"
    unnamed = wanted.training.warmup_steps is None
    begun = iterations_done(layout) > 0 and wanted.schedule.iterations != locked.schedule.iterations
    if not (constant and unnamed and begun) or wanted.training.warmup_ratio != locked.training.warmup_ratio:
        return wanted
    if (steps := _warmup_steps(locked)) == _warmup_steps(wanted):
        return wanted
    training = wanted.training.model_copy(update={"warmup_steps": steps})
    return wanted.model_copy(update={"training": training})
