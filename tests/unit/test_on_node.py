"""The job that asks a compute node, and what its half does where no login node answers."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mrt_hpc
from mrt_hpc.backends.slurm.arrays import ArrayExecutor
from mrt_hpc.backends.slurm.containers import srun_command
from mrt_hpc.backends.slurm.site import SlurmSite, required
from mrt_hpc.cluster.doctor import node_half
from mrt_hpc.cluster.doctor.node_half import ANSWER, ORDER, NodeFacts, NodeOrder
from mrt_hpc.cluster.doctor.on_node import ask_nodes, script
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.plan.jobs import Job, JobResources, Role
from mrt_hpc.recipe.load import load_site
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Iterator

SITE = {
    "name": "lab",
    "account": "lab",
    "qos": "long",
    "partitions": {"cpu": "short", "gpu": "big"},
    "gpu_type": "a100",
    "setup": ["module load gcc"],
    "sbatch": {"constraint": "ib"},
    "container": {"image": "/images/x.sif", "python": "python3"},
}


@pytest.fixture
def _signals() -> Iterator[None]:
    before = {name: signal.getsignal(name) for name in (signal.SIGUSR2, signal.SIGTERM)}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


def test_the_job_asks_for_what_the_jobs_of_a_run_ask_for() -> None:
    resources = JobResources(
        nodes=1, ranks_per_node=1, gpus_per_rank=1, cpus_per_rank=1, memory_gib_per_node=1.0, time_limit_minutes=8
    )
    job = Job(name="doctor-gpu", role=Role.PREPARE, tasks=1, resources=resources)
    text = script(job, SlurmSite.model_validate_json(json.dumps(SITE)), RunLayout(Path("/shared/me/trial")))
    wanted = {"account=lab", "qos=long", "partition=big", "gres=gpu:a100:1", "time=8", "mem=1024M", "constraint=ib"}
    wanted |= {"requeue"}  # what Slurm makes of it is read from this job
    assert {f"#SBATCH --{option}" for option in wanted} <= set(text.splitlines())
    assert text.index("module load gcc") < text.index("srun")
    assert "apptainer exec --nv --bind /shared/me/trial:/shared/me/trial /images/x.sif python3" in text
    assert text.rstrip().endswith("-m mrt_hpc.cluster.doctor.node_half /shared/me/trial doctor-gpu")


@pytest.mark.parametrize(
    ("written", "option"),
    [("true", "--exclusive"), ("user", "--exclusive=user"), ("7", "--exclusive=7"), ("false", None), ("null", None)],
)
def test_an_option_of_the_profile_may_be_a_flag(tmp_path: Path, written: str, option: str | None) -> None:
    profile = tmp_path / "site.yaml"
    profile.write_text(f"type: slurm\nname: here\nsbatch: {{exclusive: {written}}}\n")
    site = required(load_site(profile))
    resources = JobResources(
        nodes=1, ranks_per_node=1, gpus_per_rank=0, cpus_per_rank=1, memory_gib_per_node=1.0, time_limit_minutes=8
    )
    job = Job(name="a", role=Role.PREPARE, tasks=1, resources=resources)
    layout = RunLayout(tmp_path)
    of_a_run = ArrayExecutor(job, site, layout, waited_for=False).text({})
    for words in (of_a_run.split(), script(job, site, layout).split(), srun_command(site, ())):
        assert [word for word in words if word.startswith("--exclusive")] == ([] if option is None else [option])


@pytest.mark.usefixtures("_signals")
def test_a_node_that_hears_nothing_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node_half, "LONGEST_TRIP_S", 0.1)
    monkeypatch.setattr(node_half, "LONGEST_SIGNAL_S", 0.1)
    write_json(tmp_path / f"me.{ORDER}", asdict(NodeOrder(("/none", str(tmp_path)))))
    node_half.main([str(tmp_path), "me"])
    facts = NodeFacts(**json.loads((tmp_path / f"me.{ANSWER}").read_bytes()))
    assert facts.version == mrt_hpc.__version__
    assert (tuple(facts.trips_s), tuple(facts.signals)) == ((), ())
    assert facts.unreadable == {"/none": "No such file or directory: /none"}
    assert set(facts.operations.values()) == {""}
    assert set(facts.scratch.values()) == {""}
    assert facts.gpu_view is None


@pytest.mark.parametrize(
    ("compiler", "found"),
    [
        (None, ""),
        ("exit 1; #", "does not compile"),
        ("echo 'module.c:1: fatal error: Python.h: No such file or directory' >&2; exit 1; #", "Python.h"),
        ("", "nor clang"),
    ],
)
def test_a_node_tries_the_compiler_with_the_headers(
    compiler: str | None, found: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    if compiler is not None:
        monkeypatch.setenv("PATH", str(tmp_path))
    if compiler:
        (tmp_path / "gcc").write_text(f"#!/bin/sh\n{compiler}\n")
        (tmp_path / "gcc").chmod(0o755)
    problem = node_half.compiler_problem()
    assert found in problem if found else problem == ""


@pytest.mark.usefixtures("_signals")
def test_signals_are_noted() -> None:
    received = node_half.listen()
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == ["USR2", "TERM"]


def test_a_place_that_cannot_be_written_needs_no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mrt_hpc.cluster.doctor.on_node.os.access", lambda *_: False)
    site = SlurmSite(name="x")
    (answer,) = ask_nodes(Situation(site, None, tmp_path / "run"), 1.0, lambda _: None)
    assert "you cannot write to" in answer.problem
