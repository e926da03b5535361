"""Paths of a run directory, one attribute or method each."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.find import absolute, expand_home

COLLECTION = -1
"""The first collection: traces that weights version 0 samples before the iterations."""
COMPANION_LOG = "inference"
"""Marks the log of the sampling process of a colocated task."""


def collection_of(version: int) -> int:
    """The number of the collection that a weights version samples for all problems: -1 for version 0, and downwards."""
    return COLLECTION - version


def is_collection(iteration: int) -> bool:
    return iteration < 0


def collecting_version(collection: int) -> int:
    """The inverse of :func:`collection_of`."""
    return COLLECTION - collection


AGAIN = "mrt-hpc submit RUN"
"""The command that continues a run, for errors that do not know which run."""
GROUPS = "groups"
IDENTITY = "run_id"
"""Holds the name of a run, or of a folder of results: see ``run.manifest``."""
LOCK = "recipe.lock.yaml"
"""The resolved recipe."""
_WEIGHTS = re.compile(r"v(\d{6})")
_CHECKPOINT = re.compile(r"step(\d{6})")


class PathBelow:
    """A path at fixed parts below the root."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, layout: "RunLayout", owner: "type[RunLayout]") -> Path:
        return layout.root.joinpath(*self._parts)


@dataclass(frozen=True)
class RunLayout:
    root: Path

    @property
    def word(self) -> Advice:
        """The directory, quoted for a command that a user types."""
        return Advice("{run}", run=self.root)

    @property
    def again(self) -> Advice:
        return Advice("mrt-hpc submit {run}", run=self.root)

    recipe_lock = PathBelow(LOCK)
    """The resolved recipe with versions: the run's identity."""
    identity = PathBelow(IDENTITY)
    """The run's unique name, which all that it commits bears."""
    renewal = PathBelow("renewal.json")
    """Changes of a submission that are being applied; absent once all are written."""
    forked_from = PathBelow("forked_from.json")
    """The run and version that a forked run began with; absent for others."""
    first_model = PathBelow("first_model")
    """The weights that a forked run began with: links or copies."""
    plan = PathBelow("plan.json")
    jobs = PathBelow("jobs")
    """The ledger of submissions, one file each."""
    secrets = PathBelow("secrets")
    """Readable by the owner only."""
    compiled_code = PathBelow("compiled_code")
    """What servers have compiled, one archive for each kind; readable by the owner only."""
    image_lock = PathBelow("image.lock.json")
    """The image's checksum and file metadata; absent where tasks run in none."""

    code = PathBelow("code")
    """The user's own classes that the recipe names, as of the run's making."""
    train_data = PathBelow("data", "train.jsonl")
    selected_samples = PathBelow("data", "selected.jsonl")
    """Samples selected from collected traces."""

    def benchmark_data(self, name: str) -> Path:
        return self.root / "data" / "benchmarks" / f"{name}.jsonl"

    prompt_files = PathBelow("data", "prompts")
    """Copies of chat templates and solved examples."""

    weights = PathBelow("weights")

    def weights_version(self, version: int) -> Path:
        """A Hugging Face directory."""
        return self.weights / f"v{version:06d}"

    pins = PathBelow("pins")
    """One file for each version that a separate evaluation has yet to take over."""
    checkpoints = PathBelow("checkpoints")

    def checkpoint(self, step: int) -> Path:
        """The resumable trainer state after ``step`` iterations."""
        return self.checkpoints / f"step{step:06d}"

    @staticmethod
    def version_of(path: Path) -> int | None:
        """The number of a weights version's directory; None for other names."""
        return int(match[1]) if (match := _WEIGHTS.fullmatch(path.name)) else None

    @staticmethod
    def step_of(path: Path) -> int | None:
        """The number of a checkpoint's directory; None for other names."""
        return int(match[1]) if (match := _CHECKPOINT.fullmatch(path.name)) else None

    def iteration(self, number: int) -> Path:
        """Collections have directories of their own."""
        if number == COLLECTION:
            return self.root / "collection"
        if is_collection(number):
            return self.root / "collections" / f"v{collecting_version(number):06d}"
        return self.root / "iterations" / f"{number:06d}"

    def groups(self, iteration: int) -> Path:
        return self.iteration(iteration) / GROUPS

    def group(self, iteration: int, position: int) -> Path:
        """The rollouts and branches of one problem; ``position`` is its place among those drawn."""
        return self.groups(iteration) / f"{position:05d}"

    def group_archive(self, iteration: int) -> Path:
        """All groups of an iteration that training has passed, in one file."""
        return self.iteration(iteration) / "groups.zip"

    def leases(self, iteration: int) -> Path:
        return self.iteration(iteration) / "leases"

    def metrics(self, iteration: int) -> Path:
        """The trainer's metrics."""
        return self.iteration(iteration) / "metrics.json"

    skipped_steps = PathBelow("skipped_steps")
    """One file for each skipped optimiser step; absent if none was."""

    def skipped_step(self, iteration: int, mini_batch: int) -> Path:
        """The sequences of a skipped optimiser step."""
        return self.skipped_steps / f"{iteration:06d}-{mini_batch:02d}.json"

    def evaluations(self, version: int) -> Path:
        return self.root / "evals" / f"v{version:06d}"

    def evaluation(self, version: int, benchmark: str) -> Path:
        return self.evaluations(version) / benchmark

    def evaluation_shard(self, version: int, benchmark: str, shard: int) -> Path:
        return self.evaluation(version, benchmark) / f"shard-{shard:05d}"

    def evaluation_shards(self, version: int, benchmark: str, shards: int) -> list[Path]:
        return [self.evaluation_shard(version, benchmark, shard) for shard in range(shards)]

    def evaluation_samples(self, version: int, benchmark: str) -> Path:
        """The results folder where the recipe names no other; removed once all shards are whole."""
        return self.evaluation(version, benchmark) / "samples"

    def evaluation_summary(self, version: int, benchmark: str) -> Path:
        return self.evaluation(version, benchmark) / "summary.json"

    def regraded_folder(self, version: int, benchmark: str) -> Path:
        """Shards that are being judged again; absent but while that goes on or after an interruption."""
        return self.root / "regraded" / f"v{version:06d}" / benchmark

    versions_passed_over = PathBelow("evals", "passed_over.json")
    """Versions pruned before their evaluation was requested; absent if none was."""

    def heart(self, job: str, index: int) -> Path:
        """The heartbeat of one array task."""
        return self.root / "hearts" / job / f"{index:05d}.json"

    rendezvous = PathBelow("rendezvous")
    """By these files the ranks of a task find each other, new ones for each attempt."""
    events = PathBelow("events")
    logs = PathBelow("logs")
    """Output of tasks and servers."""
    set_aside = PathBelow("set_aside")
    """Damaged files, and results newer than the checkpoint resumed from, each with its reason."""
    wandb = PathBelow("wandb")
    offline_runs = PathBelow("wandb", "wandb")
    """One directory for each attempt; W&B adds the second part of the name."""
    tensorboard = PathBelow("tensorboard")
    training_events = PathBelow("tensorboard", "training")
    """By iteration."""
    evaluation_events = PathBelow("tensorboard", "evaluation")
    """By weights version."""

    report = PathBelow("report.md")
    page = PathBelow("report.html")
    """The report for a browser, with sample traces."""
    plots = PathBelow("plots")


FAMILY = "family.json"
"""In a directory with the runs of a sweep."""


def existing_run(run: Path) -> RunLayout:
    """The layout of a directory that a command made."""
    layout = RunLayout(absolute(run))
    if layout.plan.is_file():
        return layout
    if (run / FAMILY).is_file():
        members = sorted(p.parent for p in run.glob("*/plan.json"))
        raise UserError(
            "this is a family of runs, and one run is asked for here",
            value=str(run),
            expected=f"one of {', '.join(map(str, members))}",
            advice=Advice("the same command with {run}", run=members[0]) if members else "mrt-hpc runs",
        )
    folder = next((place for place in (run, run.parent) if any(place.glob("*/plan.json"))), run.parent)
    runs = sorted(str(p.parent) for p in folder.glob("*/plan.json"))
    if (within := "runs" / run).joinpath("plan.json").is_file():  # where submit makes them
        folder, runs = within.parent, [str(within)]
    made = "a directory that `mrt-hpc submit` or `mrt-hpc eval` made"
    what = "not a run directory: it has no plan.json"
    expected = f"one of {', '.join(runs)}" if runs else made
    raise UserError(what, value=str(run), expected=expected, advice=Advice("mrt-hpc runs {folder}", folder=folder))


def new_run_directory(text: str) -> Path:
    """The path given, with ``~`` expanded. An empty text is refused: it would be the working directory."""
    if not text.strip():
        raise UserError("the run directory is empty text", value=text, where="--run", advice="--run runs/NAME")
    path = expand_home(text)
    for place in (path, *path.parents):
        if os.path.lexists(place) and not place.is_dir():
            what = "the run directory would be what is no directory, or below it"
            raise UserError(what, where=place, expected="a directory, or nothing yet", advice="--run runs/NAME")
    return path


def run_path(name: str, run: Path | None) -> Path:
    """The one given, or the default for a recipe's name."""
    return absolute(run if run is not None else Path("runs") / name)


# What a user types for a run and its weights versions.

AT = "@"
"""Stands between a directory, or a model's name, and its weights versions."""
FIRST, LAST = "first", "last"


def split_at(typed: str) -> tuple[str, str | None]:
    """The directory in a text such as ``runs/grpo@20``, and the rest. The longest existing directory counts: its name
    may hold an ``@``.
    """
    parts = typed.split(AT)
    for count in range(len(parts), 0, -1):
        if expand_home(AT.join(parts[:count])).is_dir():
            return AT.join(parts[:count]), AT.join(parts[count:]) if count < len(parts) else None
    directory, at, after = typed.partition(AT)
    return directory, after if at else None


def version_named(text: str, last: int, run: Path) -> int | str:
    """A version's number, or ``first`` or ``last``. ``run`` is for the error."""
    if (text := text.strip()) in (FIRST, LAST):
        return text
    if text.isascii() and text.isdigit() and int(text) <= last:
        return int(text)
    what = "the run has no such weights version"
    expected = f"a number from 0 to {last}, {FIRST} or {LAST}"
    raise UserError(what, value=text, where=run, expected=expected, advice=Advice("ls {run}", run=run / "weights"))
