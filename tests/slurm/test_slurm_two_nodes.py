"""Inference and a trainer of two nodes each on a real cluster: Ray on both; another user of the machine connects to
the trainer, which goes on; a rank is killed. Each node has a disk of its own for temporary files, at the same path.

The answers of the last iteration are judged only after that, so that the run cannot end before it.
"""

import subprocess

import psutil
import pytest
from chaos_auditor import audit
from chaos_target import Target, children, name_of
from families import is_alive
from listeners import beyond_loopback, listeners, send_rubbish
from run_of import read_events
from slurm_cluster import Cluster, wait_for_end
from slurm_submissions import SHRUNK, accounting, all_logs, sent
from slurm_verifier import HELD_FROM, HELD_S, HELD_UNTIL

from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import wait_until

JOB, ITERATIONS = "segment-000.inference", 2
CHANGES = {
    **SHRUNK, "data.verifier": "slurm_verifier:HeldVerifier", "evaluation.benchmarks": "[]",
    "grading.time_limit_s": HELD_S, "sampling.problems_per_iteration": 6, "serving.kv_cache_gib": 0.25,
    "schedule.iterations": ITERATIONS, "resources.inference.tasks": 1, "resources.inference.nodes": 2,
    "resources.inference.memory_gib": 4, "resources.trainer.ranks_per_node": 1, "resilience.heartbeat_limit_s": 5.0,
}  # fmt: skip
DEADLINE_S = 300.0


@pytest.mark.timeout(1500)
def test_a_task_of_two_nodes_outlives_a_rank(cluster: Cluster) -> None:
    run = cluster.folder("two-nodes") / "run"
    version, released = RunLayout(run).weights_version(ITERATIONS - 1), run.parent / "judge"
    environment = {**cluster.site().environment, HELD_FROM: str(version), HELD_UNTIL: str(released)}
    layout, ids = sent(cluster, run, CHANGES, environment=environment)
    target = Target(layout, None, cluster, None)
    wait_until(lambda: read_events(layout.events, EventKind.SERVER_STARTED), reason="a server", deadline_s=DEADLINE_S)
    ranks = sorted(target.tasks("inference"), key=lambda p: p.environ()["SLURM_PROCID"])
    by_node = {rank.environ()["SLURMD_NODENAME"]: rank for rank in ranks}
    assert len(by_node) == 2
    _, second = by_node.values()
    stranger = connects_to_all_ranks(target)
    heads = [[name_of(p) for p in children(rank)].count("gcs_server") for rank in by_node.values()]
    assert heads == [1, 0], "one Ray cluster"
    wait_until(version.exists, reason="the first update", deadline_s=DEADLINE_S)

    lost = [process for rank in by_node.values() for process in (rank, *children(rank))]
    second.kill()
    wait_until(lambda: not any(map(is_alive, lost)), reason="the end of all ranks", deadline_s=DEADLINE_S)
    released.touch()
    states = wait_for_end(ids, seconds=DEADLINE_S)
    print(accounting(ids.values()))
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}, all_logs(cluster, layout)
    started = [e["attempt"] for e in read_events(layout.events, EventKind.TASK_STARTED) if e["job"] == JOB]
    assert sorted(attempt[-1] for attempt in started) == ["0", "0", "1", "1"]
    stranger.kill()
    stranger.wait()
    ray = [p for p in psutil.process_iter() if name_of(p) in ("raylet", "gcs_server")]
    assert [p for p in ray if job_of(p) == ids[JOB]] == []
    assert not list(layout.rendezvous.glob("mrt-hpc-ranks-*"))
    found = audit(layout.root)
    assert (found.violations, found.steps_redone, found.set_aside) == ([], 0, 0)


def connects_to_all_ranks(run: Target) -> subprocess.Popen[str]:
    """Another user who sends rubbish to each rank of the trainer. No process of the run listens beyond loopback, which
    is the address of all nodes of this cluster.
    """

    def trainer() -> list[psutil.Process]:
        ranks = run.tasks("trainer")
        return ranks if len(ranks) == 2 and all(listeners([rank]) for rank in ranks) else []

    ranks = wait_until(trainer, reason="both ranks of the trainer", deadline_s=DEADLINE_S)
    found = {role: listeners(run.tasks(role)) for role in ("trainer", "inference")}
    assert len({rank.environ()["SLURMD_NODENAME"] for rank in ranks}) == 2
    assert beyond_loopback([place for places in found.values() for place in places]) == []
    return send_rubbish(found["trainer"])


def job_of(process: psutil.Process) -> str | None:
    """The Slurm job of a process; None for one of no job, and for one that has ended meanwhile."""
    try:
        return process.environ().get("SLURM_JOB_ID")
    except psutil.Error:
        return None
