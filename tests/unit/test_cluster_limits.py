"""What a cluster says of its limits is held against the plan before anything is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.backends.slurm import cluster_limits as slurm_limits
from mrt_hpc.backends.slurm.cluster_limits import beyond, closed_partitions, cluster_limits
from mrt_hpc.backends.slurm.site import Partitions, SlurmSite
from mrt_hpc.backends.slurm.survey import ClusterSettings, PartitionFacts
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.recipe.load import load_recipe

if TYPE_CHECKING:
    import pytest

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
CONFIG = "Configuration data as of 2026-01-01\nMaxArraySize            = 10\nMaxJobCount             = 60\n"
LISTING = (
    "PartitionName=short AllowGroups=ALL Default=YES DefaultTime=00:10:00 MaxTime=01:30:00 State=UP TotalCPUs=16\n"
    "PartitionName=long Default=NO MaxTime=2-00:00:00 State=DOWN\nPartitionName=free Default=NO MaxTime=UNLIMITED\n"
)
SETTINGS = ClusterSettings(max_array_size=10, max_job_count=60)
PARTITIONS = {
    "short": PartitionFacts("short", "UP", is_default=True, max_minutes=90),
    "long": PartitionFacts("long", "DOWN", max_minutes=2880),
    "free": PartitionFacts("free"),
}


def complaints(site: SlurmSite, *changes: str, settings: ClusterSettings = SETTINGS) -> list[str]:
    minutes = tuple(
        f"resources.{role}.time_limit_minutes=60" for role in ("prepare", "inference", "trainer", "evaluation")
    )
    plan = build_plan(load_recipe(QUICKSTART, (*minutes, *changes)), max_array_size=site.max_array_size)
    return beyond(plan, site, settings, PARTITIONS)


def test_slurms_own_words_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_limits, "run_slurm", lambda command, _: CONFIG if "config" in command else LISTING)
    monkeypatch.setattr(slurm_limits.shutil, "which", lambda _: "/usr/bin/scontrol")
    assert (found := cluster_limits()) is not None
    assert (found[0].max_array_size, found[0].max_job_count, found[1]) == (10, 60, PARTITIONS)


def test_without_slurm_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cluster_limits() is None


def test_a_plan_within_the_limits_is_not_complained_of() -> None:
    assert complaints(SlurmSite(name="x")) == []
    assert complaints(SlurmSite(name="x"), "resources.inference.tasks=30", settings=ClusterSettings()) == []


def test_the_field_that_is_wrong_is_named() -> None:
    (said,) = complaints(SlurmSite(name="x"), "resources.inference.tasks=12")
    assert said.endswith("set max_array_size: 10")
    (said,) = complaints(SlurmSite(name="x", max_array_size=10), "evaluation.problem_shards=35")
    assert "set max_submit_jobs: 60 or less" in said
    (said,) = complaints(SlurmSite(name="x", partitions=Partitions(cpu="lon")))
    assert said == "there is no partition lon: set partitions.cpu to one or more of short, long, free"


def test_a_time_limit_longer_than_the_partitions_is_named() -> None:
    longer = "resources.trainer.time_limit_minutes=91"
    (said,) = complaints(SlurmSite(name="x"), longer)
    assert "set max_time_minutes: 90" in said
    assert complaints(SlurmSite(name="x", partitions=Partitions(cpu="short,long")), longer) == []
    assert complaints(SlurmSite(name="x", partitions=Partitions(cpu="free")), longer) == []
    assert complaints(SlurmSite(name="x", qos="long"), longer) == [], "a QOS may lift it"


def test_a_partition_that_starts_nothing_is_told() -> None:
    plan = build_plan(load_recipe(QUICKSTART), max_array_size=None)
    site = SlurmSite(name="x", partitions=Partitions(cpu="long"))
    assert closed_partitions(plan, site, PARTITIONS) == ["partition long is DOWN and starts no jobs"]
