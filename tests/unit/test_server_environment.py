"""Where a server without a GPU computes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from test_task_endings import task

from mrt_hpc.inference.server import cpu_environment
from mrt_hpc.roles.sampling.serving import server_settings

if TYPE_CHECKING:
    from pathlib import Path

BINDING = "VLLM_CPU_OMP_THREADS_BIND"
PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv(BINDING, raising=False)


@pytest.mark.parametrize(("wanted", "count"), [(None, "3"), (2, "2"), (8, "3")])
def test_threads_are_as_many_as_wanted_and_bound_to_no_core(wanted: int | None, count: str) -> None:
    environment = cpu_environment(wanted)
    assert (environment[BINDING], environment["OMP_NUM_THREADS"]) == ("nobind", count)


def test_a_site_may_bind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINDING, "0-2")
    environment = cpu_environment(None)
    assert environment[BINDING] == "0-2"
    assert PROCESSES not in environment, "vLLM binds threads in processes of their own only"


def test_threads_that_are_not_bound_compute_in_the_process_of_the_engine() -> None:
    assert cpu_environment(None)[PROCESSES] == "0"


@pytest.mark.parametrize(
    ("told", "share", "threads"),
    [(None, 1.0, 6), (None, 0.5, 3), (None, 0.01, 1), ("2", 1.0, 2), ("4,2", 0.5, 2)],
    ids=["the task's cores", "half of them", "at least one", "as the site says", "half of what the site says"],
)
def test_a_server_computes_on_its_share_of_the_tasks_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, share: float, threads: int
) -> None:
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    one = task(tmp_path)
    resources = one.job.resources.model_copy(update={"cpus_per_rank": 6})
    of_six = replace(one, job=one.job.model_copy(update={"resources": resources}))
    settings = server_settings(of_six, tmp_path, 64, share=share, common_seeds=False)
    assert settings.cpu_threads == threads
    assert settings.kv_cache_gib == one.recipe.serving.kv_cache_gib * share


@pytest.mark.parametrize(("seed", "told"), [(0, 0), (7, 7), (2**32 - 1, 2**32 - 1), (2**32, 0), (10**30, None)])
def test_a_large_seed_is_one_that_the_server_can_take(tmp_path: Path, seed: int, told: int | None) -> None:
    """vLLM gives it to numpy, which takes 32 bits; smaller seeds stay as they are."""
    one = task(tmp_path)
    large = replace(one, experiment=one.recipe.model_copy(update={"seed": seed}))
    taken = server_settings(large, tmp_path, 64, share=1.0, common_seeds=False).seed
    assert told is None or taken == told
    np.random.RandomState(taken)
