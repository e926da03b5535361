"""``mrt-hpc model`` fetches models before a run, on a node with network access; ``mrt-hpc serve`` starts a vLLM server
that keeps running between the tasks that use it, for `serving.attach` of a recipe.
"""

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options
from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe

LOOK_EVERY_S = 5.0
"""The seconds between two checks of a server."""


@click.group(short_help="Fetch models from the Hugging Face hub.")
def model() -> None:
    """Fetch models from the Hugging Face hub, as compute nodes have no network.

    \b
    Examples:
      mrt-hpc model fetch deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
    """


@model.command(short_help="Fetch a model into the hub's cache.")
@click.argument("name", metavar="OWNER/NAME[@REVISION]")
@click.option(
    "--cache",
    type=options.FOLDER,
    help="The hub's cache. Default: that of HF_HUB_CACHE or HF_HOME, else ~/.cache/huggingface/hub.",
)
def fetch(name: str, cache: Path | None) -> None:
    """Fetch the model OWNER/NAME into the hub's cache, where recipes find it as hub:OWNER/NAME.

    Only configuration, tokenizer and safetensors are fetched. Each file is compared with the hub's checksum. REVISION
    is a branch, a tag or a commit; the commit that it means now is kept. After an interruption the same command
    fetches the files that are missing. Type it on a node with network access, and put the cache on a filesystem that
    the compute nodes share.

    \b
    Examples:
      mrt-hpc model fetch deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
      mrt-hpc model fetch agentica-org/DeepScaleR-1.5B-Preview --cache /shared/me/hub
    """
    from mrt_hpc.hub import fetch_model
    from mrt_hpc.recipe.hub_models import HubModel, cache_directory

    place, asked = None if cache is None else cache.expanduser().absolute(), HubModel.of(name)
    directory = fetch_model(asked, place)
    pinned = HubModel(asked.repository, directory.name).text
    sizes = [path.stat().st_size for path in directory.iterdir()]
    click.echo(f"fetched {pinned}: {len(sizes)} files, {sum(sizes) / 1e9:,.2f} GB, all checksums hold")
    click.echo(f"  directory: {directory}")
    click.echo(f'  in a recipe: model: {{type: hugging_face, path: "hub:{pinned}"}}')
    if place is not None and place != cache_directory():
        click.echo(f"  before plan, submit and eval, type: export HF_HUB_CACHE={place}")
    click.echo(f"next: mrt-hpc plan RECIPE --set model.path=hub:{asked.text}")


def serve(recipe: "Recipe", model: Path | None, key_file: Path, listen: str | None, log: Path) -> None:
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
    from mrt_hpc.attempt.python_look import no_sampling
    from mrt_hpc.inference.compiled_code import kept_by_all_runs
    from mrt_hpc.inference.server import VllmServer
    from mrt_hpc.inference.server_control import Address
    from mrt_hpc.inference.server_start import ServerSettings
    from mrt_hpc.recipe.model_files import ModelFiles

    if (error := no_sampling(recipe)) is not None:
        raise error
    prover, resources = recipe.prover, recipe.resources.inference
    model_dir, width = model or _model_of(recipe), recipe.serving.tensor_parallel or max(1, resources.gpus)
    ModelFiles(model_dir, "model.path").check_division(width)
    settings = ServerSettings.of(
        recipe,
        width,
        resources.cpus // width * width,
        model_dir=model_dir,
        max_model_len=recipe.longest_sequence,
        dtype=recipe.serving.dtype,
        noise_by_request=prover is not None and prover.shares_seeds,
        listen=None if listen is None else Address(listen),
        compiled_code=kept_by_all_runs(),
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


def _model_of(recipe: "Recipe") -> Path:
    """The recipe's model directory.

    Raises:
        UserError: the small world's model is made by a run; or a model of the hub was not fetched.
    """
    from mrt_hpc.recipe.hub_models import refuse_unfetched
    from mrt_hpc.recipe.sections import HuggingFaceModel

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
