"""What the benchmarks share: options, tables and where they go, turns, runs on this machine, and random models."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.atomic import write_text
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from mrt_hpc.run.layout import RunLayout

    Item = TypeVar("Item")

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
DATA = ROOT.parent / "shared" / "data"
SMALL_WORLD = ROOT / "recipes" / "small_world"


def options(about: str | None, required: Sequence[str] = (), **defaults: Any) -> argparse.Namespace:
    """The options of the command line: each has the type of its default; a type means that there is no default."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        how: dict[str, Any] = {"type": type(default), "default": default}
        if isinstance(default, bool):
            how = {"action": "store_true"}
        elif isinstance(default, type):
            how = {"type": default, "required": name in required}
        elif isinstance(default, list | tuple):
            how = {"type": type(default[0]), "nargs": "+", "default": list(default)}
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    return parser.parse_args()


def defaults_of(kind: type) -> dict[str, Any]:
    """The fields of a dataclass as options."""
    return {field.name: field.default for field in fields(kind)}


def taken(kind: type[Item], given: argparse.Namespace) -> Item:
    """A dataclass from the options of the names of its fields."""
    return kind(**{field.name: getattr(given, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def in_turn(names: Iterable[Item], turn: int) -> list[Item]:
    """The names in alternating order, so that what else the machine does meets all."""
    return list(names)[:: -1 if turn % 2 else 1]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, least and greatest."""
    middle, low, high = (f"{x:.{digits}f}" for x in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> list[str]:
    """The lines of a table in Markdown; the first columns hold words, the others numbers."""
    aligned = ["---" if number < words else "---:" for number in range(len(head))]
    return [f"| {' | '.join(map(str, row))} |" for row in (head, aligned, *rows)]


def written(text: str, folder: Path | None, name: str = "table.md") -> None:
    """Print a text, and write it into a folder if there is one."""
    print(text, flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, text if text.endswith("\n") else f"{text}\n")


def sets(changes: Mapping[str, object]) -> list[str]:
    """The options of the command line that change these fields of a recipe."""
    return [word for field, value in changes.items() for word in ("--set", f"{field}={value}")]


def submit(recipe: Path, run: Path, changes: Mapping[str, object], first: Sequence[Path] = (), **more: Any) -> None:
    """Run a recipe on this machine to its end; a run that is there goes on.

    Args:
        recipe: the file.
        run: the run directory.
        changes: by the field of the recipe.
        first: folders whose modules are imported before all others.
        more: arguments of ``subprocess.run``.
    """
    command = [sys.executable, "-m", "mrt_hpc.cli.main", "submit", str(recipe), "--site", "local", "--run", str(run)]
    subprocess.run([*command, *sets(changes)], env=environment(*first), check=True, **more)


def environment(*first: Path) -> dict[str, str]:
    """The environment of a process of this checkout; modules of these folders are imported before all others."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*first, ROOT]))}


def begun(root: Path, recipe: Path, changes: Mapping[str, object]) -> RunLayout:
    """A run directory in which nothing has run."""
    experiment = load_recipe(recipe, tuple(f"{field}={value}" for field, value in changes.items()))
    return create_or_open(root, experiment, compile_plan(experiment, LocalSite()))


def random_qwen3(
    hidden: int, layers: int, heads: int, vocabulary: int, tokenizer: PreTrainedTokenizerFast | None = None, **more: Any
) -> Qwen3ForCausalLM:
    """A model with random weights, always the same."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if tokenizer is not None:
        more |= {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=hidden // heads,
        max_position_embeddings=1024, **more,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)
