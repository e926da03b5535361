"""The losses and the learning rate by hand."""

import math

import pytest
import torch

from mrt_hpc.recipe.kinds import LOSSES
from mrt_hpc.recipe.sections import Training
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
    for ratio, advantage, expected, gradient in (
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.6, 0.0),  # beyond 1 + high: clipped, no gradient
        (0.5, 2.0, -1.0, -1.0),  # a good token that became rare is always pulled back
        (0.5, -2.0, 1.6, 0.0),  # beyond 1 - low: clipped
        (1.5, -2.0, 3.0, 3.0),
    ):
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
    losses = [
        loss_of(policy[[a]], old[[a]], engine[[a]], nothing, settings=settings, reference=reference[[a]])
        for a in range(4)
    ]
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
    assert rates()[:3] == [0.5, 1.0, 1.0]
    assert rates()[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert rates(4, warmup_ratio=0.5) == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.0])
    assert rates(2, warmup_ratio=0.0) == pytest.approx([1.0, 0.5, 0.0])  # half a cosine over two steps
    assert rates(schedule="constant")[1:] == [1.0] * 10
    assert rates(1, warmup_ratio=0.0, learning_rate=0.3)[0] == 0.3
