"""Two ordinary users: the home of the first, and all that the second lays out so that commands of the first do harm."""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from basics import JOBS, QUICKSTART
from data_files import json_lines
from evaluated import BENCHMARK, commit_all, evaluated_run, run_directory
from hub_server import COMMIT
from other_users import FIRST, SECOND, give_away
from run_of import say

from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.recipe.find import SITES
from mrt_hpc.run.events import event_file
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.run.weights import publish

MODULE = "planted_by_another"
HUB_MODEL, HUB_PIPED, HUB_DATA = "lab/tiny-0.1B", "lab/piped", "lab/sums"
PRIVATE = "of the first user alone"
CODE = """
import os
from mrt_hpc.backends.backend import Site
from mrt_hpc.domains.verifiers import ExactVerifier
from mrt_hpc.modes.base import Direct

open({mark}, "w").close()


class Mine(ExactVerifier):
    type: str
    width: int = 3


class Way(Direct):
    type: str


class Place(Site):
    type: str

    def backend(self):
        raise NotImplementedError
"""
"""A module that leaves a mark when it is imported."""
PROBLEMS = f"type: small_world, split: held_out, problems: 2, verifier: {{type: '{MODULE}:Mine'}}"
OF_OWN_CLASSES = f"evaluation.benchmarks=[{{name: {BENCHMARK}, samples: 2, problems: {{{PROBLEMS}}}}}]"
SHADOWS = ("numpy", "torch", "yaml", "rich", "sitecustomize", "mrt_hpc")
"""Modules that another folder has under these names are those of the first user's programs."""
OUTPUTS = (
    "page.html", "numbers.csv", "rows.jsonl", "rows.jsonl.source.json", "copied.yaml", "site.yaml", "image.sif",
    "image.sif.sha256", "recipe.md", "site.md", "regret.csv", "regret.png", "regret.svg",
)  # fmt: skip
"""The names of files that commands write where they are told to."""


@dataclass(frozen=True)
class Box:
    """A machine of two users: the home of the first, and what the second has laid out."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        """Where the first user types: it holds a run of this user."""
        return self.home / "work"

    @property
    def site(self) -> Path:
        """A profile of the first user for a cluster, whose commands are not there."""
        return self.work / "own.yaml"

    @property
    def mine(self) -> Path:
        """A run of the first user."""
        return self.work / "mine"

    @property
    def exchanged(self) -> list[tuple[Path, Path]]:
        """The places of the second user where another user's thing stands at times."""
        run, plain, *_ = self.runs
        return [
            (run / "recipe.lock.yaml", plain / "recipe.lock.yaml"), (run / "code", Path("/etc")),
            (run / "set_aside", self.precious), (plain / "jobs", self.precious), (plain / "evals", self.mine / "evals"),
            (plain / "weights", self.mine / "weights"), (self.theirs / "rows.jsonl", self.precious / "thesis.log"),
            (self.theirs / "model" / "config.json", self.home / ".ssh" / "id_rsa"),
            (self.theirs / "slurm" / "sites" / "lines.yaml", self.site),
            (self.theirs / "hub_home" / "hub", self.precious),
        ]  # fmt: skip

    @property
    def precious(self) -> Path:
        return self.home / "precious"

    @property
    def theirs(self) -> Path:
        """The folder of the second user, in which all users can write."""
        return self.root / "theirs"

    @property
    def marks(self) -> Path:
        """Where code of the second user leaves the number of the user that runs it."""
        return self.root / "marks"

    @property
    def runs(self) -> list[Path]:
        """Runs of the second user: with classes of its own; without code, so that nothing but its owner speaks against
        it; with pipes in place of its records; and with pipes in place of its name, its plan and its problems.
        """
        return [self.theirs / name for name in ("run", "plain", "pipes", "piped")]


def lay_out(box: Box) -> None:
    """Make all that the two users have."""
    box.marks.mkdir()
    _lay_out_home(box)
    box.theirs.mkdir()
    for folder in (box.theirs, box.theirs / "slurm" / "sites"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{MODULE}.py").write_text(CODE.format(mark=f"{str(box.marks)!r} + '/imported-' + str(os.geteuid())"))
        for name in SHADOWS:
            (folder / f"{name}.py").write_text(f"open({str(box.marks)!r} + '/shadow-{name}', 'w').close()\n")
    _lay_out_runs(box)
    _lay_out_files(box)
    _lay_out_hub(box, box.theirs / "hub_home" / "hub")
    give_away(box.theirs, SECOND)
    for folder in (box.theirs, *(path for path in box.theirs.rglob("*") if path.is_dir() and not path.is_symlink())):
        folder.chmod(0o777)
    for run in box.runs:
        run.chmod(0o755)
    (box.theirs / "bin" / "program").chmod(0o755)
    box.marks.chmod(0o777)


def _lay_out_home(box: Box) -> None:
    for name in ("precious", "precious/step000001", ".ssh", "work"):
        (box.home / name).mkdir(parents=True)
        for file in ("thesis.log", "results.out", "id_rsa", "main") if name != "work" else ():
            (box.home / name / file).write_text(f"{PRIVATE}: {name}")
    _publish(evaluated_run(box.mine, 0, 1))
    box.site.write_text("type: slurm\nname: own\n")
    box.site.with_name("own.yaml.rows.jsonl").write_bytes(rows())
    for path in (box.home, *box.home.rglob("*")):
        os.chown(path, FIRST, FIRST)
        path.chmod(0o700 if path.is_dir() else 0o600)
    box.home.chmod(0o755)


def rows() -> bytes:
    return json_lines([{"id": f"{n}", "problem": f"What is {n} + 1?", "answer": f"{n + 1}"} for n in range(3)])


def _lay_out_runs(box: Box) -> None:
    own, plain, pipes, piped = box.runs
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(box.theirs)
        layout = run_directory(own, OF_OWN_CLASSES)
        for version in (0, 1):
            commit_all(layout, version)
    sys.modules.pop(MODULE)
    for mark in box.marks.iterdir():
        mark.unlink()
    _publish(layout)
    _publish(evaluated_run(plain, 0, 1))
    for run, kind in ((own, f"{MODULE}:Place"), (plain, "slurm")):
        site = {"type": kind, "name": "x", **({"setup": [_touch(box, "setup")]} if kind == "slurm" else {})}
        jobs = RunLayout(run).jobs
        jobs.mkdir(exist_ok=True)
        (jobs / "site-x.json").write_text(json.dumps({"site": site, "folder": str(RunLayout(run).code)}))
        (jobs / "site.json").write_text(json.dumps({"name": "x", "file": None, "text": None}))
    for copy in (pipes, piped):
        shutil.copytree(plain, copy)
    named = [RunLayout(piped).identity, RunLayout(piped).plan, *(piped / "data").rglob("*.jsonl")]
    for path in (*_left_records(RunLayout(pipes)), *named):
        path.unlink()
        os.mkfifo(path)
    for run in (own, plain, piped):
        for name in ("logs", "checkpoints", "set_aside"):
            shutil.rmtree(run / name, ignore_errors=True)
            (run / name).symlink_to(box.precious)
    layout.set_aside.unlink()
    layout.set_aside.mkdir()


def _left_records(run: RunLayout) -> list[Path]:
    """The files of a run that has failed, without those by which a command finds the others."""
    for job in JOBS:
        say(run, job, TaskState.FAILED)
    job = JOBS[0]
    logs = (run.logs / job / "5_0_log.err", run.logs / f"{job}.00000.a.rank0.log")
    records = (run.metrics(0), run.group_archive(0), event_file(run.events, job, 0, 0, "a"))
    for path in (*logs, *records, run.jobs / "queued-000001.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    kept = {run.recipe_lock, run.plan, run.identity}
    finding = {path for name in ("data", "tasks") for path in (run.root / name).rglob("*")}
    finding |= {*run.root.rglob(MANIFEST)} - {*run.weights.rglob(MANIFEST)}
    return [path for path in run.root.rglob("*") if path.is_file() and path not in kept | finding]


def _publish(layout: RunLayout) -> None:
    """A weights version with a whole model."""
    publish(layout, 0, lambda folder: shutil.copytree(STARTING_MODEL, folder, dirs_exist_ok=True) and None)


def _touch(box: Box, name: str) -> str:
    return f"echo > {box.marks}/{name}"


def _lay_out_files(box: Box) -> None:
    """Recipes, a suite and site profiles, those of names too; a model, data, an image, and places for outputs."""
    theirs, code = box.theirs, f"'{MODULE}:Mine'"
    problems = f"{{type: small_world, split: train, verifier: {code}}}"
    (theirs / "recipe.yaml").write_text(f"extends: {QUICKSTART}\ndata: {problems}\n")
    suite = f"benchmarks: [{{name: x, samples: 1, problems: {problems}}}]\nmax_tokens: 8\n"
    (theirs / "suite.yaml").write_text(f"prompt: {{instruction: '', shots: 0, stop_tokens: []}}\n{suite}")
    program = theirs / "bin" / "program"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{_touch(box, 'program')}\n")
    sites = theirs / SITES.checkout
    (sites / "classes.yaml").write_text(f"type: {MODULE}:Place\nname: classes\n")
    container = f"{{image: {theirs / 'image.sif'}, executable: {program}}}"
    setup = f"setup: ['{_touch(box, 'setup')}']\ncontainer: {container}\n"
    (sites / "lines.yaml").write_text(f"type: slurm\nname: lines\n{setup}")
    (theirs / "image.sif").write_text(f"#!/bin/sh\n{_touch(box, 'image')}\n")
    shutil.copytree(STARTING_MODEL, theirs / "model")
    for name in ("config.json", "tokenizer_config.json"):
        place = theirs / "model" / name
        told = json.loads(place.read_text()) if place.is_file() else {}
        auto = {"AutoConfig": f"{MODULE}.Mine", "AutoTokenizer": [f"{MODULE}.Mine", None]}
        place.write_text(json.dumps({**told, "auto_map": auto}))
    shutil.copy(theirs / f"{MODULE}.py", theirs / "model")
    (theirs / "model" / "notes.txt").symlink_to(box.home / ".ssh" / "id_rsa")
    shutil.copytree(theirs / "model", theirs / "piped_model", symlinks=True)
    for path in (*(theirs / "piped_model").glob("*.json"), *(theirs / "piped_model").glob("*.safetensors")):
        path.unlink()
        os.mkfifo(path)
    (theirs / "data").mkdir()
    for place in (theirs / "rows.jsonl", theirs / "data" / "rows.jsonl"):
        place.write_bytes(rows())
    shutil.copy(theirs / f"{MODULE}.py", theirs / "data" / "data.py")
    (theirs / "rows.jsonl.source.json").symlink_to(box.precious / "thesis.log")
    os.mkfifo(theirs / "pipe.jsonl")
    (theirs / "open").mkdir()
    for name in OUTPUTS:
        (theirs / "open" / name).symlink_to(box.precious / "thesis.log")


def _lay_out_hub(box: Box, hub: Path) -> None:
    """A cache of the hub whose folders are links to those of the first user."""
    for kind, name in (("models", HUB_MODEL), ("datasets", HUB_DATA)):
        folder = hub / f"{kind}--{name.replace('/', '--')}"
        (folder / "snapshots" / COMMIT).mkdir(parents=True)
        (folder / "snapshots" / COMMIT / "config.json").symlink_to(box.precious / "thesis.log")
        for below in ("blobs", "refs", "trees"):
            (folder / below).symlink_to(box.precious)
    refs = hub / f"models--{HUB_PIPED.replace('/', '--')}" / "refs"
    refs.mkdir(parents=True)
    os.mkfifo(refs / "main")
