"""training.deterministic: what torch and cuBLAS are asked for, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# A GPU is played by the name of its device alone: what is read back are torch's own switches.
SCRIPT = """
import json, os, torch
from mrt_hpc.training import accelerator
def chosen(device, deterministic, workspace):
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    os.environ.update({} if workspace is None else {"CUBLAS_WORKSPACE_CONFIG": workspace})
    accelerator.device = lambda: torch.device(device)
    accelerator.choose_kernels(deterministic)
    return [
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic, os.environ.get("CUBLAS_WORKSPACE_CONFIG"), torch.cuda.is_initialized(),
    ]
print(json.dumps([chosen("cpu", None, None), chosen("cpu", False, None), chosen("cuda", None, None),
                  chosen("cuda", True, None), chosen("cuda", True, ":16:8")]))
"""


@pytest.fixture(scope="module")
def chosen() -> list[list[object]]:
    """By case: deterministic, warning only, cuDNN's, cuBLAS's workspace, whether CUDA was touched."""
    command = [sys.executable, "-c", SCRIPT]
    told = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=True).stdout
    return list(json.loads(told.splitlines()[-1]))


def test_deterministic_is_an_error_and_not_a_warning(chosen: list[list[object]]) -> None:
    on_cpu, _, _, asked_for_on_gpu, _ = chosen
    assert on_cpu == asked_for_on_gpu == [True, False, True, ":4096:8", False]


def test_otherwise_nothing_is_asked_for(chosen: list[list[object]]) -> None:
    _, refused_on_cpu, on_gpu, _, _ = chosen
    assert on_gpu == refused_on_cpu == [False, False, False, None, False]


def test_a_workspace_of_the_site_stays(chosen: list[list[object]]) -> None:
    assert chosen[4][3] == ":16:8"
