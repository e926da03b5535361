"""A new run that begins with another run's weights."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.algorithms.samples import read_conversations, read_suffixes, sample_lines
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.find import absolute
from mrt_hpc.recipe.lock import changed_recipe, differences
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.sections import Conversations, HuggingFaceModel, JsonlProblems, Suffixes
from mrt_hpc.run.fork_record import Changed, ForkedData, ForkRecord, read_fork
from mrt_hpc.run.layout import FIRST, LAST, RunLayout
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.problems import omitted_problems, problem_lines, read_problems
from mrt_hpc.run.prompt_files import read_experiment
from mrt_hpc.run.weights import published_versions, take_over

# -- fork data ---------------------------------------------------------------------------------------------------------
# Whether the data files of a run still hold what it was trained and evaluated on: a fork reads them again.


FileSource = JsonlProblems | Conversations | Suffixes
"""Data kinds read from a file."""


def forked_data(layout: RunLayout, before: Recipe, wanted: Recipe) -> tuple[ForkedData, ...]:
    """Compare data files of a run and its fork with the run's copies.

    Args:
        before: the run's recipe.
        wanted: the fork's recipe.
    """
    earlier, found = _named_files(layout, before), list[ForkedData]()
    for field, (source, copy) in _named_files(layout, wanted).items():
        path = Path(source.path)
        # A missing file is refused when the new run is made.
        if earlier.get(field) == (source, copy) and copy.is_file() and path.is_file():
            now = _digest(source, path, source.limit, omitted_problems(copy))
            found.append(ForkedData(field, source.path, _digest(source, copy, None, ()), now))
    return tuple(found)


def _named_files(layout: RunLayout, recipe: Recipe) -> dict[str, tuple[FileSource, Path]]:
    """A recipe's data files by field, each with the run's copy of its content."""
    data: dict[str, tuple[object, Path]] = {"data": (recipe.data, layout.train_data)}
    data |= {f"benchmark {b.name}": (b.problems, layout.benchmark_data(b.name)) for b in recipe.evaluation.benchmarks}
    return {field: (source, copy) for field, (source, copy) in data.items() if isinstance(source, FileSource)}


def _digest(source: FileSource, path: Path, limit: int | None, without: Collection[str]) -> str:
    """SHA-256 of a file's items as a run writes them, without some ids."""
    if isinstance(source, Conversations):
        text = sample_lines(read_conversations(path, limit))
    elif isinstance(source, Suffixes):
        text = sample_lines(read_suffixes(path, limit))
    else:
        text = problem_lines([problem for problem in read_problems(path, limit) if problem.id not in without])
    return hashlib.sha256(text.encode()).hexdigest()


OF_THE_FORK = frozenset({"name", "model"})
"""What a fork changes by itself."""


@dataclass(frozen=True)
class Origin:
    """The weights that a run begins with, and their record."""

    weights: Path
    """In the other run."""
    record: ForkRecord

    def use_weights(self, recipe: Experiment) -> Experiment:
        """The new recipe, whose model stays in place until the run has a copy."""
        return recipe.model_copy(update={"model": HuggingFaceModel(type="hugging_face", path=str(self.weights))})

    def take(self, layout: RunLayout) -> None:
        """Put weights and record into a new run directory: the other run may prune its own."""
        layout.first_model.mkdir()
        try:
            take_over(self.weights, layout.first_model)
            digest = verify(layout.first_model, anywhere=True).digest
        except (FileNotFoundError, DamagedError) as error:
            raise UserError(
                f"weights version {self.record.version} was removed, or is damaged: {error}",
                where=self.weights,
                advice=Advice(
                    "ls {parent} shows the versions that are there; name another with --at", parent=self.weights.parent
                ),
            ) from error
        if digest != self.record.digest:
            what = f"weights version {self.record.version} was published again meanwhile"
            raise UserError(what, where=self.weights, advice="type the same command again")
        self.record.write(layout)

    def refuse_another(self, layout: RunLayout) -> None:
        there = read_fork(layout)
        if there is None or (there.version, there.digest) != (self.record.version, self.record.digest):
            began = "is no fork" if there is None else f"began with weights version {there.version} of {there.run}"
            raise UserError(
                f"the directory of the new run is there already, and {began}",
                where=layout.root,
                expected=f"weights version {self.record.version} of {self.record.run}",
                advice="name another directory with --run DIR, or continue that run with the command that made it",
            )


@dataclass(frozen=True)
class ForkedRun:
    recipe: Recipe
    root: Path
    origin: Origin


def fork_of(
    layout: RunLayout, at: str, overrides: Sequence[str], root: Callable[[str], Path], *, trust: bool = False
) -> ForkedRun:
    """A run that begins with another run's weights.

    Args:
        layout: of the other run.
        at: the version's number, ``first`` or ``last``.
        overrides: changed fields, as ``schedule.iterations=100``.
        root: the new directory by the recipe's name.
        trust: take the other run's code even where another user can change it.
    """
    for override in overrides:
        if override.partition("=")[0].strip().partition(".")[0] == "model":
            raise UserError(
                "a fork begins with the weights of the run that it comes from, so it takes no other model",
                where=f"--set {override}",
                expected="fields of other sections",
                advice=Advice(
                    "leave the option out; for another model: mrt-hpc submit RECIPE --set {model}",
                    model="model={type: hugging_face, path: DIR}",
                ),
            )
    base = _recipe(layout, trust=trust)
    version = version_at(layout, at)
    weights = layout.weights_version(version)
    digest = verify(weights).digest
    named = base.model_copy(update={"name": f"{base.name}-from-v{version}"})
    wanted = changed_recipe(layout.recipe_lock, named, overrides)
    place = absolute(root(wanted.name))
    model = HuggingFaceModel(type="hugging_face", path=str(RunLayout(place).first_model))
    changes = differences(base.model_dump(mode="json"), wanted.model_dump(mode="json"))
    kept = [Changed(field=f, old=old, new=new) for f, old, new in changes if f.partition(".")[0] not in OF_THE_FORK]
    there = read_fork(RunLayout(place))  # a fork that has begun has read its data
    data = forked_data(layout, base, wanted) if there is None else there.data
    record = ForkRecord(str(layout.root), base.name, version, digest, tuple(kept), data)
    return ForkedRun(wanted.model_copy(update={"model": model}), place, Origin(weights, record))


def _recipe(layout: RunLayout, *, trust: bool) -> Recipe:
    recipe = read_experiment(layout, trust=trust)
    if not isinstance(recipe, Recipe):
        raise UserError(
            "this is the directory of an evaluation on its own, which trains nothing",
            where=layout.root,
            expected="a directory that `mrt-hpc submit` made",
            advice=Advice("mrt-hpc status {run}", run=layout.root),
        )
    return recipe


def version_at(layout: RunLayout, at: str) -> int:
    """The number of an existing weights version; ``last`` is the last of these."""
    there = published_versions(layout)
    words = {FIRST: there[0], LAST: there[-1]} if there else {}
    version = words.get(at, int(at) if at.isascii() and at.isdigit() else None)
    if version not in there:
        numbers = ", ".join(map(str, there)) if there else "none yet"
        raise UserError(
            "the run has no such weights version",
            value=at,
            where=layout.weights,
            expected=f"{FIRST}, {LAST}, or one of those that are there: {numbers}",
            advice=Advice("mrt-hpc fork {run} --at {last}", run=layout.root, last=LAST)
            if there
            else Advice("mrt-hpc status {run}", run=layout.root),
        )
    return version
