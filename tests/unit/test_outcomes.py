"""The narrow reading of a shard gives what the whole one gives, and sees the same damage."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from commands import refusal
from evaluated import evaluated_run

from mrt_hpc.analysis.model_samples import evaluated_problems
from mrt_hpc.run.groups import RolloutOutcome, read_group, read_outcomes
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.parquet import read_part


def test_outcomes_are_those_of_the_whole_records_in_any_order_and_damage_is_seen(tmp_path: Path) -> None:
    shard = evaluated_run(tmp_path / "run", 0).evaluation_shard(0, "held-out", 0)
    found = read_outcomes(shard)
    assert evaluated_problems([found]) == evaluated_problems([read_group(shard)])
    assert [rollout.tokens for rollout in found.rollouts] == [70, 50]
    assert len(found.branches) == 20
    turned = replace(found, rollouts=found.rollouts[::-1], branches=found.branches[::-1], values=found.values[::-1])
    assert evaluated_problems([turned]) == evaluated_problems([found])
    path = shard / "rollouts.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["reward"]), path)
    assert isinstance(refusal(read_outcomes, shard), DamagedError)
    assert "reward" in str(refusal(read_part, path, RolloutOutcome))
    path.write_bytes(b"nothing")
    assert isinstance(refusal(read_part, path, RolloutOutcome), DamagedError)
