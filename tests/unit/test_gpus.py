"""A task that asked for GPUs looks for them first, and says what it sees where it cannot use them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mrt_hpc.attempt import gpus
from mrt_hpc.attempt.entry import run_task
from mrt_hpc.attempt.gpus import NO_DEVICE, NO_LIBRARY, GpuView, look, require_gpus, verdict
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.local.slots import visible_gpus
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Job, JobResources, Role
from mrt_hpc.plan.memory import gpu_memory
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.submit.create import create_or_open

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
FOUR_HOPPERS = GpuView(
    driver="580.65.06",
    devices=tuple(f"/dev/nvidia{n}" for n in range(4)),
    visible="0,1,2,3",
    container=None,
    torch_cuda="13.0",
    driver_cuda=(13, 0),
    capabilities=((9, 0),) * 4,
)
BEHIND_A_DRIVER = replace(FOUR_HOPPERS, capabilities=(), driver_cuda=None, problem=NO_LIBRARY)
NO_GPU = replace(BEHIND_A_DRIVER, driver=None, devices=(), visible=None)
DRIVER = replace(FOUR_HOPPERS, capabilities=(), driver_cuda=None, problem=NO_LIBRARY)
DRIVER = """
#include <unistd.h>
extern "C" {
int cuDriverGetVersion(int *answer) { *answer = VERSION; return 0; }
int cuInit(unsigned) { sleep(SECONDS); return ERROR; }
int cuDeviceGetCount(int *answer) { *answer = 2; return 0; }
int cuDeviceGetAttribute(int *answer, int what, int device) { *answer = what == 75 ? 8 + device : 0; return 0; }
int cuDeviceGetName(char *name, int size, int device) { __builtin_snprintf(name, size, "GPU %d", device); return 0; }
}
"""


def needs(gpus_per_rank: int = 1, ranks_per_node: int = 4) -> JobResources:
    return JobResources(
        nodes=1, ranks_per_node=ranks_per_node, gpus_per_rank=gpus_per_rank, cpus_per_rank=1, memory_gib_per_node=1,
        time_limit_minutes=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    "view",
    [
        FOUR_HOPPERS,
        replace(FOUR_HOPPERS, visible="2", capabilities=((7, 5),)),  # each rank its own
        replace(FOUR_HOPPERS, visible=None, capabilities=((8, 0),) * 8),  # a whole node
        replace(FOUR_HOPPERS, driver="535.104.05"),  # with cuda-compat: the library counts, not the kernel's part
        replace(FOUR_HOPPERS, torch_cuda="12.8", driver="535.104.05", driver_cuda=(12, 2)),
        replace(FOUR_HOPPERS, driver=None, devices=("/dev/dxg",)),  # other ways to a GPU
        replace(FOUR_HOPPERS, container="/images/mrt-hpc-cuda.sif"),
    ],
)
def test_gpus_that_can_be_used_are_used(view: GpuView) -> None:
    assert verdict(view, needs()) is None


@pytest.mark.parametrize(
    ("view", "what", "advice"),
    [
        (NO_GPU, "sees 0", "partitions.gpu"),
        (replace(NO_GPU, container="/i.sif"), "sees 0", "partitions.gpu"),
        (replace(BEHIND_A_DRIVER, container="/i.sif"), "sees 0", "--nv"),
        (BEHIND_A_DRIVER, "sees 0", "nvidia-smi"),
        (replace(BEHIND_A_DRIVER, visible="", problem=NO_DEVICE), "sees 0", "gpu_request"),
        (replace(BEHIND_A_DRIVER, visible=None, problem=NO_DEVICE), "sees 0", "gpu_request"),
        (replace(FOUR_HOPPERS, visible="0,1", capabilities=((9, 0),) * 2), "sees 2", "nvidia-smi"),
        (replace(FOUR_HOPPERS, visible="MIG-5c89852c-ff3f-5b3a", capabilities=((9, 0),)), "MIG", "sinfo"),
        (replace(FOUR_HOPPERS, names=("NVIDIA H100 MIG 1g.12gb",) * 4), "MIG", "gpu_type"),
        (replace(FOUR_HOPPERS, torch_cuda=None), "without CUDA", "env/setup cuda"),
        (replace(FOUR_HOPPERS, driver="570.86.15", driver_cuda=(12, 8)), "driver is too old", "newer driver"),
        (replace(FOUR_HOPPERS, capabilities=((7, 0),) * 4), "GPUs are too old", "newer GPUs"),
    ],
)
def test_gpus_that_cannot_be_used_end_the_task(view: GpuView, what: str, advice: str) -> None:
    error = verdict(view, needs())
    assert error is not None
    assert what in error.what
    assert advice in str(error.advice)
    assert error.exit_code is ExitCode.FATAL
    for told in (view.driver or "not loaded", "CUDA_VISIBLE_DEVICES", view.container or "", view.problem or ""):
        assert told in error.message()


@pytest.mark.parametrize(
    "profile",
    [
        "gpu_type: 1g.10gb",
        "gpu_type: nvidia_h100_nvl_1g.12gb",
        "sbatch: {gres: 'gpu:a100_3g.20gb:1'}",
        "sbatch: {gpus-per-task: '1g.5gb:1'}",
    ],
)
def test_a_profile_with_parts_of_gpus_is_refused(profile: str, tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(f"type: slurm\nname: lab\n{profile}\n")
    with pytest.raises(UserError) as refused:
        load_site(tmp_path / "lab.yaml")
    assert profile.partition(":")[0] in refused.value.what
    assert "MIG" in str(refused.value.expected)


def test_the_name_of_a_gpu_that_is_a_number_needs_quotes(tmp_path: Path) -> None:
    profile = tmp_path / "lab.yaml"
    profile.write_text("type: slurm\nname: lab\ngpu_type: 3090\n")
    with pytest.raises(UserError) as refused:
        load_site(profile)
    assert '"3090"' in str(refused.value.expected)
    profile.write_text("type: slurm\nname: lab\ngpu_type: '3090'\n")
    assert gpu_memory(load_site(profile)).known


def test_the_driver_that_is_needed_is_named() -> None:
    error = verdict(replace(FOUR_HOPPERS, driver="570.86.15", driver_cuda=(12, 8)), needs())
    assert error is not None
    assert "driver 580 or newer" in error.message()


def test_a_node_that_is_out_of_order_is_no_reason_to_give_up_the_run() -> None:
    error = verdict(replace(BEHIND_A_DRIVER, problem="cuInit failed with error 999"), needs())
    assert error is not None
    assert error.exit_code is ExitCode.RETRYABLE


def test_who_asks_for_none_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "look", lambda: pytest.fail("looked"))
    require_gpus(Job(name="one", role=Role.INFERENCE, tasks=1, resources=needs(gpus_per_rank=0)))


@pytest.mark.parametrize("role", [Role.TRAINER, Role.COLOCATED])
@pytest.mark.parametrize("seen", [1, 4])
def test_a_rank_that_also_samples_needs_the_gpus_of_all_ranks(
    role: Role, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its servers would all start on the one that it sees."""
    monkeypatch.setattr(gpus, "look", lambda: replace(FOUR_HOPPERS, capabilities=((9, 0),) * seen))
    job = Job(name="one", role=role, tasks=1, resources=needs())
    if seen == 4 or role is Role.TRAINER:
        require_gpus(job)
        return
    with pytest.raises(UserError, match="sees 1") as refused:
        require_gpus(job)
    assert "gpus-per-task" in str(refused.value.advice)


def test_the_parts_of_a_gpu_do_not_count_as_gpus_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n  MIG 1g.12gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA H100 (UUID: GPU-3)"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{lines}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of libraries in which the driver's is looked for first."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return tmp_path


def stand_in(folder: Path, version: int, error: int = 0, seconds: int = 0) -> None:
    """A library that answers as a driver does."""
    compiler = shutil.which("g++")
    assert compiler
    meaning = [f"-DVERSION={version}", f"-DERROR={error}", f"-DSECONDS={seconds}"]
    command = [compiler, "-shared", "-fPIC", *meaning, "-x", "c++", "-", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, input=DRIVER, text=True, check=True)


def test_the_driver_is_asked(driver: Path) -> None:
    stand_in(driver, 12080)
    view = look()
    assert (view.driver_cuda, view.capabilities, view.problem) == ((12, 8), ((8, 0), (9, 0)), None)
    assert view.names == ("GPU 0", "GPU 1")


def test_what_the_driver_answers_instead_is_told(driver: Path) -> None:
    stand_in(driver, 13000, error=999)
    view = look()
    assert (view.driver_cuda, view.capabilities, view.problem) == ((13, 0), (), "cuInit failed with error 999")


def test_a_driver_that_hangs_is_not_waited_for(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(driver, 13000, seconds=60)
    monkeypatch.setattr(gpus, "LOOK_LIMIT_S", 1.0)
    with pytest.raises(UserError, match="no answer in 1 s") as caught:
        look()
    assert caught.value.exit_code is ExitCode.RETRYABLE


def test_what_surrounds_the_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/mrt-hpc.sif")
    view = look()
    assert (view.visible, view.container) == ("3", "/images/mrt-hpc.sif")


def test_the_version_of_the_kernels_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    (tmp_path / "version").write_text(text + "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    monkeypatch.setattr(gpus, "DRIVER_FILE", tmp_path / "version")
    assert gpus.seen_here().driver == "580.65.06"


def test_a_trainer_without_its_gpu_fails_at_once_and_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "look", lambda: NO_GPU)
    recipe = load_recipe(QUICKSTART, ("resources.trainer.gpus=1", "resources.trainer.ranks=1"))
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite(gpus=1)))
    with pytest.raises(UserError, match="sees 0"):
        run_task(str(layout.root), "segment-000.trainer", 0, Placement(0, 1, 0, "first"))
    record = read_task(layout, "segment-000.trainer", 0)
    assert record.state is TaskState.FAILED
    assert "driver not loaded" in record.message
