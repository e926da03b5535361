"""The peak memory of updates beside what ``plan`` says, each case in a process of its own."""

from typing import Any

from bench_memory import Case, outcome
from memory_worker import TINY, write_model
from paper_sequences import config_of

from mrt_hpc.plan.memory import shape_of
from steps.engines import RECIPE
from steps.record import Record

LONGEST = 20_480  # the tokens of a micro-batch of the recipes


def cases(tiny: bool) -> list[Case]:
    """What fits one GPU of 80 GB of the cases that were reckoned by hand."""
    small, large, tokens = ("small", "small", 64) if tiny else ("1.5b", "7b", LONGEST)
    return [
        Case(small, 2, 1, tokens),
        Case(small, 2, 1, tokens, choices=RECIPE),
        Case(small, 2, 1, tokens, choices={**RECIPE, "offload_optimizer": True}),
        Case(small, 3, 1, tokens, choices={**RECIPE, "offload_optimizer": True}),
        Case(large, 3, 1, tokens, choices=RECIPE),
    ]


def run(record: Record) -> None:
    record.needs_gpu_unless_tiny()
    models = record.folder / "memory"
    write_model(models / "tiny", TINY)
    for case in cases(record.tiny):
        record.part(case.words.strip("| "), measured, record, case)


def measured(record: Record, case: Case) -> dict[str, Any]:
    models = record.folder / "memory"
    shape = shape_of(config_of("tiny" if record.tiny else case.model).to_dict())
    write_model(models / case.model, shape)
    found = outcome(case, models, {})
    return {**found, "ratio": found["predicted"] / found["peak"]}
