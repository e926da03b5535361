"""The settings of a task's own servers: how its GPUs, cores and memory are divided among them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mrt_hpc.inference.compiled_code import kept_by_all_runs
from mrt_hpc.inference.server_settings import ServerSettings
from mrt_hpc.recipe.server_layout import ServerLayout
from mrt_hpc.roles.sampling.ray_cluster import seen_gpus, spans_nodes

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.recipe.base import NumberFormat
    from mrt_hpc.roles.task.context import Task

SEEDS = 2**32
"""The number of seeds for a server: vLLM passes its own to numpy, which takes 32 bits."""


def layout_of(task: Task) -> ServerLayout:
    """How the task's GPUs are divided among its own servers."""
    resources = task.job.resources
    return ServerLayout.of(task.experiment.serving, resources.gpus // resources.nodes, resources.nodes)


def server_settings(
    task: Task,
    model_dir: Path,
    max_model_len: int,
    *,
    share: float,
    common_seeds: bool,
    dtype: NumberFormat | None = None,
    number: int = 0,
) -> ServerSettings:
    """The settings of one of a task's servers.

    Args:
        task: whose; see :func:`mrt_hpc.roles.sampling.serving.running_server` for all other arguments.
        number: of the server among those of the task.
    """
    serving, layout = task.experiment.serving, layout_of(task)
    return ServerSettings(
        model_dir=model_dir,
        max_model_len=max_model_len,
        dtype=dtype or serving.dtype,
        max_num_seqs=serving.max_concurrent_sequences,
        tensor_parallel=layout.tensor_parallel,
        stages=layout.stages,
        over_ray=spans_nodes(task) and task.job.resources.gpus > 0,
        gpus=gpus_of(task, number),
        gpu_memory_utilization=serving.gpu_memory_utilization * share,
        kv_cache_gib=serving.kv_cache_gib * share / layout.tensor_parallel,
        cpu_threads=max(1, round(_threads(task) * share / (layout.servers * layout.tensor_parallel))),
        seed=task.experiment.seed % SEEDS,
        start_deadline_s=serving.start_limit_s,
        pause_deadline_s=serving.stall_limit_s,
        sleeps=task.turn.is_shared,
        noise_by_request=common_seeds,
        compiled_code=kept_by_all_runs() or task.layout.compiled_code,
        extra_args=("--enforce-eager",) if serving.enforce_eager else (),
    )


def gpus_of(task: Task, number: int) -> tuple[str, ...]:
    """The GPUs of one of a task's servers, as CUDA names them; none where it is the only one and takes those that the
    task sees.

    Raises:
        UserError: the task sees fewer than its servers need.
    """
    layout = layout_of(task)
    if spans_nodes(task) or not task.job.resources.gpus:
        return ()
    seen = seen_gpus(layout.servers * layout.tensor_parallel)
    first = number * layout.tensor_parallel
    return () if layout.servers == 1 else tuple(seen[first : first + layout.tensor_parallel])


def _threads(task: Task) -> int:
    """The number of the task's cores, unless its environment sets OMP_NUM_THREADS: the site decides there."""
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(told) if told.isdecimal() else task.job.resources.cpus_per_rank
