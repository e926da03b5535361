"""`mrt-hpc doctor` finds each fault of a table, and says what to do; and the job with which it asks a node."""

import errno
import fcntl
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from basics import QUICKSTART, ROOT, executable, resources
from commands import commands_first, typed
from slurm_texts import USER, RecordedSlurm

import mrt_hpc
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.arrays import ArrayExecutor
from mrt_hpc.backends.slurm.site import SlurmSite, require_slurm
from mrt_hpc.cli.container import srun_command
from mrt_hpc.cluster import filesystems
from mrt_hpc.cluster.doctor import node_half, place_checks
from mrt_hpc.cluster.doctor.checks import CheckResult, CheckVerdict
from mrt_hpc.cluster.doctor.diagnosis import can_start, diagnose
from mrt_hpc.cluster.doctor.node_half import NodeFacts, NodeOrder
from mrt_hpc.cluster.doctor.on_node import ask_nodes, script
from mrt_hpc.cluster.doctor.situation import NodeAnswer, Situation
from mrt_hpc.cluster.filesystems import Quota
from mrt_hpc.plan.jobs import Job, Role
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import RunLayout

Plant = Callable[[pytest.MonkeyPatch, Path], None]

REFERENCE = ROOT / "recipes" / "mrt_online.yaml"
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


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, the beginning of the name of the check that finds it, and a part of its remedy."""

    check: str
    remedy: str
    verdict: CheckVerdict = CheckVerdict.FAILS
    slurm: RecordedSlurm = field(default_factory=RecordedSlurm)
    site: Mapping[str, object] = field(default_factory=dict)
    recipe: Path = QUICKSTART
    overrides: tuple[str, ...] = ()
    facts: Mapping[str, object] | None = None  # changes of what the node has seen; None asks no node
    answer: Mapping[str, object] = field(default_factory=dict)  # changes of the node's answer
    plant: Plant = lambda _, __: None


def doubtful(check: str, remedy: str, **what: Any) -> Fault:
    return Fault(check, remedy, CheckVerdict.DOUBTFUL, **what)


def on_node(check: str, remedy: str, verdict: CheckVerdict = CheckVerdict.FAILS, **facts: Any) -> Fault:
    return Fault(f"node of cpu: {check}", remedy, verdict, facts=facts)


def on_gpu_node(check: str, remedy: str, verdict: CheckVerdict, *overrides: str, **facts: Any) -> Fault:
    answer = {"kind": "gpu", "partition": "gpu"}
    return Fault(f"node of gpu: {check}", remedy, verdict, RecordedSlurm(), {}, REFERENCE, overrides, facts, answer)


def of_gpus(remedy: str, gres: str, **site: object) -> Fault:
    return Fault("GPUs", remedy, recipe=REFERENCE, site=site, slurm=says(nodes=("gpu|gpu:2|4", f"gpu|{gres}|4")))


def says(**texts: tuple[str, str]) -> RecordedSlurm:
    return RecordedSlurm(changes={name: [change] for name, change in texts.items()})


def sets(place: object, name: str, value: object) -> Plant:
    return lambda patch, _: patch.setattr(place, name, value)


def has_free(free_bytes: int, files: int = 0, free_files: int = 0) -> Plant:
    counts = SimpleNamespace(f_bavail=free_bytes, f_frsize=1, f_files=files, f_favail=free_files)
    return sets(filesystems.os, "statvfs", lambda _: counts)


def refuse(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def preempted(notice_s: int, **site: object) -> dict[str, object]:
    return {"partitions": {"cpu": "preempt"}, "preemption_notice_s": notice_s, **site}


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


LOCAL: Mapping[str, object] = {"type": "local"}  # in place of changes of the profile: this machine
FAILS, DOUBT, NOT_KNOWN = CheckVerdict.FAILS, CheckVerdict.DOUBTFUL, CheckVerdict.NOT_CHECKED
PLAIN = RecordedSlurm("plain")
FULL_QUOTA = sets(filesystems, "quota", lambda *_: Quota(10**10, 11 * 10**9, 5, None, "lfs quota -u me /scratch"))
ARRAYS_OF_10 = {"max_array_size": 10}
SMALL_LIMITS = {**ARRAYS_OF_10, "max_submit_jobs": 60}
SUSPEND, NORMAL = ("PreemptMode=REQUEUE", "PreemptMode=SUSPEND"), ("lowly,normal,urgent", "normal")
WHOLE = ("OverSubscribe=NO", "OverSubscribe=EXCLUSIVE")
FEW_TASKS = "max_array_tasks=9,bf_interval=2"
GPUS_4, GPUS_3 = (says(qos=("cluster|||", f"cluster|||cpu=1000,gres/gpu={most},mem=10G")) for most in (4, 3))
OTHER_MACHINE = {"slurm": says(architectures=("Arch=x86_64", "Arch=aarch64"))}
COLOCATED = ("schedule.coupling=colocated", "resources.inference.tasks=1", "resources.inference.gpus=4")
ALONE = " ".join(f"--set {option}" for option in COLOCATED)
ACCOUNTS = {"account": {"cpu": "lab", "gpu": "h100"}}
BARE_PYTHON = {"python": "/usr/bin/python3", "environment": {"PYTHONPATH": ""}}
NO_APPTAINER = {"image": str(QUICKSTART), "executable": "no-such-apptainer"}
WAITS, SETUP_FAILS = {"facts": None, "problem": "no answer", "waits": True}, {"setup_problem": "a line failed"}
SEGMENTS = ("resources.inference.tasks=30", "schedule.iterations_per_job=1")
NO_CUDA = dict(
    driver=None, devices=[], visible="0", container=None, torch_cuda="13.0", problem="no libcuda.so.1",
    driver_cuda=None, capabilities=[],
)  # fmt: skip
NODES = ("resources.trainer.ranks_per_node=2",)
LOOPS = "its own name n1 resolves to 127.0.1.1"
ONE_PROCESS = {**NO_CUDA, "problem": None, "driver_cuda": [13, 0], "capabilities": [[8, 0]], "modes": [3]}

FAULTS = {
    # the cluster
    "no Slurm here": Fault("Slurm", "login node", slurm=RecordedSlurm(missing=frozenset({"sinfo"}))),
    "controller down": Fault("Slurm", "scontrol ping", slurm=RecordedSlurm(refusing={"scontrol": "timed out"})),
    "Slurm too old": Fault("Slurm", "", slurm=says(version=("22.05.8", "19.05.2"))),
    "MaxArraySize": Fault("array size", "set max_array_size: 10", slurm=PLAIN),
    "max_array_tasks": Fault("array size", "set max_array_size: 9", slurm=says(config=("bf_interval=2", FEW_TASKS))),
    "MaxJobsPU": doubtful("jobs at once", "coupling=colocated", slurm=says(qos=("cluster|||", "cluster||1|"))),
    "MaxTRESPU": doubtful("jobs at once", ALONE, recipe=REFERENCE, slurm=GPUS_4),
    "MaxTRESPU of one job": Fault("jobs at once", "lower resources.trainer", recipe=REFERENCE, slurm=GPUS_3),
    "MaxJobCount": Fault("queued jobs", "max_submit_jobs: 60", slurm=PLAIN, site=ARRAYS_OF_10, overrides=SEGMENTS),
    "MaxSubmitJobs": Fault("queued jobs", "max_submit_jobs: 3", slurm=says(associations=("urgent|||", "urgent||3|"))),
    "MaxSubmitPU": Fault("queued jobs", "max_submit_jobs: 4", slurm=says(qos=("normal|||", "normal||4|"))),
    "MaxWall": Fault("time limit", "max_time_minutes: 30", slurm=says(qos=("normal||", "normal|00:30:00|"))),
    "MaxTime": Fault("plan", "time_minutes: 20", slurm=says(partitions=("MaxTime=2-00:00:00", "MaxTime=00:20:00"))),
    "PreemptMode=CANCEL": doubtful("preemption", "mrt-hpc submit", slurm=PLAIN, site=preempted(30, **SMALL_LIMITS)),
    "PreemptMode=SUSPEND": doubtful("preemption", "", slurm=says(partitions=SUSPEND), site=preempted(25)),
    "GraceTime": doubtful("preemption notice", "preemption_notice_s: 25", site=preempted(300)),
    # partitions, accounts, QOS, GPUs
    "partition down": doubtful("partition", "", slurm=says(partitions=("State=UP", "State=DOWN"))),
    "AllowGroups": Fault("partition", "", slurm=says(partitions=("AllowGroups=ALL", "AllowGroups=staff"))),
    "not the user's account": Fault("account of gpu jobs", "one of lab", recipe=REFERENCE, site=ACCOUNTS),
    "no association": Fault("account", "", slurm=says(associations=("lab||lowly,normal,urgent|||", ""))),
    "no such QOS": Fault("QOS", "set qos to one of lowly, normal, urgent", site={"qos": "fast"}),
    "no QOS of the account": Fault("QOS", "to one of normal", site={"qos": "urgent"}, slurm=says(associations=NORMAL)),
    "another GPU type": of_gpus("set gpu_type to a100", "gpu:a100:8", gpu_type="h100"),
    "no GPU": of_gpus("set partitions.gpu", "(null)"),
    "parts of GPUs beside whole ones": of_gpus("set gpu_type to a100", "gpu:a100:8,gpu:1g.10gb:8"),
    "uncounted whole nodes": doubtful("whole nodes", "node_gpus: 2", recipe=REFERENCE, slurm=says(partitions=WHOLE)),
    "nodes that jobs share": doubtful("whole nodes", "node_gpus: null", recipe=REFERENCE, site={"node_gpus": 8}),
    "a request that Slurm refuses": Fault("sbatch", "what is named", plant=has_sbatch("Invalid account")),
    "a cluster that does not test": Fault("sbatch", "asks again", NOT_KNOWN, plant=has_sbatch("timed out in DOWN")),
    "plan beyond the profile": Fault("plan", "time_limit_minutes=10", site={"max_time_minutes": 10}),
    # model and data
    "no model": Fault("model", "mrt-hpc model fetch", recipe=REFERENCE, overrides=("model.path=/none",)),
    "no data": Fault("data for training", "data prepare", recipe=REFERENCE, overrides=("data.path=/none.jsonl",)),
    # the run directory
    "no hard links": Fault("filesystem (hard link)", "--run", plant=sets(os, "link", refuse)),
    "no exclusive create": Fault("filesystem (exclusive create)", "--run", plant=sets(Path, "touch", touch_again)),
    "no fsync": Fault("filesystem (fsync)", "--run", plant=sets(filesystems, "sync_file", refuse)),
    "a full disk": Fault("space", "", recipe=REFERENCE, plant=has_free(5 * 10**8)),
    "a full quota": Fault("space", "lfs quota -u me", recipe=REFERENCE, plant=FULL_QUOTA),
    "few inodes": Fault("files", "", plant=has_free(10**12, 1000, 100)),
    "others may write": Fault("run directory", "chmod go-w", plant=has_folder(0o777)),
    "no run directory": Fault("run directory", "--run", plant=has_folder(0o700, "thesis.tex")),
    "the file server's clock": doubtful("file server's clock", "", plant=sets(place_checks.time, "time", late_time)),
    # this machine
    "no such Python": Fault("Python", "set python", site={"python": "/none/bin/python"}),
    "a Python without mrt-hpc": Fault("Python", "env/setup", site=BARE_PYTHON),
    "nodes of another architecture": Fault("Python", "set python", **OTHER_MACHINE),
    "a Python of other nodes": Fault("Python", "--on-node", NOT_KNOWN, site={"python": "/a/python"}, **OTHER_MACHINE),
    "a failing line of setup": doubtful("Python (setup)", "correct setup", site={"setup": ["module load nosuch/1.0"]}),
    "a package of PYTHONPATH": doubtful("Python (scipy)", "unset PYTHONPATH", plant=has_another_scipy),
    "no such image": Fault("container", "mrt-hpc container build", site={"container": {"image": "/none.sif"}}),
    "no Apptainer": doubtful("container", "--on-node", site={"container": NO_APPTAINER}),
    "a long scratch path": doubtful("scratch", "scratch", site={"scratch": "/s/" + "long/" * 21 + "$SLURM_JOB_ID"}),
    "a limit of CPU time": Fault("limits", "ulimit -t unlimited", plant=sets(resource, "getrlimit", limit_of)),
    "no room for caches": doubtful("environment", "uv cache clean", plant=has_free(5 * 10**8)),
    "no locks here": Fault("scratch", "TMPDIR", site=LOCAL, plant=sets(fcntl, "flock", refuse)),
    # a compute node
    "a refused job": Fault("node of cpu", "site profile", facts={}, answer={"facts": None, "problem": "refused"}),
    "a waiting job": Fault("node of cpu", "--wait", CheckVerdict.NOT_CHECKED, facts={}, answer=WAITS),
    "another version": on_node("versions", "", version="0.0.1"),
    "setup that fails there": doubtful("node of cpu: setup", "correct setup", facts={}, answer=SETUP_FAILS),
    "files that do not come back": on_node("visibility", "lookupcache", trips_s=()),
    "late files": on_node("visibility", "heartbeat_limit_s=210", trips_s=(70.0, 1.0, 1.0)),
    "slow files": on_node("visibility", "--run", DOUBT, trips_s=(30.0, 1.0, 1.0)),
    "the node's clock": on_node("clock", "", DOUBT, skew_s=-90.0),
    "a lost signal": on_node("signals", "exec", DOUBT, signals=("TERM",)),
    "no hard links there": on_node("filesystem", "--run", operations={"hard link": "EPERM"}),
    "no scontrol": doubtful("node of cpu: Slurm", "module load slurm", facts={}, answer={"slurm_commands": ()}),
    "no locks there": on_node("scratch", "set scratch", scratch={filesystems.SCRATCH[0][0]: "/tmp: refused"}),
    "no compiler": on_node("compiler", "gcc", compiler_problem="no gcc"),
    "little scratch": on_node("scratch", "set scratch", DOUBT, temporary_free_bytes=10**9),
    "little shared memory": on_node("shared memory", "resources", DOUBT, shared_memory_bytes=64 * 2**20),
    "a model out of reach": on_node("model", "container.binds", unreadable={"/models/m": "No such file"}),
    "a limit of memory": on_node("limits", "ulimit -v", limits={**FACTS.limits, "as": (2**30, 2**30)}),
    "a node without GPU": on_node("GPUs", "partitions.gpu", gpu_view=NO_CUDA),
    "a GPU for one process": on_gpu_node("GPUs", "coupling=concurrent", FAILS, *COLOCATED, gpu_view=ONE_PROCESS),
    "names that lead to the node itself": on_gpu_node("names", "getent hosts", DOUBT, *NODES, name_problem=LOOPS),
    "little locked memory": on_gpu_node("limits", "", DOUBT, limits={**FACTS.limits, "memlock": (2**26, 2**26)}),
}


def situation(fault: Fault, root: Path) -> Situation:
    recipe = load_recipe(fault.recipe, fault.overrides)
    if fault.site is LOCAL:
        return Situation(LocalSite(), recipe, root)
    site = SlurmSite.model_validate_json(json.dumps({**PROFILE, **fault.site}))
    changes = fault.facts if fault.facts is not None else {}
    answer = replace(ANSWER, **{"facts": replace(FACTS, **changes), **fault.answer})  # type: ignore[arg-type]
    return Situation(site, recipe, root, fault.slurm.survey(), () if fault.facts is None else (answer,))


def bad(findings: Sequence[CheckResult]) -> list[CheckResult]:
    return [one for one in findings if one.verdict is not CheckVerdict.OK]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_remedy(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fault = FAULTS[name]
    asked = situation(fault, tmp_path / "run")
    fault.plant(monkeypatch, tmp_path)
    findings = diagnose(asked)
    found = [one for one in bad(findings) if one.check.startswith(fault.check)]
    assert any(fault.remedy in one.remedy and one.verdict is fault.verdict for one in found), bad(findings)
    assert all(one.remedy for one in found)
    assert all(one.evidence for one in findings)
    assert can_start(findings) is (CheckVerdict.FAILS not in {one.verdict for one in findings})


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
    findings = diagnose(situation(Fault("", "", facts={}), place / "run"))
    assert {one.check for one in bad(findings)} <= {"limits"}
    assert list(place.iterdir()) == [], "what was tried is removed"
    findings = diagnose(situation(Fault("", "", slurm=PLAIN, site=SMALL_LIMITS), place / "run"))
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
