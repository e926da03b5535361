"""Access by parameter name to what training changes: the 32-bit weights and Adam's averages, at any ZeRO stage.

Each stage has its own layout, but in all of them a process holds one piece of a parameter in a flat tensor that the
optimiser has a state for. Everything here works on these pieces: it copies bits, and only ``_piece`` depends on the
stage. DeepSpeed's own access (``safe_get_full_optimizer_state`` and the like) is not used: it loses the
optimiser state of every parameter group but the first (it links them after the first group's first step), turns -0.0
into 0.0, and under ZeRO-3 cannot set a parameter that the number of ranks does not divide.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from mrt_hpc.training.accelerator import device
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.host_memory import to_host

WEIGHT = "weight"
KEYS = (WEIGHT, "exp_avg", "exp_avg_sq")
"""The tensors kept for every parameter, each in 32 bits and in the parameter's shape."""


@dataclass(frozen=True)
class Piece:
    """The part of one parameter that this process's optimiser updates."""

    flat: torch.Tensor
    """The flat tensor that holds this piece, and possibly other parameters; the key of the optimiser's state."""
    offset: int
    """The index in ``flat`` at which the piece begins."""
    start: int
    """The index in the flattened parameter at which the piece begins."""
    count: int
    """The number of elements of the piece, without padding."""


class TrainedState:
    """A view of a trainer between two updates. It copies no tensor until ``gather`` is called."""

    def __init__(self, trainer: TrainerEngine) -> None:
        self._engine = trainer.engine
        self._ranks = trainer.ranks
        self._parameters = {n: p for n, p in trainer.policy.named_parameters() if p.requires_grad}
        self._pieces = {name: self._piece(p) for name, p in self._parameters.items()}
        self._create_missing()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The whole shape of every trained parameter, the same on every rank."""
        return {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in self._parameters.items()}

    @property
    def optimizer_steps(self) -> int:
        """Adam's own step count, which is the trainer's: neither counts a step that was skipped."""
        return max(int(self._state(flat)["step"]) for flat in self._flats())

    @optimizer_steps.setter
    def optimizer_steps(self, count: int) -> None:
        for flat in self._flats():
            self._state(flat)["step"].fill_(count)

    def gather(self, name: str, key: str, rank: int) -> torch.Tensor | None:
        """Return the whole tensor on the CPU of ``rank``, and None on the other ranks; collective."""
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
        return (to_host(whole) if whole.is_cuda else whole).view(shape)

    def put(self, name: str, key: str, value: torch.Tensor) -> None:
        """Copy this process's piece out of a whole tensor; call ``synchronise`` after the last one."""
        piece = self._pieces[name]
        if piece is not None:
            self._local(piece, key).copy_(value.reshape(-1)[piece.start : piece.start + piece.count])

    def holds(self, name: str) -> bool:
        """Whether this process has a piece of that parameter."""
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
        """Return the piece itself, not a copy."""
        whole = piece.flat.detach() if key == WEIGHT else self._state(piece.flat)[key]
        assert whole.dtype == torch.float32
        return whole.view(-1)[piece.offset : piece.offset + piece.count]

    def _flats(self) -> list[torch.Tensor]:
        """Return every tensor that the optimiser has a state for."""
        optimizer = self._engine.optimizer
        if self._engine.zero_optimization_partition_weights():
            return list(optimizer.fp32_partitioned_groups_flat)
        adam = optimizer.optimizer if self._engine.zero_optimization() else optimizer
        return [p for group in adam.param_groups for p in group["params"]]

    def _state(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        optimizer = self._engine.optimizer
        adam = optimizer.optimizer if self._engine.zero_optimization() else optimizer
        state: dict[str, torch.Tensor] = adam.state[flat]
        return state

    def _create_missing(self) -> None:
        """Create the optimiser's state before its first step, equal to the one that it would create itself."""
        for flat in self._flats():
            state = self._state(flat)
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
                state["exp_avg"] = torch.zeros_like(flat, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(flat, memory_format=torch.preserve_format)
