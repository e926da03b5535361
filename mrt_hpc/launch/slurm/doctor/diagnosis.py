"""All checks, in the order in which their findings are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.launch.slurm.doctor import (
    cluster_checks,
    input_checks,
    limit_checks,
    machine_checks,
    node_checks,
    place_checks,
    preemption_checks,
)
from mrt_hpc.launch.slurm.doctor.findings import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mrt_hpc.launch.slurm.doctor.findings import Finding
    from mrt_hpc.launch.slurm.doctor.situation import Situation

CHECKS = (
    Check("Slurm", cluster_checks.slurm_commands),
    Check("accounting", preemption_checks.accounting),
    Check("account", cluster_checks.account),
    Check("QOS", cluster_checks.quality_of_service),
    Check("partition", cluster_checks.partitions),
    Check("GPUs", cluster_checks.gpus),
    Check("node size", limit_checks.node_size),
    Check("array size", limit_checks.array_size),
    Check("queued jobs", limit_checks.queued_jobs),
    Check("time limit", limit_checks.time_limit),
    Check("preemption", preemption_checks.preempted_jobs),
    Check("preemption notice", preemption_checks.notice_of_profile),
    Check("requeue", preemption_checks.requeue),
    Check("sbatch options", cluster_checks.options_of_sbatch),
    Check("plan", limit_checks.plan_fits),
    Check("model", input_checks.model),
    Check("data", input_checks.data),
    Check("shared inputs", input_checks.inputs_are_shared),
    Check("run directory", place_checks.run_directory),
    Check("filesystem", place_checks.operations),
    Check("shared filesystem", place_checks.is_shared),
    Check("space", place_checks.space),
    Check("files", place_checks.files),
    Check("file server's clock", place_checks.server_clock),
    Check("Python", machine_checks.python),
    Check("environment", machine_checks.environment),
    Check("container", machine_checks.image),
    Check("scratch", machine_checks.scratch),
    Check("verifier", machine_checks.verifiers),
    Check("limits", machine_checks.inherited_limits),
    Check("driver", machine_checks.cuda_here),
    Check("node of", node_checks.nodes),
)
"""Each check is a function of a :class:`~mrt_hpc.launch.slurm.doctor.situation.Situation`."""


def diagnose(situation: Situation) -> list[Finding]:
    """The findings of all checks."""
    return [finding for check in CHECKS for finding in check.findings(situation)]


def can_start(findings: Iterable[Finding]) -> bool:
    """Whether a run can start: no check fails."""
    return all(finding.verdict is not Verdict.FAILS for finding in findings)
