"""The protocols of a run's directory: its making, what is submitted, what changes it, and what evaluations share."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from basics import RECIPES
from protocols import Groups, Promise, Protocol, Training, Versions, is_whole
from run_of import run_of
from samples import rollout, sampled
from tiny_training import ATTEMPTS, CHANGES, TinyRun

from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.attempt import ledger
from mrt_hpc.attempt.ledger import claim_run, record_site, record_submission, remember_site, submissions
from mrt_hpc.attempt.sole_attempt import sole_attempt
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.domains import small_world
from mrt_hpc.evaluate import regrade
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Plan, read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import changed_recipe, read_lock, read_recipe_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.roles.stored_parts import StoredSamples
from mrt_hpc.roles.task.context import positions_there, set_group_aside
from mrt_hpc.roles.tracking import EventFile
from mrt_hpc.run.archive import read_sampled
from mrt_hpc.run.atomic import TEMPORARY_MARK, remove_leftovers, remove_whole, sync_names, write_text
from mrt_hpc.run.evaluation_settings import Fingerprint
from mrt_hpc.run.family import Axis, Family, read_family
from mrt_hpc.run.fork_record import ForkRecord
from mrt_hpc.run.groups import commit_group, merge_samples, part_file, read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Holder, Leases, Observer
from mrt_hpc.run.manifest import MANIFEST, DamagedError, commit_whole, read_manifest, verify
from mrt_hpc.run.pins import pin, pinned_versions
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.task_state import TaskRecord, TaskState, forget_failures, read_task, write_task
from mrt_hpc.run.weights import prune, publish, published_versions, take_over
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.origin import Origin
from mrt_hpc.submit.renewal import is_renewed, renew
from mrt_hpc.submit.submission import kept_recipe

STARTING_MODEL = Path(small_world.__file__).parent / "starting_model"
JOB = "segment-000.trainer"


@cache
def recipe_and_plan(*changes: str) -> tuple[Recipe, Plan]:
    recipe = load_recipe(RECIPES / "small_world" / "grpo.yaml", (*CHANGES, *changes))
    return recipe, compile_plan(recipe, LocalSite())


@contextmanager
def on_another_node() -> Iterator[None]:
    """What is recorded of this process during the block is of a node that no other block was on; it finds all other
    processes dead, without a wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        name = ATTEMPTS.new()
        patch.setattr(ledger.socket, "gethostname", lambda: name)
        patch.setattr(ledger, "_lives", lambda *_: False)
        yield


class Making(Protocol):
    """The making of a run directory."""

    name = "making"
    states = 200

    def make(self, layout: RunLayout) -> None:
        layout.root.mkdir()

    def act(self, layout: RunLayout, promise: Promise) -> None:
        create_or_open(layout.root / "runs" / "mine", *recipe_and_plan())
        promise("a run")

    def kept(self, layout: RunLayout, promised: str) -> bool:
        run = RunLayout(layout.root / "runs" / "mine")
        return read_lock(run.recipe_lock) == recipe_and_plan()[0] and read_plan(run.plan) == recipe_and_plan()[1]

    def outcome(self, layout: RunLayout) -> Any:
        run = layout.root / "runs" / "mine"
        return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


class Families(Making):
    """The making of a family: its runs, and then the file that names their values."""

    name = "families"
    states = 60
    family = Family((Axis("seed", ("0",)),))

    def act(self, layout: RunLayout, promise: Promise) -> None:
        super().act(layout, lambda _: None)
        self.family.continue_family(layout.root / "runs").record(layout.root / "runs")
        promise("a family")

    def kept(self, layout: RunLayout, promised: str) -> bool:
        return read_family(layout.root / "runs") == self.family and super().kept(layout, promised)


class Forking(Making):
    """The making of a run that begins with a weights version of another."""

    name = "forking"
    states = 60

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        other = RunLayout(layout.root / "other")
        other.root.mkdir()
        other.identity.write_text("other")
        publish(other, 1, partial(take_over, STARTING_MODEL))

    def act(self, layout: RunLayout, promise: Promise) -> None:
        weights = RunLayout(layout.root / "other").weights_version(1)
        record = ForkRecord("other", "other", 1, read_manifest(weights).digest, (), ())
        create_or_open(layout.root / "runs" / "mine", *recipe_and_plan(), origin=Origin(weights, record))
        promise("a run")

    def kept(self, layout: RunLayout, promised: str) -> bool:
        verify(RunLayout(layout.root / "runs" / "mine").first_model, anywhere=True)
        return super().kept(layout, promised)


class Renewal(Protocol):
    """Other values for a run that exists: more iterations and other resources."""

    name = "renewal"
    states = 150
    changes = (
        "schedule.iterations=4", "resilience.retries=1",
        "evaluation.benchmarks=[{name: held-out, problems: {type: small_world, split: held_out}, samples: 2}]",
    )  # fmt: skip

    def make(self, layout: RunLayout) -> None:
        create_or_open(layout.root, *recipe_and_plan())
        for job in recipe_and_plan()[1].jobs:
            write_task(layout, job.name, 0, TaskRecord(TaskState.DONE))

    def act(self, layout: RunLayout, promise: Promise) -> None:
        recipe, plan = recipe_and_plan(*self.changes)
        if is_renewed(layout, recipe, plan):
            renew(layout, recipe, plan)
            promise("other values")

    def kept(self, layout: RunLayout, promised: str) -> bool:
        return not is_renewed(layout, *recipe_and_plan(*self.changes))

    def outcome(self, layout: RunLayout) -> Any:
        plan = read_plan(layout.plan)
        return plan, read_lock(layout.recipe_lock), [read_task(layout, job.name, 0).state for job in plan.jobs]


class MoreIterations(Training):
    """A run that has ended gets another iteration, and trains it."""

    name = "more-iterations"
    states = 120
    last = 3
    changes = ("training.schedule=constant",)

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        TinyRun.of(layout).end(lambda _: None)
        locked = read_recipe_lock(layout.recipe_lock)
        longer = changed_recipe(layout.recipe_lock, locked, (f"schedule.iterations={self.last}",))
        self.longer = kept_recipe(layout, longer, lambda _: None)

    def act(self, layout: RunLayout, promise: Promise) -> None:
        plan = compile_plan(self.longer, LocalSite())
        if is_renewed(layout, self.longer, plan):
            renew(layout, self.longer, plan)
        TinyRun.of(layout, segment=1).end(promise)


class Ledger(Protocol):
    """What is submitted: each job that the queue has accepted is recorded before the next one is sent."""

    name = "ledger"
    states = 450

    def make(self, layout: RunLayout) -> None:
        create_or_open(layout.root, *recipe_and_plan())

    def act(self, layout: RunLayout, promise: Promise) -> None:
        with on_another_node(), claim_run(layout, 60.0):
            site, sent = LocalSite(), {entry.job for entry in submissions(layout)}
            record_site(layout, site)
            for number, job in enumerate(read_plan(layout.plan).jobs):
                if job.name not in sent:
                    record_submission(layout, job.name, str(number), site.name)
                    promise(job.name)
            remember_site(layout, site)

    def kept(self, layout: RunLayout, promised: str) -> bool:
        return promised in {entry.job for entry in submissions(layout)}

    def outcome(self, layout: RunLayout) -> Any:
        return [(entry.job, entry.job_id) for entry in submissions(layout)]


class Endings(Protocol):
    """The states of tasks."""

    name = "endings"
    states = 900

    def make(self, layout: RunLayout) -> None:
        create_or_open(layout.root, *recipe_and_plan())

    def act(self, layout: RunLayout, promise: Promise) -> None:
        if read_task(layout, JOB, 0).state is not TaskState.DONE:
            attempt = ATTEMPTS.new()
            write_task(layout, JOB, 0, TaskRecord(TaskState.RUNNING, attempt=attempt))
            with sole_attempt(replace(TinyRun.of(layout).trainer, attempt=attempt)):
                write_task(layout, JOB, 0, TaskRecord(TaskState.RETRYING, attempt=attempt))
            forget_failures(layout, JOB, [0])
            write_task(layout, JOB, 0, TaskRecord(TaskState.DONE, attempt=attempt))
            promise("done")

    def kept(self, layout: RunLayout, promised: str) -> bool:
        return read_task(layout, JOB, 0).state is TaskState.DONE

    def outcome(self, layout: RunLayout) -> Any:
        return read_task(layout, JOB, 0).state


class Damage(Groups):
    """A damaged group of an archive is set aside and sampled again; the others stay."""

    name = "damage"
    states = 450

    def make(self, layout: RunLayout) -> None:
        run_of(layout.root, *CHANGES, recipe="small_world/grpo")
        super().act(layout, lambda _: None)
        content = layout.group_archive(0).read_bytes()
        middle = content.index(b"00000/rollouts.parquet") + 200
        layout.group_archive(0).write_bytes(content[:middle] + b"damage" + content[middle + 6 :])

    def act(self, layout: RunLayout, promise: Promise) -> None:
        task = TinyRun.of(layout).trainer
        for position in sorted(positions_there(task, 0)):
            try:
                read_sampled(layout, 0, position)
            except DamagedError as damage:
                set_group_aside(task, 0, position, damage)
        super().act(layout, promise)


class Stored(Protocol):
    """Samples of an evaluation in a results folder, the shard that is made of them, and its summary."""

    name = "stored samples"
    states = 600
    problems = range(2)
    grader = "0123456789abcdef"

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        (layout.root / "results").mkdir()

    def act(self, layout: RunLayout, promise: Promise) -> None:
        shard, summary = layout.evaluation_shard(0, "aime", 0), layout.evaluation_summary(0, "aime")
        if not shard.exists():
            store = StoredSamples.of(layout.root / "results", FINGERPRINT)
            me = Holder(layout.root, JOB, 0, ATTEMPTS.new())
            leases = Leases(store.leases, me, Observer(20.0), lambda p: not store.lacking_numbers(p, 1), store.heart)
            for problem in self.problems:
                if (lacking := store.lacking_numbers(problem, 1)) and leases.claim(problem):
                    store.commit(problem, lacking, sampled(rollout(f"p{problem}", 0)), self.grader)
                    promise(problem)
                    leases.release(problem)
            batches = [batch for problem in self.problems for batch, _ in store.choose_batches(problem, 1, self.grader)]
            if len(batches) < len(self.problems):  # as the role does
                raise DamagedError("parts of an evaluation are not there any more", where=store.directory)
            parts = [store.read(batch, [0], f"p{batch.position}") for batch in batches]
            commit_group(shard, merge_samples(parts), weights="w")
            promise("shard")
        summarise_evaluation(0, "aime", {r.problem_id: [r.reward] for r in read_group(shard).rollouts}).write(summary)
        promise("summary")

    def kept(self, layout: RunLayout, promised: int | str) -> bool:
        if promised == "summary":
            return EvaluationSummary.read(layout.evaluation_summary(0, "aime")).accuracy == 1.0
        if promised == "shard":
            return is_whole(layout.evaluation_shard(0, "aime", 0))
        return is_whole(StoredSamples(layout.root / "results" / FINGERPRINT.digest[:24]).batches(promised)[0].path)

    def outcome(self, layout: RunLayout) -> Any:
        return verify(layout.evaluation_shard(0, "aime", 0)).digest


FINGERPRINT = Fingerprint(
    weights="w", benchmark="aime", problems="p", seed=0, sampling={}, mode={}, episodes={}, prover=None,
    dtype="float32", code={}, engine={},
)  # fmt: skip


class Spoilt(Stored):
    """Stored samples of which one batch is damaged: it is set aside and sampled again."""

    name = "damaged samples"
    states = 200

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        store = StoredSamples.of(layout.root / "results", FINGERPRINT)
        store.commit(0, range(1), sampled(rollout("p0", 0)), self.grader)
        part_file(store.batches(0)[0].path, "rollouts").write_bytes(b"damage")

    def act(self, layout: RunLayout, promise: Promise) -> None:
        store, shard = StoredSamples.of(layout.root / "results", FINGERPRINT), layout.evaluation_shard(0, "aime", 0)
        for batch in (batch for problem in self.problems for batch in store.batches(problem)):
            try:
                store.read(batch, [0], f"p{batch.position}")
            except DamagedError:
                store.set_aside(batch)
        if shard.exists() and not self.accepts(layout, shard):
            set_aside(layout, [shard], "damaged")
        super().act(layout, promise)


class Regrading(Stored):
    """Shards get the verdicts of another grader."""

    name = "regrading"
    states = 150

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        super().act(layout, lambda _: None)

    def act(self, layout: RunLayout, promise: Promise) -> None:
        shard, waiting = layout.evaluation_shard(0, "aime", 0), layout.regraded_folder(0, "aime")
        if regrade._finish_interrupted(waiting, [shard]) or read_manifest(shard).about.get("grader") != "another":
            regrade._replace(layout, waiting, [shard], [read_group(shard)], "another")
            shutil.rmtree(waiting)
        promise("shard")

    def outcome(self, layout: RunLayout) -> Any:
        return super().outcome(layout), read_manifest(layout.evaluation_shard(0, "aime", 0)).about["grader"]


class EventFiles(Protocol):
    """The event files of TensorBoard are written again from the metrics, whenever a trainer resumes."""

    name = "event files"
    states = 50

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        layout.wandb.mkdir()
        (layout.wandb / f".left{TEMPORARY_MARK}").touch()

    def act(self, layout: RunLayout, promise: Promise) -> None:
        remove_leftovers(layout.wandb)
        write_text(layout.report, "report")
        promise("report")
        with closing(EventFile(layout.training_events)) as events:
            events.add(0, {"reward": 1.0}, 0.0)

    def kept(self, layout: RunLayout, promised: str) -> bool:
        return layout.report.read_text() == promised

    def outcome(self, layout: RunLayout) -> Any:
        left = [path.name for path in layout.wandb.iterdir()]
        return left, [path.stat().st_size for path in layout.training_events.iterdir()]


class Pins(Protocol):
    """A weights version that an evaluation wants stays until it has taken it over."""

    name = "pins"
    states = 600

    def make(self, layout: RunLayout) -> None:
        layout.root.mkdir()
        for run in (self.run(layout), self.evaluation(layout)):
            run.secrets.mkdir(parents=True)
            run.identity.write_text(run.root.name)
            (run.secrets / "server_key").write_text("key")
        for version in range(3):
            publish(self.run(layout), version, lambda directory: (directory / "model").write_bytes(b"w") and None)

    def run(self, layout: RunLayout) -> RunLayout:
        return RunLayout(layout.root / "training")

    def evaluation(self, layout: RunLayout) -> RunLayout:
        return RunLayout(layout.root / "evaluation")

    def act(self, layout: RunLayout, promise: Promise) -> None:
        run, copy = self.run(layout), self.evaluation(layout).weights_version(0)
        if not copy.exists():
            pin(run, 1, self.evaluation(layout))
            promise("pinned")
            prune(run, {2, *pinned_versions(run)})
            commit_whole(copy, partial(take_over, run.weights_version(1), without=[MANIFEST]))
        sync_names(copy.parent)  # as the first job does
        promise("taken over")
        for path in list_directory(run.pins):
            path.unlink()
        prune(run, {2})

    def kept(self, layout: RunLayout, promised: str) -> bool:
        copy = self.evaluation(layout).weights_version(0)
        return is_whole(copy if promised == "taken over" or copy.exists() else self.run(layout).weights_version(1))

    def outcome(self, layout: RunLayout) -> Any:
        return published_versions(self.run(layout)), verify(self.evaluation(layout).weights_version(0)).digest


class Cleaning(Groups):
    """What a user removes is gone as a whole, and what stays is whole."""

    name = "cleaning"
    states = 50

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        for version in range(3):
            publish(layout, version, lambda directory: (directory / "model").write_bytes(b"w" * 9) and None)

    def act(self, layout: RunLayout, promise: Promise) -> None:
        for version in (0, 1):
            if (path := layout.weights_version(version)).exists():
                remove_whole(path)
        promise("removed")

    def kept(self, layout: RunLayout, promised: str) -> bool:
        there = published_versions(layout)
        return 2 in there and all(is_whole(layout.weights_version(version)) for version in there)

    def stands(self, layout: RunLayout) -> bool:
        """What stays is there at each moment."""
        return self.kept(layout, "removed")

    def outcome(self, layout: RunLayout) -> Any:
        return [(v, verify(layout.weights_version(v)).digest) for v in published_versions(layout)]


PROTOCOLS = (
    Groups, Versions, Training, Making, Families, Forking, Renewal, MoreIterations, Ledger, Endings, Damage,
    Stored, Spoilt, Regrading, EventFiles, Pins, Cleaning,
)  # fmt: skip
DAMAGED = (Training, Spoilt)
"""Those whose tasks mend what is damaged."""
