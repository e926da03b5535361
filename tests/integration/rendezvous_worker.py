"""One rank of the tests of strangers: it joins, waits for the word to go on, and exchanges messages.

usage: rendezvous_worker.py RANK ADDRESS_FILE NODES [KEY]

With KEY it does not know the key of the attempt, and takes this one.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from training_support import end_at_once

from mrt_hpc.errors import UserError
from mrt_hpc.run.retries import wait_until
from mrt_hpc.training import rendezvous
from mrt_hpc.training.accelerator import choose_kernels
from mrt_hpc.training.rank_messages import exchange, together
from mrt_hpc.training.rendezvous import Ranks, join

DEADLINE_S, PROOF_TIMEOUT_S = 120.0, 10.0


def what_fails(action: Callable[[], object]) -> str:
    try:
        together(action)
    except UserError as error:
        return error.what
    return "nothing"


def main() -> None:
    rank, address, nodes = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    rendezvous.PROOF_TIMEOUT_S = PROOF_TIMEOUT_S
    if len(sys.argv) > 4:
        rendezvous._key = lambda *_: sys.argv[4].encode()
    choose_kernels(None)
    try:
        join(Ranks(rank, 2, rank, nodes), address, timeout_s=DEADLINE_S)
    except UserError as error:
        print(error.message(), flush=True)
        sys.exit(int(error.exit_code))
    (address.parent / f"joined-{rank}").touch()
    wait_until((address.parent / "go").exists, reason="the word to go on", deadline_s=DEADLINE_S)
    assert exchange([f"rank {rank}", None]) == [["rank 0", None], ["rank 1", None]]
    assert together(lambda: rank) == rank
    assert "rank 1 failed: ZeroDivisionError" in what_fails(lambda: 1 / (1 - rank))
    end_at_once()


if __name__ == "__main__":
    main()
