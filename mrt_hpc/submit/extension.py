"""More iterations for a run: its own recipe, with another number of them."""

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.lock import changed_recipe, read_recipe_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.submit.changes import Change, changes, iterations_done
from mrt_hpc.submit.submission import kept_recipe

ITERATIONS = "schedule.iterations"


def extended_recipe(layout: RunLayout, iterations: int) -> Recipe:
    """The recipe of a run with more iterations.

    Args:
        layout: the run directory.
        iterations: the number of all iterations of the run, those that are done included.

    Raises:
        UserError: there are as many already, or the learning rates of steps that were taken would be others.
    """
    locked = read_recipe_lock(layout.recipe_lock)
    planned = locked.schedule.iterations
    if iterations <= planned:
        raise UserError(
            f"the run has {planned} iterations already, of which {iterations_done(layout)} are done",
            value=iterations,
            where="--iterations",
            expected=f"the number of all iterations, more than {planned}",
            advice=_forked(layout, planned)
            if _refused(layout, _changed(layout, locked, 2 * planned))
            else f"mrt-hpc extend {layout.word} --iterations {2 * planned}",
        )
    recipe = _changed(layout, locked, iterations)
    if refused := _refused(layout, recipe):
        raise UserError(
            f"this run cannot have more iterations: {refused[0].refused}",
            value=iterations,
            where=layout.root,
            expected="a run with training.schedule: constant, or one that has not begun to train",
            advice=_forked(layout, iterations - iterations_done(layout)),
        )
    return recipe


def _changed(layout: RunLayout, locked: Recipe, iterations: int) -> Recipe:
    return changed_recipe(layout.recipe_lock, locked, (f"{ITERATIONS}={iterations}",))


def _refused(layout: RunLayout, recipe: Recipe) -> list[Change]:
    """The changes that the run does not take."""
    kept = kept_recipe(layout, recipe, lambda _: None)
    return [change for change in changes(layout, kept) if change.refused is not None]


def _forked(layout: RunLayout, iterations: int) -> str:
    """The command that trains a run further where it cannot be extended."""
    return (
        f"mrt-hpc fork {layout.word} --at last --set {ITERATIONS}={iterations}, which begins a new run with the last "
        "weights, a new optimiser and a learning-rate schedule of its own"
    )


def schedule_text(layout: RunLayout, recipe: Recipe) -> str:
    """What more iterations mean for the learning rate, in a sentence. The recipe was not refused."""
    before, now = read_recipe_lock(layout.recipe_lock).schedule.iterations, recipe.schedule.iterations
    training = recipe.training
    if training.schedule == "constant":
        return f"{before} iterations become {now}; the learning rate stays at {training.learning_rate:g}"
    return (
        f"{before} iterations become {now}; no step has been taken yet, so the learning rate follows its "
        f"{training.schedule} schedule over all {now}"
    )
