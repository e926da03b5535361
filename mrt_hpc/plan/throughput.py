"""How fast a process samples and trains: stated rates, which a site profile replaces by measured ones.

The stated rates are derived from the GPU's memory bandwidth and arithmetic, for models of 1.5 and 7 billion parameters,
128 sequences in a server's batch and traces of some 8,000 tokens; other sizes lie on the power law through the two.
They are meant to be right within a factor of two.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe
from mrt_hpc.recipe.hub_models import hub_model_of
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections.model import HuggingFaceModel
from mrt_hpc.run.typed_file import file_bytes

if TYPE_CHECKING:
    from mrt_hpc.recipe.evaluation_recipe import EvaluatedModel, Experiment
    from mrt_hpc.recipe.site import MeasuredThroughput, SiteSettings

SMALL, LARGE = 1.5, 7.0
"""Billions of parameters that the stated rates are of."""
PUBLISH_S, CHECKPOINT_S = 6.0, 27.0
"""Seconds for each billion of parameters to publish a weights version and to write a checkpoint, at 1 GB/s: the bytes
are written, read for their checksums, and gathered from the ranks before.
"""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of a number, by the name of its format in recipes and in config.json."""
ASSUMED_GPU = "a100"
RATES = ("sampled_tokens_per_second", "trained_tokens_per_second")
"""The fields of a site profile that replace the stated rates, below ``throughput``."""


FULL_SLOTS = 2.4
"""How many times as fast a GPU samples in an evaluation, which keeps all slots of its server taken, as in a round of
rollouts, whose slots empty towards its end. Derived, not measured: with all slots taken a step takes the time in which
weights and caches are read at three quarters of the memory bandwidth.
"""


@dataclass(frozen=True)
class StatedRates:
    """Tokens a second of one GPU, for a model of ``SMALL`` and of ``LARGE`` billion parameters."""

    sampled: tuple[float, float]
    trained: tuple[float, float]


STATED = {
    "h200": StatedRates((6000, 2700), (12500, 5900)),
    "h100": StatedRates((5500, 2400), (12500, 5900)),
    "a100": StatedRates((3700, 1500), (5900, 2000)),
}
"""By the GPU's name, as a site profile's ``gpu_type`` gives it."""


@dataclass(frozen=True)
class Throughput:
    """What the estimate of a plan reckons with."""

    sampled_per_s: float
    """Tokens a second that one inference task samples, on all its GPUs."""
    trained_per_s: float
    """Tokens a second that one rank of the trainer computes, forward and backward; 0 where nothing is trained."""
    publish_s: float
    checkpoint_s: float
    source: str
    """Where the rates come from, in words."""
    evaluation_share: float = 1.0
    """What an evaluation task is expected to sample for each token that an inference task samples."""

    @property
    def evaluated_per_s(self) -> float:
        """Tokens a second that one evaluation task samples."""
        return self.sampled_per_s * self.evaluation_share


def throughput(recipe: Experiment, site: SiteSettings) -> Throughput | None:
    """The rates of a recipe on a site; None where neither the site profile nor the table states them. An evaluation on
    its own needs no rate of training.
    """
    stated, given = _stated(recipe, site), site.throughput
    trains = isinstance(recipe, Recipe)
    sampled = given.sampled_tokens_per_second or (stated.sampled_per_s if stated else None)
    trained = given.trained_tokens_per_second or (stated.trained_per_s if stated else None)
    if sampled is None or (trains and trained is None):
        return None
    source = _source(given, site, "" if stated is None else stated.source, trains=trains)
    publish_s, checkpoint_s = (stated.publish_s, stated.checkpoint_s) if stated else (0.0, 0.0)
    return Throughput(sampled, trained or 0.0, publish_s, checkpoint_s, source, _evaluation_share(recipe))


def _source(given: MeasuredThroughput, site: SiteSettings, stated: str, *, trains: bool) -> str:
    """Where the rates come from: the fields of the site profile, the table, or one rate from each."""
    fields = [name for name in RATES if getattr(given, name)]
    if len(fields) == len(RATES) or (not trains and given.sampled_tokens_per_second):
        return f"throughput of site profile {site.name}"
    return " and ".join([*(f"throughput.{name} of site profile {site.name}" for name in fields if trains), stated])


def _evaluation_share(recipe: Experiment) -> float:
    """What an evaluation task samples for each token of an inference task: in proportion to their GPUs, and with full
    slots; 1 where one of the two has no GPU.
    """
    sampling, evaluation = _sampling_gpus(recipe), recipe.resources.evaluation.gpus
    return FULL_SLOTS * evaluation / sampling if sampling and evaluation else 1.0


def _stated(recipe: Experiment, site: SiteSettings) -> Throughput | None:
    """By the table; None for jobs without GPUs, and for models of unknown size. Nothing is trained by an evaluation on
    its own.
    """
    billions, sampling, training = model_billions(recipe), _sampling_gpus(recipe), _training_gpus(recipe)
    if billions is None or not sampling or training == 0:
        return None
    gpu = _gpu(site)
    rates = STATED[gpu]
    return Throughput(
        sampled_per_s=power_law(rates.sampled, billions) * sampling,
        trained_per_s=power_law(rates.trained, billions) * (training or 0),
        publish_s=PUBLISH_S * billions / site.throughput.checkpoint_gb_per_second,
        checkpoint_s=CHECKPOINT_S * billions / site.throughput.checkpoint_gb_per_second,
        source=f"stated rates of {gpu} for {billions:.2g} billion parameters",
    )


def _sampling_gpus(recipe: Experiment) -> int:
    """The GPUs of a task that samples: of inference, or of an evaluation on its own."""
    if isinstance(recipe, EvaluationRecipe):
        return recipe.resources.evaluation.gpus
    return recipe.resources.inference.gpus * recipe.resources.inference.nodes


def _training_gpus(recipe: Experiment) -> int | None:
    """The GPUs of a rank of the trainer; None where nothing is trained."""
    return None if isinstance(recipe, EvaluationRecipe) else recipe.resources.trainer.gpus


def _gpu(site: SiteSettings) -> str:
    named = site.gpu_name.lower()
    return next((gpu for gpu in STATED if gpu in named), ASSUMED_GPU)


def power_law(rates: tuple[float, float], billions: float) -> float:
    """A rate at another model size, on the power law through those of ``SMALL`` and ``LARGE`` billion parameters."""
    exponent = math.log(rates[1] / rates[0]) / math.log(LARGE / SMALL)
    return float(rates[0] * (billions / SMALL) ** exponent)


def model_billions(recipe: Experiment) -> float | None:
    """Parameters in billions, of the policy or of the largest evaluated model whose size is known; None if none is.
    A size is known by the files of a model where they are there, else by its name.
    """
    if isinstance(recipe, EvaluationRecipe):
        return max(filter(None, map(_evaluated_billions, recipe.models)), default=None)
    if not isinstance(recipe.model, HuggingFaceModel):
        return None
    return _billions(Path(recipe.model.path))


def _billions(directory: Path) -> float | None:
    of_hub = hub_model_of(str(directory))
    return _by_files(directory) or _by_name(directory.name if of_hub is None else of_hub.name)


def _evaluated_billions(model: EvaluatedModel) -> float | None:
    """Of a weights version that a run has yet to publish, the size is that of another one of the run."""
    path = Path(model.path)
    others = sorted(path.parent.glob("v*")) if model.run is not None else []
    return next(filter(None, map(_billions, (path, *others))), None)


def _by_files(directory: Path) -> float | None:
    """By the size of the safetensors files and the number format that config.json names."""
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    try:
        config = json.loads(file_bytes(directory / "config.json"))
        width = BYTES[config.get("dtype") or config.get("torch_dtype") or "bfloat16"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None  # an estimate does without; whether the model can be used is checked elsewhere
    return size / width / 1e9 or None


def _by_name(name: str) -> float | None:
    """As in DeepSeek-R1-Distill-Qwen-1.5B."""
    found = re.search(r"(?<![0-9.])(\d+(?:\.\d+)?)B(?![a-zA-Z])", name, re.IGNORECASE)
    return float(found[1]) if found else None
