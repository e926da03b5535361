"""The life of a task on a real cluster: what ends it, what its record says, and whether Slurm starts it again. The work
is trivial; signals, requeues, retries and the job script's last word are the real ones. All lives begin side by side.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from chaos_target import Target
from slurm_cluster import Cluster, notes, wait_for_end
from slurm_submissions import RETRIES, await_start, begun, job, node_of, plan, started

from mrt_hpc.backends.slurm.queue import QueueState, queue_states
from mrt_hpc.backends.slurm.queued_as import queue_differences
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.task_state import TaskState, read_task

CAME_BACK = {"stopped", "gives-back", "killed", "saves", "limited", "stumbles"}
LIVES = plan(
    *(job(name) for name in ("stopped", "cancelled", "crashes", "killed", "saves", "stumbles", "blocker", "other")),
    job("limited", minutes=3),  # signalled 90 s before the limit, or as much as a minute earlier
    job("gives-back", tasks=3),  # one of them bears the array's own id in Slurm's books
    *(job(f"after-{name}", ok=(name,)) for name in sorted(CAME_BACK)),
    job("after-crashes", tasks=2, ok=("crashes",)),
    job("after-array", ok=("after-crashes",)),
    job("after-all", any=("after-array",)),
    job("after-blocker", tasks=2, any=("blocker",)),
    job("awaits", tasks=2),
    job("after-other", any=("other",)),
    job("abandoned"),
)
SHELL = {
    "SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "preempt", "SBATCH_EXPORT": "NONE", "SBATCH_NO_REQUEUE": "1",
    "SBATCH_MEM_PER_NODE": "100M", "SLURM_MEM_PER_CPU": "5", "SLURM_EXPORT_ENV": "NONE", "SBATCH_WAIT": "1",
}  # fmt: skip
LONGEST_PATH = 4090  # within a few characters, what Linux takes


@dataclass(frozen=True)
class Begun:
    layout: RunLayout
    ids: Mapping[str, str]

    def ends(self, *names: str) -> dict[str, QueueState]:
        """How some jobs have ended, once all of them have; the tasks of an array have ended in the same way."""
        states: dict[str, set[QueueState]] = {name: set() for name in names}
        for task_id, state in wait_for_end({name: self.ids[name] for name in names}).items():
            states[next(name for name in names if self.ids[name] == task_id.partition("_")[0])].add(state.state)
        assert all(len(found) == 1 for found in states.values()), states
        return {name: found.pop() for name, found in states.items()}


@dataclass(frozen=True)
class Lives:
    """All runs; the node of ``lost`` was cut, and no other run goes there."""

    main: Begun
    lost: Begun
    faulty_node: Begun
    forbidden: Begun
    cancelled: Begun
    queued_otherwise: list[str]


@pytest.fixture(scope="module")
def lives(cluster: Cluster) -> Iterator[Lives]:
    lost = Begun(*begun(cluster, plan(job("lost"), job("after-lost", ok=("lost",)))))
    await_start(lost.layout, "lost")
    cut = node_of(lost.layout, "lost")
    site = cluster.site(sbatch={"exclude": cut})
    assert cluster.onehost("kill-node", cut).returncode == 0
    try:
        with patch.dict(os.environ, SHELL):
            main = Begun(*begun(cluster, LIVES, site=site))
            otherwise = queue_differences(LIVES.jobs, main.ids, site, main.layout.root)
        cancelled = plan(job("runs", tasks=4, max_parallel=2), job("saves"), job("after-runs", ok=("runs",)))
        one = plan(job("gives-back"))
        runs = [
            Begun(*begun(cluster, plan(job("done")), site=with_a_node_at_fault(cluster, cut))),
            Begun(*begun(cluster, one, site=cluster.site(requeue="forbidden", sbatch={"exclude": cut}))),
            Begun(*begun(cluster, cancelled, site=site)),
        ]
        await_start(main.layout, "stopped", "cancelled", "killed", "saves", "limited", "blocker", "other", "abandoned")
        assert cluster.as_user("scancel", "--signal=TERM", main.ids["stopped"]).returncode == 0
        assert cluster.as_user("scancel", "--signal=USR2", main.ids["saves"]).returncode == 0
        assert cluster.as_user("scancel", main.ids["cancelled"]).returncode == 0
        (process,) = Target(main.layout, None, cluster, None).tasks("killed")
        process.kill()
        yield Lives(main, lost, *runs, otherwise)
    finally:
        assert cluster.onehost("start-node", cut).returncode == 0


def with_a_node_at_fault(cluster: Cluster, cut: str) -> object:
    """A site whose first node takes no temporary file, as its folder's path is as long as a path may be. (Slurm itself
    replaces a folder to which a task may not write.)
    """
    path = str(cluster.folder("full"))
    while (room := LONGEST_PATH - len(path) - 1) > 0:
        path += "/" + "d" * min(room, 200)
    Path(path).mkdir(parents=True)
    Path(path).chmod(0o777)
    first = first_node(cluster)
    setup = [
        f"[ -e {first} ] || echo $SLURMD_NODENAME > {first}",
        f'case $SLURMD_NODENAME in "$(cat {first})") NODE_SCRATCH={path} ;; *) NODE_SCRATCH=/tmp ;; esac',
    ]
    return cluster.site(setup=setup, scratch="$NODE_SCRATCH", sbatch={"exclude": cut})


def first_node(cluster: Cluster) -> Path:
    return cluster.home / "first-node"


def test_variables_of_a_shell_do_not_decide_against_the_plan(lives: Lives) -> None:
    assert lives.queued_otherwise == []


def test_who_waits_for_others_stays_in_the_queue_until_one_of_them_starts(cluster: Cluster, lives: Lives) -> None:
    run = lives.main
    waiting = ("squeue", "--noheader", "--array", f"--jobs={run.ids['awaits']}", "--format=%r")
    wait_until(lambda: cluster.as_user(*waiting).stdout.split() == ["Dependency"] * 2,
               reason="both tasks to wait in the queue", deadline_s=180)  # fmt: skip
    assert cluster.as_user("scancel", run.ids["blocker"]).returncode == 0
    names = ("after-blocker", "awaits")
    assert run.ends(*names) == dict.fromkeys(names, QueueState.COMPLETED)
    assert [started(run.layout)[name] for name in ("blocker", *names)] == [1, 2, 4]
    accounts = {name: ("sacct", "-nPX", f"--jobs={run.ids[name]}", "--format=Start") for name in names}
    began = {name: sorted(cluster.as_user(*words).stdout.split()) for name, words in accounts.items()}
    assert began["awaits"][0] >= began["after-blocker"][0], "by Slurm: a task writes its note some time after its start"


def test_who_waits_for_somebody_that_has_left_the_queue_ends(cluster: Cluster, lives: Lives) -> None:
    run = lives.main
    assert cluster.as_user("scancel", run.ids["after-other"], run.ids["other"]).returncode == 0
    assert run.ends("abandoned") == {"abandoned": QueueState.FAILED}
    assert started(run.layout)["abandoned"] <= 2, "once more where it had begun to wait before"
    record = read_task(run.layout, "abandoned", 0)
    assert (record.state, run.layout.again in record.message) == (TaskState.FAILED, True)


def test_cancelling_a_run_is_never_turned_into_a_requeue(cluster: Cluster, lives: Lives) -> None:
    run = lives.cancelled
    await_start(run.layout, "saves")
    await_start(run.layout, "runs", tasks=2)

    def is_shown() -> bool:
        shown = queue_states(run.ids.values())
        states = Counter(state.state for state in shown.values())
        waits = shown[run.ids["after-runs"]].reason == "Dependency"
        return waits and states == {QueueState.RUNNING: 3, QueueState.PENDING: 3}

    wait_until(is_shown, reason="the scheduler to have looked at all tasks", deadline_s=60)
    driver = str(cluster.tests / "slurm_submit_driver.py")
    for _ in range(2):
        assert cluster.as_user(cluster.python, driver, "cancel", *run.ids.values()).returncode == 0
    assert run.ends(*run.ids) == dict.fromkeys(run.ids, QueueState.CANCELLED)
    wait_until(  # Slurm calls a job cancelled from the moment of the signal on, while its tasks still take their leave
        lambda: read_task(run.layout, "saves", 0).state is TaskState.STOPPED, reason="its last word", deadline_s=120
    )
    assert started(run.layout) == {"runs": 2, "saves": 1}
    assert [note["what"] for note in notes(run.layout.root) if note["job"] == "saves"] == ["start", "saved"]


def test_where_slurm_may_not_start_a_task_again_it_ends_and_says_so(lives: Lives) -> None:
    run = lives.forbidden
    assert run.ends("gives-back") == {"gives-back": QueueState.FAILED}
    record = read_task(run.layout, "gives-back", 0)
    assert (record.state, "scontrol requeue" in record.message) == (TaskState.FAILED, True)


def test_the_next_attempt_leaves_out_a_node_that_is_at_fault(cluster: Cluster, lives: Lives) -> None:
    run = lives.faulty_node
    assert run.ends("done") == {"done": QueueState.COMPLETED}
    faulty = first_node(cluster).read_text().strip()
    (note,) = [note for note in notes(run.layout.root) if note["what"] == "start"]
    assert (note["node"] == faulty, note["restarts"]) == (False, 1)
    left_out = cluster.as_user(
        "squeue", "--states=all", "--noheader", f"--jobs={run.ids['done']}", "--format=%x"
    ).stdout
    assert faulty in cluster.as_user("scontrol", "show", "hostnames", left_out.strip()).stdout.split()


@pytest.mark.timeout(600)
def test_how_tasks_end_and_which_come_back(lives: Lives) -> None:
    layout, root = lives.main.layout, lives.main.layout.root
    tails = ["after-crashes", "after-array", "after-all"]
    ends = lives.main.ends(*CAME_BACK, "cancelled", "crashes", *(f"after-{name}" for name in CAME_BACK), *tails)
    came_back = {*CAME_BACK, *(f"after-{name}" for name in CAME_BACK), "after-all"}
    assert ends == {
        **dict.fromkeys(came_back, QueueState.COMPLETED),
        **dict.fromkeys(("cancelled", "after-crashes", "after-array"), QueueState.CANCELLED),
        "crashes": QueueState.FAILED,
    }
    records = {name: read_task(layout, name, 0) for name in (*CAME_BACK, "cancelled", "crashes")}
    assert {name for name, record in records.items() if record.state is TaskState.DONE} == CAME_BACK
    assert (records["cancelled"].state, records["crashes"].state) == (TaskState.STOPPED, TaskState.FAILED)
    assert "every time" in records["crashes"].message
    failures = {name: record.failures for name, record in records.items() if record.failures}
    assert failures == {"crashes": RETRIES + 1, "killed": 1, "limited": 1}
    assert {read_task(layout, "gives-back", index).state for index in range(3)} == {TaskState.DONE}
    wanted = {"crashes": RETRIES + 1, "cancelled": 1, "gives-back": 6, "stumbles": 1, "after-gives-back": 1}
    assert {name: started(layout)[name] for name in wanted} == wanted
    assert [note["restarts"] for note in notes(root) if note["what"] == "saved"] == [0]


@pytest.mark.timeout(600)
def test_a_task_whose_node_is_lost_comes_back(lives: Lives) -> None:
    run = lives.lost
    assert run.ends(*run.ids) == dict.fromkeys(run.ids, QueueState.COMPLETED)
    assert started(run.layout) == {"lost": 2, "after-lost": 1}
    assert [n["restarts"] for n in notes(run.layout.root) if (n["what"], n["job"]) == ("end", "lost")] == [1]
    record = read_task(run.layout, "lost", 0)
    assert (record.state, record.failures) == (TaskState.DONE, 0)
