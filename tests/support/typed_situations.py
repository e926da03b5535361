"""The situations in which commands advise others: ``tests/cases/typed_situations.yaml`` has a mistake, or a state of a
run, a line each.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from basics import TRAINER
from evaluated import BENCHMARK, PROBLEMS, commit_traces, run_directory
from situations import SITUATIONS, Situated
from small_weights import publish_models
from tables import tables
from typed_advice import FINISHED, Scene, Situation, nothing

from mrt_hpc.backends.user_settings import VARIABLE
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.task_state import TaskState

Change = Callable[[Scene], object]
NO_DATA = "no such data file"
TABLES = tables("typed_situations")
MISTAKES: dict[str, str] = TABLES["mistakes"]
MISTAKEN: dict[str, str] = TABLES["mistaken_files"]


def write_files(texts: Mapping[str, str]) -> Change:
    return lambda scene: [scene.write(name, text) for name, text in texts.items()]


def put_task(wanted: dict[str, Any]) -> Change:
    return lambda scene: scene.run.task(**{**wanted, "state": TaskState(wanted["state"])})


def situated(one: Situated) -> Change:
    def make(scene: Scene) -> None:
        one.make(scene.run)
        scene.run.log(f"{TRAINER}/13_0_log.out", "begun\n")

    return make


def held(wanted: dict[str, Any]) -> Change:
    """A run of two weights versions that were evaluated on two problems."""

    def make(scene: Scene) -> None:
        layout = run_directory(scene.here / "runs" / wanted["name"])
        publish_models(layout, 0, 20)
        for version in (0, 20):
            for shard, problem in enumerate(read_problems(layout.benchmark_data(BENCHMARK))):
                shown = wanted["problems"][shard] if "problems" in wanted else problem.id
                traces, valued = {shown: PROBLEMS["ab"[shard]]}, wanted.get("valued", True)
                commit_traces(layout, version, shard, traces, valued, wanted.get("grader", ""))

    return make


def family(scene: Scene, *, lacks: bool = False) -> None:
    """A sweep of two seeds, of which one may not be made."""
    scene.types("submit", "quickstart", "--sweep", "seed=0,1", "--run", "family")
    if lacks:
        shutil.rmtree(scene.here / "family" / "seed=1")


def running(scene: Scene) -> None:
    """A process that runs the run, and ends when it is interrupted."""
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(sleeps, start_new_session=True, stderr=subprocess.DEVNULL)
    threading.Thread(target=process.wait, daemon=True).start()
    scene.run.claim(process.pid)


def running_elsewhere(scene: Scene) -> None:
    shutil.rmtree(scene.run.layout.jobs)
    scene.run.layout.jobs.mkdir()
    scene.run.claim(7, "1", "other")


def moved(scene: Scene) -> None:
    shutil.move(scene.run.layout.root, scene.here / "moved")


def copied(scene: Scene) -> None:
    shutil.copytree(scene.here / FINISHED, scene.here / "runs" / "copy")


def another_seed(scene: Scene) -> None:
    copied(scene)
    scene.replace(scene.here / "runs/copy/recipe.lock.yaml", "  seed: 0", "  seed: 1")


def mistaken(scene: Scene) -> None:
    write_files(MISTAKEN)(scene)
    (scene.here / "folder").mkdir()


def mended(scene: Scene) -> None:
    """What the user edits, where a file is wrong."""
    write_files({name: "extends: quickstart\n" for name in MISTAKEN if name.endswith(".yaml")})(scene)
    scene.write("odd.yaml", "type: slurm\nname: odd\npartitions: {cpu: a}\n")


MAKERS: dict[str, Callable[[Any], Change]] = {
    "files": write_files,
    "folder": lambda name: lambda s: (s.here / name).mkdir(),
    "held": held,
    "log": lambda name: lambda s: s.run.log(name, "begun\n"),
    "queue": lambda lines: lambda s: s.run.queue(*lines),
    "site": lambda name: lambda s: s.patch.setenv(VARIABLE, name),
    "situation": lambda name: situated(SITUATIONS[name]),
    "task": put_task,
    "types": lambda words: lambda s: s.types(*words),
}
MADE: dict[str, Change] = {
    "a controller answers": lambda s: s.run.command("scontrol", "echo 'Slurmctld(primary) is UP'"),
    "a copy": copied,
    "a family": family,
    "a family that lacks a run": partial(family, lacks=True),
    "a process runs it": running,
    "a run has the name of a recipe": lambda s: shutil.copytree(s.run.layout.root, s.here / "quickstart"),
    "all is done": lambda s: s.run.done(),
    "an evaluation is queued": lambda s: s.types(
        "eval", f"{FINISHED}@last", "--suite", "small_world", "--run", "runs/alone"
    ),
    "another machine runs it": running_elsewhere,
    "another seed": another_seed,
    "mended files": mended,
    "mistaken files": mistaken,
    "no queue answers": lambda s: s.run.unreached(),
    "no site is set": lambda s: s.patch.delenv(VARIABLE),
    "the fork is broken": lambda s: s.finished.forked_from.write_text("{"),
    "the fork is gone": lambda s: s.finished.forked_from.unlink(),
    "the late evaluation is lost": lambda s: shutil.rmtree(s.here / "runs/late/evals/v000020"),
    "the recipe is empty": lambda s: s.run.layout.recipe_lock.write_text(""),
    "the recipe is lost": lambda s: s.run.layout.recipe_lock.unlink(),
    "the report is old": lambda s: os.utime(s.finished.report, (1, 1)),
}


def changes_of(wanted: Sequence[str | dict[str, Any]]) -> Iterator[Change]:
    for one in wanted:
        if isinstance(one, str):
            yield MADE[one]
        else:
            yield from (MAKERS[name](given) for name, given in one.items())


def change_of(wanted: Sequence[str | dict[str, Any]]) -> Change:
    """All of these one after the other."""
    changes = [*changes_of(wanted)]
    return (lambda scene: [change(scene) for change in changes]) if changes else nothing


def situation_of(words: str, make: Sequence[Any] = (), by_hand: Sequence[Any] = (), **fields: Any) -> Situation:
    return Situation(words, make=change_of(make), by_hand=change_of(by_hand), **fields)


def mistake(words: str) -> Situation:
    by_hand = mended if any(name in words for name in MISTAKEN) else nothing
    return Situation(words, mistaken, 2, by_hand, {"SOURCE": "good.jsonl"}, NO_DATA, MISTAKES[words])


SAID = {"explain": tuple(SITUATIONS), "status": ("a job waits for one that has failed",)}
ON_A_RUN = {
    f"{said}: {name}": Situation(
        " ".join([said, "'a b'", *(SITUATIONS[name].words if said == "explain" else [])]),
        situated(SITUATIONS[name]),
        0,
        moved if name == "a node does not see the run" else nothing,
        {"NEWPATH": "moved"},
    )
    for said, names in SAID.items()
    for name in names
}
LISTED = {name: situation_of(**fields) for name, fields in TABLES["situations"].items()}
EVERY = {**ON_A_RUN, **LISTED, **{words: mistake(words) for words in MISTAKES}}
