"""Where the servers of a task compute: their GPUs, cores, memory and nodes, and the environment of their processes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from run_of import run_of, task_of

from mrt_hpc.errors import UserError
from mrt_hpc.inference.ray_node import RayNode, RayPlace
from mrt_hpc.inference.server import NODE_LACKS, VllmServer
from mrt_hpc.inference.server_start import ServerSettings, cpu_environment
from mrt_hpc.recipe.sections import ServerLayout
from mrt_hpc.roles.sampling.ray_cluster import node_gpus
from mrt_hpc.roles.sampling.serving import gpus_of, layout_of, server_settings
from mrt_hpc.run.access import CACHES, cache_variables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mrt_hpc.roles.task.context import Task

    MakeTask = Callable[..., Task]

BINDING, VISIBLE = "VLLM_CPU_OMP_THREADS_BIND", "CUDA_VISIBLE_DEVICES"


@pytest.fixture(autouse=True)
def three_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no setting of the site."""
    monkeypatch.setattr("mrt_hpc.inference.server_start.on_cpu", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4})
    for name in ("OMP_NUM_THREADS", BINDING, VISIBLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return task_of(run_of(tmp_path_factory.mktemp("run") / "run"), "segment-000.inference")


@pytest.fixture
def task(plain: Task) -> MakeTask:
    """Makes tasks of six cores, with other settings of their servers."""

    def make(gpus: int = 0, nodes: int = 1, seed: int = 0, **serving: int) -> Task:
        resources = plain.job.resources.model_copy(update={"cpus_per_rank": 6, "gpus_per_rank": gpus, "nodes": nodes})
        served = plain.recipe.serving.model_copy(update=serving)
        recipe = plain.recipe.model_copy(update={"serving": served, "seed": seed})
        return replace(plain, experiment=recipe, job=plain.job.model_copy(update={"resources": resources}))

    return make


def settings_of(task: Task, number: int = 0, share: float = 1.0) -> ServerSettings:
    return server_settings(task, task.layout.root, 64, share=share, common_seeds=False, number=number)


def started(settings: ServerSettings) -> tuple[list[str], dict[str, str]]:
    """The words of the command with which a server is started, and its environment."""
    with closing(VllmServer(settings, settings.model_dir / "log")) as server:
        return server.command.words(), server.command.environment()


# -- cores and memory


@pytest.mark.parametrize(("wanted", "count"), [(None, "3"), (2, "2"), (8, "3")])
def test_threads_are_as_many_as_wanted_and_bound_only_by_a_site(
    wanted: int | None, count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM binds threads in processes of their own only; those that are not bound compute in that of the engine."""
    processes = "VLLM_ENABLE_V1_MULTIPROCESSING"
    own = cpu_environment(wanted)
    assert (own[BINDING], own["OMP_NUM_THREADS"], own[processes]) == ("nobind", count, "0")
    monkeypatch.setenv(BINDING, "0-2")
    bound = cpu_environment(wanted)
    assert (bound[BINDING], bound["OMP_NUM_THREADS"], processes in bound) == ("0-2", count, False)


@pytest.mark.parametrize(
    ("told", "share", "threads"),
    [(None, 1.0, 6), (None, 0.5, 3), (None, 0.01, 1), ("2", 1.0, 2), ("4,2", 0.5, 2)],
    ids=["the task's cores", "half of them", "at least one", "as the site says", "half of what the site says"],
)
def test_a_server_computes_on_its_share_of_the_tasks_cores(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch, told: str | None, share: float, threads: int
) -> None:
    if told is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    settings = settings_of(task(), share=share)
    assert settings.cpu_threads == threads
    assert settings.kv_cache_gib == task().recipe.serving.kv_cache_gib * share


def test_servers_and_their_processes_share_the_cores_and_the_memory(task: MakeTask) -> None:
    settings = settings_of(task(servers=3, tensor_parallel=2), number=1)
    assert settings.cpu_threads == 1
    assert settings.kv_cache_gib == task().recipe.serving.kv_cache_gib / 2, "vLLM takes it for each process"


@pytest.mark.parametrize(("seed", "told"), [(0, 0), (7, 7), (2**32 - 1, 2**32 - 1), (2**32, 0), (10**30, None)])
def test_a_large_seed_is_one_that_the_server_can_take(task: MakeTask, seed: int, told: int | None) -> None:
    """vLLM gives it to numpy, which takes 32 bits; smaller seeds stay as they are."""
    taken = settings_of(task(seed=seed)).seed
    assert told is None or taken == told
    np.random.RandomState(taken)


# -- GPUs and nodes


@pytest.mark.parametrize(
    ("gpus", "nodes", "serving", "expected"),
    [
        (0, 1, {}, ServerLayout(1, 1)),
        (0, 1, {"servers": 2, "tensor_parallel": 3}, ServerLayout(2, 3)),
        (8, 1, {}, ServerLayout(8, 1)),
        (8, 1, {"servers": 1}, ServerLayout(1, 8)),
        (8, 1, {"tensor_parallel": 2}, ServerLayout(4, 2)),
        (8, 1, {"servers": 8}, ServerLayout(8, 1)),
        (8, 1, {"servers": 2, "tensor_parallel": 4}, ServerLayout(2, 4)),
        (8, 2, {}, ServerLayout(1, 8, 2)),
        (8, 2, {"tensor_parallel": 16}, ServerLayout(1, 16, 1)),
        (8, 2, {"tensor_parallel": 4}, ServerLayout(1, 4, 4)),
        (0, 2, {}, ServerLayout(1, 1)),
    ],
)
def test_the_gpus_of_a_task_are_divided_among_its_servers(
    task: MakeTask, gpus: int, nodes: int, serving: dict[str, int], expected: ServerLayout
) -> None:
    """One server spans those of several nodes; without any it stays on the first node."""
    one = task(gpus, nodes, **serving)
    assert layout_of(one) == expected
    settings = settings_of(one)
    assert settings.over_ray is (gpus > 0 and nodes > 1)
    if settings.over_ray:
        words, _ = started(settings)
        told = {name: words[words.index(name) + 1] for name in words if name.endswith(("-size", "-backend"))}
        assert told["--distributed-executor-backend"] == "ray"
        sizes = (told["--tensor-parallel-size"], told["--pipeline-parallel-size"])
        assert sizes == (str(expected.tensor_parallel), str(expected.stages))


def test_vllm_is_not_asked_to_span_nodes_without_gpus(task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.inference.server_start.on_cpu", lambda: True)
    with pytest.raises(UserError, match="without GPUs"):
        started(settings_of(task(8, 2)))


@pytest.mark.parametrize(
    ("local_rank", "visible", "own"),
    [(0, None, ("0", "1")), (1, "4,5", ("4", "5")), (0, "a,b,c,d", ("a", "b")), (1, "a,b,c,d", ("c", "d"))],
)
def test_a_rank_takes_the_gpus_of_its_node_or_its_share_of_them(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch, local_rank: int, visible: str | None, own: tuple[str, ...]
) -> None:
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    assert node_gpus(replace(task(2, 2), local_rank=local_rank)) == own


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [(None, [("0", "1"), ("2", "3")]), ("4,5,6,7", [("4", "5"), ("6", "7")]), ("a,b,c,d", [("a", "b"), ("c", "d")])],
)
def test_each_server_sees_gpus_of_its_own(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: list[tuple[str, ...]]
) -> None:
    """The only server of a task sees what the task sees."""
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    settings = [settings_of(task(4, tensor_parallel=2), number=n) for n in range(2)]
    assert [one.gpus for one in settings] == gpus
    assert started(settings[1])[1][VISIBLE] == ",".join(gpus[1])
    assert gpus_of(task(4, servers=1), 0) == ()


@pytest.mark.parametrize("visible", ["", "3", "0,1,2"])
@pytest.mark.parametrize("serving", [{}, {"servers": 1}, {"tensor_parallel": 2}])
def test_servers_that_need_more_gpus_than_their_task_sees_are_refused(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch, visible: str, serving: dict[str, int]
) -> None:
    monkeypatch.setenv(VISIBLE, visible)
    for refuse in (lambda: gpus_of(task(4, **serving), 0), lambda: node_gpus(task(4, 2, **serving))):
        with pytest.raises(UserError, match="need 4 GPU"):
            refuse()


# -- the environment of processes


def test_flashinfer_is_off_whether_or_not_the_node_has_a_compiler_for_it(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words, environment = started(settings_of(task(8)))
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(words[words.index("--model") :])
    engine = AsyncEngineArgs.from_cli_args(arguments)
    assert engine.kernel_config.enable_flashinfer_autotune is False
    assert engine.compilation_config.pass_config.fuse_allreduce_rms is False
    for name in ("VLLM_USE_FLASHINFER_SAMPLER", "VLLM_ALLREDUCE_USE_FLASHINFER"):
        monkeypatch.setenv(name, environment[name])
        assert getattr(envs, name) is False


@pytest.mark.parametrize(("over_ray", "interface"), [(False, "lo"), (True, "ib0")])
def test_the_processes_of_a_server_on_one_node_listen_on_loopback_only(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch, over_ray: bool, interface: str
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    _, environment = started(replace(settings_of(task(8)), over_ray=over_ray))
    assert environment["GLOO_SOCKET_IFNAME"] == interface


def test_no_private_folder_of_the_first_node_reaches_the_second(
    task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    _, first = started(settings_of(task(8, 2)))
    folders = {str(private), first["TMPDIR"]}
    be_on("second")
    monkeypatch.setattr("mrt_hpc.inference.ray_node.subprocess.Popen", note)
    with RayNode(RayPlace("127.0.0.1", "127.0.0.1:1", "token"), tmp_path / "log"):
        pass
    reached = {name for name, value in (first | second).items() if any(folder in value for folder in folders)}
    assert not reached
    assert second["VLLM_RPC_BASE_PATH"] == second["TMPDIR"]


@pytest.mark.parametrize("said", NODE_LACKS)
def test_a_server_that_finds_no_compiler_or_may_not_execute_says_what_to_set(said: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"RuntimeError: {said}\n" + "a line of a traceback\n" * 1000)
    with (
        closing(VllmServer(ServerSettings(tmp_path, 8), tmp_path / "log")) as server,
        pytest.raises(UserError) as ended,
    ):
        server._raise_if_dead()
    assert NODE_LACKS[said] in str(ended.value.advice)
