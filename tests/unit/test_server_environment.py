"""Where the servers of a task compute: their GPUs, cores, memory and nodes, and the environment of their processes."""

import gc
import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refusal
from run_of import run_of, task_of

from mrt_hpc.inference.compiled_code import KEPT
from mrt_hpc.inference.ray_node import RayNode, RayPlace
from mrt_hpc.inference.server import NODE_LACKS, VllmServer
from mrt_hpc.inference.server_start import ServerSettings, cpu_environment
from mrt_hpc.recipe.sections import ServerLayout
from mrt_hpc.roles.sampling.ray_cluster import node_gpus
from mrt_hpc.roles.sampling.serving import OwnServers, gpus_of, layout_of
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.access import CACHES, cache_variables
from mrt_hpc.run.process import pause_collector

MakeTask = Callable[..., Task]


BINDING, VISIBLE = "VLLM_CPU_OMP_THREADS_BIND", "CUDA_VISIBLE_DEVICES"


@pytest.fixture(autouse=True)
def three_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.inference.server_start.is_on_cpu", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4})
    for name in ("OMP_NUM_THREADS", BINDING, VISIBLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> MakeTask:
    plain = task_of(run_of(tmp_path_factory.mktemp("run") / "run"), "segment-000.inference")

    def make(gpus: int = 0, nodes: int = 1, seed: int = 0, **serving: int) -> Task:
        resources = plain.job.resources.model_copy(update={"cpus_per_rank": 6, "gpus_per_rank": gpus, "nodes": nodes})
        served = plain.recipe.serving.model_copy(update=serving)
        recipe = plain.recipe.model_copy(update={"serving": served, "seed": seed})
        return replace(plain, experiment=recipe, job=plain.job.model_copy(update={"resources": resources}))

    return make


def settings_of(task: Task, number: int = 0, share: float = 1.0) -> ServerSettings:
    return OwnServers(task, share=share).settings(number, task.layout.root, 64)


def started(settings: ServerSettings) -> tuple[list[str], dict[str, str]]:
    with closing(VllmServer(settings, settings.model_dir / "log")) as server:
        return server.command.words(), server.command.environment()


def test_threads_are_as_many_as_wanted_and_bound_only_by_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM binds threads in processes of their own only; those that are not bound compute in that of the engine."""
    processes, wanted = "VLLM_ENABLE_V1_MULTIPROCESSING", {None: "3", 2: "2", 8: "3"}
    for threads, count in wanted.items():
        own = cpu_environment(threads)
        assert (own[BINDING], own["OMP_NUM_THREADS"], own[processes]) == ("nobind", count, "0")
    monkeypatch.setenv(BINDING, "0-2")
    for threads, count in wanted.items():
        bound = cpu_environment(threads)
        assert (bound[BINDING], bound["OMP_NUM_THREADS"], processes in bound) == ("0-2", count, False)


def test_a_server_computes_on_its_share_of_the_tasks_cores(task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = task().recipe.serving.kv_cache_gib
    for told, share, threads in ((None, 1.0, 6), (None, 0.5, 3), (None, 0.01, 1), ("2", 1.0, 2), ("4,2", 0.5, 2)):
        if told is not None:  # by the site
            monkeypatch.setenv("OMP_NUM_THREADS", told)
        settings = settings_of(task(), share=share)
        assert (settings.cpu_threads, settings.kv_cache_gib) == (threads, whole * share)
    monkeypatch.delenv("OMP_NUM_THREADS")
    settings = settings_of(task(tensor_parallel=2))
    assert (settings.cpu_threads, settings.kv_cache_gib) == (3, whole / 2), "vLLM takes the memory for each process"


def test_a_large_seed_is_one_that_the_server_can_take(task: MakeTask) -> None:
    taken = {seed: settings_of(task(seed=seed)).seed for seed in (7, 2**32 - 1, 2**32, 10**30)}
    assert (taken[7], taken[2**32 - 1], taken[2**32]) == (7, 2**32 - 1, 0)
    np.random.RandomState(taken[10**30])


def test_the_gpus_of_a_task_are_divided_among_its_servers(task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server spans those of several nodes; without any it stays on the first node."""
    for one, expected in (
        (task(0, tensor_parallel=3), ServerLayout(1, 3)),
        (task(8), ServerLayout(8, 1)),
        (task(8, tensor_parallel=2), ServerLayout(4, 2)),
        (task(8, 2), ServerLayout(1, 8, 2)),
        (task(8, 2, tensor_parallel=4), ServerLayout(1, 4, 4)),
        (task(0, 2), ServerLayout(1, 1)),
    ):
        assert layout_of(one) == expected
        settings, resources = settings_of(one), one.job.resources
        assert settings.over_ray is (resources.gpus_per_rank > 0 and resources.nodes > 1)
        if settings.over_ray:
            asked = dict(pairwise(started(settings)[0]))
            assert asked["--distributed-executor-backend"] == "ray"
            assert asked["--tensor-parallel-size"] == str(expected.tensor_parallel)
            assert asked["--pipeline-parallel-size"] == str(expected.stages)
    monkeypatch.setattr("mrt_hpc.inference.server_start.is_on_cpu", lambda: True)
    assert "without GPUs" in str(refusal(started, settings_of(task(8, 2))))


@pytest.mark.parametrize(("visible", "gpus"), [(None, [("0", "1"), ("2", "3")]), ("a,b,c,d", [("a", "b"), ("c", "d")])])
def test_each_server_and_each_rank_has_gpus_of_its_own(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: list[tuple[str, ...]]
) -> None:
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    settings = [settings_of(task(4, tensor_parallel=2), number=n) for n in range(2)]
    assert [one.gpus for one in settings] == gpus
    assert started(settings[1])[1][VISIBLE] == ",".join(gpus[1])
    assert gpus_of(task(4, tensor_parallel=4), 0) == ()
    assert [node_gpus(replace(task(2, 2), local_rank=rank)) for rank in (0, 1)] == (gpus if visible else gpus[:1] * 2)
    monkeypatch.setenv(VISIBLE, "4,5")
    assert node_gpus(replace(task(2, 2), local_rank=1)) == ("4", "5")


def test_servers_that_need_more_gpus_than_are_seen_are_refused(task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, serving in product(("", "3", "0,1,2"), ({}, {"tensor_parallel": 4}, {"tensor_parallel": 2})):
        monkeypatch.setenv(VISIBLE, visible)
        assert "need 4 GPU" in str(refusal(gpus_of, task(4, **serving), 0))
        assert "need 4 GPU" in str(refusal(node_gpus, task(4, 2, **serving)))


def test_a_process_that_loads_vllm_serves_only_with_the_variables_that_it_began_with(
    task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEPT:
        monkeypatch.delenv(name, raising=False)
    own = OwnServers(task())
    (tmp_path / "config.json").touch()
    with own.load_ahead():
        (process,) = own._begun
        server = VllmServer(settings_of(task()), process.directory / "log", key=own._key, begun=process)
        compiling = replace(server.settings, model_dir=tmp_path, extra_args=(), compiled_code=tmp_path)
        later = replace(server.command, settings=compiling, model_dir=tmp_path, weights_version=7)
        assert later.environment().keys() >= {*KEPT}
        assert process.unfit_for(server.command) == process.unfit_for(later) == ""
        for other in (replace(server.settings, gpus=("1",)), replace(server.settings, noise_by_request=True)):
            assert process.unfit_for(replace(server.command, settings=other))
        assert process.unfit_for(replace(server.command, key="another")) == "VLLM_API_KEY"
    assert "ended" in process.unfit_for(later), "no server has taken it"
    assert not process.directory.exists()


def test_flashinfer_is_off_on_every_node(task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_server_on_one_node_listens_on_loopback_only(task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    for over_ray, interface in ((False, "lo"), (True, "ib0")):
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
    monkeypatch.setattr("mrt_hpc.run.process.Popen", note)
    with RayNode(RayPlace("127.0.0.1", "127.0.0.1:1", "token"), tmp_path / "log"):
        pass
    assert not {name for name, value in (first | second).items() if any(folder in value for folder in folders)}
    assert second["VLLM_RPC_BASE_PATH"] == second["TMPDIR"]


@pytest.mark.parametrize("said", NODE_LACKS)
def test_a_server_that_finds_no_compiler_or_may_not_execute_says_what_to_set(said: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"RuntimeError: {said}\n" + "a line of a traceback\n" * 1000)
    with closing(VllmServer(ServerSettings(tmp_path, 8), tmp_path / "log")) as server:
        assert NODE_LACKS[said] in str(refusal(server._raise_if_dead).advice)


def test_the_collector_runs_again_after_libraries_were_loaded() -> None:
    with pytest.raises(ImportError), pause_collector():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
