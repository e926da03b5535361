"""Asks compute nodes: one small job for each partition, submitted as a run's jobs are, runs
:mod:`mrt_hpc.cluster.doctor.node_half`. This side answers its files and sends it signals.
"""

import os
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mrt_hpc.attempt.early_end import notes_of_scripts
from mrt_hpc.backends.slurm.commands import SlurmRefusedError, run_slurm
from mrt_hpc.backends.slurm.parameters import escape_for_sbatch, python_command, sbatch_parameters
from mrt_hpc.backends.slurm.plain_paths import bind_models, folders_read, require_plain_path
from mrt_hpc.backends.slurm.queue import cancel, queue_states
from mrt_hpc.backends.slurm.queued_as import differences, queued_fields
from mrt_hpc.backends.slurm.site import SlurmSite, option_word
from mrt_hpc.backends.slurm.slurm_output import submitted_id
from mrt_hpc.cluster.doctor.node_half import ANSWER, LISTENING, ORDER, PING, PONG, SIGNALS, NodeFacts, NodeOrder
from mrt_hpc.cluster.doctor.situation import NodeAnswer, Situation
from mrt_hpc.cluster.filesystems import existing_ancestor, trial_folder
from mrt_hpc.domains.verifiers import verifiers_of
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job, JobKind, JobResources, Role
from mrt_hpc.recipe.user_code import origin
from mrt_hpc.run.atomic import write_json, write_text
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory, wait_until
from mrt_hpc.run.typed_file import UnreadableError, read_typed

JOB_MINUTES = 8
"""The job takes one to three minutes."""
MEMORY_GIB = 1.0
LOOK_EVERY_S = 0.1
ASK_QUEUE_EVERY_S = 3.0
LAST_FILES_S = 15.0
"""A job's answer may still appear for so long after its end."""
LOG_LINES = 6
"""Shown where the job gave no answer."""
GRADING = (Role.INFERENCE, Role.EVALUATION)
"""The roles that judge answers."""
_SHARED = "account qos partition time nodes ntasks_per_node cpus_per_task mem mem_per_cpu gres gpus_per_node"
"""Parameters of a run's jobs that this job shares."""


def ask_nodes(situation: Situation, wait_s: float, show: Callable[[str], None]) -> tuple[NodeAnswer, ...]:
    """Submit the jobs and wait for their answers; cancel late ones. ``wait_s`` counts queue and run."""
    if (site := situation.slurm) is None:
        return ()
    if situation.recipe is not None:
        site = bind_models(site, situation.recipe)
    place = existing_ancestor(situation.root)
    if not os.access(place, os.W_OK):
        problem = f"no job was submitted: you cannot write to {place}, where it would leave its answer"
        names = ((kind, site.text_of("partition", kind) or "") for kind in situation.kinds)
        return tuple(NodeAnswer(kind, name, problem=problem) for kind, name in names)
    with trial_folder(place) as folder:
        layout = require_plain_path(RunLayout(folder), site.container)
        layout.events.mkdir()  # the job script notes there which setup line fails
        jobs = [NodeJob(kind, situation, site, layout) for kind in situation.kinds]
        try:
            for job in jobs:
                job.submit(show)
            _wait(jobs, wait_s)
        finally:
            _end(jobs)
        return tuple(job.answer() for job in jobs)


def _end(jobs: "list[NodeJob]") -> None:
    """Cancel the unanswered jobs, and wait until none writes into the folder any more."""
    cancel([job.id for job in jobs if job.id and not job.known.facts])
    ids = [job.id for job in jobs if job.id]
    with suppress(UserError):  # what is left of the folder then stays
        wait_until(
            lambda: all(state.has_ended for state in queue_states(ids).values()),
            reason="the end of the jobs",
            deadline_s=LAST_FILES_S,
        )


def _wait(jobs: "list[NodeJob]", wait_s: float) -> None:
    """Serve the jobs until each has answered or ended, or the time is over."""

    def serve_all() -> bool:
        for job in jobs:
            job.serve()
        return all(job.is_over for job in jobs)

    try:
        wait_until(serve_all, reason="the jobs on compute nodes", deadline_s=wait_s, longest_pause_s=LOOK_EVERY_S)
    except UserError:
        for job in jobs:
            job.give_up(wait_s)


class NodeJob:
    def __init__(self, kind: JobKind, situation: Situation, site: SlurmSite, layout: RunLayout) -> None:
        self.site, self.folder, self.layout = site, layout.root, layout
        self.name = f"doctor-{kind}"
        self.job = _job(self.name, situation, kind)
        self.script = script(self.job, site, layout)
        folders = () if situation.recipe is None else tuple(folders_read(situation.recipe))
        self.order = NodeOrder(folders, bool(self.job.resources.gpus), verifiers_judging(situation, kind))
        self.known = NodeAnswer(kind, site.text_of("partition", kind) or "")
        self._answered, self._sent = set[str](), False
        self._submitted = self._asked = time.monotonic()
        self._ended_at: float | None = None
        self._seen_at: float | None = None

    def submit(self, show: Callable[[str], None]) -> None:
        """Call sbatch; a refusal is the answer."""
        write_json(self._file(ORDER), asdict(self.order))
        path = self.folder / f"{self.name}.sh"
        write_text(path, self.script)
        try:
            command = ["sbatch", "--parsable", str(path)]
            self._learn(job_id=submitted_id(run_slurm(command), command)[0])
        except UserError as error:
            self._learn(problem=f"{error.what}: {error.value}" if error.value else error.what)
            return
        self._submitted = time.monotonic()
        with suppress(UserError):  # then nothing is said on it
            self._learn(changed=tuple(differences(self.job, self.site, queued_fields(self.id))))
        show(f"job {self.id} asks a node of partition {self.known.partition or '(the default)'}")

    def _learn(self, **facts: Any) -> None:
        self.known = replace(self.known, **facts)

    @property
    def id(self) -> str:
        """Slurm's id; empty before submission."""
        return self.known.job_id

    @property
    def is_over(self) -> bool:
        return bool(self.known.facts or self.known.problem)

    def serve(self) -> None:
        """Answer the node's new files, and look whether its job still lives."""
        if self.is_over:
            return
        names = {path.name for path in list_directory(self.folder, f"{self.name}.*")}
        if self._file(ANSWER).name in names:
            self._read_answer()
            return
        for name in sorted(names - self._answered):
            if name.startswith(f"{self.name}.{PING}-"):
                self._seen_at = self._seen_at or time.monotonic()
                write_json(self.folder / name.replace(f".{PING}-", f".{PONG}-"), {"at": time.time()})
                self._answered.add(name)
        if self._file(LISTENING).name in names and not self._sent:
            self._sent = True
            self._send_signals()
        if time.monotonic() - self._asked > ASK_QUEUE_EVERY_S:
            self._ask_queue()

    def _file(self, name: str) -> Path:
        return self.folder / f"{self.name}.{name}"

    def _read_answer(self) -> None:
        try:
            answer = read_typed(self._file(ANSWER), NodeFacts, "the answer of the node", advice="doctor again")
            self._learn(facts=answer)
        except UnreadableError as error:
            self._learn(problem=f"the node may have another version of mrt-hpc: {error.line}")

    def _send_signals(self) -> None:
        """Slurm sends them likewise before a time limit and at a preemption: to the steps of the job."""
        for name in SIGNALS:
            try:
                run_slurm(["scancel", f"--signal={name}", self.id])
            except SlurmRefusedError as refusal:
                self._learn(problem=f"scancel --signal={name} refused: {refusal.reason}")

    def _ask_queue(self) -> None:
        self._asked = time.monotonic()
        if self._ended_at is None and self._state()[0]:
            self._ended_at = self._asked
        if self._ended_at is not None and self._asked - self._ended_at > LAST_FILES_S:
            self._learn(problem=f"job {self.id} ended without an answer: {self._state()[1]}; {self._log()}")

    def _state(self) -> tuple[bool, str]:
        """Whether the job has ended, and its state in words."""
        states = list(queue_states([self.id]).values())
        texts = ", ".join(f"{state.state} {f'({state.reason})' if state.reason else ''}".strip() for state in states)
        return all(state.has_ended for state in states), texts

    def _log(self) -> str:
        log = self._file("log")
        lines = log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:] if log.exists() else []
        none = f"it wrote no log: the node may not see {self.folder.parent}, or may not run bash there"
        return f"its log ends: {' / '.join(lines)}" if lines else none

    def give_up(self, wait_s: float) -> None:
        if self.is_over:
            return
        _, state = self._state()
        waits = "pending" in state and self._seen_at is None
        problem = f"no answer within {wait_s:.0f} s: squeue: {state}" + ("" if waits else f"; {self._log()}")
        self._learn(waits=waits, problem=problem)

    def answer(self) -> NodeAnswer:
        commands = self._file("commands")
        there = tuple(Path(path).name for path in (commands.read_text().split() if commands.exists() else ()))
        queued_s = (self._seen_at or time.monotonic()) - self._submitted
        noted = notes_of_scripts(self.layout, f"{self.name}.*.script.*").values()
        setup = next((notes.setup for notes in noted if notes.setup), "")
        return replace(self.known, slurm_commands=there, queued_s=queued_s, setup_problem=setup)


def verifiers_judging(situation: Situation, kind: JobKind) -> tuple[tuple[str, dict[str, Any]], ...]:
    if situation.recipe is None or not any(job.does(role) for job in situation.jobs(kind) for role in GRADING):
        return ()
    named = ((verifier.type, verifier.model_dump(mode="json")) for verifier in verifiers_of(situation.recipe))
    return tuple((str(origin(name) or ""), {**section, "type": name}) for name, section in named)


def _job(name: str, situation: Situation, kind: JobKind) -> Job:
    """Asks for next to nothing, and for one GPU where jobs of this kind have GPUs."""
    limit = situation.site.limits.minutes
    resources = JobResources(
        nodes=1,
        ranks_per_node=1,
        gpus_per_rank=int(kind == "gpu"),
        cpus_per_rank=1,
        memory_gib_per_node=MEMORY_GIB,
        time_limit_minutes=JOB_MINUTES if limit is None else min(JOB_MINUTES, limit),
    )
    return Job(name=name, role=Role.PREPARE, tasks=1, resources=resources)


def script(job: Job, site: SlurmSite, layout: RunLayout) -> str:
    """The script has the options, setup lines and Python of a run's jobs."""
    parameters = sbatch_parameters(job, site, layout, waited_for=False)
    shared = {name.replace("_", "-"): parameters.get(name) for name in _SHARED.split()}
    options = {name: value for name, value in shared.items() if value is not None}
    options |= {"job-name": job.name, **dict.fromkeys(("output", "error"), layout.root / f"{job.name}.log")}
    options |= parameters["additional_parameters"]
    folder = shlex.quote(str(layout.root))
    srun = shlex.join(["srun", *parameters["srun_args"]])
    half = f"{python_command(job, site, layout)} -m mrt_hpc.cluster.doctor.node_half {folder} {job.name}"
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option_word(name, value is True or shlex.quote(str(value)))}" for name, value in options.items()),
        *parameters["setup"],
        f"command -v scontrol squeue > {folder}/{job.name}.commands",
        f"{srun} {half}",
    ]
    return escape_for_sbatch("".join(f"{line}\n" for line in lines))
