"""training.deterministic: what torch and cuBLAS are asked for, in a process of its own."""

import json

from commands import python

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


def test_deterministic_is_an_error_where_it_is_asked_for_and_a_workspace_of_the_site_stays() -> None:
    """By case: deterministic, warning only, cuDNN's, cuBLAS's workspace, whether CUDA was touched."""
    printed = python("-c", SCRIPT).stdout
    on_cpu, refused_on_cpu, on_gpu, asked_for_on_gpu, with_workspace = json.loads(printed.splitlines()[-1])
    assert on_cpu == asked_for_on_gpu == [True, False, True, ":4096:8", False]
    assert on_gpu == refused_on_cpu == [False, False, False, None, False]
    assert with_workspace[3] == ":16:8"
