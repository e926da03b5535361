"""A cluster that answers with recorded texts of Slurm 22.05: what its commands printed on a one-host cluster, with
changes for what a test is about.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.commands import SlurmRefusedError
from mrt_hpc.backends.slurm.slurm_output import squeue_format
from mrt_hpc.backends.slurm.survey import Survey, User
from mrt_hpc.errors import UserError

TEXTS = Path(__file__).parents[1] / "unit" / "slurm_texts"
USER = User("researcher", frozenset({"researcher", "lab"}))
ALWAYS = ("version", "config", "partitions", "nodes", "architectures", "qos")
FILES = {
    **{getattr(survey, name.upper()): name for name in ALWAYS},
    survey.associations_command(USER.name, ""): "associations",
    survey.default_account_command(USER.name): "default_account",
}


def squeue_prints(*records: str) -> str:
    """What squeue prints for these records, each with bars between its fields: after a header, and marked as asked."""
    lines = [squeue_format(*record.split("|")).removeprefix("--format=") for record in ("JOBID|...", *records)]
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True)
class RecordedSlurm:
    kind: str = "accounting"
    """``accounting``, or ``plain``: a cluster without accounting, with small limits, whose preemption cancels."""
    changes: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """By text, the parts of it that are replaced; each must be there."""
    missing: frozenset[str] = frozenset()  # commands that are not installed
    refusing: Mapping[str, str] = field(default_factory=dict)  # by command, the words with which it refuses

    def __call__(self, command: Sequence[str], timeout_s: float = 0.0) -> str:  # noqa: ARG002 - as of run_slurm
        """What the command prints."""
        if command[0] in self.missing:
            raise UserError(f"{command[0]} was not found", where=shlex.join(command))
        if command[0] in self.refusing:
            raise SlurmRefusedError(command, self.refusing[command[0]])
        name = FILES[tuple(word for word in command if not word.startswith("cluster="))]
        text = (TEXTS / self.kind / f"{name}.txt").read_text()
        for old, new in self.changes.get(name, ()):
            assert old in text, f"{old!r} is not in {name}"
            text = text.replace(old, new)
        return text

    def survey(self) -> Survey:
        return survey.survey(USER, self)
