"""The paper's five benchmarks, evaluated on a real cluster as an array, pushed out once on the way.

Answers are judged only after the push, so that no task can end before it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from slurm_cluster import REPOSITORY, Cluster, wait_for_end
from slurm_recipes import accounting, options, site_file
from slurm_verifier import HELD_FROM, HELD_S, HELD_UNTIL
from submitted import latest_ids

from mrt_hpc.analysis.collect import read_summary
from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.run.events import EventKind, events_by_process, read_events
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DATA = REPOSITORY.parent / "shared" / "data"
FILES = {"aime24": "aime24", "aime25": "aime25", "amc23": "amc23", "minerva": "minerva_math", "math500": "math500"}
PROBLEMS = int(os.environ.get("MRT_HPC_TEST_PROBLEMS", "4"))
"""The number of problems of each benchmark; 500 evaluates all of them."""
CHANGES = {
    "evaluation.prompt.instruction": "''",
    "evaluation.max_prompt_tokens": 2048,  # the small world's tokenizer has a token for each letter
    "evaluation.dtype": "float32",
    "evaluation.max_tokens": 32,
    "evaluation.problem_shards": 1,
    "grading.time_limit_s": HELD_S,
    "serving": "{kv_cache_gib: 0.5, enforce_eager: true, max_concurrent_sequences: 64}",
    "resources.prepare.cpus": 1,
    "resources.evaluation": "{cpus: 1, memory_gib: 6, time_limit_minutes: 60, max_parallel: 2}",
    "resilience.heartbeat_limit_s": 5.0,
}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the benchmarks are not there: {DATA}")
@pytest.mark.timeout(3000)
def test_the_five_benchmarks_are_evaluated_through_a_preemption(cluster: Cluster) -> None:
    folder = cluster.run_dir("evaluation")
    model, data = folder / "model", folder / "data"
    shutil.copytree(STARTING_MODEL, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2560}))
    shortened(data)
    pushed = evaluated(cluster, folder, "pushed", data, preempted=True)
    calm = evaluated(cluster, folder, "calm", data, preempted=False)
    assert numbers(pushed) == numbers(calm), "the numbers of an evaluation that nothing disturbed"
    if PROBLEMS <= 30:
        assert {summary["problems"] for summary in numbers(calm).values()} == {PROBLEMS}

    again = cluster.mrt_hpc(*command(cluster, folder, "again", data, results="pushed-results"), timeout=300)
    assert again.returncode == 0, again.stderr
    layout = RunLayout(folder / "again")
    wait_for_end(latest_ids(layout), seconds=900)
    assert numbers(layout) == numbers(calm)
    assert not kinds(layout, EventKind.SERVER_STARTED), "nothing is generated when it is asked for once more"


def shortened(data: Path) -> None:
    """The first problems of each benchmark, as the suite names them."""
    data.mkdir()
    for name in FILES.values():
        lines = (DATA / f"{name}.jsonl").read_text().splitlines()[:PROBLEMS]
        (data / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def command(cluster: Cluster, folder: Path, name: str, data: Path, results: str) -> Sequence[str]:
    run = folder / name
    held = {HELD_FROM: str(folder), HELD_UNTIL: str(released(folder))}
    environment = {**cluster.site().environment, **held}
    site = site_file(cluster, run, partitions={"cpu": "preempt"}, environment=environment)
    benchmarks = [f"evaluation.benchmarks.{number}" for number in range(len(FILES))]
    samples = {f"{benchmark}.samples": 2 for benchmark in benchmarks}
    verifiers = {f"{benchmark}.problems.verifier": "slurm_verifier:HeldVerifier" for benchmark in benchmarks}
    where = ["--data", str(data), "--results", str(folder / results), "--run", str(run), "--site", str(site)]
    return ["eval", str(folder / "model"), "--suite", "paper_20", *where, *options({**CHANGES, **samples, **verifiers})]


def released(folder: Path) -> Path:
    """The file that lets answers be judged."""
    return folder / "judge"


def evaluated(cluster: Cluster, folder: Path, name: str, data: Path, *, preempted: bool) -> RunLayout:
    """Evaluate the model with a results folder of its own."""
    sent = cluster.mrt_hpc(*command(cluster, folder, name, data, f"{name}-results"), timeout=300)
    assert sent.returncode == 0, sent.stderr
    layout = RunLayout(folder / name)
    ids = latest_ids(layout)
    assert set(ids) == {"prepare", "evaluation", "report"}
    if preempted:
        node = wait_until(lambda: node_at_work(layout), reason="an evaluation at work", deadline_s=900)
        wait_for_end({"important": cluster.push_out(node)}, seconds=300)
        released(folder).touch()
    states = wait_for_end(ids, seconds=2000)
    print(accounting(ids.values()))
    assert {state.state for state in states.values()} == {QueueState.COMPLETED}
    assert layout.report.is_file(), cluster.mrt_hpc("logs", str(layout.root), "--all").stdout
    if preempted:
        attempts = [str(event["attempt"]) for event in kinds(layout, EventKind.TASK_STARTED)]
        assert any(attempt.endswith(".1") for attempt in attempts), "a task that was pushed out has started again"
    return layout


def node_at_work(layout: RunLayout) -> str | None:
    """The node of a task that has its server; it cannot end while its answers wait."""
    for events in events_by_process(layout.events):
        if any(event["kind"] == EventKind.SERVER_STARTED for event in events):
            task_id = events[0]["attempt"].rpartition(".")[0]
            asked = ["squeue", "-h", "-j", task_id, "-o", "%N"]
            return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return None


def kinds(layout: RunLayout, kind: EventKind) -> list[dict[str, object]]:
    return [event for event in read_events(layout.events) if event["kind"] == kind]


def numbers(layout: RunLayout) -> dict[str, dict[str, object]]:
    """All that was measured, without times and without the digest of the settings."""
    found = {}
    for name in FILES:
        summary = json.loads(read_summary(layout, 0, name).model_dump_json(exclude={"seconds"}))
        shard = layout.evaluation_shard(0, name, 0)
        found[name] = {**summary, "weights": read_manifest(shard).about["weights"]}
    return found
