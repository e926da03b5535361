"""The situations in which commands advise others: a mistake, or a state of a run, a line each."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable

from basics import INFERENCE, TRAINER
from evaluated import BENCHMARK, PROBLEMS, commit_traces, run_directory
from situations import SITUATIONS, Situated
from small_weights import publish_models
from typed_advice import FINISHED, HERE, RUN, Scene, Situation, nothing

from mrt_hpc.backends.user_settings import VARIABLE
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.task_state import TaskState

NO_DATA = "no such data file"
QUEUED = ("13|PENDING|N/A|Priority|",)


def queue(*lines: str) -> Callable[[Scene], object]:
    return lambda scene: scene.run.queue(*lines)


def files(**texts: str) -> Callable[[Scene], object]:
    """Files by their names, in which a dot is written as two underscores."""

    def make(scene: Scene) -> None:
        for name, text in texts.items():
            scene.write(name.replace("__", "."), text)

    return make


def site(name: str) -> Callable[[Scene], object]:
    return lambda scene: scene.patch.setenv(VARIABLE, name)


def waits(reason: str) -> Callable[[Scene], object]:
    return queue(f"13|PENDING|N/A|{reason}|")


def state(task: str, state: TaskState, message: str = "", **fields: object) -> Callable[[Scene], object]:
    return lambda scene: scene.run.task(task, state, attempt="13.0", message=message, **fields)


def both(*makers: Callable[[Scene], object]) -> Callable[[Scene], object]:
    def make(scene: Scene) -> None:
        for each in makers:
            each(scene)

    return make


def situated(one: Situated) -> Callable[[Scene], object]:
    def make(scene: Scene) -> None:
        one.make(scene.run)
        scene.run.log(f"{TRAINER}/13_0_log.out", "begun\n")

    return make


def family(scene: Scene, *, lacks: bool = False) -> None:
    """A sweep of two seeds, of which one may not be made."""
    scene.types("submit", "quickstart", "--sweep", "seed=0,1", "--run", "family")
    if lacks:
        shutil.rmtree(scene.here / "family" / "seed=1")


def running(scene: Scene) -> None:
    """A process that runs the run, and ends when it is interrupted."""
    scene.run.claim(running_process())


def running_process() -> int:
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(sleeps, start_new_session=True, stderr=subprocess.DEVNULL)
    threading.Thread(target=process.wait, daemon=True).start()
    return process.pid


def moved(scene: Scene) -> None:
    shutil.move(scene.run.layout.root, scene.here / "moved")


def copied(scene: Scene) -> None:
    shutil.copytree(scene.here / FINISHED, scene.here / "runs" / "copy")


def another_seed(scene: Scene) -> None:
    copied(scene)
    scene.replace(scene.here / "runs/copy/recipe.lock.yaml", "  seed: 0", "  seed: 1")


def held(name: str, valued: bool = True, grader: str = "", problems: tuple[str, ...] = ()) -> Callable[[Scene], object]:
    """A run of two weights versions that were evaluated on two problems."""

    def make(scene: Scene) -> None:
        layout = run_directory(scene.here / "runs" / name)
        publish_models(layout, 0, 20)
        for version in (0, 20):
            for shard, problem in enumerate(read_problems(layout.benchmark_data(BENCHMARK))):
                shown = problems[shard] if problems else problem.id
                commit_traces(layout, version, shard, {shown: PROBLEMS["ab"[shard]]}, valued, grader)

    return make


def alone(scene: Scene) -> None:
    """An evaluation on its own, which is queued."""
    scene.types("eval", f"{FINISHED}@last", "--suite", "small_world", "--run", "runs/alone")


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
STATES = {
    "explain: requeued too often": Situation(
        "explain 'a b'", both(waits("JobHoldMaxRequeue"), lambda s: s.run.log(f"{TRAINER}/13_0_log.out", "begun\n")), 0
    ),
    "explain: all is done": Situation("explain 'a b'", lambda s: s.run.done(), 0),
    "explain: a task runs": Situation(
        "explain 'a b' segment-000.trainer",
        both(situated(SITUATIONS["both run"]), lambda s: s.run.task(INFERENCE, TaskState.RUNNING, attempt="12_0.0")),
        0,
    ),
    "explain: a task is about to leave": Situation(
        "explain 'a b' segment-000.trainer",
        both(queue("13|RUNNING|1|None|node1"), state(TRAINER, TaskState.GAVE_BACK, "gave the nodes back: x")),
        0,
    ),
    "explain: the recipe is lost": Situation(
        "explain 'a b'", lambda s: s.run.layout.recipe_lock.unlink(), 0, fills={"RUN": RUN, "RECIPE": "quickstart"}
    ),
    "explain: a record of a fork": Situation(
        "report 'runs/c d'",
        lambda s: s.finished.forked_from.write_text("{"),
        by_hand=lambda s: s.finished.forked_from.unlink(),
    ),
    "explain: jobs of which the queue says nothing": Situation(
        "explain 'a b' segment-000.trainer", lambda s: s.run.unreached(), 0, lambda s: s.run.queue()
    ),
}
LOOKS = {
    "status of a folder in a run": Situation("status 'a b/tasks'"),
    "status of a family that lacks a run": Situation(
        "status family", lambda s: family(s, lacks=True), 0, fills={"RECIPE": "quickstart"}
    ),
    "runs": Situation("runs .", exits=0),
    "no runs": Situation("runs empty", lambda s: (s.here / "empty").mkdir(), 0, fills={"DIR": "runs"}),
    "logs that are not there": Situation("logs 'a b' evaluation"),
    "logs of the server alone": Situation(
        "logs 'a b' inference --server", lambda s: s.run.log(f"{INFERENCE}/12_0_log.out", "begun\n")
    ),
    "logs of a run that has ended": Situation("logs 'a b' --follow", lambda s: s.run.done(), 0),
    "traces that are wrong": Situation("traces 'runs/c d' --wrong", exits=0),
    "more traces": Situation("traces 'runs/c d' -n 1", exits=0),
    "traces of a run that sampled nothing": Situation("traces 'a b'"),
    "traces of no version": Situation("traces 'runs/c d' --evaluation 77"),
    "cost of nothing": Situation("cost 'a b'", exits=0),
    "cost": Situation("cost 'runs/c d'", exits=0),
    "report of several": Situation("report 'a b' 'runs/c d'"),
    "a report that is old": Situation(
        "status 'runs/c d'", lambda s: (s.write(f"{FINISHED}/report.md", ""), os.utime(s.finished.report, (1, 1))), 0
    ),
    "fields with a slip": Situation("fields trainnig"),
    "fields of a type": Situation("fields algorithm.mrt_onlin"),
    "fields as pages": Situation("fields training --markdown pages", lambda s: (s.here / "pages").mkdir()),
}
RECIPES = {
    "recipes list": Situation("recipes list", exits=0),
    "a copy of a recipe": Situation("recipes copy quickstart mine.yaml", exits=0),
    "a copy of a suite": Situation("recipes copy small_world mine.yaml", exits=0),
    "a copy of a site": Situation("recipes copy site.yaml mine.yaml", exits=0),
    "a copy of an example": Situation(
        "recipes copy example:my_method mine.py",
        exits=0,
        by_hand=files(my_recipe__yaml="extends: quickstart\nalgorithm: {type: 'mine:LastEpisode'}\n"),
    ),
    "a copy of nothing": Situation("recipes copy zzzzzz"),
    "a copy of a broken recipe of one's own": Situation(
        "recipes copy open --force",
        files(**{"recipes/open__yaml": "{"}),
        by_hand=files(**{"recipes/open__yaml": "extends: quickstart\n"}),
    ),
    "init again": Situation("init mine", both(lambda s: s.patch.delenv(VARIABLE), lambda s: s.types("init", "mine"))),
    "doctor on a node of this machine": Situation("doctor --site local --on-node"),
    "an example with a slip": Situation("recipes copy example:my_metod"),
    "a recipe and a run of one name": Situation(
        "plan quickstart", lambda s: shutil.copytree(s.run.layout.root, s.here / "quickstart")
    ),
    "a shape as a recipe": Situation("plan shapes/one_gpu", fills={"RECIPE": "mrt_online"}),
    "a recipe of a shape": Situation("plan one_gpu/mrt_online"),
    "a copy of a shape": Situation("recipes copy one_gpu one.yaml", exits=0),
    "a broken shape": Situation(
        "plan mrt_online --shape one.yaml", files(one__yaml="gpus: [\n"), by_hand=files(one__yaml="gpus: 1\n")
    ),
    "a broken site": Situation(
        "plan quickstart --site odd.yaml", files(odd__yaml="type: [\n"), by_hand=files(odd__yaml="type: local\n")
    ),
    "the default site is not there": Situation("plan quickstart", site("nowhere"), fills={"SITE": "cluster.yaml"}),
    "a Slurm cluster and no site": Situation(
        "submit quickstart",
        both(
            lambda s: s.patch.delenv(VARIABLE), lambda s: s.run.command("scontrol", "echo 'Slurmctld(primary) is UP'")
        ),
    ),
}
SUBMISSIONS = {
    "submit": Situation("submit quickstart", exits=0),
    "submit a sweep": Situation("submit quickstart --sweep seed=0,1 --run family", exits=0),
    "a sweep of a run": Situation("submit 'a b' --sweep seed=0..1", fills={"RECIPE": "quickstart"}),
    "a family with other fields": Situation("submit family --set seed=3", family),
    "a run with other data": Situation("submit 'a b' --data elsewhere"),
    "another learning rate": Situation("submit 'a b' --set training.learning_rate=0.5"),
    "another learning rate of a finished run": Situation("submit 'runs/c d' --set training.learning_rate=0.5"),
    "more iterations of a finished run": Situation("submit 'runs/c d' --set schedule.iterations=300"),
    "another suite": Situation("submit 'a b' --set evaluation.suite=small_world"),
    "a run that is queued with other values": Situation(
        "submit 'a b' --set schedule.iterations=9", queue(*QUEUED, "12|PENDING|N/A|Priority|")
    ),
    "a run that is queued elsewhere": Situation("submit 'a b' --site local", queue(*QUEUED)),
    "a run that runs": Situation("submit 'a b'", running),
    "a plan of a run that runs": Situation("plan 'a b' --set schedule.iterations=9", running, 0),
    "data that is not there": Situation(
        "submit mine.yaml", files(mine__yaml="extends: quickstart\ndata: {type: jsonl, path: none.jsonl}\n")
    ),
    "data of a name": Situation(
        "submit mine.yaml", files(mine__yaml="extends: quickstart\ndata: {type: jsonl, path: math500.jsonl}\n")
    ),
    "a model that was not fetched": Situation(
        "submit quickstart --set 'model={type: hugging_face, path: \"hub:a/b\"}'"
    ),
    "a model without weights": Situation(
        "submit quickstart --set 'model={type: hugging_face, path: HERE/folder}'",
        files(**{"folder/config__json": "{}"}),
    ),
    "too little memory": Situation(
        "submit quickstart --set resources.trainer.memory_gib=0.1", fills={"SETTING": "training.batching"}
    ),
    "fork": Situation("fork 'a b' --at last"),
    "fork with a model": Situation(
        "fork 'runs/c d' --at last --set model.path=x", fills={"DIR": f"{HERE}/{FINISHED}/weights/v000004"}
    ),
    "a lock that is lost": Situation("submit 'a b'", lambda s: s.run.layout.recipe_lock.write_text("")),
}
LIFE = {
    "cancel nothing": Situation("cancel 'runs/c d'"),
    "cancel on another machine": Situation(
        "cancel 'a b'",
        lambda s: (shutil.rmtree(s.run.layout.jobs), s.run.layout.jobs.mkdir(), s.run.claim(7, "1", "other")),
        by_hand=lambda s: s.run.claim(running_process()),
    ),
    "clean what is queued": Situation("clean 'a b'", queue(*QUEUED)),
    "clean nothing": Situation("clean 'a b'", exits=0),
    "clean without a terminal": Situation(
        "clean 'runs/c d'", lambda s: s.write(f"{FINISHED}/set_aside/x/reason.txt", "no")
    ),
    "clean": Situation("clean 'runs/c d' --yes", lambda s: s.write(f"{FINISHED}/set_aside/x/reason.txt", "no"), 0),
    "sync of a run without W&B": Situation("sync 'a b'"),
    "regrade": Situation("regrade runs/held", both(site("local"), held("held")), 0),
    "regrade what is queued": Situation("regrade 'a b'", both(site("local"), queue(*QUEUED))),
    "sync of a run that has logged nothing": Situation(
        "sync 'a b'", lambda s: s.types("submit", RUN, "--set", "tracking.wandb=true")
    ),
}
EVALUATIONS = {
    "eval of no version": Situation("eval 'runs/c d@99' --suite small_world"),
    "eval of a version that was pruned": Situation("eval 'runs/c d@3' --suite small_world"),
    "an evaluation that is not complete": Situation(
        "compare runs/held@20 runs/late@20",
        both(held("held"), held("late"), lambda s: shutil.rmtree(s.here / "runs/late/evals/v000020")),
    ),
    "eval with a suite with a slip": Situation("eval 'runs/c d' --suite smal_world"),
    "compare a run that is not evaluated": Situation("compare 'a b'"),
    "compare one model": Situation("compare 'runs/c d@last'"),
    "compare one arm": Situation("compare --arm 'x=runs/c d'", another_seed, fills={"NAME=RUN,RUN": "y=runs/copy"}),
    "compare a model with itself": Situation("compare 'runs/c d@last' 'runs/c d@last'"),
    "compare no version": Situation("compare 'runs/c d@3' 'runs/c d@last'"),
    "regret of nothing": Situation("analyze regret 'a b'"),
    "gradients of nothing": Situation("analyze gradients 'a b'"),
    "gradients of a version that was pruned": Situation("analyze gradients 'runs/c d@1'"),
    "nothing in common": Situation("compare 'runs/c d@last' runs/held@last", held("held")),
    "samples without values": Situation("analyze regret runs/held", held("held", valued=False)),
    "samples without votes": Situation("analyze scaling runs/held", held("held", valued=False)),
    "few forced answers": Situation("analyze regret runs/held --against-voting", held("held"), told=NO_DATA),
    "other problems": Situation(
        "compare runs/held@last runs/other@last", both(held("held"), held("other", problems=("p", "q")))
    ),
    "other problems of an analysis": Situation(
        "analyze regret runs/held@last runs/other@last", both(held("held"), held("other", problems=("p", "q")))
    ),
    "two graders": Situation(
        "compare runs/held@last runs/other@last",
        both(site("local"), held("held", grader="x"), held("other", grader="y")),
    ),
    "extended nowhere": Situation(
        "analyze regret runs/held@last --beyond runs/other@last", both(held("held"), held("other")), told=NO_DATA
    ),
    "boundaries of another kind": Situation("analyze extrapolate runs/held", held("held"), told=NO_DATA),
    "a fork of an evaluation": Situation("fork runs/alone --at last", alone),
    "check a class with an evaluation": Situation(
        "check mine:LastEpisode --run runs/alone",
        both(alone, lambda s: s.types("recipes", "copy", "example:my_method", "mine.py")),
    ),
    "check a class": Situation(
        "check mine:LastEpisode --run 'a b'", lambda s: s.types("recipes", "copy", "example:my_method", "mine.py")
    ),
    "more samples than there are": Situation("compare 'runs/c d' --measure pass@99"),
}
DATA = {
    "data check with no verifier": Situation(
        "data check x.jsonl --verifier none", files(x__jsonl='{"problem": "1"}\n')
    ),
    "data prepare": Situation(
        "data prepare source.jsonl 'a b.jsonl'", files(source__jsonl='{"problem": "1+1", "answer": "2"}\n'), exits=0
    ),
    "data fetch --list": Situation("data fetch --list", exits=0),
    "data fetch without a name": Situation("data fetch"),
    "data prepare of no hub name": Situation("data prepare hub:x out.jsonl", told="the hub cannot be reached"),
    "data fetch of another data set": Situation("data fetch hub:lab/sums", told="the hub cannot be reached"),
}
MISTAKEN = {
    "n.yaml": "name: x\n",
    "empty.yaml": "",
    "list.yaml": "- 1\n",
    "open.yaml": "training: {\n",
    "binary.yaml": "\x00\x01",
    "bad field.yaml": "extends: quickstart\ntraning: {}\n",
    "loop.yaml": "extends: loop.yaml\n",
    "data.jsonl": '{"question": "1+1"}\n',
    "good.jsonl": '{"problem": "1+1", "answer": "2"}\n',
    "semicolons.csv": "Nr;Aufgabe;Loesung\n1;2;3\n",
    "odd.yaml": "type: slurm\nname: odd\npartitions: {cpu: a}\nsbatch: {time: 3}\n",
    "raises.py": "def judged(answer, gold):\n    assert answer != 'foo'\n    return answer == gold\n",
    "raises.yaml": "extends: quickstart\ndata: {type: small_world, split: train, verifier: {type: 'raises:judged'}}\n",
}
"""Files in which something is wrong, and some that are right."""
MISTAKES = {
    "plan nothere.yaml": "a name that mrt-hpc recipes list shows",
    "plan folder": "not a run directory",
    "plan site.yaml": "this is a site profile, and no recipe",
    "plan suite.yaml": "this is a suite, and no recipe",
    "plan empty.yaml": "holds no fields",
    "plan list.yaml": "holds no fields",
    "plan open.yaml": "not YAML",
    "plan binary.yaml": "YAML",
    "plan 'bad field.yaml'": "training is the nearest",
    "plan loop.yaml": "circle",
    "plan quikstart": "quickstart is the nearest",
    "plan quickstart --set training.learning_rat=1": "learning_rate is the nearest",
    "plan quickstart --set x": "not an override",
    "plan quickstart --site nowhere": "there is no such site profile",
    "plan quickstart --site odd.yaml": "sbatch.time: wrong value",
    "plan runs/rum": "runs/c d is the nearest",
    "submit quickstart --run n.yaml": "no directory",
    "submit quickstart --set data.problems=100000": "100000",
    "status runs": "one of runs/c d",
    "status nowhere": "not a run directory",
    "explain 'runs/c d' segment-000.traner": "segment-000.trainer is the nearest",
    "explain 'runs/c d' segment-000.inference[9]": "no such task",
    "logs 'runs/c d' trainer": "no such log",
    "traces 'runs/c d' --iteration 77": "77",
    "traces 'runs/c d' --problem none": "none",
    "cost runs": "one of runs/c d",
    "compare 'runs/c d'@9": "no such weights version",
    "compare 'runs/c d' --benchmark none": "none",
    "compare nowhere": "not a run directory",
    "analyze regret 'runs/c d' --benchmark none": "none",
    "eval 'runs/c d' --suite nowhere": "there is no such suite",
    "report nowhere": "not a run directory",
    "report 'runs/c d' --page /proc/x.html": "/proc/x.html",
    "fork 'runs/c d' --at 99": "99",
    "cancel nowhere": "not a run directory",
    "sync 'runs/c d'": "trained without W&B",
    "fields my_method": "no such field",
    "recipes copy quikstart": "quickstart is the nearest",
    "data check nowhere.jsonl": "nowhere.jsonl",
    "data prepare data.jsonl out.jsonl": "answer",
    "data prepare semicolons.csv out.jsonl": "--delimiter",
    "data fetch nothing": "mrt-hpc data fetch",
    "judge foo 3 --recipe nothere": "there is no such recipe",
    "submit quickstart --sweep seed": "no sweep",
    "submit quickstart --sweep recipe=quickstart,sft_suffix": "no sweep",
    "submit 'runs/c d' --run elsewhere": "a run is continued in its own directory",
    "submit 'runs/c d' 'runs/c d'": "one run is continued at a time",
    "submit 'runs/c d' --set schedule.iterations=3": "4 iterations are done already",
    "logs nowhere": "not a run directory",
    "traces nowhere": "not a run directory",
    "cost nowhere": "not a run directory",
    "clean nowhere": "not a run directory",
    "regrade nowhere --site local": "not a run directory",
    "sync nowhere": "not a run directory",
    "status 'runs/c d' --watch": "needs a terminal",
    "doctor --site nowhere": "there is no such site profile",
    "doctor --recipe quikstart": "quickstart is the nearest",
    "init a/b": "a/b",
    "container check nothere.sif": " not ",
    "model fetch nothing": "nothing",
    "check no_module:Class --run 'runs/c d'": "no_module",
    "fork nowhere --at last": "not a run directory",
    "eval nowhere --suite small_world": "nowhere",
    "judge 3 3 --recipe empty.yaml": "holds no fields",
}
"""What users mistype, and what they are told."""


def mistaken(scene: Scene) -> None:
    for name, text in MISTAKEN.items():
        scene.write(name, text)
    (scene.here / "folder").mkdir()


def mended(scene: Scene) -> None:
    """What the user edits, where a file is wrong."""
    for name in MISTAKEN:
        if name.endswith(".yaml"):
            scene.write(name, "extends: quickstart\n")
    scene.write("odd.yaml", "type: slurm\nname: odd\npartitions: {cpu: a}\n")


def mistake(words: str) -> Situation:
    by_hand = mended if any(name in words for name in MISTAKEN) else nothing
    return Situation(words, mistaken, 2, by_hand, {"SOURCE": "good.jsonl"}, NO_DATA, MISTAKES[words])


SHOWN = {
    "a role in place of a job": Situation("explain 'runs/c d' trainer", exits=0, shows="segment-000.trainer"),
    "a copy of a run": Situation("compare 'runs/c d' runs/copy", copied, 0, shows="copies of one run"),
    "an answer for which a verifier fails": Situation(
        "judge foo 3 --recipe raises.yaml", mistaken, 0, shows="verdict:  wrong"
    ),
    "a gold answer for which a verifier fails": Situation(
        "judge 3 foo --recipe raises.yaml", mistaken, by_hand=mended, shows="gold answer with itself"
    ),
}

MISTYPED = {words: mistake(words) for words in MISTAKES}
EVERY = {**ON_A_RUN, **STATES, **LOOKS, **RECIPES, **SUBMISSIONS, **LIFE, **EVALUATIONS, **DATA, **SHOWN, **MISTYPED}
