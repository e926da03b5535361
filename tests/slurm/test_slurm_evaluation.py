"""One of the paper's benchmarks, evaluated on a real cluster by a task that is pushed out once on the way, and by a run
that nothing disturbs. The answers of the first are judged only after the push, so that this task cannot end before.
"""

import json
import shutil
from pathlib import Path

import pytest
from run_of import read_events
from slurm_cluster import REPOSITORY, Cluster, wait_for_end
from slurm_submissions import accounting, all_logs, beside_verifier, options, site_file
from slurm_verifier import HELD_FROM, HELD_S, HELD_UNTIL
from submitted import latest_ids

from mrt_hpc.analysis.measures import read_summary
from mrt_hpc.backends.slurm.queue import QueueState
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.retries import wait_until

DATA = REPOSITORY.parent / "shared" / "data"
NAME, PROBLEMS = "math500", 4
CHANGES = {
    "evaluation.prompt.instruction": "''",
    "evaluation.max_prompt_tokens": 2048,  # the small world's tokenizer has a token for each letter
    "evaluation.dtype": "float32",
    "evaluation.max_tokens": 32,
    "evaluation.problem_shards": 1,
    "grading.time_limit_s": HELD_S,
    "serving": "{kv_cache_gib: 0.5, enforce_eager: true, max_concurrent_sequences: 64}",
    "resources.prepare.cpus": 1,
    "resources.evaluation": "{cpus: 1, memory_gib: 6, time_limit_minutes: 60}",
    "resilience.heartbeat_limit_s": 5.0,
}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the benchmarks are not there: {DATA}")
@pytest.mark.timeout(1500)
def test_a_benchmark_is_evaluated_through_a_preemption(cluster: Cluster) -> None:
    folder = cluster.folder("evaluation")
    model, release = folder / "model", folder / "judge"
    shutil.copytree(STARTING_MODEL, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2560}))
    lines = (DATA / f"{NAME}.jsonl").read_text().splitlines()[:PROBLEMS]
    (folder / f"{NAME}.jsonl").write_text("\n".join(lines) + "\n")

    node = cluster.as_user("sinfo", "-h", "-N", "-p", "cpu", "-o", "%N").stdout.split()[0]
    pushed = evaluation(cluster, folder / "pushed", {"nodelist": node}, release)
    calm = evaluation(cluster, folder / "calm", {"exclude": node}, folder)
    at_work = "an evaluation at work, which cannot end while its answers wait"
    wait_until(lambda: read_events(pushed.events, EventKind.SERVER_STARTED), reason=at_work, deadline_s=900)
    wait_for_end({"important": cluster.push_out(node)})
    release.touch()
    for layout in (pushed, calm):
        ids = latest_ids(layout)
        assert set(ids) == {"prepare", "evaluation", "report"}
        states = wait_for_end(ids, seconds=1200)
        print(accounting(ids.values()))
        assert {state.state for state in states.values()} == {QueueState.COMPLETED}
        assert layout.report.is_file(), all_logs(cluster, layout)
    attempts = [str(event["attempt"]) for event in read_events(pushed.events, EventKind.TASK_STARTED)]
    assert any(attempt.endswith(".1") for attempt in attempts), "a task that was pushed out has started again"
    assert numbers(pushed) == numbers(calm), "the numbers of an evaluation that nothing disturbed"
    assert numbers(calm)["problems"] == PROBLEMS


def evaluation(cluster: Cluster, run: Path, sbatch: dict[str, str], release: Path) -> RunLayout:
    """Submit one with a results folder of its own, whose answers wait for ``release``."""
    environment = {**cluster.site().environment, HELD_FROM: str(run.parent), HELD_UNTIL: str(release)}
    site = site_file(cluster, run, partitions={"cpu": "preempt"}, sbatch=sbatch, environment=environment)
    source = "verifier: 'slurm_verifier:HeldVerifier', extraction: after_thought"
    problems = f"{{type: jsonl, path: {run.parent / f'{NAME}.jsonl'}, {source}}}"
    changes = {**CHANGES, "evaluation.benchmarks": f"[{{name: {NAME}, samples: 2, problems: {problems}}}]"}
    suite = beside_verifier(run, cluster.checkout / "recipes/suites/paper_20.yaml")
    where = ["--results", str(run.parent / f"{run.name}-results"), "--run", str(run), "--site", str(site)]
    sent = cluster.mrt_hpc(
        "eval", str(run.parent / "model"), "--suite", str(suite), *where, *options(changes), timeout=300
    )
    assert sent.returncode == 0, sent.stderr
    return RunLayout(run)


def numbers(layout: RunLayout) -> dict[str, object]:
    """All that was measured, without times and without the digest of the settings."""
    summary = json.loads(read_summary(layout, 0, NAME).model_dump_json(exclude={"seconds"}))
    return {**summary, "weights": read_manifest(layout.evaluation_shard(0, NAME, 0)).about["weights"]}
