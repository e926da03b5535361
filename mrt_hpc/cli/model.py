"""``mrt-hpc model``: fetch models before a run, on a node with network access."""

from __future__ import annotations

from pathlib import Path

import click


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
    type=click.Path(path_type=Path, file_okay=False),
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
    from mrt_hpc.hub.models import fetch_model
    from mrt_hpc.recipe.hub_models import HubModel, cache_directory

    place = None if cache is None else cache.expanduser().absolute()
    found = fetch_model(HubModel.of(name), place)
    what = "fetched" if found.downloaded else "in the cache already, all checksums hold:"
    click.echo(f"{what} {found.pinned.text}: {len(found.record.files)} files, {_size(found.bytes)}")
    click.echo(f"  directory: {found.directory}")
    click.echo(f"  checksums: {found.record_file}")
    click.echo(f'  in a recipe: model: {{type: hugging_face, path: "hub:{found.pinned.text}"}}')
    if place is not None and place != cache_directory():
        click.echo(f"  before plan, submit and eval, type: export HF_HUB_CACHE={place}")
    click.echo(f"next: mrt-hpc plan RECIPE --set model.path=hub:{found.model.text}")


def _size(size: int) -> str:
    """A number of bytes in words."""
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.2f} MB"
