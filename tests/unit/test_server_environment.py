"""Where a server without a GPU computes."""

from __future__ import annotations

import os

import pytest

from mrt_hpc.inference.server import cpu_environment


@pytest.mark.parametrize(
    ("cores", "threads", "bound_to", "count"),
    [
        ({4, 0, 2}, None, "0,2,4", "3"),
        ({0, 2}, 2, "0,2", "2"),
        ({0, 2}, 8, "0,2", "2"),
        ({0, 1, 2, 3}, 2, "nobind", "2"),
    ],
    ids=["all of them", "its own", "fewer than wished for", "others work there"],
)
def test_threads_are_bound_only_to_cores_that_are_the_tasks_own(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], threads: int | None, bound_to: str, count: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    environment = cpu_environment(threads)
    assert (environment["VLLM_CPU_OMP_THREADS_BIND"], environment["OMP_NUM_THREADS"]) == (bound_to, count)
