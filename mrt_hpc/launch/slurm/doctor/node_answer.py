"""What the login node knows of one job that asked a compute node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.launch.slurm.doctor.node_half import NodeFacts
    from mrt_hpc.launch.slurm.queued_as import Difference


@dataclass(frozen=True)
class NodeAnswer:
    """The answer of a node, or why there is none."""

    kind: str
    """``cpu`` or ``gpu``: the field of ``partitions`` whose partition the job went to."""
    partition: str
    """Its name; empty text for the default one."""
    facts: NodeFacts | None = None
    job_id: str = ""
    slurm_commands: tuple[str, ...] = ()
    """Those of scontrol and squeue that the node has."""
    changed: tuple[Difference, ...] = ()
    """What Slurm has made of the job that was asked for."""
    problem: str = ""
    """Why there is no answer."""
    waits: bool = False
    """Whether the job was still queued when the time to wait was over."""
    queued_s: float = 0.0
    """Seconds from sbatch to the first sign of the node, or to the end of the wait."""
