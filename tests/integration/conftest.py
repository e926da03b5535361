"""What the training tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.training.rendezvous import Ranks


@pytest.fixture(scope="session")
def one_rank() -> Iterator[Ranks]:
    """This process as a trainer of one rank: once for all modules, as DeepSpeed joins no second group."""
    import torch  # tests of other kinds need not load it

    from mrt_hpc.training.rendezvous import Ranks, join, leave

    torch.set_num_threads(1)
    join(Ranks(), timeout_s=60)
    yield Ranks()
    leave()
