"""The embedded small world: a task, a tokenizer and a model of half a million parameters, so that the whole method runs
on a laptop and in tests with real parts.

The starting model calculates well and thinks badly, so that it has something to learn; ``benchmarks/warm_start.py``
of the repository makes it.
"""

from pathlib import Path

STARTING_MODEL = Path(__file__).parent / "starting_model"
"""The Hugging Face directory of the model after the warm start, float32: the starting policy of every run."""
