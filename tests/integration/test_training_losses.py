"""Each loss and aggregation has one gradient, however a mini-batch is divided among rows, micro-batches and ranks."""

import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from deepspeed.utils import safe_get_full_grad
from plain_losses import plain_total
from training_support import branched, in_ranks, plain_logprobs, random_batch, settings, tiny_model
from transformers import AutoModelForCausalLM

from mrt_hpc.recipe.choices import Aggregation, Batching
from mrt_hpc.training.engine import build
from mrt_hpc.training.loss_kinds import LossTokens
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.settings import TrainerSettings, TrainingSequence
from mrt_hpc.training.update_statistics import Tally

sys.path.append(str(Path(__file__).parents[2] / "recipes" / "examples"))  # in each rank as well
TOLERANCE, LONGEST = 1e-5, 40
CASES = [
    *("clipped:token", "cispo:token", "dppo:token", "gspo_token:token", "masked:token", "SoftGate:token"),
    *("clipped:sequence", "dppo:sequence", "gspo_token:sequence", "clipped:constant", "masked:constant"),
]
DIVISIONS = {
    1: ["padded:4000:-", "padded:120:-", "packed:120:-", "shared:70:-", "shared:4000:f"],
    2: ["padded:70:-", "packed:4000:f", "shared:30:-", "packed:120:p", "shared:4000:fp"],
}
"""By the number of ranks, batching:tokens:options of a division; f is the fused projection, and with p both ranks share
each row.
"""
ALL = [(ranks, division) for ranks, divisions in DIVISIONS.items() for division in divisions]


def of_case(case: str, chosen: TrainerSettings) -> TrainerSettings:
    loss, _, aggregation = case.partition(":")
    kind = loss if loss.islower() else f"my_loss:{loss}"
    fields = {**chosen.training.model_dump(), "loss": {"type": kind}, "aggregation": Aggregation(aggregation)}
    return replace(chosen, training=type(chosen.training)(**fields), longest_trace=LONGEST)


def batch() -> list[TrainingSequence]:
    """With a sequence of no trained token, and sequences of no advantage, which are not computed."""
    *others, last = branched(random_batch(0))
    return [*others, replace(last, mask=np.zeros_like(last.mask))]


def perturb(parameters: list[torch.nn.Parameter]) -> None:
    """Weights that another step has left, so that ratios are not 1."""
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=draw))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("losses")
    model = tiny_model(directory / "model")
    for ranks, divisions in DIVISIONS.items():
        in_ranks(measure_all, [model, directory, *divisions], ranks, directory)
    return directory


@cache
def plain(folder: Path) -> dict[str, tuple[float, dict[str, torch.Tensor]]]:
    """The loss and the gradients of each case, one sequence after the other, in 64 bits."""
    sequences, temperature = batch(), settings().temperature
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
    mask = torch.from_numpy(np.concatenate([s.mask for s in sequences]))
    with torch.no_grad():
        old = torch.cat([plain_logprobs(model, s, temperature) for s in sequences])[mask]
    perturb([*model.parameters()])
    logprobs = torch.cat([plain_logprobs(model, s, temperature) for s in sequences])[mask]
    advantages, behaviour = (
        torch.from_numpy(np.concatenate([getattr(s, name) for s in sequences])).double()[mask]
        for name in ("advantages", "behaviour_logprobs")
    )
    numbers = torch.cat([torch.full((len(s.token_ids),), i) for i, s in enumerate(sequences)])[mask]
    lengths = numbers.bincount(minlength=len(sequences))
    divisors = {"token": len(old), "sequence": int((lengths > 0).sum()), "constant": LONGEST * len(sequences)}
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = {}
    for case in CASES:
        training = of_case(case, settings()).training
        tokens = LossTokens(logprobs, old, behaviour, advantages, numbers, lengths[numbers], training)
        loss = plain_total(tokens, training) / divisors[training.aggregation]
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        found[case] = (loss.item(), dict(zip(names, (g.float() for g in gradients), strict=True)))
    return found


@pytest.mark.parametrize(("ranks", "division"), ALL)
def test_a_loss_has_one_gradient_in_every_division(folder: Path, ranks: int, division: str) -> None:
    """Also that of the same loss written token by token, where masked tokens stay in the divisor."""
    found = torch.load(folder / f"{ranks}-{division.replace(':', '-')}.pt", weights_only=True)
    left_out = {case for case in CASES if case.startswith("gspo")} if "p" in division.rpartition(":")[2] else set()
    assert found.pop("micro_batches") == (1 if ":4000:" in division else 3)
    assert found.keys() == {*CASES} - left_out
    for case, (loss, gradients) in found.items():
        expected, by_name = plain(folder)[case]
        assert loss == pytest.approx(expected, abs=TOLERANCE), case
        assert max(float((gradients[name] - by_name[name]).abs().max()) for name in by_name) < TOLERANCE, case
        assert max(float(g.abs().max()) for g in by_name.values()) > 1e-3, "something was compared"


def test_losses_and_aggregations_differ_here(folder: Path) -> None:
    assert min(b - a for a, b in pairwise(sorted(loss for loss, _ in plain(folder).values()))) > 10 * TOLERANCE


# -- in each rank


def measure_all(ranks: Ranks, model: str, output: str, *divisions: str) -> None:
    for division in divisions:
        batching, tokens, options = division.split(":")
        chosen = settings(
            batching=Batching(batching), max_tokens_per_micro_batch=int(tokens),
            projection="fused" if "f" in options else "chunked", sequence_parallel=2 if "p" in options else 1,
        )  # fmt: skip
        found = measure(ranks, model, chosen)
        if ranks.rank == 0:
            torch.save(found, Path(output) / f"{ranks.world_size}-{division.replace(':', '-')}.pt")


def measure(ranks: Ranks, model: str, chosen: TrainerSettings) -> dict[str, object]:
    trainer, found = build(chosen, Path(model), ranks), dict[str, object]()
    mini_batch = trainer.prepare(batch())
    old = trainer.logprobs(mini_batch)
    perturb([*trainer.policy.parameters()])
    for case in CASES:
        trainer.settings = of_case(case, chosen)
        if trainer.settings.training.loss.whole_sequences and chosen.training.sequence_parallel > 1:
            continue
        tally = Tally(torch.device("cpu"))
        trainer.accumulate(trainer.prepare(batch()), old, tally=tally)
        parameters = [(n.removeprefix("model."), p) for n, p in trainer.policy.named_parameters()]
        found[case] = (tally.gather_sums()[0], {n: safe_get_full_grad(p).clone() for n, p in parameters})
        trainer.engine.zero_grad()
    return found | {"micro_batches": len(mini_batch.micro_steps)}
