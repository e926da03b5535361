"""The memory of one GPU at a site: as its profile states it, else by the GPU's name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.recipe.site import SiteSettings

USABLE = {
    "b200": 178.0, "h200": 139.0, "gh200": 94.0, "h100": 79.0, "h800": 79.0, "a100": 79.0, "a800": 79.0,
    "l40": 44.0, "a40": 44.0, "a6000": 47.0, "a30": 23.5, "a10": 22.0, "l4": 22.0, "t4": 14.5,
    "5090": 31.0, "4090": 23.5, "3090": 23.5, "2080ti": 10.5,
}  # fmt: skip
"""GiB that a program can use of each GPU, by a word of its name; of the GPUs of several sizes, the largest."""
PLAIN = 0.98
"""The share of the memory in a name, as in a100_40gb, that a program can use."""
ASSUMED_GIB = 79.0
"""Where neither the profile nor the name tells: a GPU of 80 GB."""


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU."""

    gib: float
    source: str
    """Where the number is from, in words."""
    known: bool = True
    """Whether the site tells it. Nothing is refused by an assumption."""


def gpu_memory(site: SiteSettings) -> GpuMemory:
    """The memory of a site's GPUs."""
    if site.gpu_memory_gib is not None:
        return GpuMemory(site.gpu_memory_gib, f"gpu_memory_gib of site profile {site.name}")
    name = site.gpu_name.lower()
    if (stated := re.search(r"(\d+)\s*gi?b", name)) is not None:
        return GpuMemory(int(stated[1]) * PLAIN, f"the name of the GPU, {site.gpu_name}")
    words = set(re.split(r"[^a-z0-9]+", name))
    for gpu, gib in USABLE.items():
        if any(re.fullmatch(rf"{gpu}[a-z]*", word) for word in words):
            return GpuMemory(
                gib, f"{site.gpu_name}; state gpu_memory_gib in site profile {site.name} where it has less"
            )
    told = f"assumed: state gpu_memory_gib in site profile {site.name}"
    return GpuMemory(ASSUMED_GIB, told, known=False)
