"""The digest of a grader: of everything that may change a verdict, so that a changed grader is noticed."""

from __future__ import annotations

import hashlib
import inspect
import json
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import mrt_hpc.domains
from mrt_hpc.recipe.user_code import module_file

if TYPE_CHECKING:
    from mrt_hpc.domains.base import Verifier

PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy", "antlr4-python3-runtime")
"""The packages that read and compare answers."""


def grader_digest(verifier: Verifier, time_limit_s: float, memory_limit_gib: float) -> str:
    """SHA-256 of the verifier's fields, its rule of extraction and its code, of the packages that it uses, and of the
    limits of its processes.

    Args:
        verifier: with the settings that it takes from the recipe.
        time_limit_s: processor seconds for one answer.
        memory_limit_gib: of a grader process.
    """
    told = {
        "verifier": {"type": verifier.type, **verifier.model_dump(mode="json")},
        "extraction": verifier.extraction,
        "packages": {name: _version(name) for name in PACKAGES},
        "limits": [time_limit_s, memory_limit_gib],
        "code": [hashlib.sha256(path.read_bytes()).hexdigest() for path in _code(verifier)],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _code(verifier: Verifier) -> list[Path]:
    """The modules of the package that judge answers, and the user's own one of the verifier's class or function."""
    folder = Path(mrt_hpc.domains.__file__).parent
    modules = [path for path in sorted(folder.rglob("*.py")) if "small_world" not in path.parts]
    named = {Path(inspect.getfile(type(verifier))), *([module_file(verifier.type)] if ":" in verifier.type else [])}
    return [*modules, *sorted(named.difference(modules))]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
