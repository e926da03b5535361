"""The optimiser of the warm start, against its definition and against torch's own, which computes in bfloat16."""

import torch
from torch.nn import Parameter

from mrt_hpc.domains.small_world.warm_start import Muon

LEARNING_RATE, MOMENTUM, STEPS = 0.01, 0.9, 4


def stepped(make: type[torch.optim.Optimizer], shapes: list[tuple[int, int]], **options: object) -> list[torch.Tensor]:
    torch.manual_seed(0)
    matrices = [Parameter(torch.randn(shape)) for shape in shapes]
    before = [matrix.detach().clone() for matrix in matrices]
    optimiser = make(matrices, LEARNING_RATE, momentum=MOMENTUM, **options)  # type: ignore[call-arg]
    for _ in range(STEPS):
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix)
        optimiser.step()
    return [matrix.detach() - start for matrix, start in zip(matrices, before, strict=True)]


def test_matrices_of_several_shapes_move_as_with_the_optimiser_of_torch() -> None:
    shapes = [(24, 64), (64, 24), (24, 64), (24, 24)]
    mine = stepped(Muon, shapes)
    other = stepped(torch.optim.Muon, shapes, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for one, two in zip(mine, other, strict=True):
        assert torch.linalg.norm(one - two) < 0.02 * torch.linalg.norm(two)  # bfloat16 has three digits
