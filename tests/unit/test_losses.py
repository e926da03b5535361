"""The losses and the learning rate by hand, at ratios that no run should have, and losses of a user's own."""

import math
import shutil
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from basics import ROOT
from commands import python, typed
from plain_losses import plain_objective, plain_total
from ruamel.yaml import YAML
from run_of import run_of
from samples import rollout, sampled
from tables import tables

from mrt_hpc.recipe.choices import Aggregation
from mrt_hpc.recipe.kinds import LOSSES
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.sections import Training
from mrt_hpc.run.groups import commit_group
from mrt_hpc.training.loss_kinds import LossTokens
from mrt_hpc.training.losses import SUMS, TokenLoss, likelihood_loss, policy_loss
from mrt_hpc.training.settings import learning_rate

CLIPS = Training(learning_rate=1e-6, clip_low=0.2, clip_high=0.3, importance_cap=2.0, kl_coefficient=0.0)


def loss_of(*given: torch.Tensor, settings: Training = CLIPS, reference: torch.Tensor | None = None) -> TokenLoss:
    """The loss of one sequence, from log-probabilities, old ones, the sampler's, and advantages."""
    logprobs, old, behaviour, advantages = given
    numbers, lengths = torch.zeros(len(old), dtype=torch.int64), torch.full((len(old),), float(len(old)))
    tokens = LossTokens(logprobs, old, behaviour, advantages, numbers, lengths, settings)
    return policy_loss(tokens, torch.zeros_like(advantages), reference)


def one_token(ratio: float = 1.0, weight: float = 1.0, advantage: float = 1.0) -> tuple[TokenLoss, float]:
    """The loss of a token with pi / pi_old and pi_old / mu as given, and its gradient by log pi."""
    old = torch.tensor([-1.0])
    logprobs = (old + math.log(ratio)).requires_grad_()
    loss = loss_of(logprobs, old, old - math.log(weight), torch.tensor([advantage]))
    loss.total.backward()
    assert logprobs.grad is not None
    return loss, logprobs.grad.item()


def named(loss: TokenLoss) -> dict[str, float]:
    return dict(zip(SUMS, loss.sums.tolist(), strict=True))


def test_clipping() -> None:
    for ratio, advantage, expected, gradient in TABLES["clipping"]:
        loss, actual_gradient = one_token(ratio=ratio, advantage=advantage)
        assert [loss.total.item(), actual_gradient] == pytest.approx([expected, gradient], rel=1e-6)
        assert named(loss)["clipped"] == (gradient == 0.0)


@pytest.mark.parametrize(("weight", "used"), [(0.5, 0.5), (8.0, 2.0)])
def test_importance_weights_are_truncated_and_told_untruncated(weight: float, used: float) -> None:
    loss, gradient = one_token(weight=weight, advantage=3.0)
    assert [loss.total.item(), gradient] == pytest.approx([-3.0 * used] * 2, rel=1e-6)
    assert [named(loss)["mismatch"], loss.largest_mismatch.item()] == pytest.approx([weight] * 2, rel=1e-6)
    assert named(loss)["capped"] == (weight > 2.0)


def test_weight_times_ratio_is_the_ratio_to_the_behaviour_policy_and_a_hopeless_mismatch_stays_finite() -> None:
    assert one_token(ratio=1.1, weight=1.5)[0].total.item() == pytest.approx(-1.65, rel=1e-6)
    old = torch.tensor([-1.0])
    loss = loss_of(old, old, torch.tensor([-200.0]), torch.ones(1))
    assert loss.total.item() == -2.0
    assert all(map(math.isfinite, named(loss).values()))


@pytest.mark.parametrize("steps_apart", [False, True], ids=["on policy", "stale, after several steps"])
def test_the_gradient_of_the_kl_term_is_that_of_the_policy_from_the_reference(steps_apart: bool) -> None:
    """By enumeration of four tokens: the mean over the tokens that the engine samples, each with its probability."""

    def distribution(seed: int) -> torch.Tensor:
        return torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    logits = distribution(1).requires_grad_()
    policy, reference = logits.log_softmax(-1), distribution(2).log_softmax(-1)
    apart = 0.3 if steps_apart else 0.0
    old = (logits.detach() + apart * distribution(3)).log_softmax(-1)
    engine = (old + apart * distribution(4)).log_softmax(-1)
    settings = Training(learning_rate=1e-6, importance_cap=100.0, kl_coefficient=0.5)
    nothing = torch.zeros(1, dtype=torch.float64)
    of_all = [(policy[[a]], old[[a]], engine[[a]], nothing) for a in range(4)]
    losses = [loss_of(*one, settings=settings, reference=reference[[a]]) for a, one in enumerate(of_all)]
    probability = engine.exp()
    mean = torch.stack([p * loss.total for p, loss in zip(probability, losses, strict=True)]).sum()
    (actual,) = torch.autograd.grad(mean, logits, retain_graph=True)
    divergence = (policy.exp() * (policy - reference)).sum()
    (expected,) = torch.autograd.grad(0.5 * divergence, logits)
    assert actual.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    estimate = sum(float(p) * named(loss)["kl_reference"] for p, loss in zip(probability, losses, strict=True))
    assert estimate == pytest.approx(divergence.item(), abs=1e-9)


def test_likelihood() -> None:
    loss = likelihood_loss(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 0.5]), torch.tensor([0.3, 0.4]))
    assert (loss.total.item(), named(loss)["nll"], named(loss)["entropy"]) == (2.0, 3.0, pytest.approx(0.7))


@pytest.mark.parametrize("kind", LOSSES.built_in)
def test_no_tokens_give_a_zero_that_can_be_differentiated(kind: str) -> None:
    """What a filler micro-batch passes through the loss."""
    weight, empty = torch.ones(3, requires_grad=True), torch.zeros(0)
    nothing = weight[:0]
    chosen = Training(learning_rate=1e-6, loss={"type": kind})  # type: ignore[arg-type]
    loss = loss_of(nothing, nothing.detach(), empty, empty, settings=chosen)
    loss.total.backward()
    assert loss.total.item() == 0.0
    assert weight.grad is not None and weight.grad.tolist() == [0.0, 0.0, 0.0]
    assert loss.sums.tolist() == [0.0] * len(SUMS)


def rates(steps: int = 10, **section: object) -> list[float]:
    """The rates of so many steps and of one too many, peak 1."""
    training = Training(**({"learning_rate": 1.0, "warmup_ratio": 0.2} | section))  # type: ignore[arg-type]
    return [learning_rate(step, steps, training) for step in range(steps + 1)]


def test_the_schedule_by_hand() -> None:
    """Linear to the peak, which it stays at or leaves by a cosine, so that the first step and the last one teach."""
    assert rates()[:3] == [0.5, 1.0, 1.0] and rates()[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert rates(4, warmup_ratio=0.5) == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.0])
    assert rates(2, warmup_ratio=0.0) == pytest.approx([1.0, 0.5, 0.0])  # half a cosine over two steps
    assert rates(schedule="constant")[1:] == [1.0] * 10
    assert rates(1, warmup_ratio=0.0, learning_rate=0.3)[0] == 0.3


# -- the losses of the policy gradient by hand, at ratios that no run should have, and of a user's own


TABLES = tables("losses")

EXAMPLES = ROOT / "recipes" / "examples"
OWN = "my_loss:SoftGate"
EVERY = [*LOSSES.built_in, OWN]
LOGS = (-30.0, -5.0, -0.3, -0.1, 0.0, 0.1, 0.3, 5.0, 30.0)


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def settings(loss: str = "clipped", **changes: object) -> Training:
    return Training(**{"learning_rate": 1e-6, "clip_high": 0.28, "loss": {"type": loss}, **changes})  # type: ignore[arg-type]


def tokens_of(log_ratios: torch.Tensor, log_weights: torch.Tensor, chosen: Training) -> LossTokens:
    """Tokens of five sequences that lie in turn, with log pi / pi_old and log pi_old / mu as given."""
    count = len(log_ratios)
    policy = torch.stack([log_ratios, log_ratios + log_weights, torch.zeros(count)]).min(0).values - 0.2
    numbers = torch.arange(count) % 5
    advantages = torch.linspace(-2, 2, count)[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    lengths = numbers.bincount()[numbers].float()
    old, behaviour = policy - log_ratios, policy - log_ratios - log_weights
    return LossTokens(policy.requires_grad_(), old, behaviour, advantages, numbers, lengths, chosen)


def doubled(tokens: LossTokens) -> LossTokens:
    """The same in 64 bits."""
    names = ("logprobs", "old_logprobs", "behaviour_logprobs", "advantages", "sequence_tokens")
    wide = {name: getattr(tokens, name).detach().double() for name in names}
    wide["logprobs"].requires_grad_()
    return replace(tokens, **wide)


def gradient(total: torch.Tensor, tokens: LossTokens) -> torch.Tensor:
    (found,) = torch.autograd.grad(total, tokens.logprobs)
    return found


def near(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Log-probabilities of -60 in 32 bits have an error of 2e-6, and a ratio has that error as its relative one."""
    return bool(first.isfinite().all()) and torch.allclose(first.double(), second.double(), rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("aggregation", [Aggregation.TOKEN, Aggregation.SEQUENCE])
@pytest.mark.parametrize("loss", EVERY)
def test_a_loss_is_that_of_the_page_at_extreme_ratios(loss: str, aggregation: Aggregation) -> None:
    chosen = settings(loss, aggregation=aggregation, kl_coefficient=0.1)
    tokens = tokens_of(*torch.tensor([*product(LOGS, LOGS)]).T, chosen)
    wide = doubled(tokens)
    count, reference = len(tokens.logprobs), tokens.logprobs.detach() + 0.1
    found = policy_loss(tokens, torch.zeros(count), reference)
    expected = plain_total(wide, chosen, reference.double())
    assert near(chosen.loss.objective(tokens), plain_objective(wide, chosen))  # type: ignore[attr-defined]
    assert near(found.total, expected) and bool(found.sums.isfinite().all())
    assert near(gradient(found.total, tokens), gradient(expected, wide))


@pytest.mark.parametrize("with_reference", [False, True])
def test_the_clipped_loss_has_the_bits_that_it_had_before_there_were_others(with_reference: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    chosen = Training(learning_rate=1e-6, importance_cap=1.5, kl_coefficient=0.1)
    tokens = tokens_of(*(0.5 * torch.randn(2, 1000, generator=draw)), chosen)
    reference = tokens.old_logprobs + 0.1 * torch.randn(1000, generator=draw) if with_reference else None
    total = policy_loss(tokens, torch.zeros(1000), reference).total
    weight = (tokens.old_logprobs - tokens.behaviour_logprobs).clamp(max=20.0).exp().clamp(max=1.5)
    ratio, advantages = (tokens.logprobs - tokens.old_logprobs).exp(), tokens.advantages
    before = -(weight * torch.minimum(ratio * advantages, ratio.clamp(1.0 - 0.2, 1.0 + 0.2) * advantages))
    former = before.sum()
    if reference is not None:
        former = former + 0.1 * (weight * ratio * (tokens.logprobs - reference).detach()).sum()
    assert torch.equal(total, former) and torch.equal(gradient(total, tokens), gradient(former, tokens))


@pytest.mark.parametrize("loss", ["cispo", "dppo", "gspo_token"])
def test_without_staleness_the_first_step_has_one_gradient_by_any_loss(loss: str) -> None:
    """Trainer and server differ by rounding, and one weight is above the cap."""
    weights = 0.02 * torch.randn(50, generator=torch.Generator().manual_seed(2))
    weights[7] = 1.0
    found = []
    for kind in ("clipped", loss):
        tokens = tokens_of(torch.zeros(50), weights, chosen := settings(kind, importance_cap=1.5))
        tokens = replace(tokens, advantages=tokens.advantages * (torch.arange(50) != 7) - 1.0 * (torch.arange(50) == 7))
        assert chosen.loss.type == kind
        found.append(gradient(policy_loss(tokens, torch.zeros(50)).total, tokens))
    assert torch.allclose(*found, rtol=1e-6, atol=1e-7)


def test_the_metrics_count_the_tokens_that_a_loss_bounds_and_the_effective_ones() -> None:
    mismatch, ratio = torch.tensor([1.0, 1.0, 1.0, 9.0]).log(), torch.tensor([1.0, 1.5, 0.5, 1.0]).log()
    shares = {}
    for loss in ("clipped", "cispo", "masked"):
        tokens = replace(tokens_of(ratio, mismatch, settings(loss)), advantages=torch.ones(4))
        shares[loss] = dict(zip(SUMS, policy_loss(tokens, torch.zeros(4)).sums.tolist(), strict=True))
    assert {loss: sums["clipped"] for loss, sums in shares.items()} == {"clipped": 1, "cispo": 2, "masked": 2}
    sums = shares["clipped"]
    assert (sums["mismatch"], sums["mismatch_squared"]) == pytest.approx((12.0, 84.0), rel=1e-5)


def test_a_run_that_began_before_there_were_losses_goes_on_with_the_clipped_one(tmp_path: Path) -> None:
    layout = run_of(tmp_path / "run")
    before, yaml = read_recipe_lock(layout.recipe_lock), YAML(typ="safe", pure=True)
    lock = yaml.load(layout.recipe_lock)
    assert lock["recipe"]["training"].pop("loss") == {"type": "clipped"}
    assert lock["recipe"]["training"].pop("aggregation") == "token"
    yaml.dump(lock, layout.recipe_lock)
    assert read_recipe_lock(layout.recipe_lock) == before


def test_losses_are_checked_without_torch() -> None:
    code = "from mrt_hpc import Loss; from mrt_hpc.recipe.sections import Training; Training(learning_rate=1.0); "
    assert python("-c", code + "import sys; print('torch' in sys.modules)", cwd=ROOT).stdout.strip() == "False"


# -- mrt-hpc check

LOSS = """
from mrt_hpc import Loss


class Mine(Loss):
    type: str

    def objective(self, tokens):
        return BODY


class Whole(Mine):
    whole_sequences = True
"""


@pytest.mark.parametrize(("body", "name", "told"), TABLES["own_losses"])
def test_check_tries_a_loss_of_ones_own_at_extreme_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, name: str, told: str
) -> None:
    layout = run_of(tmp_path / "run")
    commit_group(layout.group(0, 0), sampled(rollout("p-0", 0), rollout("p-0", 1)))
    module = f"mine_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(LOSS.replace("BODY", body))
    shutil.copy(EXAMPLES / "my_loss.py", tmp_path / f"example_{tmp_path.name}.py")
    monkeypatch.chdir(tmp_path)
    done = typed("check", f"{module}:{name}", "--run", layout.root, exits=2 if told else 0)
    failed = [line for line in done.output.splitlines() if line.startswith("failed")]
    assert len(failed) == bool(told) and all(told in line for line in failed), done.output
    option = ("--set", "training.loss.sharpness=2.0")
    assert "ok" in typed("check", f"example_{tmp_path.name}:SoftGate", "--run", layout.root, *option).output
    assert "torch" in sys.modules
