"""One rank of an inference task of two nodes, both of them on this machine; without a server.

usage: ray_rank_worker.py RUN RANK
"""

import sys
from pathlib import Path

from mrt_hpc.attempt.signals import heed_signals
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling.ray_cluster import join_nodes, lend_node, release_ranks
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.events import EventLog, event_file
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Observer

JOB, ATTEMPT = "segment-000.inference", "1"
RECIPE = Path(__file__).parents[2] / "recipes" / "small_world" / "grpo.yaml"


def task_of(root: Path, rank: int) -> Task:
    recipe = load_recipe(RECIPE, ("resources.inference.nodes=2", "serving.start_limit_s=240"))
    plan, layout = build_plan(recipe, max_array_size=None), RunLayout(root)
    events = EventLog(event_file(layout.events, JOB, 0, rank, ATTEMPT))
    return Task(
        layout=layout, experiment=recipe, plan=plan, job=plan.job(JOB), index=0, rank=rank, world_size=2,
        local_rank=rank, attempt=ATTEMPT, events=events, observer=Observer(60.0),
    )  # fmt: skip


def main() -> None:
    task = task_of(Path(sys.argv[1]), int(sys.argv[2]))
    heed_signals(task)
    if task.rank:
        lend_node(task)
        return
    with release_ranks(task), join_nodes(task) as node:
        assert node is not None
        print(node.pid, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
