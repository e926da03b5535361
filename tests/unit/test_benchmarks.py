"""Parts of benchmarks that need no GPU and no TRL: `tests/benchmarks/bench_trainer_gpu.py` without an engine, and the
arithmetic and the exchange with a side of `bench_against_trl.py`.
"""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench_against_trl
import bench_trainer_gpu as bench
import paper_sequences
import pytest
import torch
from bench_against_trl import Measured, Turn
from paper_sequences import SMALLER, batches_of, branched, config_of, flops, sampled

from mrt_hpc.recipe.choices import Batching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.training.settings import TrainingSequence

ROOT = Path(__file__).parents[2]
CONFIG = config_of("tiny")
TRACES = sampled(4, SMALLER, CONFIG.vocab_size, 0)
SETS = {"traces": TRACES, "branches": branched(TRACES[:2], SMALLER, CONFIG.vocab_size, 1)}


def gradient(variant: bench.Variant, sequences: list[TrainingSequence], max_tokens: int) -> dict[str, torch.Tensor]:
    """Of the mean over all trained tokens, from a model that is always the same."""
    module = bench.scored(CONFIG, torch.device("cpu"), torch.float32, 0)
    module.choose(variant)
    for batch in batches_of(sequences, variant.batching, max_tokens):
        (module(batch) / sum(s.trained_tokens for s in sequences)).backward()
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", SETS)
def test_all_variants_compute_the_same_gradient(name: str) -> None:
    assert all(len(batches_of(SETS[name], b, 200)) > 1 for b in Batching)  # they divide them differently
    found = [gradient(variant, SETS[name], 200) for variant in bench.VARIANTS]
    assert max(float(g.abs().max()) for g in found[0].values()) > 1e-3  # something was compared
    for gradients in found:
        assert gradients.keys() == found[0].keys()
        assert max(float((gradients[n] - found[0][n]).abs().max()) for n in found[0]) < 1e-5


def test_branches_continue_their_traces() -> None:
    traces, branches = SETS["branches"][:2], SETS["branches"][2:]
    each = paper_sequences.BOUNDARIES * paper_sequences.BRANCHES
    assert len(branches) == 2 * each
    for number, branch in enumerate(branches):
        trace = traces[number // each]
        context = list(branch.prompt_ids)
        assert context == [*trace.prompt_ids, *trace.token_ids][: len(context)]
        assert len(trace.prompt_ids) < len(context) < trace.width
    assert TRACES[0].prompt_ids == TRACES[3].prompt_ids


@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("name", SETS)
def test_the_flops_are_those_of_the_formula(name: str, batching: Batching) -> None:
    """Counted position by position: with that at place n of its sequence, the square grows by 2 n + 1."""
    ids = [tuple([*s.prompt_ids, *s.token_ids][: s.width]) for s in SETS[name]]
    prefixes = [tokens[: n + 1] for tokens in ids for n in range(len(tokens))]
    computed = list(set(prefixes)) if batching is Batching.SHARED else prefixes
    attention = 64 * 64 * 2 + 64 * 32 * 2 + 64 + 32 + 32  # query, output, key and value, and three biases
    layers = 2 * (attention + 3 * 64 * 192 + 2 * 64)
    squares = sum(2 * len(prefix) - 1 for prefix in computed)
    trained = sum(s.trained_tokens for s in SETS[name])
    expected = 6 * (len(computed) * layers + trained * 2048 * 64 + 2 * 64 * squares)
    assert flops(CONFIG, SETS[name], batches_of(SETS[name], batching, 100_000)) == expected
    one, two, three = (flops(config_of("tiny", layers), TRACES, []) for layers in (1, 2, 3))
    assert two - one == three - two > 0, "the layers that there are"


def test_what_would_not_end_in_time_is_skipped_and_told() -> None:
    """The next update is expected to take as long as the longest."""
    trainer: Any = bench.Trainer(CONFIG, torch.device("cpu"), torch.float32)
    results = bench.Series("traces", TRACES, 1024, rounds=2).measure(trainer, deadline=0.0)
    assert all(not r.seconds and r.skipped == 2 for r in results)
    assert bench.table(results, 1, None).count("no time left") == len(bench.VARIANTS)
    first, second = bench.Measured("a", seconds=[2.0, 1.0]), bench.Measured("b")
    assert bench._expected(first, [first, second]) == bench._expected(second, [first, second]) >= 2.0
    assert bench._expected(second, [second]) == 0.0


def test_it_needs_torch_transformers_deepspeed_and_msgspec_alone() -> None:
    """So that it runs on a machine with a GPU where little else is installed."""
    allowed = {*required("torch", "transformers", "deepspeed"), "msgspec", "paper_sequences", *sys.stdlib_module_names}
    found, left = set(), [Path(bench.__file__), Path(paper_sequences.__file__)]
    while left:
        path = left.pop()
        found.add(path)
        for name in imported(path):
            own = ROOT / f"{name.replace('.', '/')}.py"
            if name.startswith("mrt_hpc"):
                left += [own] if own.exists() and own not in found else []
            else:
                assert name.partition(".")[0] in allowed, f"{path} imports {name}"
    assert len(found) > 10  # it follows the imports of this package


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports when it runs, wherever in it the import stands."""
    left: list[ast.AST] = [ast.parse(path.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.ImportFrom):
            yield from (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        left += [] if for_types else ast.iter_child_nodes(node)


def required(*names: str) -> set[str]:
    """Distributions with all that they require without extras, as they are spelt when they are imported."""
    found: set[str] = set()
    left = [*names]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += [re.split(r"[^\w.-]", r)[0].lower() for r in requires(name) or [] if ";" not in r]
    return {name.replace("-", "_") for name in found}


# -- against TRL

SIDE = """
import sys
sys.path.insert(0, {folder!r})
from step_worker import Measured, serve
print("a library writes this")
serve({{"step": lambda: Measured(2.0, 1000, {{"generation": 0.5}}), "fail": lambda: 1 / 0}})
"""


def turn(scale: float, others: float = 0.0) -> Turn:
    phases = {"generation": 1.0, "update": 0.5, "weights": 0.1}
    cpu = {"total": 3.0, "generation": 2.0}
    ours = Measured(2.0, 1000, phases, cpu, 0.0)
    theirs = Measured(4.0 * scale, 2000, phases | {"rewards": 1.0}, cpu, others)
    return Turn(ours, theirs, Measured(1.0, 1000, {"generation": 1.0}, {"total": 1.0}, 0.0))


def test_ratios_are_of_the_same_turn_and_by_generated_token() -> None:
    rows = bench_against_trl.table([turn(1.0), turn(2.0), turn(4.0)])
    assert "| total | 2.0000 | 2.0000 | 2.0000 | 4.0000 | 0.50 (0.25 to 1.00) |" in rows
    assert "| generation | 1.0000 | 1.0000 | 0.5000 | 0.5000 | 2.00 (2.00 to 2.00) |" in rows
    assert "| generation and rewards | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 1.00 (1.00 to 1.00) |" in rows
    beside = "generation beside vLLM alone, processor time"
    assert f"| {beside} | 2.0000 | 2.0000 | 1.0000 | 1.0000 | 2.00 (2.00 to 2.00) |" in rows
    assert turn(1.0, others=0.7).others == 0.7, "a turn is as quiet as its loudest step"


def test_a_side_answers_among_what_libraries_write(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SIDE.format(folder=str(Path(bench.__file__).parent))]
    with bench_against_trl.side("ours", command, {}, tmp_path / "log") as side:
        found = side.measure()
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            side.measure("fail")
    assert (found.seconds, found.tokens, found.phases) == (2.0, 1000, {"generation": 0.5})
    assert found.cpu["total"] >= 0.0
