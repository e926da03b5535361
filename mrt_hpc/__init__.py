"""mrt-hpc: Meta Reinforcement Fine-Tuning (MRT) of language models on Slurm clusters.

The names that ``__init__.pyi`` lists are the public interface; each is imported when it is first used. All other
modules are internal: ARCHITECTURE.md has the map of the rooms, and imports go only downwards.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.2.0"


@cache
def _modules() -> dict[str, str]:
    """The module of each public name."""
    import ast  # the program itself does without

    tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_modules())
    if name.startswith("__") or name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(_modules()[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})
