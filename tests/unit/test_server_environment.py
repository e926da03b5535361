"""Where a server without a GPU computes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_task_endings import task

from mrt_hpc.errors import UserError
from mrt_hpc.inference.ray_node import RayNode, RayPlace
from mrt_hpc.inference.server import NODE_LACKS, VllmServer
from mrt_hpc.inference.server_start import ServerSettings, cpu_environment
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.sections import ServerLayout
from mrt_hpc.roles.sampling.ray_cluster import node_gpus
from mrt_hpc.roles.sampling.serving import gpus_of, layout_of, server_settings
from mrt_hpc.run.access import CACHES, cache_variables

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.roles.task.context import Task

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


def on_nodes(one: Task, nodes: int) -> Task:
    """The same task on several nodes."""
    resources = one.job.resources.model_copy(update={"nodes": nodes})
    return replace(one, job=one.job.model_copy(update={"resources": resources, "role": Role.INFERENCE}))


def with_servers(tmp_path: Path, gpus: int, **serving: int) -> Task:
    """A task with some GPUs and six cores."""
    one = task(tmp_path)
    resources = one.job.resources.model_copy(update={"cpus_per_rank": 6, "gpus_per_rank": gpus})
    recipe = one.recipe.model_copy(update={"serving": one.recipe.serving.model_copy(update=serving)})
    return replace(one, experiment=recipe, job=one.job.model_copy(update={"resources": resources}))


@pytest.mark.parametrize(
    ("gpus", "serving", "servers", "width"),
    [
        (0, {}, 1, 1),
        (0, {"servers": 2, "tensor_parallel": 3}, 2, 3),
        (8, {}, 8, 1),
        (8, {"servers": 1}, 1, 8),
        (8, {"tensor_parallel": 2}, 4, 2),
        (8, {"servers": 8}, 8, 1),
        (8, {"servers": 2, "tensor_parallel": 4}, 2, 4),
    ],
)
def test_the_gpus_of_a_task_are_divided_among_its_servers(
    tmp_path: Path, gpus: int, serving: dict[str, int], servers: int, width: int
) -> None:
    assert layout_of(with_servers(tmp_path, gpus, **serving)) == ServerLayout(servers, width)


@pytest.mark.parametrize(
    ("serving", "width", "stages"), [({}, 8, 2), ({"tensor_parallel": 16}, 16, 1), ({"tensor_parallel": 4}, 4, 4)]
)
def test_one_server_spans_the_gpus_of_several_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving: dict[str, int], width: int, stages: int
) -> None:
    several = on_nodes(with_servers(tmp_path, 8, **serving), 2)
    assert layout_of(several) == ServerLayout(1, width, stages)
    settings = server_settings(several, tmp_path, 64, share=1.0, common_seeds=False)
    monkeypatch.setattr("mrt_hpc.inference.server_start.on_cpu", lambda: False)
    with closing(VllmServer(settings, tmp_path / "log")) as one:
        words = one.command.words()
    told = {name: words[words.index(name) + 1] for name in words if name.endswith(("-size", "-backend"))}
    assert told["--distributed-executor-backend"] == "ray"
    assert (told["--tensor-parallel-size"], told["--pipeline-parallel-size"]) == (str(width), str(stages))


def test_flashinfer_is_off_whether_or_not_the_node_has_a_compiler_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    settings = server_settings(with_servers(tmp_path, 8), tmp_path, 64, share=1.0, common_seeds=False)
    monkeypatch.setattr("mrt_hpc.inference.server_start.on_cpu", lambda: False)
    with closing(VllmServer(settings, tmp_path / "log")) as server:
        words, environment = server.command.words(), server.command.environment()
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(words[words.index("--model") :])
    engine = AsyncEngineArgs.from_cli_args(arguments)
    assert engine.kernel_config.enable_flashinfer_autotune is False
    assert engine.compilation_config.pass_config.fuse_allreduce_rms is False
    for name in ("VLLM_USE_FLASHINFER_SAMPLER", "VLLM_ALLREDUCE_USE_FLASHINFER"):
        monkeypatch.setenv(name, environment[name])
        assert getattr(envs, name) is False


@pytest.mark.parametrize(("over_ray", "interface"), [(False, "lo"), (True, "ib0")])
def test_the_processes_of_a_server_on_one_node_listen_on_loopback_only(
    over_ray: bool, interface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    settings = server_settings(with_servers(tmp_path, 8), tmp_path, 64, share=1.0, common_seeds=False)
    with closing(VllmServer(replace(settings, over_ray=over_ray), tmp_path / "log")) as server:
        assert server.command.environment()["GLOO_SOCKET_IFNAME"] == interface


def test_no_private_folder_of_the_first_node_reaches_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM gives its processes on other nodes the environment of the server, but for what these nodes set."""
    begin, second = subprocess.Popen, dict[str, str]()

    def note(_: list[str], *, env: dict[str, str], **others: Any) -> subprocess.Popen[bytes]:
        second.update(env)
        return begin(["true"], env=env, **others)

    def be_on(node: str) -> Path:
        for name in CACHES:
            monkeypatch.delenv(name, raising=False)
        (folder := tmp_path / node).mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        return folder

    private = be_on("first")
    for name, value in cache_variables().items():
        monkeypatch.setenv(name, value)
    settings = server_settings(on_nodes(with_servers(tmp_path, 8), 2), tmp_path, 64, share=1.0, common_seeds=False)
    with closing(VllmServer(settings, tmp_path / "log")) as server:
        first = server.command.environment()
        folders = {str(private), first["TMPDIR"]}
    be_on("second")
    monkeypatch.setattr("mrt_hpc.inference.ray_node.subprocess.Popen", note)
    with RayNode(RayPlace("127.0.0.1", "127.0.0.1:1", "token"), tmp_path / "log"):
        pass
    reached = {name for name, value in (first | second).items() if any(folder in value for folder in folders)}
    assert not reached
    assert second["VLLM_RPC_BASE_PATH"] == second["TMPDIR"]


def test_without_gpus_the_server_stays_on_the_first_node(tmp_path: Path) -> None:
    several = on_nodes(with_servers(tmp_path, 0), 2)
    settings = server_settings(several, tmp_path, 64, share=1.0, common_seeds=False)
    assert (settings.over_ray, layout_of(several)) == (False, ServerLayout(1, 1))


def test_vllm_is_not_asked_to_span_nodes_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.inference.server_start.on_cpu", lambda: True)
    settings = server_settings(on_nodes(with_servers(tmp_path, 8), 2), tmp_path, 64, share=1.0, common_seeds=False)
    with closing(VllmServer(settings, tmp_path / "log")) as one, pytest.raises(UserError, match="without GPUs"):
        one.command.words()


@pytest.mark.parametrize(
    ("local_rank", "visible", "own"),
    [(0, None, ("0", "1")), (1, "4,5", ("4", "5")), (0, "a,b,c,d", ("a", "b")), (1, "a,b,c,d", ("c", "d"))],
)
def test_a_rank_takes_the_gpus_of_its_node_or_its_share_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_rank: int, visible: str | None, own: tuple[str, ...]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert node_gpus(replace(on_nodes(with_servers(tmp_path, 2), 2), local_rank=local_rank)) == own


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [(None, [("0", "1"), ("2", "3")]), ("4,5,6,7", [("4", "5"), ("6", "7")]), ("a,b,c,d", [("a", "b"), ("c", "d")])],
)
def test_each_server_sees_gpus_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: list[tuple[str, ...]]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    several = with_servers(tmp_path, 4, tensor_parallel=2)
    settings = [server_settings(several, tmp_path, 64, share=1.0, common_seeds=False, number=n) for n in range(2)]
    assert [one.gpus for one in settings] == gpus
    with closing(VllmServer(settings[1], tmp_path / "log")) as server:
        assert server.command.environment()["CUDA_VISIBLE_DEVICES"] == ",".join(gpus[1])


def test_the_only_server_of_a_task_sees_what_the_task_sees(tmp_path: Path) -> None:
    assert gpus_of(with_servers(tmp_path, 4, servers=1), 0) == ()


@pytest.mark.parametrize("visible", ["", "3", "0,1,2"])
@pytest.mark.parametrize("serving", [{}, {"servers": 1}, {"tensor_parallel": 2}])
def test_servers_that_need_more_gpus_than_their_task_sees_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, serving: dict[str, int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    one = with_servers(tmp_path, 4, **serving)
    with pytest.raises(UserError, match="need 4 GPU"):
        gpus_of(one, 0)
    with pytest.raises(UserError, match="need 4 GPU"):
        node_gpus(on_nodes(one, 2))


def test_servers_and_their_processes_share_the_cores_and_the_memory(tmp_path: Path) -> None:
    several = with_servers(tmp_path, 0, servers=3, tensor_parallel=2)
    settings = server_settings(several, tmp_path, 64, share=1.0, common_seeds=False, number=1)
    assert settings.cpu_threads == 1
    assert settings.kv_cache_gib == several.recipe.serving.kv_cache_gib / 2, "vLLM takes it for each process"


@pytest.mark.parametrize("said", NODE_LACKS)
def test_a_server_that_finds_no_compiler_or_may_not_execute_says_what_to_set(said: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"RuntimeError: {said}\n" + "a line of a traceback\n" * 1000)
    with (
        closing(VllmServer(ServerSettings(tmp_path, 8), tmp_path / "log")) as server,
        pytest.raises(UserError) as ended,
    ):
        server._raise_if_dead()
    assert NODE_LACKS[said] in str(ended.value.advice)
