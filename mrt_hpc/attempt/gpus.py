"""Checks that a task can use the GPUs that it asked for: without one torch would continue on the CPU without a warning,
a hundred times slower. The check has a process of its own, because a driver may hang, and because a process that has
used the driver cannot be forked safely.
"""

import ctypes
import importlib.util
import json
import os
import re
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NamedTuple

from mrt_hpc.errors import Advice, ExitCode, UserError
from mrt_hpc.plan.jobs import Job, JobResources, Role
from mrt_hpc.run.process import run_program
from mrt_hpc.run.typed_file import decode_typed

DRIVER_FILE = Path("/proc/driver/nvidia/version")
DRIVER_LIBRARY = "libcuda.so.1"
NO_LIBRARY = f"no {DRIVER_LIBRARY}"
NO_DEVICE = "cuInit failed with error 100"
"""CUDA_ERROR_NO_DEVICE: this process has no GPU."""
LEAVE_OUT = Advice("leave the node out (sbatch: {exclude: NODE} in the site profile), then mrt-hpc submit RUN")
SEE_ALL = (
    "let each rank see all GPUs of its node: remove gpu-bind and the like from sbatch: in the site "
    "profile; then mrt-hpc submit RUN"
)
OLDEST_CAPABILITY = (7, 5)
"""The compute capability of Turing: the wheels of torch for CUDA 12.8 and newer have no code for Volta and older."""
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""The oldest data-centre driver for each major version of CUDA (NVIDIA, CUDA Compatibility, table 1)."""
LOOK_LIMIT_S = 120.0
"""The limit for the driver's answer, seconds; eight GPUs take a few seconds if no daemon keeps the driver loaded."""
_SLICE = re.compile(r"(?<![a-z0-9])\d+g[._]?\d+gb|(?<![a-z])mig(?![a-z])", re.IGNORECASE)
NO_SLICES = "whole GPUs, as parts of GPUs (MIG) are not supported"
_MAJOR, _MINOR, _COMPUTE_MODE = 75, 76, 20
"""Numbers of the attributes in cuda.h."""
EXCLUSIVE_PROCESS, PROHIBITED = 3, 2
"""Compute modes in cuda.h."""


@dataclass(frozen=True)
class GpuView:
    """The GPUs, driver and environment that a process sees, before any library has looked for GPUs."""

    driver: str | None
    """The version of the kernel's driver; None without one."""
    devices: tuple[str, ...]
    """Files in /dev."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES; None where it is not set."""
    container: str | None
    """None outside Apptainer and Singularity."""
    torch_cuda: str | None
    """None for a build without CUDA."""
    problem: str | None = None
    """The error of the driver's library, as in ``cuInit failed with error 100``."""
    driver_cuda: tuple[int, int] | None = None
    """The newest version that the driver's library knows."""
    capabilities: tuple[tuple[int, int], ...] = ()
    """Of each GPU that CUDA can use; so are the next two."""
    names: tuple[str, ...] = ()
    modes: tuple[int, ...] = ()
    """As in cuda.h."""

    def describe_gpus(self) -> str:
        gpus = ", ".join(f"{major}.{minor}" for major, minor in self.capabilities)
        names = ", ".join(dict.fromkeys(self.names))
        parts = [
            f"driver {self.driver or 'not loaded'}",
            f"{', '.join(self.devices) or 'no GPU'} in /dev",
            "CUDA_VISIBLE_DEVICES " + ("not set" if self.visible is None else f"{self.visible!r}"),
            f"{len(self.capabilities)} usable" + (f" ({names}, compute capability {gpus})" if gpus else ""),
            *([self.problem] if self.problem else []),
            *([f"in the container {self.container}"] if self.container else []),
        ]
        return "; ".join(parts)


def is_slice(name: str) -> bool:
    """Whether a name is that of a part of a GPU (MIG), as ``1g.10gb``, ``a100_3g.20gb``, ``MIG-5c89852c-...`` or
    ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``.
    """
    return _SLICE.search(name) is not None


def require_gpus(job: Job) -> None:
    if job.resources.gpus_per_rank and (error := verdict(look(), job.resources, shared=job.role is Role.COLOCATED)):
        raise error


def verdict(view: GpuView, resources: JobResources, *, shared: bool = False) -> UserError | None:
    """Return why a process of a task cannot use the GPUs that it sees; None if it can. ``shared``: the first rank also
    samples, with servers on the GPUs of all ranks.
    """
    if view.torch_cuda is None:
        return _gpu_error(
            "the installed torch is a build without CUDA",
            view,
            expected="the environment of env/setup cuda, or an image built from containers/cuda.def",
            advice="run `env/setup cuda`, or name that image as container.image in the site profile; then "
            "mrt-hpc submit RUN",
        )
    return (
        _slices(view)
        or _too_few(view, resources, shared=shared)
        or _compute_mode_error(view, shared=shared)
        or _driver_too_old(view, view.torch_cuda)
        or _too_old_gpus(view)
    )


def _slices(view: GpuView) -> UserError | None:
    if not is_slice(" ".join([view.visible or "", *view.names])):
        return None
    return _gpu_error(
        "this task got parts of GPUs (MIG)",
        view,
        expected=NO_SLICES,
        advice="choose whole GPUs (gpu_type or partitions.gpu in the site profile; `sinfo -o '%R %G'` shows them), and "
        "then mrt-hpc submit RUN",
    )


def _too_few(view: GpuView, resources: JobResources, *, shared: bool) -> UserError | None:
    """A rank may see only its own GPUs, unless they are shared, those of its node, or more."""
    seen, own = len(view.capabilities), resources.gpus_per_rank
    on_node = own * resources.ranks_per_node
    if seen >= on_node or (seen == own and not shared):
        return None
    return _gpu_error(
        f"this task asked for {on_node} GPU(s) on this node, {own} a rank, and a rank sees {seen}",
        view,
        expected=f"at least {on_node} that CUDA can use" + ("" if shared else f", or {own}"),
        advice=SEE_ALL if seen == own and shared else _way_to_gpus(view),
        exit_code=ExitCode.RETRYABLE if _is_out_of_order(view) else ExitCode.FATAL,
    )


def _compute_mode_error(view: GpuView, *, shared: bool) -> UserError | None:
    if PROHIBITED not in view.modes and not (shared and EXCLUSIVE_PROCESS in view.modes):
        return None
    mode = "PROHIBITED" if PROHIBITED in view.modes else "EXCLUSIVE_PROCESS"
    return _gpu_error(
        f"a GPU of this node has compute mode {mode}"
        + ("" if PROHIBITED in view.modes else ": trainer and server of a colocated task cannot share it"),
        view,
        expected="compute mode DEFAULT (`nvidia-smi --query-gpu=compute_mode --format=csv`)",
        advice="ask the administrators for DEFAULT"
        if PROHIBITED in view.modes
        else "ask the administrators for DEFAULT, or start another run with --set schedule.coupling=concurrent",
    )


def _is_out_of_order(view: GpuView) -> bool:
    """Whether all parts are present and the driver still fails: another node may work."""
    return bool(view.driver and view.problem) and view.problem not in (NO_LIBRARY, NO_DEVICE) and view.visible != ""


def _way_to_gpus(view: GpuView) -> str:
    if view.driver is None:
        return (
            "send GPU jobs to a partition whose nodes have GPUs: partitions.gpu in the site profile; then mrt-hpc "
            "submit RUN"
        )
    if view.container and view.problem == NO_LIBRARY:
        return (
            "start the container with --nv: container.executable in the site profile has to be apptainer or "
            f"singularity, or a script that passes --nv on; try `apptainer exec --nv {view.container} nvidia-smi`"
        )
    if view.problem == NO_DEVICE or view.visible == "":
        return (
            "let Slurm give out GPUs: gpu_request and gpu_type in the site profile (`scontrol show node` prints the "
            "Gres of nodes), or remove CUDA_VISIBLE_DEVICES from its environment; then mrt-hpc submit RUN"
        )
    return f"run `nvidia-smi` on this node, and report a failure to its administrators; {LEAVE_OUT}"


def _driver_too_old(view: GpuView, torch_cuda: str) -> UserError | None:
    wanted = int(torch_cuda.partition(".")[0])
    if view.driver_cuda is None or view.driver_cuda[0] >= wanted:
        return None
    return _gpu_error(
        f"this node's driver is too old for the installed torch, which was built for CUDA {torch_cuda}",
        view,
        expected=f"driver {OLDEST_DRIVER.get(wanted, f'for CUDA {wanted}')} or newer, or NVIDIA's package cuda-compat",
        advice="choose nodes with a newer driver (partitions.gpu or sbatch: {constraint: ...} in the site profile), or "
        "ask for one; then mrt-hpc submit RUN",
    )


def _too_old_gpus(view: GpuView) -> UserError | None:
    if all(capability >= OLDEST_CAPABILITY for capability in view.capabilities):
        return None
    return _gpu_error(
        "this node's GPUs are too old for the installed torch",
        view,
        expected="compute capability {}.{} or newer (Turing and later; not Volta)".format(*OLDEST_CAPABILITY),
        advice="choose nodes with newer GPUs (gpu_type or partitions.gpu in the site profile); then mrt-hpc submit RUN",
    )


def _gpu_error(
    what: str, view: GpuView, *, expected: str, advice: str, exit_code: ExitCode = ExitCode.FATAL
) -> UserError:
    where = f"node {os.uname().nodename}"
    return UserError(
        what, where=where, value=view.describe_gpus(), expected=expected, advice=advice, exit_code=exit_code
    )


def look() -> GpuView:
    """A UserError says that the driver gave no answer, or broke down; another node may do better."""
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = run_program(command, LOOK_LIMIT_S)
    except TimeoutExpired:
        raise _driver_error(f"the NVIDIA driver of this node gave no answer in {LOOK_LIMIT_S:.0f} s") from None
    if done.returncode:
        raise _driver_error(f"the NVIDIA driver of this node failed: {done.stderr.strip() or done.returncode}")
    for line in reversed(done.stdout.splitlines()):
        with suppress(ValueError):
            return decode_typed(line.encode(), GpuView)
    raise _driver_error(f"the look at the NVIDIA driver of this node printed no answer: {done.stdout.strip()[-80:]!r}")


def _driver_error(what: str) -> UserError:
    return UserError(
        what,
        where=f"node {os.uname().nodename}",
        advice=Advice("run `nvidia-smi` there; {leave_out}", leave_out=LEAVE_OUT),
        exit_code=ExitCode.RETRYABLE,
    )


def look_at_gpus() -> GpuView:
    """The same as :func:`look`, but the call uses the driver."""
    driver_cuda, devices, problem = _ask_driver()
    return GpuView(
        driver=_driver_version(),
        devices=tuple(sorted(str(file) for file in Path("/dev").glob("nvidia[0-9]*"))),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        container=os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"),
        torch_cuda=_cuda_of_torch(),
        problem=problem,
        driver_cuda=driver_cuda,
        capabilities=tuple(device.capability for device in devices),
        names=tuple(device.name for device in devices),
        modes=tuple(device.mode for device in devices),
    )


def _driver_version() -> str | None:
    """The version in ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ...``."""
    if not DRIVER_FILE.exists():
        return None
    match = re.search(r"\b\d{3}\.[\d.]+\b", DRIVER_FILE.read_text())
    return match[0] if match else "of unknown version"


def _cuda_of_torch() -> str | None:
    """It reads torch's file ``version.py``: importing torch would take seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    match = re.search(r"^cuda\b.*=\s*'([\d.]+)'", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE)
    return match[1] if match else None


class DriverError(Exception):
    """A call to the driver's library failed."""


class Device(NamedTuple):
    capability: tuple[int, int]
    name: str
    mode: int


def _ask_driver() -> tuple[tuple[int, int] | None, tuple[Device, ...], str | None]:
    """The driver's CUDA version, each usable GPU, and the error."""
    version = None
    try:
        library = ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return None, (), NO_LIBRARY
    try:
        number = _read_number(library, "cuDriverGetVersion")  # 12080 for 12.8
        version = (number // 1000, number % 1000 // 10)
        _call(library, "cuInit", 0)
        devices = range(_read_number(library, "cuDeviceGetCount"))
        return version, tuple(_read_device(library, device) for device in devices), None
    except DriverError as error:
        return version, (), str(error)


def _read_device(library: ctypes.CDLL, device: int) -> Device:
    numbers = (_MAJOR, _MINOR, _COMPUTE_MODE)
    major, minor, mode = (_read_number(library, "cuDeviceGetAttribute", number, device) for number in numbers)
    return Device((major, minor), _name(library, device), mode)


def _name(library: ctypes.CDLL, device: int) -> str:
    text = ctypes.create_string_buffer(256)
    _call(library, "cuDeviceGetName", text, len(text), device)
    return text.value.decode(errors="replace")


def _read_number(library: ctypes.CDLL, function: str, *arguments: int) -> int:
    """The number that a function writes to where its first argument points."""
    answer = ctypes.c_int()
    _call(library, function, ctypes.byref(answer), *arguments)
    return answer.value


def _call(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    code = getattr(library, function)(*arguments)
    if code:
        raise DriverError(f"{function} failed with error {code}")


if __name__ == "__main__":
    print(json.dumps(asdict(look_at_gpus())))
