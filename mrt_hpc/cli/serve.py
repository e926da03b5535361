"""Starts a vLLM server that keeps running between the tasks that use it, for `serving.attach` of a recipe."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.errors import UserError
from mrt_hpc.launch.python_look import no_sampling
from mrt_hpc.recipe.hub_models import refuse_unfetched
from mrt_hpc.recipe.model_files import ModelFiles
from mrt_hpc.recipe.sections.model import HuggingFaceModel

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe

LOOK_EVERY_S = 5.0
"""The seconds between two checks of the server."""


def serve(recipe: Recipe, model: Path | None, key_file: Path, listen: str | None, log: Path) -> None:
    """Serve a recipe's policy until this command is interrupted.

    Args:
        recipe: the recipe whose policy is served.
        model: the directory of the weights to begin with; None takes the recipe's model.
        key_file: the file for the key; only this user can read it.
        listen: ``http://HOST:PORT``; None for a Unix socket on this node.
        log: what vLLM writes goes here.

    Raises:
        UserError: there is no model, or the server does not start, or it has died.
    """
    from mrt_hpc.inference.compiled_code import kept_by_all_runs
    from mrt_hpc.inference.server import VllmServer
    from mrt_hpc.inference.server_control import Address
    from mrt_hpc.inference.server_settings import ServerSettings
    from mrt_hpc.recipe.longest import longest_sequence

    if (error := no_sampling(recipe)) is not None:
        raise error
    serving, prover = recipe.serving, recipe.prover
    model_dir, width = model or _model_of(recipe), serving.tensor_parallel or max(1, recipe.resources.inference.gpus)
    ModelFiles(model_dir, "model.path").check_division(width)
    settings = ServerSettings(
        model_dir=model_dir,
        max_model_len=longest_sequence(recipe),
        dtype=serving.dtype,
        max_num_seqs=serving.max_concurrent_sequences,
        tensor_parallel=width,
        gpu_memory_utilization=serving.gpu_memory_utilization,
        kv_cache_gib=serving.kv_cache_gib,
        cpu_threads=recipe.resources.inference.cpus,
        seed=recipe.seed % 2**32,
        start_deadline_s=serving.start_limit_s,
        noise_by_request=prover is not None and prover.shares_seeds,
        listen=None if listen is None else Address(listen),
        compiled_code=kept_by_all_runs(),
        extra_args=("--enforce-eager",) if serving.enforce_eager else (),
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    log.parent.mkdir(parents=True, exist_ok=True)
    with VllmServer(settings, log) as server:
        _write_key(key_file, server.key)
        place = f"{{address: {server.control.address.text!r}, key_file: {str(key_file.absolute())!r}}}"
        click.echo(f'serving {settings.model_dir} (log: {log}); to use it: --set "serving.attach={place}"')
        try:
            while not stop.wait(LOOK_EVERY_S):
                server.restart_if_dead()
        finally:
            key_file.unlink(missing_ok=True)


def _model_of(recipe: Recipe) -> Path:
    """The recipe's model directory.

    Raises:
        UserError: the small world's model is made by a run; or a model of the hub was not fetched.
    """
    match recipe.model:
        case HuggingFaceModel(path=path):
            refuse_unfetched(path, "model.path")
            return Path(path)
        case _:
            raise UserError(
                "the embedded small world has no model directory before a run has made it",
                advice="mrt-hpc serve RECIPE --model RUN/weights/v000000, of a run that is there",
            )


def _write_key(path: Path, key: str) -> None:
    """Write the key into a file that only this user can read from the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(key)
