"""Access by parameter name to what training changes: the 32-bit weights and Adam's averages, at any ZeRO stage.

In every stage's layout a process holds one piece of a parameter in a flat tensor that the optimiser has a state for.
Only ``_piece`` depends on the stage. DeepSpeed's own access (``safe_get_full_optimizer_state`` and the like) loses the
optimiser state of every parameter group but the first, turns -0.0 into 0.0, and under ZeRO-3 cannot set a parameter
that the number of ranks does not divide.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from mrt_hpc.training.accelerator import device
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.host_memory import copy_to_host

WEIGHT = "weight"
KEYS = (WEIGHT, "exp_avg", "exp_avg_sq")
"""Each in 32 bits and in the parameter's shape."""


@dataclass(frozen=True)
class Piece:
    """The part of a parameter that this process's optimiser updates."""

    flat: torch.Tensor
    """Holds this piece, and possibly other parameters; the key of the optimiser's state."""
    offset: int
    """Where the piece begins in ``flat``."""
    start: int
    """Where the piece begins in the flattened parameter."""
    count: int
    """Elements of the piece, without padding."""


class TrainedState:
    """A view of a trainer between two updates. Copies no tensor until ``gather``."""

    def __init__(self, trainer: TrainerEngine) -> None:
        self._engine = trainer.engine
        self._ranks = trainer.ranks
        self._parameters = {n: p for n, p in trainer.policy.named_parameters() if p.requires_grad}
        self._pieces = {name: self._piece(p) for name, p in self._parameters.items()}
        self._create_missing()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Whole shapes, the same on every rank."""
        return {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in self._parameters.items()}

    @property
    def optimizer_steps(self) -> int:
        """Adam's own step count, the trainer's: neither counts a skipped step."""
        return max(int(self._state(flat)["step"]) for flat in self._flats())

    @optimizer_steps.setter
    def optimizer_steps(self, count: int) -> None:
        for flat in self._flats():
            self._state(flat)["step"].fill_(count)

    def gather(self, name: str, key: str, rank: int) -> torch.Tensor | None:
        """The whole tensor on the CPU of ``rank``, None on other ranks; collective."""
        piece, shape = self._pieces[name], self.shapes[name]
        if not self._engine.zero_optimization():
            assert piece is not None
            whole = self._local(piece, key)
        else:
            # Each element is the sum of one rank's bits and the others' zeros: exact, unlike a sum of floats. The sum
            # is on the device where ranks exchange tensors; the tensors of an offloaded optimiser are elsewhere.
            bits = torch.zeros(math.prod(shape), dtype=torch.int32, device=device())
            if piece is not None:
                bits[piece.start : piece.start + piece.count] = self._local(piece, key).view(torch.int32)
            distributed.reduce(bits, rank)
            whole = bits.view(torch.float32)
        if self._ranks.rank != rank:
            return None
        return (copy_to_host(whole) if whole.is_cuda else whole).view(shape)

    def put(self, name: str, key: str, value: torch.Tensor) -> None:
        """Copy this process's piece out of a whole tensor; call ``synchronise`` after the last one."""
        piece = self._pieces[name]
        if piece is not None:
            self._local(piece, key).copy_(value.reshape(-1)[piece.start : piece.start + piece.count])

    def holds(self, name: str) -> bool:
        return self._pieces[name] is not None

    @torch.no_grad()
    def synchronise(self) -> None:
        """Update the weights of the forward pass from those of the optimiser; collective."""
        optimizer = self._engine.optimizer
        if self._engine.zero_optimization_partition_weights():
            for group in range(len(optimizer.fp32_partitioned_groups_flat)):
                optimizer._reassign_or_swap_out_partitioned_parameters(group)
            if optimizer.persistent_parameters:
                optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)
                optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)
        elif self._engine.zero_optimization():
            optimizer.update_lp_params()

    def _piece(self, parameter: Any) -> Piece | None:
        optimizer = self._engine.optimizer
        if not self._engine.zero_optimization():
            return Piece(parameter, 0, 0, parameter.numel())
        if self._engine.zero_optimization_partition_weights():
            group, offset, padded = optimizer.grad_position[optimizer.get_param_id(parameter)]
            start = padded * self._ranks.rank
            count = min(padded, parameter.ds_numel - start)
            return Piece(optimizer.fp32_partitioned_groups_flat[group], offset, start, count) if count > 0 else None
        mapping = parameter._hp_mapping
        if mapping is None:
            return None
        (flat,) = optimizer.optimizer.param_groups[mapping.param_group_index]["params"]
        ours, its = mapping.hp_fragment_address, mapping.lp_fragment_address
        return Piece(flat, ours.start, its.start, its.numel)

    def _local(self, piece: Piece, key: str) -> torch.Tensor:
        """The piece itself, not a copy."""
        whole = piece.flat.detach() if key == WEIGHT else self._state(piece.flat)[key]
        assert whole.dtype == torch.float32
        return whole.view(-1)[piece.offset : piece.offset + piece.count]

    @property
    def _adam(self) -> torch.optim.Optimizer:
        optimizer = self._engine.optimizer
        return optimizer.optimizer if self._engine.zero_optimization() else optimizer

    def _flats(self) -> list[torch.Tensor]:
        if self._engine.zero_optimization_partition_weights():
            return list(self._engine.optimizer.fp32_partitioned_groups_flat)
        return [p for group in self._adam.param_groups for p in group["params"]]

    def _state(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self._adam.state[flat]
        return state

    def _create_missing(self) -> None:
        """Create the state before the optimiser's first step, as it would itself."""
        for flat in self._flats():
            if not (state := self._state(flat)):
                state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
                state["exp_avg"] = torch.zeros_like(flat, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(flat, memory_format=torch.preserve_format)
