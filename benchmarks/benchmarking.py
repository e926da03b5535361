"""What the benchmarks share: options, tables and where they go, turns, runs on this machine, and random models."""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    Item = TypeVar("Item")

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DATA = ROOT.parent / "shared" / "data"
SMALL_WORLD = ROOT / "recipes" / "small_world"

sys.path.append(str(ROOT / "tests" / "support"))  # benchmarks use some of what tests use


def options(about: str | None, required: Sequence[str] = (), **defaults: Any) -> argparse.Namespace:
    """The options of the command line: each has the type of its default; a type means that there is no default. Of a
    dataclass each field is an option, and what comes back is one of that class.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    classes = {name: kind for name, kind in defaults.items() if isinstance(kind, type) and is_dataclass(kind)}
    plain = {name: default for name, default in defaults.items() if name not in classes}
    plain |= {field.name: field.default for kind in classes.values() for field in fields(kind)}
    for name, default in plain.items():
        how: dict[str, Any] = {"type": type(default), "default": default}
        if isinstance(default, bool):
            how = {"action": "store_true"}
        elif isinstance(default, type):
            how = {"type": default, "required": name in required}
        elif isinstance(default, list | tuple):
            how = {"type": type(default[0]), "nargs": "+", "default": list(default)}
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    given = parser.parse_args()
    for name, kind in classes.items():
        setattr(given, name, kind(**{field.name: getattr(given, field.name) for field in fields(kind)}))
    return given


def in_turn(names: Iterable[Item], turn: int) -> list[Item]:
    """The names in alternating order, so that what else the machine does meets all."""
    return list(names)[:: -1 if turn % 2 else 1]


def turns(actions: Mapping[str, Callable[[], Item]], count: int) -> dict[str, list[Item]]:
    """What each action gives in each of so many turns."""
    found: dict[str, list[Item]] = {name: [] for name in actions}
    for turn in range(count):
        for name in in_turn(actions, turn):
            found[name].append(actions[name]())
            print(f"turn {turn}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    return found


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Processor seconds, of all threads of this process, and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    action()
    return time.process_time() - cpu, time.perf_counter() - wall


def command_usage(words: Sequence[str | Path], folder: Path | None = None) -> tuple[float, float, float]:
    """Processor seconds, wall seconds and most GiB of a command, with all that it waits for; its output is left out."""
    began = time.perf_counter()
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began, usage.ru_maxrss / 2**20


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


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    stream = StringIO()
    csv.writer(stream, lineterminator="\n").writerows([head, *rows])
    return stream.getvalue()


def sets(changes: Mapping[str, object]) -> list[str]:
    """The options of the command line that change these fields of a recipe."""
    return [word for field, value in changes.items() for word in ("--set", f"{field}={value}")]


def submit(
    recipe: Path,
    run: Path,
    changes: Mapping[str, object],
    first: Sequence[Path] = (),
    sweep: Mapping[str, Sequence[object]] | None = None,
    **more: Any,
) -> None:
    """Run a recipe, or a sweep of it, on this machine to its end; a run that is there goes on.

    Args:
        recipe: the file.
        run: the run directory, or that of the family.
        changes: by the field of the recipe.
        sweep: the values of each field that the runs of a family differ in; None for one run.
        first: folders whose modules are imported before all others.
        more: arguments of ``subprocess.run``.
    """
    command = [sys.executable, "-m", "mrt_hpc", "submit", str(recipe), "--site", "local", "--run", str(run)]
    axes = [f"--sweep={field}={','.join(map(str, values))}" for field, values in (sweep or {}).items()]
    subprocess.run([*command, *axes, *sets(changes)], env=environment(*first), check=True, **more)


def environment(*first: Path) -> dict[str, str]:
    """The environment of a process of this checkout; modules of these folders are imported before all others."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*first, ROOT]))}


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
