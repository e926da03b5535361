"""What Slurm's commands print is read by one function each, whatever sites, wrappers and other jobs put between it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML
from slurm_texts import squeue_prints

from mrt_hpc.backends.slurm.answers import squeue_format, squeue_records, submitted_id
from mrt_hpc.backends.slurm.answers import version as version_in
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.queue import queue_states
from mrt_hpc.backends.slurm.survey import (
    Survey,
    User,
    default_account,
    parse_associations,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_settings,
)
from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS: dict[str, list[dict[str, Any]]] = YAML(typ="safe").load(Path(__file__).parent / "slurm_texts" / "answers.yaml")
CASES = [pytest.param(kind, case, id=f"{kind}: {case['source']}") for kind, cases in CORPUS.items() for case in cases]
BEGIN, BETWEEN, END = (
    squeue_format("begin", "end").removeprefix("--format=").replace("begin", "\0").replace("end", "\0").split("\0")
)


def states(printed: str) -> dict[str, str]:
    """Of job 12, which squeue does not list."""
    assert printed is not None
    return {task_id: task.state.value for task_id, task in queue_states(["12"]).items()}


READERS: dict[str, Callable[[str], object]] = {
    "sbatch": lambda printed: submitted_id(printed, ["sbatch"])[0],
    "squeue": lambda printed: squeue_records(printed, 5),
    "sacct": states,
    "nodes": lambda printed: {name: sum(k.count for k in kinds) for name, kinds in parse_nodes(printed).items()},
    "version": lambda printed: list(Survey(User("me"), version_in(printed)).version_numbers or ()) or None,
    "associations": lambda printed: {one.account: one.max_submit_jobs for one in parse_associations(printed)},
    "qos": lambda printed: {one.name: one.max_submit_jobs for one in parse_qos(printed)},
    "default_account": lambda printed: default_account(printed, "researcher"),
    "config": lambda printed: [(found := parse_settings(printed)).max_array_size, found.max_job_count],
    "partitions": lambda printed: list(parse_partitions(printed)),
}
REFUSING = ("sbatch", "squeue")


def written(kind: str, case: dict[str, Any]) -> bytes:
    """The bytes that a command prints in this case."""
    text = case["printed"]
    if kind == "squeue":
        text = text.replace("|", "\0").replace("{", BEGIN).replace("}", END).replace("\0", BETWEEN)
        text = text.replace("!", "|") if case.get("bars") else text
    return text.encode("latin-1" if case.get("latin1") else "utf-8")


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_an_answer_is_read(kind: str, case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answer").write_bytes(written(kind, case))
    (tmp_path / "header").write_text(squeue_prints())
    for name, file in (("command", "answer"), ("sacct", "answer"), ("squeue", "header")):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat {tmp_path}/{file}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    printed, read = run_slurm(["command"]), READERS[kind]
    if case["expected"] is None and kind in REFUSING:
        with pytest.raises(UserError) as refused:
            read(printed)
        assert all(word in str(refused.value.value) for word in printed.split()[-1:])
    else:
        assert read(printed) == case["expected"]


def test_the_corpus_is_large_enough() -> None:
    assert len(CASES) >= 60
