"""A run on a cluster with rules of its own: a plugin writes comments, forbids starting jobs again and shortens limits;
besides, variables of the shell speak against the plan. The accounting is killed, the run is cancelled and submitted
again, and pushed out. Where jobs have left the queue early, the same command is typed again.
"""

import pytest
from chaos_backends import SlurmRun
from chaos_faults import FaultKind
from chaos_run import RUN_DEADLINE_S, run_under_faults, table
from slurm_cluster import Cluster

from mrt_hpc.attempt.ledger import submissions
from mrt_hpc.backends.slurm.queued_as import queued_fields

SHELL = {
    "SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "gpu", "SBATCH_EXPORT": "NONE", "SBATCH_MEM_PER_NODE": "100M",
    "SLURM_EXPORT_ENV": "NONE", "SBATCH_WAIT": "1",
}  # fmt: skip
KINDS = (FaultKind.KILL_ACCOUNTING, FaultKind.RESUBMIT, FaultKind.PREEMPT)
SEED = 5
CHANGES = (
    "schedule.iterations=6", "schedule.iterations_per_job=6", "evaluation.benchmarks=[]", "resources.inference.tasks=1",
)  # fmt: skip


@pytest.mark.timeout(RUN_DEADLINE_S)
def test_a_run_ends_well_whatever_the_cluster_changes(rules_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    run = SlurmRun(rules_cluster, None, CHANGES)
    outcome = run_under_faults(SEED, len(KINDS), KINDS, run)
    print(table([outcome]))
    assert (outcome.exit_code, outcome.audit.violations) == (0, [])
    assert {strike.kind for strike in outcome.strikes} == set(KINDS)
    last = queued_fields(submissions(run.target().layout)[-1].job_id)
    assert (last["requeue"], last["partition"]) == ("0", "preempt"), "the plugin's word, and not the shell's"
