"""Each completion is sampled from the prompt to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mrt_hpc.modes.base import Mode

if TYPE_CHECKING:
    from mrt_hpc.modes.writer import Writer


class Direct(Mode):
    """Each completion is sampled from the prompt to its end, in one request, as in training."""

    type: Literal["direct"] = "direct"

    def sampler(self, writer: Writer) -> None:
        """Nothing is sampled in another way."""
