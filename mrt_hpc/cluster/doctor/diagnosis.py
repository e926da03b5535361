"""All checks, in the order in which their results are shown."""

from collections.abc import Iterable

from mrt_hpc.cluster.doctor import (
    input_checks,
    limit_checks,
    local_checks,
    node_checks,
    place_checks,
    preemption_checks,
    python_checks,
    slurm_checks,
)
from mrt_hpc.cluster.doctor.checks import CheckResult, CheckVerdict, DoctorCheck
from mrt_hpc.cluster.doctor.situation import Situation

CHECKS = (
    DoctorCheck("Slurm", slurm_checks.slurm_commands),
    DoctorCheck("accounting", preemption_checks.accounting),
    DoctorCheck("account", slurm_checks.account),
    DoctorCheck("QOS", slurm_checks.quality_of_service),
    DoctorCheck("partition", slurm_checks.partitions),
    DoctorCheck("GPUs", slurm_checks.gpus),
    DoctorCheck("whole nodes", slurm_checks.whole_nodes),
    DoctorCheck("node size", limit_checks.node_size),
    DoctorCheck("array size", limit_checks.array_size),
    DoctorCheck("queued jobs", limit_checks.queued_jobs),
    DoctorCheck("jobs at once", limit_checks.jobs_at_once),
    DoctorCheck("time limit", limit_checks.time_limit),
    DoctorCheck("preemption", preemption_checks.preempted_jobs),
    DoctorCheck("preemption notice", preemption_checks.notice_of_profile),
    DoctorCheck("requeue", preemption_checks.requeue),
    DoctorCheck("sbatch", local_checks.tested_jobs),
    DoctorCheck("plan", limit_checks.plan_fits),
    DoctorCheck("model", input_checks.model),
    DoctorCheck("data", input_checks.data),
    DoctorCheck("shared inputs", input_checks.inputs_are_shared),
    DoctorCheck("run directory", place_checks.run_directory),
    DoctorCheck("filesystem", place_checks.operations),
    DoctorCheck("shared filesystem", place_checks.is_shared),
    DoctorCheck("space", place_checks.space),
    DoctorCheck("files", place_checks.files),
    DoctorCheck("file server's clock", place_checks.server_clock),
    DoctorCheck("Python", python_checks.python),
    DoctorCheck("environment", local_checks.environment),
    DoctorCheck("container", python_checks.image),
    DoctorCheck("scratch", local_checks.scratch),
    DoctorCheck("verifier", local_checks.verifiers),
    DoctorCheck("limits", local_checks.inherited_limits),
    DoctorCheck("driver", local_checks.cuda_here),
    DoctorCheck("node of", node_checks.nodes),
)
"""Functions of a :class:`~mrt_hpc.cluster.doctor.situation.Situation`."""


def diagnose(situation: Situation) -> list[CheckResult]:
    return [result for check in CHECKS for result in check.results(situation)]


def can_start(results: Iterable[CheckResult]) -> bool:
    """Whether a run can start: no check fails."""
    return all(result.verdict is not CheckVerdict.FAILS for result in results)
