"""MRT-online as the learning study ran it, for ``bench_referee.py``."""

from dataclasses import replace

from mrt_hpc import Batch, Learnt, MrtOnline


class EpisodesAlone(MrtOnline):
    """The tokens that end an episode get no credit: the rule before they belonged to the episode."""

    type: str

    def learnt(self, batch: Batch) -> Learnt:
        return super().learnt(replace(batch, rollouts=[replace(r, credit_bounds=[]) for r in batch.rollouts]))
