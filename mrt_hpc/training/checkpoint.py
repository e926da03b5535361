"""The trainer's resumable state: weights and optimiser by parameter name, the position in the data.

It does not depend on the writer's number of ranks, ZeRO stage or precision; a trainer of the same shape continues bit
for bit. Random generators are seeded each iteration. It holds no pickle.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run import atomic, manifest
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST, PLACE, FileSum, read_manifest, unreadable, verify
from mrt_hpc.run.retries import list_directory, retry_action
from mrt_hpc.run.safetensors_file import Bytes, is_finite, not_finite, refuse_not_finite
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.rank_messages import agree, exchange, run_on_rank_zero, together
from mrt_hpc.training.trained_state import KEYS, TrainedState

STATE = "state.json"
FILE_BYTES = 2 << 30
"""Per file, unless one parameter is larger; also the memory that a rank uses for its share."""
BYTES_PER_ELEMENT = 4 * len(KEYS)


@dataclass(frozen=True)
class TensorFile:
    name: str
    rank: int
    parameters: tuple[str, ...]


def save(trainer: TrainerEngine, path: Path, cursor: dict[str, Any], **about: Any) -> bool:
    """Write a checkpoint; collective. An error on one rank is raised on all, and no partial checkpoint is left.

    Args:
        path: from ``RunLayout.checkpoint``.
        cursor: the run's progress as JSON; ``load`` gives it back.

    Returns:
        False when a checkpoint existed already; it is kept.

    Raises:
        OSError: a disk is full (ENOSPC, EDQUOT).
        UserError: any other failure of a rank.
    """
    trained = TrainedState(trainer)
    temporary = Path(run_on_rank_zero(lambda: str(atomic.temporary_sibling(path))))
    run_on_rank_zero(lambda: atomic.make_folder(temporary))
    try:
        own, failure = _write_share(trained, temporary, trainer.ranks.rank, trainer.ranks.world_size)
        agree(failure)
        shares = exchange(own)
        state = {
            "step": trainer.step,
            "optimizer_steps": trained.optimizer_steps,
            "world_size": trainer.ranks.world_size,
            "zero_stage": trainer.settings.training.zero_stage,
            "precision": trainer.settings.training.precision.value,
            "cursor": cursor,
        }

        def commit() -> bool:
            atomic.write_json(temporary / STATE, state)
            files = {name: (size, digest) for share in shares for name, (size, digest) in share.items()}
            whole = {"step": trainer.step, PLACE: manifest.place_of(path), **about}
            manifest.write_manifest(temporary, files, **whole)
            return atomic.commit_directory(temporary, path)

        return run_on_rank_zero(commit)
    finally:
        if trainer.ranks.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)


def load(trainer: TrainerEngine, path: Path) -> dict[str, Any]:
    """Restore a checkpoint that ``good`` has found and return its cursor; collective. Refuses another
    format or model.
    """
    state, files = run_on_rank_zero(lambda: list[Any](_contents(path)))
    trained = TrainedState(trainer)
    together(lambda: _take_up(trained, path, files))
    trained.optimizer_steps = state["optimizer_steps"]
    trained.synchronise()
    trainer.step = state["step"]
    return dict(state["cursor"])


def second_moments(path: Path) -> tuple[dict[str, torch.Tensor], int]:
    """By parameter, and Adam's steps."""
    verify(path)
    state, files = _contents(path)
    moments = dict[str, torch.Tensor]()
    for file in files:
        with safe_open(path / file, framework="pt") as tensors:
            labels = [_split_label(label) for label in tensors.keys()]  # noqa: SIM118 (no mapping)
            moments |= {name: tensors.get_tensor(_label(name, key)) for name, key in labels if key == "exp_avg_sq"}
    return moments, int(state["optimizer_steps"])


def good(checkpoints: Path, on_bad: Callable[[Path, UserError], None]) -> Path | None:
    """The newest undamaged checkpoint; reads all of it, so only one process should call it. ``on_bad`` is called with
    each newer damaged one.

    Raises:
        UserError: one cannot be read at the moment, which is no reason to pass it over.
    """
    for path in reversed(_numbered_entries(checkpoints)):
        try:
            retry_action(partial(verify, path), f"reading {path}")
            retry_action(partial(_contents, path), f"reading {path}")
            retry_action(partial(refuse_not_finite, path), f"reading {path}")
        except UserError as error:
            if not path.exists():  # it was removed while it was read: newer ones exist by now
                return good(checkpoints, on_bad)
            on_bad(path, error)
        except Exception as error:  # damage may cause any error; the next older checkpoint may be intact
            if manifest.is_of_the_filesystem(error):
                raise unreadable(path, error) from error
            on_bad(path, _unusable(f"the checkpoint cannot be read: {error!r}", path))
        else:
            return path
    return None


def retain(checkpoints: Path, keep: int) -> list[Path]:
    """Keep the newest ``keep`` checkpoints; return the removed ones. Also removes leftovers of dead writers, so only
    one process may call it.
    """
    doomed = [p for p in _numbered_entries(checkpoints) if (p / MANIFEST).is_file()][: -max(1, keep)]
    for path in doomed:
        atomic.remove_whole(path)
    atomic.remove_leftovers(checkpoints)
    return doomed


def plan_files(shapes: dict[str, tuple[int, ...]], world_size: int) -> list[list[TensorFile]]:
    """The same on every rank: rounds of at most one file per rank, in even shares."""
    loads = [0] * world_size
    chunks: list[list[list[str]]] = [[] for _ in range(world_size)]
    room = [0] * world_size
    for name, shape in shapes.items():
        size = BYTES_PER_ELEMENT * math.prod(shape)
        rank = loads.index(min(loads))
        loads[rank] += size
        if not chunks[rank] or size > room[rank]:
            chunks[rank].append([])
            room[rank] = FILE_BYTES
        chunks[rank][-1].append(name)
        room[rank] -= size
    total = sum(len(own) for own in chunks)
    rounds, numbers = [], count()
    for turn in range(max((len(own) for own in chunks), default=0)):
        files = [
            TensorFile(f"tensors-{next(numbers):05d}-of-{total:05d}.safetensors", rank, tuple(own[turn]))
            for rank, own in enumerate(chunks)
            if turn < len(own)
        ]
        rounds.append(files)
    return rounds


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> FileSum:
    """Write finite 32-bit tensors as a safetensors file and flush it to the disk.

    safetensors' own writer hides the number of an error, and replaces an existing file. The checksum is computed from
    memory while the disk is busy, so that no rank has to read another's file.
    """
    if bad := [name for name, tensor in tensors.items() if not is_finite("F32", _bytes(tensor))]:
        raise UserError(
            f"the trainer's state is not finite, and no checkpoint is written: {not_finite(bad)}",
            where=path.parent,
            expected="finite weights, and finite averages of the optimiser",
            advice="mrt-hpc submit RUN continues from the checkpoint before it; if it ends here again: "
            "mrt-hpc fork RUN --at last --set training.learning_rate=RATE, a lower one",
        )
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    parts: list[Any] = [len(text).to_bytes(8, "little") + text]
    parts += [tensor.contiguous().numpy().astype("<f4", copy=False).data for tensor in tensors.values()]
    with ThreadPoolExecutor(1) as beside, path.open("wb") as stream:
        digest = beside.submit(_sha256, parts)
        stream.writelines(parts)
        stream.flush()
        os.fsync(stream.fileno())
    return 8 + len(text) + offset, digest.result()


def _bytes(tensor: torch.Tensor) -> Bytes:
    return tensor.contiguous().numpy().reshape(-1).view("u1")


def _sha256(parts: list[Any]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _write_share(
    trained: TrainedState, directory: Path, rank: int, world_size: int
) -> tuple[dict[str, FileSum], Exception | None]:
    """Gather each parameter on the rank that writes it. A rank that cannot write continues to gather, as the others
    wait for it, and returns its error with the files so far.
    """
    failure: Exception | None = None
    sums: dict[str, FileSum] = {}
    for files in plan_files(trained.shapes, world_size):
        share: dict[str, torch.Tensor] = {}
        wanted = ((file, name, key) for file in files for name in file.parameters for key in KEYS)
        for file, name, key in wanted:
            tensor = trained.gather(name, key, file.rank)
            if tensor is not None and failure is None:
                share[_label(name, key)] = tensor
        own = [file for file in files if file.rank == rank]
        if own and failure is None:
            try:
                sums[own[0].name] = write_tensors(directory / own[0].name, share)
            except Exception as error:
                failure = error
    return sums, failure


def _take_up(trained: TrainedState, directory: Path, files: list[str]) -> None:
    """One tensor at a time, after a check that all fit."""
    shapes = trained.shapes
    wanted = {_label(name, key): shape for name, shape in shapes.items() for key in KEYS}
    stored: dict[str, tuple[int, ...]] = {}
    for file in files:
        with safe_open(directory / file, framework="pt") as tensors:
            stored |= {label: tuple(tensors.get_slice(label).get_shape()) for label in tensors.keys()}  # noqa: SIM118
    if stored != wanted:
        differing = sorted(label for label in stored.keys() | wanted.keys() if stored.get(label) != wanted.get(label))
        raise UserError(
            "the checkpoint is of another model",
            where=directory,
            value={label: stored.get(label) for label in differing[:3]},
            expected=str({label: wanted.get(label) for label in differing[:3]}),
            advice="continue with the model that the run began with, or submit the recipe with another --run directory",
        )
    for file in files:
        with safe_open(directory / file, framework="pt") as tensors:
            for label in tensors.keys():  # noqa: SIM118 (no mapping)
                name, key = _split_label(label)
                if trained.holds(name):
                    trained.put(name, key, tensors.get_tensor(label))


def _contents(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The manifest's state and names of tensor files; the files are not checked."""
    stored = read_manifest(path).files
    files = sorted(name for name in stored if name.endswith(".safetensors"))
    if STATE not in stored or not files:
        raise _unusable("the directory is not a checkpoint of this format", path)
    return json.loads((path / STATE).read_bytes()), files


def _unusable(what: str, where: Path) -> UserError:
    expected = f"a checkpoint with {STATE} and tensors in safetensors files"
    advice = "continue from an older checkpoint, or from the beginning"
    return UserError(what, where=where, expected=expected, advice=advice, exit_code=ExitCode.FATAL)


def _label(name: str, key: str) -> str:
    return f"{name}|{key}"


def _split_label(label: str) -> tuple[str, str]:
    name, _, key = label.rpartition("|")
    return name, key


def _numbered_entries(checkpoints: Path) -> list[Path]:
    numbered = ((RunLayout.step_of(p), p) for p in list_directory(checkpoints))
    return [p for _, p in sorted((number, p) for number, p in numbered if number is not None)]
