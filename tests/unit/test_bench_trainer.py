"""`tests/benchmarks/bench_trainer_gpu.py` on a CPU: its variants compute one gradient, and it ends with a table."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

FILE = Path(__file__).parents[1] / "benchmarks" / "bench_trainer_gpu.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_trainer_gpu", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_all_variants_compute_the_same_gradient(bench: Any) -> None:
    config = bench.config_of("tiny")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    sequences = bench.sampled(4, bench.SMALLER, config.vocab_size, 0)
    found = {}
    for variant in bench.VARIANTS:
        batches = bench.batches_of(sequences, variant.batching, 100_000)
        assert len(batches) == 1  # so that every variant divides by the same number of tokens
        model.zero_grad(set_to_none=True)
        bench.one_pass(model, variant, batches, float("inf"))
        found[variant.name] = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    first = found[bench.VARIANTS[0].name]
    assert max(float(g.abs().max()) for g in first.values()) > 1e-3  # something was compared
    for gradients in found.values():
        assert gradients.keys() == first.keys()
        assert max(float((gradients[n] - first[n]).abs().max()) for n in first) < 1e-5


def test_it_ends_with_a_table(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "passes.json"
    command = ["bench", "--shape", "tiny", "--device", "cpu", "--seconds", "6", "--peak-tflops", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--sequences", "4", "--output", str(output)])
    bench.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(bench.VARIANTS)
    assert all(passes["seconds"] for passes in json.loads(output.read_text()))


def test_the_flops_are_those_of_the_formula(bench: Any) -> None:
    config = bench.config_of("tiny")
    sequence = bench.sampled(1, bench.SMALLER, config.vocab_size, 0)[0]
    attention = 64 * 64 * 2 + 64 * 32 * 2 + 64 + 32 + 32  # query, output, key and value, and three biases
    layers = 2 * (attention + 3 * 64 * 192 + 2 * 64)
    n = sequence.width
    assert bench.flops(config, [sequence]) == 6 * (n * layers + sequence.trained_tokens * 2048 * 64 + 2 * 64 * n * n)


def test_a_pass_stops_at_its_deadline(bench: Any) -> None:
    config = bench.config_of("tiny")
    model = AutoModelForCausalLM.from_config(config)
    results = bench.measure(model, bench.sampled(2, bench.SMALLER, config.vocab_size, 0), 1024, 0.0)
    assert all(not result.seconds for result in results)
    assert "no time left" in bench.table(results, 1, 1.0, None)
