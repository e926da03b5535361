"""What a plan asks for is held against what the cluster, or this machine, has before anything is submitted."""

import os
from pathlib import Path
from typing import Any

import pytest
from basics import QUICKSTART, ROLES, executable
from commands import typed
from slurm_texts import RecordedSlurm

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.local.slots import machine_memory_gib, machine_remarks
from mrt_hpc.backends.slurm import cluster_limits as slurm_limits
from mrt_hpc.backends.slurm.cluster_limits import closed_partitions, cluster_limits, limit_excesses
from mrt_hpc.backends.slurm.site import Partitions, SlurmSite
from mrt_hpc.backends.slurm.survey import ClusterSettings, PartitionFacts
from mrt_hpc.plan.compile import build_plan, compile_plan
from mrt_hpc.recipe.load import load_recipe

SETTINGS = ClusterSettings(max_array_size=10, max_job_count=60)
PARTITIONS = {
    "short": PartitionFacts("short", "UP", is_default=True, max_minutes=90),
    "long": PartitionFacts("long", "DOWN", max_minutes=2880),
    "free": PartitionFacts("free"),
}
HOUR = tuple(f"resources.{role}.time_limit_minutes=60" for role in ROLES[:-1])
LONGER = "resources.trainer.time_limit_minutes=91"
CORES = len(os.sched_getaffinity(0))


def test_slurms_own_words_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unlimited = {"partitions": [("MaxTime=2-00:00:00", "MaxTime=UNLIMITED")]}
    monkeypatch.setattr(slurm_limits, "run_slurm", RecordedSlurm("plain", unlimited))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cluster_limits() is None, "without Slurm nothing is asked"
    executable(tmp_path / "scontrol", "")
    settings, partitions = cluster_limits() or pytest.fail("Slurm is asked nothing")
    assert (settings.max_array_size, settings.max_job_count, partitions["cpu"].max_minutes) == (10, 60, None)
    plan = build_plan(load_recipe(QUICKSTART), max_array_size=None)
    (complaint,) = closed_partitions(plan, SlurmSite(name="x", partitions=Partitions(cpu="long")), PARTITIONS)
    assert "long is DOWN" in complaint


def test_the_field_of_the_profile_that_is_wrong_is_named() -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "seed=0", ""),
        ({}, "resources.inference.tasks=12", "set max_array_size: 10"),
        ({"max_array_size": 10}, "evaluation.problem_shards=35", "set max_submit_jobs: 60"),
        ({"partitions": Partitions(cpu="lon")}, "seed=0", "partitions.cpu to one or more of short,"),
        ({}, LONGER, "set max_time_minutes: 90"),
        ({"partitions": Partitions(cpu="short,long")}, LONGER, ""),
        ({"qos": "long"}, LONGER, ""),  # which may lift the limit
    ]
    for site, change, advice in cases:
        profile = SlurmSite(name="x", **site)
        plan = build_plan(load_recipe(QUICKSTART, (*HOUR, change)), max_array_size=profile.max_array_size)
        complaints = limit_excesses(plan, profile, SETTINGS, PARTITIONS)
        assert len(complaints) == bool(advice), complaints
        assert all(advice in complaint for complaint in complaints), complaints


def test_what_is_beyond_the_machine_is_told() -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < machine_memory_gib() <= int(total.split()[1]) / 2**20 + 0.01
    small = [f"{role}.{what}" for role in ROLES for what in ("memory_gib=0.01", "cpus=1")]
    at_a_time = [f"{role}.memory_gib={machine_memory_gib() * 0.6}" for role in ("inference", "trainer")]
    for settings, site, words in (
        (small, LocalSite(), []),
        ([f"trainer.cpus={CORES + 1}"], LocalSite(), ["segment-000.trainer", f"{CORES + 1} cores", f"{CORES}:"]),
        (["prepare.memory_gib=100000"], LocalSite(), ["prepare", "100,000 GiB", "resources.*.memory_gib"]),
        ([], LocalSite(cpus=CORES + 7), [f"cpus: {CORES + 7}", f"{CORES}"]),
        (at_a_time, LocalSite(), ["segment-000.trainer and segment-000.inference"]),
    ):
        overrides = [f"resources.{setting}" for setting in (*settings, "report.memory_gib=0.1")]
        complaints = machine_remarks(compile_plan(load_recipe(QUICKSTART, overrides), LocalSite()), site)
        found = any(all(word in complaint for word in words) for complaint in complaints)
        assert found if words else not complaints, complaints


def test_plan_and_submit_warn_and_plan_says_what_submit_would_refuse(tmp_path: Path) -> None:
    """The missing model ends the submission, after the warning and before anything is made."""
    memory = ("--set", "resources.trainer.memory_gib=100000")
    assert "doubtful: " in typed("plan", QUICKSTART, *memory).output
    assert "submit will refuse" in typed("plan", QUICKSTART, "--set", "resources.trainer.gpus=99").output
    missing = ("--set", "model={type: hugging_face, path: no}")
    refused = typed("submit", QUICKSTART, "--run", tmp_path / "run", *missing, *memory, exits=2).stderr
    assert refused.index("GiB of memory") < refused.index("model")
