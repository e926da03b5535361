"""A run as data, and what a program does with runs: ``mrt_hpc`` exports these names.

Each function does what the command of the same name does, returns data where the command prints, and raises
:class:`~mrt_hpc.errors.UserError` with the next step. Imports are inside the functions, so that importing the package
is cheap.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.find import RECIPES, expand_home, find
from mrt_hpc.run.access import restored_umask
from mrt_hpc.run.layout import RunLayout, existing_run, new_run_directory, run_path

if TYPE_CHECKING:
    import pyarrow as pa

    from mrt_hpc.algorithms.batch import Batch
    from mrt_hpc.analysis.comparing import Compared
    from mrt_hpc.backends.backend import Site
    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.recipe.schema import EvaluationRecipe, Experiment, Recipe
    from mrt_hpc.submit.submission import Listener
    from mrt_hpc.view.snapshot import Snapshot

AnyPath = str | PathLike[str]
"""A path as Python's own functions take it; ``~`` is the home directory."""


def open_run(path: AnyPath) -> "Run":
    """Open the directory of a run, or of an evaluation on its own, of any owner. Its code is not run.

    Raises:
        UserError: the directory is no run, or its plan is damaged.
    """
    run = Run(existing_run(_path(path, "a run directory")))
    run.plan  # noqa: B018 - a damaged plan is an error here, not at the first table
    return run


@dataclass(frozen=True)
class Run:
    """The directory of a run, or of an evaluation on its own. It is only read, and no class that its recipe names is
    imported. All methods read the files as they are at that moment.

    Each table is a ``pyarrow.Table``: ``.to_pandas()`` or ``polars.from_arrow(table)`` make a data frame of it.
    """

    layout: RunLayout
    """Where the files of the run are."""

    @property
    def path(self) -> Path:
        return self.layout.root

    @property
    def recipe(self) -> "Experiment":
        """The run's values; of a user's own class those that the recipe sets."""
        from mrt_hpc.recipe.lock import look_at_lock

        return look_at_lock(self.layout.recipe_lock)

    @property
    def plan(self) -> "Plan":
        """The jobs of the run."""
        from mrt_hpc.plan.jobs import read_plan

        return read_plan(self.layout.plan)

    @property
    def iterations(self) -> list[int]:
        """The iterations that have rollouts, in ascending order."""
        from mrt_hpc.run.archive import sampled_iterations

        with self._damage_advised():
            return sorted(number for number in sampled_iterations(self.layout) if number >= 0)

    def status(self) -> "Snapshot":
        """What ``mrt-hpc status RUN --json`` prints."""
        from mrt_hpc.backends.queued_jobs import look_at_queues
        from mrt_hpc.view.snapshot_reader import SnapshotReader

        return SnapshotReader.of(self.layout, self.plan).read(look_at_queues(self.layout))

    def metrics(self) -> "pa.Table":
        """An iteration a row, with what was measured in it; empty before the first one is trained."""
        from mrt_hpc.analysis.measures import IterationMetrics
        from mrt_hpc.analysis.tables import read_table

        return read_table(map(self.layout.metrics, range(self.plan.iterations)), IterationMetrics)

    def rollouts(self, iteration: int | None = None) -> "pa.Table":
        """One row a rollout; of all iterations where none is named, which may need much memory.

        Raises:
            UserError: the iteration has no rollouts, or a group is damaged.
        """
        return self._sampled("rollouts", iteration)

    def branches(self, iteration: int | None = None) -> "pa.Table":
        """A branch that the prover drew a row; arguments and errors as for ``rollouts``."""
        return self._sampled("branches", iteration)

    def values(self, iteration: int | None = None) -> "pa.Table":
        """The value of a prefix a row; arguments and errors as for ``rollouts``."""
        return self._sampled("values", iteration)

    def evaluations(self) -> "pa.Table":
        """One row for each weights version, or model, and benchmark; empty before the first is complete."""
        from mrt_hpc.analysis.measures import EvaluationSummary
        from mrt_hpc.analysis.tables import read_table

        return read_table((self.layout.evaluation_summary(*place) for place in self._evaluated()), EvaluationSummary)

    def samples(self, version: int | None = None, benchmark: str | None = None) -> "pa.Table":
        """One row a sample of an evaluation, with its text; all samples where nothing is named.

        Args:
            version: a weights version, or the number of a model.

        Raises:
            UserError: there is no such evaluation, or a shard is damaged.
        """
        from mrt_hpc.analysis.tables import samples_table

        there = self._evaluated()
        places = [(v, name) for v, name in there if version in (None, v) and benchmark in (None, name)]
        if not places and (version is not None or benchmark is not None):
            words = ", ".join(f"version {v} on {name}" for v, name in there)
            raise UserError(
                "the run has no such evaluation",
                value=f"version {version}, benchmark {benchmark}",
                where=self.path,
                expected=words or "a run that has evaluated",
                advice=Advice("mrt-hpc status {run}", run=self.path),
            )
        with self._damage_advised():
            return samples_table(self.layout, places, self.recipe.evaluation.problem_shards)

    def batch(self, iteration: int) -> "Batch":
        """The rollouts of an iteration as ``learnt`` of an algorithm takes them."""
        from mrt_hpc.algorithms.learnt_batch import learnt_batch
        from mrt_hpc.recipe.base import require_kind
        from mrt_hpc.recipe.schema import Recipe
        from mrt_hpc.run.archive import read_iteration

        number = self._sampled_number(iteration)
        with self._damage_advised():
            return learnt_batch(read_iteration(self.layout, number), require_kind(self.recipe, Recipe))

    def _sampled(self, part: str, iteration: int | None) -> "pa.Table":
        from mrt_hpc.run.archive import sampled_table

        wanted = self.iterations if iteration is None else [self._sampled_number(iteration)]
        with self._damage_advised():
            return sampled_table(self.layout, wanted, part)

    def _sampled_number(self, iteration: int) -> int:
        """The number of an iteration that has rollouts; any other is refused."""
        from mrt_hpc.run.archive import sampled_positions, unsampled_error

        number = -1
        with suppress(TypeError):  # of what is no number
            number = index(iteration)
        with self._damage_advised():
            if number < 0 or not sampled_positions(self.layout, number):
                raise unsampled_error(self.layout, iteration)
        return number

    def _evaluated(self) -> list[tuple[int, str]]:
        """The weights versions and benchmarks of which anything was evaluated."""
        from mrt_hpc.run.evaluation_settings import versions_evaluated

        names = [benchmark.name for benchmark in self.recipe.evaluation.benchmarks]
        versions = versions_evaluated(self.layout)
        return [(v, name) for name in names for v in versions if self.layout.evaluation(v, name).is_dir()]

    @contextmanager
    def _damage_advised(self) -> Iterator[None]:
        """Say what to do about damage of which the error says only where it is."""
        try:
            yield
        except UserError as error:
            if error.advice is not None:
                raise
            then = "mrt-hpc explain {run}: the next task that needs it sets it aside and makes it again"
            raise error.reword(error.what, advice=Advice(then, run=self.path)) from error


# -- compare -----------------------------------------------------------------------------------------------------------


def compare(
    *models: AnyPath,
    arms: Mapping[str, Sequence[AnyPath]] | None = None,
    benchmarks: Sequence[str] = (),
    measures: Sequence[str] = ("pass@1",),
    difference: float = 1.0,
    paired: bool = False,
    trust: bool = False,
) -> "Compared":
    """Compare evaluated models with the first of them, problem by problem.

    Args:
        models: each as ``RUN``, ``RUN@VERSION``, ``EVALDIR`` or ``EVALDIR@NAME``; of a single run its first version is
            compared with its last.
        arms: the runs of each arm, by its name: one recipe with several training seeds.
        benchmarks: empty for all that the models share.
        measures: ``pass@K``, ``maj@K``, ``regret@TOKENS`` or ``tokens``.
        difference: how many problems or samples would show this difference, in percentage points.
        paired: compare arms seed by seed.
        trust: import code of a run also where another user can change it.

    Raises:
        UserError: a model or a benchmark is missing, or there is nothing to compare.
    """
    from mrt_hpc.analysis.comparing import compare_named

    words = [str(_path(model, "a run or an evaluation")) for model in models]
    lists = {name: [runs] if isinstance(runs, str) else runs for name, runs in (arms or {}).items()}
    typed = [f"{name}={','.join(map(str, runs))}" for name, runs in lists.items()]
    if not (words or typed):
        raise UserError("nothing is named to compare", expected="a run", advice='compare("runs/NAME")')
    if not difference > 0:
        raise UserError("this is no difference", value=difference, expected="above 0", advice="difference=1.0")
    return compare_named(
        words, typed, tuple(benchmarks), tuple(measures), difference=difference, paired=paired, trust=trust
    )


# -- submit ------------------------------------------------------------------------------------------------------------


def submit_recipe(
    what: AnyPath,
    *overrides: str,
    site: str | None = None,
    shape: str | None = None,
    data: AnyPath | None = None,
    run: AnyPath | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Run:
    """Start a recipe at a site, or continue a run. On this machine it returns when the run has ended, at a cluster when
    the jobs are queued.

    Args:
        what: a recipe's path or name, or a run directory.
        overrides: fields of the recipe, each as ``training.learning_rate=2e-6``.
        site: a site profile's path or name; None for that of the run, or the user's default.
        shape: a path or name.
        data: the folder of all data files of a recipe; None for those that it names.
        run: the run directory of a recipe; None for ``runs/NAME``.
        say: is called with a sentence about each step.

    Raises:
        UserError: recipe, run, site or data are wrong, the site refuses, or a task failed.
    """
    from mrt_hpc.backends.sites import chosen_site
    from mrt_hpc.recipe.ownership import refuse_to_write
    from mrt_hpc.submit.submission import Listener

    path = _path(what, "a recipe or a run directory")
    asked = refuse_to_write(path) if path.is_dir() else find(RECIPES, str(path))
    folder = None if run is None else new_run_directory(str(_path(run, "a run directory")))
    files = None if data is None else _path(data, "a folder of data")
    recipe, layout = resolve_request(asked, overrides, shape, files, folder)
    chosen = chosen_site(site, layout).ensure_usable().site
    with restored_umask():
        submit_asked(recipe, chosen, layout.root, Listener(say, say, lambda _: nullcontext(lambda: None)))  # type: ignore[arg-type]
    return open_run(layout.root)


def submit_asked(recipe: "Recipe | EvaluationRecipe", site: "Site", root: Path, listener: "Listener") -> None:
    from mrt_hpc.recipe.schema import Recipe

    if isinstance(recipe, Recipe):
        from mrt_hpc.submit.submission import submit_run

        submit_run(recipe, site, root, listener)
        return
    from mrt_hpc.evaluate.asked_models import awaited_jobs
    from mrt_hpc.evaluate.evaluation_alone import submit_evaluation

    submit_evaluation(recipe, awaited_jobs(recipe, RunLayout(root)), site, root, listener)


def resolve_request(
    what: Path, overrides: tuple[str, ...], shape: str | None, data: Path | None, run: Path | None
) -> "tuple[Recipe | EvaluationRecipe, RunLayout]":
    """The recipe that a user names, and its run directory; arguments as in :func:`submit_recipe`."""
    from mrt_hpc.plan.shape import shape_changes
    from mrt_hpc.recipe.load import load_recipe

    if not what.is_dir():
        recipe = load_recipe(what, shape_overrides(what, overrides, shape, data), data)
        return recipe, RunLayout(run_path(recipe.name, run))
    layout = existing_run(what)
    beside = (("--run", run, "in its own directory", ""), ("--data", data, "with its own data", " --run DIR"))
    for option, given, own, also in beside:
        if given is not None:
            then = "{again}; for another run: mrt-hpc submit RECIPE {words}{also}"
            raise UserError(
                f"a run is continued {own}",
                value=str(given),
                where=option,
                expected=f"no {option} beside a run directory",
                advice=Advice(then, again=layout.again, words=[option, given], also=Advice(also)),
            )
    if shape is not None:
        overrides = shape_changes(shape, partial(_begun_recipe, layout), overrides)
    return _begun_recipe(layout, overrides), layout


def shape_overrides(file: Path, overrides: tuple[str, ...], shape: str | None, data: Path | None) -> tuple[str, ...]:
    """The changes of a recipe: those of a shape before those that were typed."""
    from mrt_hpc.plan.shape import shape_changes
    from mrt_hpc.recipe.load import load_recipe

    if shape is None:
        return overrides
    return shape_changes(shape, lambda changes: load_recipe(file, changes, data), overrides)


def _begun_recipe(layout: RunLayout, overrides: tuple[str, ...]) -> "Recipe | EvaluationRecipe":
    from mrt_hpc.recipe.lock import changed_recipe, read_lock
    from mrt_hpc.recipe.schema import Recipe

    recipe = read_lock(layout.recipe_lock)
    if overrides:
        recipe = changed_recipe(layout.recipe_lock, recipe, overrides)
    if isinstance(recipe, Recipe):
        return recipe
    from mrt_hpc.evaluate.evaluation_alone import refresh_inputs

    return refresh_inputs(recipe)


def _path(given: Any, what: str) -> Path:
    text = fspath(given) if isinstance(given, str | PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise UserError(f"this is no path of {what}", value=given, expected="a text or a Path", advice="mrt-hpc runs")
    return expand_home(text)
