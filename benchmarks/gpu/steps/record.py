"""The findings of one step, kept whole in a file after each of its parts."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec

from mrt_hpc.run.atomic import write_json

P = ParamSpec("P")


class NotHere(Exception):
    """This machine lacks what a step or a part needs; the text says what."""


@dataclass
class Record:
    file: Path  # where they are kept
    folder: Path  # for files of the steps: what one of them makes, a later one finds
    tiny: bool  # whether shapes are so small that a CPU takes seconds
    seconds: float  # the time limit of the step
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def shape(self) -> str:
        """The name of the shape of a model, as ``paper_sequences`` knows it."""
        return "tiny" if self.tiny else "1.5b"

    def part(self, name: str, measure: Callable[P, Mapping[str, Any]], *given: P.args, **options: P.kwargs) -> None:
        """Keep what one part finds, or why it found nothing; either way the next part can go on."""
        started = time.perf_counter()
        try:
            found = dict(measure(*given, **options))
        except NotHere as lack:
            found = {"skipped": str(lack)}
        except Exception:
            found = {"error": traceback.format_exc()}
        self.parts[name] = {**found, "seconds": round(time.perf_counter() - started, 3)}
        self.write("running")

    def write(self, status: str, why: str = "") -> None:
        write_json(self.file, {"status": status, **({"why": why} if why else {}), "parts": self.parts})

    def needs_gpu_unless_tiny(self) -> None:
        """End the step where its shapes are too large for a CPU."""
        import torch

        if not self.tiny and not torch.cuda.is_available():
            raise NotHere("it needs a GPU, and torch.cuda.is_available() is False")
