"""The layout of a run directory: each path is one attribute or method."""

import re
from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.find import expanded

COLLECTION = -1
"""The iteration before the first: what weights version 0 samples once, for algorithms that start from its traces."""
COMPANION_LOG = "inference"
"""What the name of the log says of the process that samples in a colocated task."""


def collection_of(version: int) -> int:
    """The number of a collection, which a weights version samples for all problems. It is below the numbers of all
    iterations, and -1 for version 0.
    """
    return COLLECTION - version


def is_collection(iteration: int) -> bool:
    """Whether a number is that of a collection, not of an iteration."""
    return iteration < 0


def collecting_version(collection: int) -> int:
    """The weights version that samples a collection: the inverse of :func:`collection_of`."""
    return COLLECTION - collection


AGAIN = "mrt-hpc submit RUN"
"""The command that continues a run, as errors write it that do not know which run; a task's record names its own."""
GROUPS = "groups"
"""The folder of an iteration's groups."""
IDENTITY = "run_id"
"""The file with the name of a run, or of a folder of results: see ``run.manifest``."""
LOCK = "recipe.lock.yaml"
"""The file with the resolved recipe of a run."""
_WEIGHTS = re.compile(r"v(\d{6})")
_CHECKPOINT = re.compile(r"step(\d{6})")


class PathBelow:
    """A path of a run directory that depends on nothing else: its parts below the root."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, layout: "RunLayout", owner: "type[RunLayout]") -> Path:
        return layout.root.joinpath(*self._parts)


@dataclass(frozen=True)
class RunLayout:
    """The paths of one run directory."""

    root: Path

    @property
    def word(self) -> str:
        """The directory as a word of a command that a user is asked to type."""
        return word(self.root)

    @property
    def again(self) -> str:
        """The command that continues the run."""
        return AGAIN.replace("RUN", self.word)

    # -- identity and plan
    recipe_lock = PathBelow(LOCK)
    """The resolved recipe with versions: the run's identity."""
    identity = PathBelow(IDENTITY)
    """The name that the run got when it was made and that no other run has: all that it commits bears it."""
    renewal = PathBelow("renewal.json")
    """The changes of a submission that are being applied; absent once all of them are written."""
    forked_from = PathBelow("forked_from.json")
    """The record of the run and the weights version that a forked run began with; absent for any other run."""
    first_model = PathBelow("first_model")
    """The weights version that a forked run began with: links or copies of its files."""
    plan = PathBelow("plan.json")
    """The compiled plan."""
    jobs = PathBelow("jobs")
    """The ledger of submissions, one file each."""
    secrets = PathBelow("secrets")
    """Keys of the run, readable by its owner only."""
    compiled_code = PathBelow("compiled_code")
    """What servers of the run have compiled, an archive for each kind of server; readable by its owner only."""
    image_lock = PathBelow("image.lock.json")
    """The checksum of the container image of the run, with the metadata of its file; absent where its tasks run in
    none.
    """

    # -- data
    code = PathBelow("code")
    """The user's own classes that the recipe names, as they were when the run was made."""
    train_data = PathBelow("data", "train.jsonl")
    """The training problems of this run."""
    selected_samples = PathBelow("data", "selected.jsonl")
    """The samples that a run selected from the traces that it collected."""

    def benchmark_data(self, name: str) -> Path:
        """The problems of one benchmark."""
        return self.root / "data" / "benchmarks" / f"{name}.jsonl"

    prompt_files = PathBelow("data", "prompts")
    """The run's copies of chat templates and of solved examples."""

    # -- weights and checkpoints
    weights = PathBelow("weights")
    """Parent of the weights versions."""

    def weights_version(self, version: int) -> Path:
        """One published weights version, a Hugging Face directory."""
        return self.weights / f"v{version:06d}"

    pins = PathBelow("pins")
    """What evaluations on their own want of these versions and have not taken over yet, a file each."""
    checkpoints = PathBelow("checkpoints")
    """Parent of the trainer's checkpoints."""

    def checkpoint(self, step: int) -> Path:
        """The resumable trainer state after ``step`` iterations."""
        return self.checkpoints / f"step{step:06d}"

    @staticmethod
    def version_of(path: Path) -> int | None:
        """The number of a weights version directory, None for any other name."""
        match = _WEIGHTS.fullmatch(path.name)
        return int(match[1]) if match else None

    @staticmethod
    def step_of(path: Path) -> int | None:
        """The number of a checkpoint directory, None for any other name."""
        match = _CHECKPOINT.fullmatch(path.name)
        return int(match[1]) if match else None

    # -- iterations
    def iteration(self, number: int) -> Path:
        """The files of one iteration; collections have directories of their own."""
        if number == COLLECTION:
            return self.root / "collection"
        if is_collection(number):
            return self.root / "collections" / f"v{collecting_version(number):06d}"
        return self.root / "iterations" / f"{number:06d}"

    def groups(self, iteration: int) -> Path:
        """Parent of an iteration's groups."""
        return self.iteration(iteration) / GROUPS

    def group(self, iteration: int, position: int) -> Path:
        """The rollouts of one problem with their branches, complete or absent.

        Args:
            iteration: which.
            position: of the problem among those drawn for the iteration.
        """
        return self.groups(iteration) / f"{position:05d}"

    def group_archive(self, iteration: int) -> Path:
        """All groups of an iteration that training has passed, in one file."""
        return self.iteration(iteration) / "groups.zip"

    def leases(self, iteration: int) -> Path:
        """The leases on the groups of an iteration."""
        return self.iteration(iteration) / "leases"

    def metrics(self, iteration: int) -> Path:
        """The metrics of the trainer in one iteration."""
        return self.iteration(iteration) / "metrics.json"

    skipped_steps = PathBelow("skipped_steps")
    """The optimiser steps that were skipped, a file each; absent if none was."""

    def skipped_step(self, iteration: int, mini_batch: int) -> Path:
        """The sequences of an optimiser step that was skipped."""
        return self.skipped_steps / f"{iteration:06d}-{mini_batch:02d}.json"

    # -- evaluations
    def evaluations(self, version: int) -> Path:
        """The evaluations of one weights version."""
        return self.root / "evals" / f"v{version:06d}"

    def evaluation(self, version: int, benchmark: str) -> Path:
        """The evaluation of one weights version on one benchmark."""
        return self.evaluations(version) / benchmark

    def evaluation_shard(self, version: int, benchmark: str, shard: int) -> Path:
        """One shard of an evaluation's samples."""
        return self.evaluation(version, benchmark) / f"shard-{shard:05d}"

    def evaluation_shards(self, version: int, benchmark: str, shards: int) -> list[Path]:
        """All shards of an evaluation's samples."""
        return [self.evaluation_shard(version, benchmark, shard) for shard in range(shards)]

    def evaluation_samples(self, version: int, benchmark: str) -> Path:
        """The results folder of an evaluation whose recipe names no other: it is there until all shards are whole."""
        return self.evaluation(version, benchmark) / "samples"

    def evaluation_summary(self, version: int, benchmark: str) -> Path:
        """The evaluation's result."""
        return self.evaluation(version, benchmark) / "summary.json"

    def regraded(self, version: int, benchmark: str) -> Path:
        """Parent of the shards of an evaluation that were judged again, until they are in their places; absent but
        while that goes on, and after it was interrupted.
        """
        return self.root / "regraded" / f"v{version:06d}" / benchmark

    versions_passed_over = PathBelow("evals", "passed_over.json")
    """The weights versions that were pruned before their evaluation was requested; absent if none was."""

    # -- life
    notices = PathBelow("notices")
    """The notices that a run is stuck, a file for each cause; and a file for each job that notifies."""

    def heart(self, job: str, index: int) -> Path:
        """The heartbeat of one array task."""
        return self.root / "hearts" / job / f"{index:05d}.json"

    rendezvous = PathBelow("rendezvous")
    """The files by which the ranks of a task find each other, new ones for each attempt."""
    events = PathBelow("events")
    """The event logs, one file for each process."""
    logs = PathBelow("logs")
    """Output of tasks and servers."""
    set_aside = PathBelow("set_aside")
    """Damaged files, and results newer than the checkpoint that the trainer resumed from, each with its reason."""
    wandb = PathBelow("wandb")
    """The files of W&B."""
    offline_runs = PathBelow("wandb", "wandb")
    """The offline W&B directories, one for each attempt; W&B adds the second part of the name."""
    tensorboard = PathBelow("tensorboard")
    """The TensorBoard event files."""
    event_files_in_work = PathBelow(".tensorboard")
    """Event files that are being written, where TensorBoard does not look."""
    training_events = PathBelow("tensorboard", "training")
    """Those of the training, by iteration."""
    evaluation_events = PathBelow("tensorboard", "evaluation")
    """Those of the evaluations, by weights version."""

    # -- result
    report = PathBelow("report.md")
    """The report."""
    page = PathBelow("report.html")
    """The report as one page for a browser, with sample traces."""
    plots = PathBelow("plots")
    """The report's figures."""


FAMILY = "family.json"
"""The file that a directory with the runs of a sweep holds."""


def existing_run(run: Path) -> RunLayout:
    """The layout of a directory that a command made.

    Raises:
        UserError: the directory is none.
    """
    layout = RunLayout(run.absolute())
    if not layout.plan.is_file():
        if (run / FAMILY).is_file():
            members = sorted(p.parent for p in run.glob("*/plan.json"))
            raise UserError(
                "this is a family of runs, and one run is asked for here",
                value=str(run),
                expected=f"one of {', '.join(map(str, members))}",
                advice=f"the same command with {word(members[0]) if members else 'one of its runs'}",
            )
        runs = sorted(str(p.parent) for p in run.parent.glob("*/plan.json")) if run.parent.is_dir() else []
        if (within := "runs" / run).joinpath("plan.json").is_file():  # where submit makes them
            runs = [str(within)]
        raise UserError(
            "not a run directory: it has no plan.json",
            value=str(run),
            expected=f"one of {', '.join(runs)}"
            if runs
            else "a directory that `mrt-hpc submit` or `mrt-hpc eval` made",
            advice=f"mrt-hpc runs {word(run.parent)}",
        )
    return layout


# -- what a user types for a run and its weights versions

AT = "@"
"""Stands between a directory and its weights versions, or the name of a model."""
FIRST, LAST = "first", "last"


def split_at(typed: str) -> tuple[str, str | None]:
    """The directory in a text such as ``runs/grpo@20``, and what stands after its ``@``. The longest directory that is
    there counts: its name may hold an ``@`` as well.
    """
    parts = typed.split(AT)
    for count in range(len(parts), 0, -1):
        if expanded(AT.join(parts[:count])).is_dir():
            return AT.join(parts[:count]), AT.join(parts[count:]) if count < len(parts) else None
    directory, at, after = typed.partition(AT)
    return directory, after if at else None


def version_named(text: str, last: int, run: Path) -> int | str:
    """The number of a weights version, or the word ``first`` or ``last``.

    Args:
        text: what stands after the ``@``, or a part of it between commas.
        last: the number of the last version that the run publishes.
        run: its directory, for the error.

    Raises:
        UserError: it is none of these.
    """
    text = text.strip()
    if text in (FIRST, LAST):
        return text
    if text.isascii() and text.isdigit() and int(text) <= last:
        return int(text)
    raise UserError(
        "the run has no such weights version",
        value=text,
        where=run,
        expected=f"a number from 0 to {last}, {FIRST} or {LAST}",
        advice=f"ls {word(run / 'weights')}",
    )
