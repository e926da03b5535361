"""Stopping and going on: the same bits in the same shape, the same training in any other, and no damage unnoticed."""

import errno
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_of import bare_run
from safetensors.torch import load_file, save_file
from tables import tables
from training_support import in_ranks, random_batch, settings, tiny_model

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Batching, Precision
from mrt_hpc.run import atomic, manifest, weights
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST, verify, write_manifest
from mrt_hpc.training import checkpoint, export
from mrt_hpc.training.engine import build
from mrt_hpc.training.rank_messages import run_on_rank_zero
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.trained_state import KEYS, TrainedState

pytestmark = pytest.mark.timeout(2400)  # the processes of the fixture go through many shapes
SHAPES = {  # stages and precisions by the number of ranks
    1: [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (0, "bf16"), (3, "bf16_autocast")],
    2: [*((stage, "fp32") for stage in range(4)), *product((0, 2, 3), ("bf16", "bf16_autocast"))],
}
CASES = [(ranks, *shape) for ranks, shapes in SHAPES.items() for shape in shapes]
CHANGES = [tuple(change) for change in tables("training_checkpoint")["changes"]]
SHARED_ROWS = {"stage": 3, "precision": "fp32", "batching": "packed", "sequence_parallel": 2}
"""A trainer of two ranks that share each row."""


def name(stage: int, precision: str) -> str:
    return f"straight-{stage}-{precision}"


def resumed(change: tuple[int, int, str, int, int, str]) -> str:
    return "-".join(["resumed", *map(str, change)])


def unnamed_run(root: Path) -> Path:
    """A run directory of a version that gave runs no names: its checkpoints may be copied to another run."""
    RunLayout(root).recipe_lock.touch()
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What trainers of one and two ranks did in one go, and what others did from their checkpoints."""
    run = unnamed_run(tmp_path_factory.mktemp("checkpoints"))
    model = tiny_model(run / "model", hidden=33)
    for ranks, shapes in SHAPES.items():
        jobs: list[dict[str, Any]] = [
            {"name": name(s, p), "stage": s, "precision": p, "save": f"{ranks}-{s}-{p}"} for s, p in shapes
        ]
        jobs += [SHARED_ROWS | {"name": "shared-rows", "save": "shared-rows"}] if ranks == 2 else []
        in_ranks(do_jobs, [model, run, jobs], ranks, run)
    for ranks, shapes in SHAPES.items():
        jobs = []
        for s, p in shapes:
            jobs += [{"name": f"again-{s}-{p}", "stage": s, "precision": p, "load": f"{ranks}-{s}-{p}", "bits": True}]
        for change in (c for c in CHANGES if c[3] == ranks):
            wrote, shape = "-".join(map(str, change[:3])), {"stage": change[4], "precision": change[5]}
            jobs += [shape | {"name": resumed(change), "load": wrote}]
        shape = SHARED_ROWS if ranks == 2 else {"stage": 3, "precision": "fp32"}
        jobs += [shape | {"name": "rows-changed", "load": {1: "shared-rows", 2: "1-3-fp32"}[ranks]}]
        in_ranks(do_jobs, [model, run, jobs], ranks, run)
    return run


def seen(folder: Path, job: str, ranks: int, rank: int = 0) -> dict[str, Any]:
    return json.loads((folder / f"{job}-{ranks}-{rank}.json").read_text())


@pytest.mark.parametrize(("ranks", "stage", "precision"), CASES)
def test_a_new_process_goes_on_bit_by_bit(ranks: int, stage: int, precision: str, folder: Path) -> None:
    for rank in range(ranks):
        straight = seen(folder, name(stage, precision), ranks, rank)
        again = seen(folder, f"again-{stage}-{precision}", ranks, rank)
        assert again["cursor"] == {"iteration": 2, "seen": [0.1, None]}
        assert again["optimizer_steps"] == straight["optimizer_steps"] == 5
        for ours, theirs in zip(again["updates"], straight["updates"], strict=True):
            timeless = {k for k in theirs if not k.startswith("seconds")}
            assert {k: ours[k] for k in timeless} == {k: theirs[k] for k in timeless}
        assert again["same_bits"] is True, "of weights and averages, -0.0 and what is not a number included"
    runs = [f"{job}-{ranks}" for job in (f"again-{stage}-{precision}", name(stage, precision))]
    ours, theirs = (verify(RunLayout(folder / run).weights_version(1)).files["model.safetensors"] for run in runs)
    assert ours == theirs, "size and checksum"


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: resumed(c).removeprefix("resumed-"))
def test_a_trainer_of_another_shape_learns_the_same(change: tuple[int, int, str, int, int, str], folder: Path) -> None:
    ranks, stage, precision, other_ranks, _, other_precision = change
    tolerance = 1e-5 if precision == other_precision == "fp32" else 3e-2
    learns_the_same(seen(folder, resumed(change), other_ranks), seen(folder, name(stage, precision), ranks), tolerance)


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_that_ranks_share_leave_checkpoints_that_others_go_on_from(ranks: int, folder: Path) -> None:
    """And a trainer whose ranks share rows goes on from those of others."""
    straight = seen(folder, name(3, "fp32"), 1)
    learns_the_same(seen(folder, "rows-changed", ranks), straight, 1e-5)
    learns_the_same(seen(folder, "shared-rows", 2), straight, 1e-5)


def learns_the_same(other: dict[str, Any], straight: dict[str, Any], tolerance: float) -> None:
    assert other["optimizer_steps"] == straight["optimizer_steps"]
    for ours, theirs in zip(other["updates"], straight["updates"], strict=True):
        assert (ours["step"], ours["learning_rate"]) == (theirs["step"], theirs["learning_rate"])
        for measure in ("loss", "nll", "entropy", "grad_norm"):
            assert ours[measure] == pytest.approx(theirs[measure], rel=tolerance, abs=tolerance / 10), measure


def test_every_rank_writes_its_share_of_a_checkpoint(folder: Path) -> None:
    path = RunLayout(folder / "2-3-bf16").checkpoint(2)
    tensors = [f"tensors-{n:05d}-of-00002.safetensors" for n in range(2)]
    assert {p.name for p in path.iterdir()} == {MANIFEST, "state.json", *tensors}
    sizes = [(path / n).stat().st_size for n in tensors]
    assert max(sizes) < 1.3 * min(sizes)


@pytest.mark.parametrize("stage", [0, 3])
def test_what_one_rank_cannot_write_fails_on_all_at_once(stage: int, folder: Path, tmp_path: Path) -> None:
    ours, theirs = in_ranks(save_with_failures, [folder / "model", unnamed_run(tmp_path), stage], 2, tmp_path)
    for case, failure in ours.items():
        assert failure["left"] == theirs[case]["left"] == [], case
        assert max(failure.pop("s"), theirs[case].pop("s")) < 30, case
        assert failure == theirs[case]
    full, quota = ("OSError", errno.ENOSPC), ("OSError", errno.EDQUOT)
    raised = {"full-1": full, "full-0": full, "taken-1": ("UserError", None), "quota-0": quota, "state-0": quota}
    assert {case: (f["type"], f["errno"]) for case, f in ours.items()} == raised
    assert "rank 1" in ours["full-1"]["text"] and "Is a directory" in ours["taken-1"]["text"]
    path = RunLayout(tmp_path).checkpoint(1)
    verify(path)
    assert len(list(path.glob("tensors-*.safetensors"))) > 4


def test_files_are_shared_out_evenly_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 12 * 1000)
    shapes = {"embedding": (50, 100)} | {f"layer.{n}.{p}": (n + 1, 30) for n in range(8) for p in "abc"}
    rounds = checkpoint.plan_files(shapes, 3)
    files = [file for files in rounds for file in files]
    assert sorted(p for f in files for p in f.parameters) == sorted(shapes)
    assert all(len({f.rank for f in files}) == len(files) for files in rounds)
    sizes = {f.name: 12 * sum(math.prod(shapes[p]) for p in f.parameters) for f in files}
    assert all(sizes[f.name] <= 12 * 1000 or len(f.parameters) == 1 for f in files)
    others = [sum(sizes[f.name] for f in files if f.rank == rank) for rank in (1, 2)]
    assert abs(others[0] - others[1]) <= 12 * 240
    assert [f.rank for fs in checkpoint.plan_files({"one": (3,)}, 4) for f in fs] == [0]  # no share, no file


@pytest.fixture
def three(folder: Path, tmp_path: Path) -> Path:
    checkpoints = RunLayout(tmp_path).checkpoints
    for step in (1, 2, 3):
        shutil.copytree(RunLayout(folder / "2-2-fp32").checkpoint(2), RunLayout(tmp_path).checkpoint(step))
    return checkpoints


def good(checkpoints: Path) -> tuple[Path | None, list[tuple[str, str]]]:
    """The newest sound checkpoint, and the names of those that are passed over, each with the reason."""
    bad: list[tuple[str, str]] = []
    return checkpoint.good(checkpoints, lambda path, error: bad.append((path.name, str(error)))), bad


PART = "tensors-00001-of-00002.safetensors"


def make_infinite(path: Path) -> None:
    tensors = load_file(path / PART)
    next(iter(tensors.values())).view(-1)[-1] = math.inf
    save_file(tensors, path / PART)
    seal(path)


def seal(path: Path) -> None:
    (path / MANIFEST).unlink(missing_ok=True)
    write_manifest(path, step=2)


def break_the_reader(path: Path) -> None:
    """With a manifest that no one foresaw."""
    content = json.loads((path / MANIFEST).read_text())
    content["files"]["state.json"][0] = math.inf
    (path / MANIFEST).write_text(json.dumps(content))


def remove_state(path: Path) -> None:
    """Seal the checkpoint again without its state."""
    (path / checkpoint.STATE).unlink()
    seal(path)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: os.truncate(path / PART, (path / PART).stat().st_size - 100), PART),
    (lambda path: (path / MANIFEST).unlink(), "no readable manifest"),
    (make_infinite, "a NaN or an infinity: "),
    (break_the_reader, ""),
    (remove_state, "not a checkpoint of this format"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_damage_is_passed_over_and_reported(damage: Callable[[Path], object], reason: str, three: Path) -> None:
    assert good(three) == (three / "step000003", [])
    damage(three / "step000003")
    found, [(name, why)] = good(three)
    assert (found, name) == (three / "step000002", "step000003") and reason in why


def test_only_complete_checkpoints_count_and_the_newest_stay(three: Path) -> None:
    """Each that is passed over is reported, newest first; there may be none."""
    (three / ".step000004.tmp-0123").mkdir()
    for step in (3, 2):
        (three / f"step{step:06d}" / MANIFEST).unlink()
    found, bad = good(three)
    assert found == three / "step000001" and [name for name, _ in bad] == ["step000003", "step000002"]
    seal(three / "step000002")
    assert checkpoint.retain(three, 1) == [three / "step000001"]
    assert sorted(p.name for p in three.iterdir()) == ["step000002", "step000003"]
    (three / "step000002" / MANIFEST).unlink()
    assert good(three)[0] is good(three / "nowhere")[0] is None


def test_a_checkpoint_that_cannot_be_read_now_is_not_passed_over(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a filesystem that is away for a minute would send the run back to its beginning."""

    def away(_: Path) -> None:
        raise OSError(errno.ESHUTDOWN, "the server has sent this client away")

    for reader in ("verify", "_contents"):
        with monkeypatch.context() as patch, pytest.raises(UserError, match="sent this client away"):
            patch.setattr(checkpoint, reader, away)
            checkpoint.good(three, lambda path, _: pytest.fail(str(path)))


def test_what_is_removed_while_it_is_read_is_looked_for_again(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = checkpoint.verify

    def slow(path: Path) -> None:
        if path.name == "step000003":
            shutil.move(path, three / "step000004")
        verify(path)

    monkeypatch.setattr(checkpoint, "verify", slow)
    assert good(three) == (three / "step000004", [])


def test_one_of_another_model_is_refused_before_anything_changes(one_rank: Ranks, folder: Path, tmp_path: Path) -> None:
    trainer = build(settings(), tiny_model(tmp_path / "model"), one_rank)
    before = [p.detach().clone() for p in trainer.policy.parameters()]
    with pytest.raises(UserError, match="another model"):
        checkpoint.load(trainer, RunLayout(folder / "1-0-fp32").checkpoint(2))
    assert all(map(torch.equal, trainer.policy.parameters(), before)) and trainer.step == 0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_trainer_that_never_stepped_can_be_saved(stage: int, one_rank: Ranks, folder: Path, tmp_path: Path) -> None:
    path = bare_run(tmp_path).checkpoint(0)
    straight, again, untouched = (build(settings(zero_stage=stage), folder / "model", one_rank) for _ in range(3))
    checkpoint.save(straight, path, {})
    again.update(random_batch(9))
    checkpoint.load(again, path)
    expected, *others = (trainer.update(random_batch(0)) for trainer in (untouched, straight, again))
    for stats in others:
        assert (stats.loss, stats.grad_norm, stats.step) == (expected.loss, expected.grad_norm, 1)
    states = [TrainedState(trainer) for trainer in (straight, again, untouched)]
    assert states[1].optimizer_steps == 1
    for name, key in product(states[0].shapes, KEYS):
        ours, theirs, plain = (state.gather(name, key, 0) for state in states)
        assert torch.equal(ours, theirs) and torch.equal(ours, plain)


@given(data=st.data())
@hypothesis.settings(max_examples=300, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_no_damage_passes_for_a_good_checkpoint(data: st.DataObject, folder: Path, tmp_path: Path) -> None:
    """Flipped, cut and deleted at any place of any file: found, unless the content is what was written."""
    source = RunLayout(folder / "2-2-fp32").checkpoint(2)
    path = RunLayout(tmp_path).checkpoint(2)
    shutil.copytree(source, path, dirs_exist_ok=True)
    victim = path / data.draw(st.sampled_from(sorted(p.name for p in source.iterdir())))
    content = bytearray(victim.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "replace", "cut", "delete"])):
        case "flip":
            content[place] ^= 1 << place % 8
        case "replace":
            content[place] = data.draw(st.integers(0, 255))
        case "cut":
            content = content[:place]
        case _:
            content.clear()
    victim.write_bytes(content) if content else victim.unlink()
    found, bad = good(path.parent)
    assert (found is None) == (len(bad) == 1)
    assert found is None or victim.name == MANIFEST or content == (source / victim.name).read_bytes()


# -- in each rank: trainers that stop and go on


def do_jobs(ranks: Ranks, model: str, run: str, jobs: list[dict[str, Any]]) -> None:
    for job in jobs:
        seen = do(job, Path(model), Path(run), ranks)
        (Path(run) / f"{job['name']}-{ranks.world_size}-{ranks.rank}.json").write_text(json.dumps(seen))


def same_bits(trained: TrainedState, ranks: Ranks) -> bool:
    """Whether what is put comes back from ``gather`` with the same bits, on every rank, for every parameter."""
    same = True
    for name, shape in trained.shapes.items():
        for number, key in enumerate(KEYS):
            bits = torch.arange(math.prod(shape), dtype=torch.int32) * 7919 + number
            bits[:4] = torch.tensor([-0.0, math.nan, math.inf, 1e-42]).view(torch.int32)
            trained.put(name, key, bits.view(torch.float32).view(shape))
            for rank in range(ranks.world_size):
                whole = trained.gather(name, key, rank)
                assert (whole is None) == (rank != ranks.rank)
                if whole is not None:
                    same &= whole.shape == shape and torch.equal(whole.reshape(-1).view(torch.int32), bits)
    return same


def do(job: dict[str, Any], model: Path, run: Path, ranks: Ranks) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    chosen = settings(
        zero_stage=job["stage"], precision=Precision(job["precision"]),
        batching=Batching(job.get("batching", "padded")), sequence_parallel=job.get("sequence_parallel", 1),
    )  # fmt: skip
    trainer = build(chosen, model, ranks)
    if "load" in job:
        seen["cursor"] = checkpoint.load(trainer, RunLayout(run / job["load"]).checkpoint(2))
    else:
        for seed in (0, 1):
            trainer.update(random_batch(seed, sequences=8))
        if "save" in job:
            path = RunLayout(run / job["save"]).checkpoint(2)
            assert checkpoint.save(trainer, path, {"iteration": 2, "seen": [0.1, None]})
            assert not checkpoint.save(trainer, path, {"iteration": 99})
    seen["updates"] = [trainer.update(random_batch(seed, sequences=8)).as_dict() for seed in (2, 3, 4)]
    layout = RunLayout(run / f"{job['name']}-{ranks.world_size}")
    exported = export.gather_weights(trainer, "float32")
    assert run_on_rank_zero(lambda: weights.publish(layout, 1, exported.write))
    trained = TrainedState(trainer)
    seen["optimizer_steps"] = trained.optimizer_steps
    seen["same_bits"] = same_bits(trained, ranks) if job.get("bits") else None
    return seen


# -- in each rank: saves that fail

SMALL_FILES = 12_000  # bytes: several rounds of files, so that ranks must go on gathering after a failure


def on_full_disk(write: Callable[..., object], path: Path, tensors: dict[str, torch.Tensor]) -> object:
    """Write into a file for which the system has no room. Its name is a link to /dev/full, so that nothing that renames
    or removes the name touches the device.
    """
    path.symlink_to("/dev/full")
    return write(path, tensors)


def where_a_directory_stands(write: Callable[..., object], path: Path, tensors: dict[str, torch.Tensor]) -> object:
    path.mkdir()
    return write(path, tensors)


def on_a_full_quota(_: Callable[..., object], path: Path, *__: object, **___: object) -> object:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))


FAILURES: dict[str, tuple[int, ModuleType, str, Callable[..., Any]]] = {
    "full-1": (1, checkpoint, "write_tensors", on_full_disk),
    "full-0": (0, checkpoint, "write_tensors", on_full_disk),
    "taken-1": (1, checkpoint, "write_tensors", where_a_directory_stands),
    "quota-0": (0, manifest, "write_manifest", on_a_full_quota),
    "state-0": (0, atomic, "commit_directory", on_a_full_quota),
}


def attempt(case: str, path: Path, ranks: Ranks, trainer: Any) -> dict[str, Any]:
    failing_rank, module, function, wrong = FAILURES[case]
    write = getattr(module, function)
    started = time.monotonic()
    try:
        with mock.patch.object(module, function, partial(wrong, write) if ranks.rank == failing_rank else write):
            checkpoint.save(trainer, path, {})
    except (OSError, UserError) as error:
        number = error.errno if isinstance(error, OSError) else None
        return {"type": type(error).__name__, "errno": number, "text": str(error), "s": time.monotonic() - started}
    return {"type": None}


def save_with_failures(ranks: Ranks, model: str, run: str, stage: int) -> dict[str, Any]:
    """Save with one thing after another going wrong, then go back and on."""
    layout = RunLayout(Path(run))
    checkpoint.FILE_BYTES = SMALL_FILES
    trainer = build(settings(zero_stage=stage), Path(model), ranks)
    trainer.update(random_batch(0))
    seen: dict[str, Any] = {}
    for case in FAILURES:
        seen[case] = attempt(case, layout.checkpoint(1), ranks, trainer)
        torch.distributed.barrier()
        seen[case]["left"] = sorted(p.name for p in layout.checkpoints.iterdir())
        torch.distributed.barrier()
    assert checkpoint.save(trainer, layout.checkpoint(1), {"whole": True})
    updates = [trainer.update(random_batch(seed)) for seed in (1, 2)]
    assert checkpoint.load(trainer, layout.checkpoint(1)) == {"whole": True}  # back to where it was
    updates += [trainer.update(random_batch(seed)) for seed in (1, 2)]
    numbers = [(u.step, u.loss, u.nll, u.grad_norm) for u in updates]
    assert numbers[:2] == numbers[2:]
    return seen
