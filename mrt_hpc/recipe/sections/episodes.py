"""How a thought is cut into episodes."""

from __future__ import annotations

from mrt_hpc.recipe.base import Count, NotNegative, Section, Visible
from mrt_hpc.recipe.prompts import REFERENCE_MARKERS


class Episodes(Section):
    """How a thought is cut into episodes (method: reference rule)."""

    markers: tuple[Visible, ...] = REFERENCE_MARKERS
    """A paragraph that begins with one of these may open an episode."""
    min_paragraphs: Count = 3
    """The minimum number of paragraphs between two cuts."""
    max_cuts: NotNegative = 49
    """The maximum number of cuts per trace."""
    group_size: Count = 1
    """The number of consecutive steps that merge into one episode."""
    max_episodes: Count = 6
    """The maximum number of episodes per trace; the last one holds the rest."""
