"""The names of the rules that find an answer in a completion; :mod:`mrt_hpc.domains.extraction` has the rules."""

from __future__ import annotations

from typing import Literal

Extraction = Literal["after_thought", "any_box", "last_mathematics"]
DEFAULT_EXTRACTION: Extraction = "after_thought"
