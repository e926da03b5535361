"""`mrt-hpc doctor` finds each fault of a table, and says what to do; and the job with which it asks a node."""

import errno
import fcntl
import json
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from basics import QUICKSTART, RECIPES, executable, resources
from commands import commands_first, typed
from slurm_texts import USER, RecordedSlurm
from tables import tables

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
