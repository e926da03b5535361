"""What a plan asks of this machine is held against what the machine has, before it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.local.slots import beyond_machine, machine_memory_gib
from mrt_hpc.cli.main import main
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Plan

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
CORES = len(os.sched_getaffinity(0))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def changed(*overrides: str) -> Plan:
    return compile_plan(load_recipe(QUICKSTART, overrides), LocalSite())


def test_the_memory_of_this_machine_is_at_most_what_the_kernel_counts() -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < machine_memory_gib() <= int(total.split()[1]) / 2**20 + 0.01


def test_what_fits_is_told_nothing() -> None:
    small = [
        f"resources.{role}.memory_gib=0.01" for role in ("prepare", "inference", "trainer", "evaluation", "report")
    ]
    few = [f"resources.{role}.cpus=1" for role in ("prepare", "inference", "trainer", "evaluation", "report")]
    assert beyond_machine(changed(*small, *few), LocalSite()) == []


@pytest.mark.parametrize(
    ("setting", "site", "words"),
    [
        (
            f"resources.trainer.cpus={CORES + 1}",
            LocalSite(),
            ["segment-000.trainer", f"{CORES + 1} cores", f"{CORES}:"],
        ),
        ("resources.prepare.memory_gib=100000", LocalSite(), ["prepare", "100,000 GiB", "resources.*.memory_gib"]),
        ("resources.inference.memory_gib=90000", LocalSite(), ["GiB of memory", "segment-000.inference"]),
        ("seed=0", LocalSite(cpus=CORES + 7), [f"cpus: {CORES + 7}", f"{CORES}"]),
    ],
)
def test_what_is_beyond_the_machine_is_told(setting: str, site: LocalSite, words: list[str]) -> None:
    told = beyond_machine(changed(setting, "resources.report.memory_gib=0.1"), site)
    assert any(all(word in sentence for word in words) for sentence in told), told


def test_the_memory_of_tasks_that_run_at_a_time_is_added_up() -> None:
    each = machine_memory_gib() * 0.6
    told = beyond_machine(
        changed(f"resources.inference.memory_gib={each}", f"resources.trainer.memory_gib={each}"), LocalSite()
    )
    assert any("segment-000.trainer and segment-000.inference" in sentence for sentence in told)


def test_plan_warns_and_says_what_submit_would_refuse() -> None:
    told = invoke("plan", str(QUICKSTART), "--set", "resources.trainer.memory_gib=100000")
    assert told.exit_code == 0
    assert "doubtful: " in told.output
    told = invoke("plan", str(QUICKSTART), "--set", "resources.trainer.gpus=99")
    assert told.exit_code == 0
    assert "beyond this machine, submit will refuse: a segment needs 99 GPUs" in told.output


def test_submit_warns_of_too_much_memory(tmp_path: Path) -> None:
    """The missing model ends the submission, after the warning and before anything is made."""
    missing = "model={type: hugging_face, path: no}"
    memory = "resources.trainer.memory_gib=100000"
    told = invoke("submit", str(QUICKSTART), "--run", str(tmp_path / "run"), "--set", missing, "--set", memory)
    assert told.exit_code == 2
    assert "GiB of memory" in told.stderr
    assert "no model directory" in told.stderr
