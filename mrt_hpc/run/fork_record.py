"""The record of a forked run: the run and the weights version that it began with, and the changes of its recipe."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mrt_hpc.errors import UserError
from mrt_hpc.run.atomic import write_json

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout


@dataclass(frozen=True)
class ForkRecord:
    """Where a forked run comes from."""

    run: str
    """The run directory, as it was then."""
    recipe: str
    """The name of its recipe."""
    version: int
    """The number of the weights version in that run; in the new run they are version 0."""
    digest: str
    """Of the weights version."""
    changes: tuple[dict[str, Any], ...] = ()
    """Each changed field of the recipe: ``field``, ``old`` and ``new``."""

    def write(self, layout: RunLayout) -> None:
        """Write the record into the new run."""
        write_json(layout.forked_from, asdict(self))

    def told(self) -> dict[str, str]:
        """What the report says."""
        changes = (f"{c['field']} was {json.dumps(c['old'])} and is {json.dumps(c['new'])}" for c in self.changes)
        return {
            "forked from": f"{self.run}, weights version {self.version} (digest {self.digest[:12]})",
            "changed in the fork": "; ".join(changes) or "nothing",
        }


def read_fork(layout: RunLayout) -> ForkRecord | None:
    """Where a run comes from; None for one that is no fork.

    Raises:
        UserError: the record is damaged.
    """
    try:
        content = json.loads(layout.forked_from.read_text())
        return ForkRecord(**{**content, "changes": tuple(content["changes"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"the record of the fork cannot be read: {error}",
            where=layout.forked_from,
            expected="the file that `mrt-hpc fork` wrote",
            advice=f"restore it from a backup, or remove it: mrt-hpc status {layout.root} works without it",
        ) from error
