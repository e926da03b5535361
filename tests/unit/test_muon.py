"""The optimiser of the warm start, against its definition and against torch's own, which computes in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from mrt_hpc.domains.small_world.warm_start import RMS_OF_ADAMW, Muon, orthogonal

LEARNING_RATE, MOMENTUM, STEPS = 0.01, 0.9, 4


def stepped(make: type[torch.optim.Optimizer], shapes: list[tuple[int, int]], **options: object) -> list[torch.Tensor]:
    """The matrices after some steps with the same gradients."""
    torch.manual_seed(0)
    matrices = [Parameter(torch.randn(shape)) for shape in shapes]
    before = [matrix.detach().clone() for matrix in matrices]
    optimiser = make(matrices, LEARNING_RATE, momentum=MOMENTUM, **options)  # type: ignore[call-arg]
    for _ in range(STEPS):
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix)
        optimiser.step()
    return [matrix.detach() - start for matrix, start in zip(matrices, before, strict=True)]


def test_singular_vectors_stay_and_singular_values_come_near_one() -> None:
    torch.manual_seed(1)
    matrices = torch.randn(3, 16, 40)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    rotated = left.mT @ orthogonal(matrices) @ right.mT
    values = torch.diagonal(rotated, dim1=1, dim2=2)
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert (rotated - torch.diag_embed(values)).abs().max() < 1e-3


def test_matrices_of_several_shapes_move_as_with_the_optimiser_of_torch() -> None:
    shapes = [(24, 64), (64, 24), (24, 64), (24, 24)]
    mine = stepped(Muon, shapes)
    other = stepped(torch.optim.Muon, shapes, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for one, two in zip(mine, other, strict=True):
        assert torch.linalg.norm(one - two) < 0.02 * torch.linalg.norm(two)  # bfloat16 has three digits


@pytest.mark.parametrize("shape", [(24, 64), (64, 24)])
def test_an_update_is_as_large_as_one_of_adamw(shape: tuple[int, int]) -> None:
    [moved] = stepped(Muon, [shape])
    a_step = moved.square().mean().sqrt() / STEPS**0.5 / LEARNING_RATE
    assert a_step == pytest.approx(RMS_OF_ADAMW, rel=0.5)


def test_a_matrix_without_a_gradient_stays() -> None:
    moving, still = Parameter(torch.ones(4, 8)), Parameter(torch.ones(4, 8))
    optimiser = Muon([moving, still], LEARNING_RATE, MOMENTUM)
    moving.grad = torch.ones(4, 8)
    optimiser.step()
    assert torch.equal(still, torch.ones(4, 8))
    assert not torch.equal(moving, torch.ones(4, 8))
