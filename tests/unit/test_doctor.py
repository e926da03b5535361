"""`mrt-hpc doctor` finds each fault of a table, planted in the cluster's answers, the profile, the recipe, the
filesystem or a node's answer, and says what to do about it.
"""

from __future__ import annotations

import errno
import json
import os
import resource
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from slurm_texts import USER, RecordedSlurm

import mrt_hpc
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.cluster import filesystems
from mrt_hpc.cluster.doctor import node_half
from mrt_hpc.cluster.doctor.checks import CheckResult, CheckVerdict
from mrt_hpc.cluster.doctor.diagnosis import CHECKS, can_start, diagnose
from mrt_hpc.cluster.doctor.node_half import NodeFacts
from mrt_hpc.cluster.doctor.situation import NodeAnswer, Situation
from mrt_hpc.cluster.filesystems import Quota
from mrt_hpc.recipe.load import load_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
REFERENCE = ROOT / "recipes" / "mrt_online.yaml"
PROFILE = {
    "name": "lab",
    "account": "lab",
    "partitions": {"cpu": "cpu", "gpu": "gpu"},
    "max_submit_jobs": 5000,
    "max_time_minutes": 2880,
}
FACTS = NodeFacts(
    node="node1",
    version=mrt_hpc.__version__,
    python="3.12.1 (/env/bin/python)",
    trips_s=(0.2, 0.1, 0.1),
    signals=("USR2", "TERM"),
    operations={"rename": "", "hard link": ""},
    temporary="/tmp",
    temporary_free_bytes=10**12,
    shared_memory_bytes=10**11,
    limits=dict.fromkeys(("cpu", "as", "fsize", "nofile", "nproc", "memlock"), (-1, -1)),
)
DELTAS = ("training.full_weights_every=10", "schedule.iterations_per_job=20", "schedule.max_staleness=1")
ANSWER = NodeAnswer("cpu", "cpu", FACTS, "17", ("scontrol", "squeue"))


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and what the doctor has to say about it."""

    name: str
    check: str
    """The beginning of the name of the check that finds it."""
    remedy: str
    """A part of the remedy."""
    verdict: CheckVerdict = CheckVerdict.FAILS
    slurm: RecordedSlurm = field(default_factory=RecordedSlurm)
    site: Mapping[str, object] = field(default_factory=dict)
    recipe: Path = QUICKSTART
    overrides: tuple[str, ...] = ()
    facts: Mapping[str, object] | None = None
    """Changes of what the node has seen; None asks no node."""
    answer: Mapping[str, object] = field(default_factory=dict)
    """Changes of the node's answer."""
    plant: Callable[[pytest.MonkeyPatch, Path], None] = lambda _, __: None


def no_hard_links(patch: pytest.MonkeyPatch, _: Path) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    patch.setattr(filesystems.os, "link", refuse)


def no_exclusive_create(patch: pytest.MonkeyPatch, _: Path) -> None:
    real = Path.touch
    patch.setattr(Path, "touch", lambda path, mode=0o666, exist_ok=True: real(path, mode, True))  # noqa: ARG005


def no_sync(patch: pytest.MonkeyPatch, _: Path) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    patch.setattr(filesystems, "sync_file", refuse)


def refused_in_scratch(name: str) -> Callable[[pytest.MonkeyPatch, Path], None]:
    """One of the operations that tasks do in the folder for temporary files does not work."""

    def refuse(_: Path) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def plant(patch: pytest.MonkeyPatch, _: Path) -> None:
        for table in ("SCRATCH", "SOCKETS"):
            operations = getattr(filesystems, table)
            patch.setattr(filesystems, table, tuple((n, w, refuse if n == name else a) for n, w, a in operations))

    return plant


def small_disk(patch: pytest.MonkeyPatch, _: Path) -> None:
    real = os.statvfs
    patch.setattr(filesystems.os, "statvfs", lambda path: _with(real(path), f_bavail=5 * 10**8 // real(path).f_frsize))


def few_inodes(patch: pytest.MonkeyPatch, _: Path) -> None:
    real = os.statvfs
    patch.setattr(filesystems.os, "statvfs", lambda path: _with(real(path), f_files=1000, f_favail=100))


def _with(counts: os.statvfs_result, **changes: int) -> SimpleNamespace:
    names = [name for name in dir(counts) if name.startswith("f_")]
    return SimpleNamespace(**{**{name: getattr(counts, name) for name in names}, **changes})


def small_quota(patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setattr(filesystems, "quota", lambda *_: Quota(10**10, 10**10 + 10**9, 5, None, "lfs quota -u me /scratch"))


def late_clock(patch: pytest.MonkeyPatch, _: Path) -> None:
    import time

    from mrt_hpc.cluster.doctor import local_checks

    patch.setattr(local_checks.time, "time", lambda real=time.time: real() + 600)


def others_may_write(_: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "run").mkdir(mode=0o777)
    (folder / "run").chmod(0o777)


def not_a_run(_: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "run").mkdir(mode=0o700)
    (folder / "run" / "thesis.tex").touch()


def cpu_time_limit(patch: pytest.MonkeyPatch, _: Path) -> None:
    real = resource.getrlimit
    patch.setattr(resource, "getrlimit", lambda which: (1800, 1800) if which == resource.RLIMIT_CPU else real(which))


def changed(**texts: list[tuple[str, str]]) -> RecordedSlurm:
    return RecordedSlurm(changes=texts)


LOCAL: Mapping[str, object] = {"type": "local"}
"""In place of changes of the profile: this machine."""
PREEMPTED = {"partitions": {"cpu": "preempt"}, "preemption_notice_s": 25}
IN_SEGMENTS = ("resources.inference.tasks=30", "schedule.iterations_per_job=1")
NO_CUDA_VIEW = {
    "driver": None, "devices": [], "visible": "0", "container": None, "torch_cuda": "13.0",
    "problem": "no libcuda.so.1", "driver_cuda": None, "capabilities": [],
}  # fmt: skip
OLD_DRIVER_VIEW = {
    **NO_CUDA_VIEW, "driver": "535.1", "devices": ["/dev/nvidia0"], "problem": None, "driver_cuda": [12, 2],
    "capabilities": [[8, 0]],
}  # fmt: skip

FAULTS = [
    # the cluster
    Fault(
        "Slurm is not here", "Slurm", "on the cluster's login node", slurm=RecordedSlurm(missing=frozenset({"sinfo"}))
    ),
    Fault("the controller is down", "Slurm", "scontrol ping", slurm=RecordedSlurm(refusing={"scontrol": "timed out"})),
    Fault("Slurm is too old", "Slurm", "administrators", slurm=changed(version=[("22.05.8", "19.05.2")])),
    Fault("MaxArraySize is smaller", "array size", "set max_array_size: 10", slurm=RecordedSlurm("plain")),
    Fault(
        "MaxJobCount is smaller than the plan",
        "queued jobs",
        "set max_submit_jobs: 60",
        slurm=RecordedSlurm("plain"),
        site={"max_array_size": 10},
        overrides=IN_SEGMENTS,
    ),
    Fault(
        "MaxSubmitJobs of the association",
        "queued jobs",
        "set max_submit_jobs: 3",
        slurm=changed(associations=[("urgent|||", "urgent||3|")]),
    ),
    Fault(
        "MaxSubmitPU of the QOS",
        "queued jobs",
        "set max_submit_jobs: 4",
        slurm=changed(qos=[("normal|||", "normal||4|")]),
    ),
    Fault(
        "the QOS has a shorter walltime",
        "time limit",
        "set max_time_minutes: 30",
        slurm=changed(qos=[("normal||", "normal|00:30:00|")]),
    ),
    Fault(
        "the partition has a shorter time limit",
        "plan",
        "set max_time_minutes: 20",
        slurm=changed(partitions=[("MaxTime=2-00:00:00", "MaxTime=00:20:00")]),
    ),
    Fault(
        "PreemptMode=CANCEL",
        "preemption",
        "type the same `mrt-hpc submit`",
        CheckVerdict.DOUBTFUL,
        RecordedSlurm("plain"),
        {
            "partitions": {"cpu": "preempt"},
            "max_array_size": 10,
            "max_submit_jobs": 60,
            "preemption_notice_s": 30,
        },
    ),
    Fault(
        "PreemptMode=SUSPEND",
        "preemption",
        "choose a partition",
        CheckVerdict.DOUBTFUL,
        changed(partitions=[("PreemptMode=REQUEUE", "PreemptMode=SUSPEND")]),
        PREEMPTED,
    ),
    Fault(
        "GraceTime is not what the profile says",
        "preemption notice",
        "set preemption_notice_s: 25",
        CheckVerdict.DOUBTFUL,
        site={**PREEMPTED, "preemption_notice_s": 300},
    ),
    # partitions, accounts, QOS, GPUs
    Fault(
        "a misspelt partition",
        "partition",
        "set partitions.cpu in the site profile to one of cpu, gpu",
        site={"partitions": {"cpu": "cpuu"}},
    ),
    Fault(
        "a partition that is down",
        "partition",
        "wait until it is up",
        CheckVerdict.DOUBTFUL,
        changed(partitions=[("State=UP", "State=DOWN")]),
    ),
    Fault(
        "AllowAccounts", "partition", "admits you", slurm=changed(partitions=[("AllowAccounts=ALL", "AllowAccounts=x")])
    ),
    Fault(
        "AllowGroups", "partition", "admits you", slurm=changed(partitions=[("AllowGroups=ALL", "AllowGroups=staff")])
    ),
    Fault("AllowQos", "partition", "admits you", slurm=changed(partitions=[("AllowQos=ALL", "AllowQos=long")])),
    Fault(
        "DenyAccounts",
        "partition",
        "admits you",
        slurm=changed(partitions=[("AllowAccounts=ALL", "DenyAccounts=lab")]),
    ),
    Fault("an account that is not the user's", "account", "set account to one of lab", site={"account": "labb"}),
    Fault(
        "no association", "account", "administrators", slurm=changed(associations=[("lab||lowly,normal,urgent|||", "")])
    ),
    Fault("a QOS that does not exist", "QOS", "set qos to one of lowly, normal, urgent", site={"qos": "fast"}),
    Fault(
        "a QOS that the account has not",
        "QOS",
        "set qos to one of normal",
        site={"qos": "urgent"},
        slurm=changed(associations=[("lowly,normal,urgent", "normal")]),
    ),
    Fault(
        "a GPU type that the partition has not",
        "GPUs",
        "set gpu_type to a100",
        recipe=REFERENCE,
        site={"gpu_type": "h100"},
        slurm=changed(nodes=[("gpu|gpu:2|4", "gpu|gpu:a100:8|4")]),
    ),
    Fault(
        "no GPU in the partition",
        "GPUs",
        "set partitions.gpu",
        recipe=REFERENCE,
        slurm=changed(nodes=[("gpu|gpu:2|4", "gpu|(null)|4")]),
    ),
    Fault(
        "a GPU type that begins with a digit",
        "GPUs",
        "set gpu_type to 2080ti",
        recipe=REFERENCE,
        site={"gpu_type": "h100"},
        slurm=changed(nodes=[("gpu|gpu:2|4", "gpu|gpu:2080ti:8|4")]),
    ),
    Fault(
        "parts of GPUs beside whole ones",
        "GPUs",
        "set gpu_type to a100",
        recipe=REFERENCE,
        slurm=changed(nodes=[("gpu|gpu:2|4", "gpu|gpu:a100:8,gpu:1g.10gb:8|4")]),
    ),
    Fault(
        "nothing but parts of GPUs",
        "GPUs",
        "set partitions.gpu",
        recipe=REFERENCE,
        slurm=changed(nodes=[("gpu|gpu:2|4", "gpu|gpu:1g.10gb:56|4")]),
    ),
    Fault("nodes that are too small", "node size", "lower resources.trainer", recipe=REFERENCE),
    Fault(
        "an option that sbatch does not know",
        "sbatch options",
        "correct `sbatch`",
        CheckVerdict.DOUBTFUL,
        site={"sbatch": {"constrain": "x"}},
    ),
    Fault("the plan is beyond the profile", "plan", "time_limit_minutes=10", site={"max_time_minutes": 10}),
    # model and data
    Fault("the model is missing", "model", "mrt-hpc model fetch", recipe=REFERENCE, overrides=("model.path=/none",)),
    Fault(
        "the data are missing",
        "data for training",
        "data prepare",
        recipe=REFERENCE,
        overrides=("data.path=/none.jsonl",),
    ),
    # the run directory
    Fault("no hard links", "filesystem (hard link)", "--run", plant=no_hard_links),
    Fault("exclusive create is not exclusive", "filesystem (exclusive create)", "--run", plant=no_exclusive_create),
    Fault("fsync fails", "filesystem (fsync)", "--run", plant=no_sync),
    Fault("a disk that is too small", "space", "make room", recipe=REFERENCE, plant=small_disk),
    Fault("a quota that is too small", "space", "lfs quota -u me", recipe=REFERENCE, plant=small_quota),
    Fault("too few inodes", "files", "ask for a higher limit of files", plant=few_inodes),
    Fault("others may write", "run directory", "chmod go-w", plant=others_may_write),
    Fault("a folder that is no run", "run directory", "--run", plant=not_a_run),
    Fault("the file server's clock", "file server's clock", "administrators", CheckVerdict.DOUBTFUL, plant=late_clock),
    # this machine
    Fault("the Python does not exist", "Python", "set python", site={"python": "/none/bin/python"}),
    Fault(
        "a Python without mrt-hpc",
        "Python",
        "env/setup",
        site={"python": "/usr/bin/python3", "environment": {"PYTHONPATH": ""}},
    ),
    Fault("a setup line that fails", "Python", "env/setup", site={"setup": ["exit 3"]}),
    Fault(
        "the image does not exist", "container", "mrt-hpc container build", site={"container": {"image": "/none.sif"}}
    ),
    Fault(
        "Apptainer is not here",
        "container",
        "--on-node",
        CheckVerdict.DOUBTFUL,
        site={"container": {"image": str(QUICKSTART), "executable": "no-such-apptainer"}},
    ),
    Fault(
        "a scratch path that is too long",
        "scratch",
        "a shorter scratch",
        CheckVerdict.DOUBTFUL,
        site={"scratch": "/scratch/" + "long/" * 20 + "$SLURM_JOB_ID"},
    ),
    Fault("a limit of CPU time", "limits", "ulimit -t unlimited", plant=cpu_time_limit),
    # a compute node
    Fault(
        "the job was refused",
        "node of cpu",
        "correct the site profile",
        facts={},
        answer={"facts": None, "problem": "sbatch refused: Invalid account"},
    ),
    Fault(
        "the job still waits",
        "node of cpu",
        "--wait",
        CheckVerdict.NOT_CHECKED,
        facts={},
        answer={"facts": None, "problem": "no answer", "waits": True},
    ),
    Fault("another version on the node", "node of cpu: versions", "the same version", facts={"version": "0.0.1"}),
    Fault("files do not come back", "node of cpu: visibility", "lookupcache", facts={"trips_s": ()}),
    Fault(
        "files come too late", "node of cpu: visibility", "heartbeat_limit_s=210", facts={"trips_s": (70.0, 1.0, 1.0)}
    ),
    Fault("slow files", "node of cpu: visibility", "--run", CheckVerdict.DOUBTFUL, facts={"trips_s": (30.0, 1.0, 1.0)}),
    Fault("the node's clock", "node of cpu: clock", "administrators", CheckVerdict.DOUBTFUL, facts={"skew_s": -90.0}),
    Fault("a signal is lost", "node of cpu: signals", "exec", CheckVerdict.DOUBTFUL, facts={"signals": ("TERM",)}),
    Fault(
        "no hard links from the node", "node of cpu: filesystem", "--run", facts={"operations": {"hard link": "EPERM"}}
    ),
    Fault(
        "no scontrol on the node",
        "node of cpu: Slurm's commands",
        "module load slurm",
        CheckVerdict.DOUBTFUL,
        facts={},
        answer={"slurm_commands": ()},
    ),
    *(
        Fault(
            f"no {name} on the node", "node of cpu: scratch", "set scratch", facts={"scratch": {name: "/tmp: refused"}}
        )
        for name, _, _ in (*filesystems.SCRATCH, *filesystems.SOCKETS)
    ),
    *(
        Fault(f"no {name} on this machine", "scratch", "TMPDIR", site=LOCAL, plant=refused_in_scratch(name))
        for name in ("lock", "executable pages", "socket")
    ),
    Fault("no compiler on the node", "node of cpu: compiler", "gcc", facts={"compiler_problem": "no gcc"}),
    Fault(
        "little locked memory on the node",
        "node of gpu: limits",
        "administrators",
        CheckVerdict.DOUBTFUL,
        recipe=REFERENCE,
        facts={"limits": {**FACTS.limits, "memlock": (2**26, 2**26)}},
        answer={"kind": "gpu", "partition": "gpu"},
    ),
    Fault("no room beside the environment", "environment", "uv cache clean", CheckVerdict.DOUBTFUL, plant=small_disk),
    Fault("no inodes beside the environment", "environment", "uv cache clean", CheckVerdict.DOUBTFUL, plant=few_inodes),
    Fault(
        "little scratch",
        "node of cpu: scratch",
        "set scratch",
        CheckVerdict.DOUBTFUL,
        facts={"temporary_free_bytes": 10**9},
    ),
    Fault(
        "no room on the node for models that are put together from deltas",
        "node of gpu: scratch",
        "folder with 18.4 GiB or more, or --set training.full_weights_every=1",
        recipe=REFERENCE,
        overrides=DELTAS,
        facts={"temporary_free_bytes": 5 * 10**9},
        answer={"kind": "gpu", "partition": "gpu"},
    ),
    Fault(
        "little room beside the models that are put together from deltas",
        "node of gpu: scratch",
        "full_weights_every=1",
        CheckVerdict.DOUBTFUL,
        recipe=REFERENCE,
        overrides=DELTAS,
        facts={"temporary_free_bytes": 15 * 10**9},
        answer={"kind": "gpu", "partition": "gpu"},
    ),
    Fault(
        "little shared memory",
        "node of cpu: shared memory",
        "resources",
        CheckVerdict.DOUBTFUL,
        facts={"shared_memory_bytes": 64 * 2**20},
    ),
    Fault(
        "a model that the node cannot read",
        "node of cpu: model",
        "container.binds",
        facts={"unreadable": {"/models/m": "No such file"}},
    ),
    Fault(
        "a limit of address space on the node",
        "node of cpu: limits",
        "ulimit -v",
        facts={"limits": {**FACTS.limits, "as": (2**30, 2**30)}},
    ),
    Fault("no GPU on the node", "node of cpu: GPUs", "partitions.gpu", facts={"gpu_view": NO_CUDA_VIEW}),
    Fault("an old driver", "node of cpu: GPUs", "newer driver", facts={"gpu_view": OLD_DRIVER_VIEW}),
]


def situation(fault: Fault, root: Path) -> Situation:
    if fault.site is LOCAL:
        return Situation(LocalSite(), load_recipe(fault.recipe, fault.overrides), root)
    site = SlurmSite.model_validate_json(json.dumps({**PROFILE, **fault.site}))
    answers = () if fault.facts is None else (_answer(fault.facts, fault.answer),)
    return Situation(site, load_recipe(fault.recipe, fault.overrides), root, fault.slurm.survey(), answers)


def _answer(facts: Mapping[str, Any], answer: Mapping[str, Any]) -> NodeAnswer:
    return replace(ANSWER, **{"facts": replace(FACTS, **facts), **answer})


def bad(findings: Sequence[CheckResult]) -> list[CheckResult]:
    return [one for one in findings if one.verdict is not CheckVerdict.OK]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_with_its_remedy(fault: Fault, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = situation(fault, tmp_path / "run")
    fault.plant(monkeypatch, tmp_path)
    findings = diagnose(asked)
    found = [one for one in bad(findings) if one.check.startswith(fault.check)]
    assert found, bad(findings)
    assert fault.verdict in {one.verdict for one in found}, found
    assert any(fault.remedy in one.remedy and one.verdict is fault.verdict for one in found), found
    assert all(one.evidence for one in findings)
    assert can_start(findings) is (CheckVerdict.FAILS not in {one.verdict for one in findings})


def test_a_good_cluster_has_no_fault(tmp_path: Path) -> None:
    findings = diagnose(situation(Fault("none", "", "", facts={}), tmp_path / "run"))
    assert [one for one in bad(findings) if one.check != "limits"] == []
    assert list(tmp_path.iterdir()) == [], "what was tried is removed"


def test_without_accounting_and_requeue_a_run_can_start(tmp_path: Path) -> None:
    limits = {"max_array_size": 10, "max_submit_jobs": 60}
    findings = diagnose(situation(Fault("", "", "", slurm=RecordedSlurm("plain"), site=limits), tmp_path / "run"))
    assert can_start(findings)
    said = {one.check: one for one in findings}
    assert "there is no sacct" in said["accounting"].evidence
    assert "JobRequeue = 0" in said["requeue"].evidence
    assert "jobs need no account, and lab is not looked at" in said["account"].evidence


def test_the_command_prints_lines_and_json_and_ends_with_its_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(survey.User, "current", classmethod(lambda _: USER))
    monkeypatch.setattr(survey, "run_slurm", RecordedSlurm())
    profile = tmp_path / "lab.yaml"
    words = ["doctor", "--site", str(profile), "--recipe", "quickstart", "--run", str(tmp_path / "run")]
    profile.write_text(json.dumps({"type": "slurm", **PROFILE}))
    good = CliRunner().invoke(main, words)
    assert good.exit_code == 0, good.output
    assert "ok: partition of cpu jobs: scontrol show partition cpu: State=UP, and it admits you" in good.output
    assert good.output.splitlines()[-1].endswith("--on-node")
    profile.write_text(json.dumps({"type": "slurm", **PROFILE, "account": "labb"}))
    wrong = CliRunner().invoke(main, [*words, "--json"])
    assert wrong.exit_code == 2
    told = json.loads(wrong.output)
    assert told["can_start"] is False
    (failed,) = [one for one in told["checks"] if one["verdict"] == "fails"]
    assert failed["check"] == "account"
    assert set(failed) == {"check", "verdict", "evidence", "remedy"}


def test_this_machine_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["doctor", "--recipe", "quickstart", "--run", str(tmp_path / "run")])
    assert "mrt-hpc submit quickstart" in done.output or "fails: limits" in done.output
    refused = CliRunner().invoke(main, ["doctor", "--on-node"])
    assert refused.exit_code == 2
    assert "this site has no nodes to ask" in refused.output


def test_every_check_has_a_name_of_its_own() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)


def test_files_that_could_not_be_read_before_the_signals_are_not_laid_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_half, "MOUNT_ENDS_S", 0.2)
    (tmp_path / "os.py").touch()
    (tmp_path / "sitecustomize.py").symlink_to("/no/such/file")
    before = node_half.unreadable(tmp_path)
    assert "sitecustomize" in before
    assert node_half.lost_files(tmp_path, before) == ""
    assert node_half.lost_files(tmp_path / "gone", before) != ""
