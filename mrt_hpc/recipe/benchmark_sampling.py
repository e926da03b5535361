"""How the completions of one benchmark are sampled: its own fields, else those of the evaluation section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.recipe.base import NumberFormat
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.sections.evaluation import Benchmark
    from mrt_hpc.recipe.sections.prompt import Prompt
    from mrt_hpc.recipe.sections.sampling import LongPrompts


@dataclass(frozen=True)
class BenchmarkSampling:
    """The prompt and the limits of one benchmark, with all defaults resolved."""

    prompt: Prompt
    temperature: float
    top_p: float
    max_tokens: int
    """The maximum number of tokens of a completion."""
    max_prompt_tokens: int
    long_prompts: LongPrompts
    """What is done about a prompt that is longer."""


def benchmark_sampling(experiment: Experiment, benchmark: Benchmark) -> BenchmarkSampling:
    """The prompt and the sampling settings of a benchmark of a recipe."""
    how = experiment.evaluation
    return BenchmarkSampling(
        prompt=benchmark.prompt or how.prompt or experiment.prompt,
        temperature=how.temperature if benchmark.temperature is None else benchmark.temperature,
        top_p=how.top_p if benchmark.top_p is None else benchmark.top_p,
        max_tokens=how.max_tokens if benchmark.max_tokens is None else benchmark.max_tokens,
        max_prompt_tokens=how.max_prompt_tokens or experiment.sampling.max_prompt_tokens,
        long_prompts=how.long_prompts or experiment.sampling.long_prompts,
    )


def evaluation_dtype(experiment: Experiment) -> NumberFormat:
    """The number format of the servers that evaluate."""
    return experiment.evaluation.dtype or experiment.serving.dtype


def longest_trace(experiment: Experiment) -> int:
    """The maximum number of tokens of a trace over all benchmarks, each sampled in its way, without the texts that are
    inserted; 0 without any benchmark.
    """
    return max((_tokens_held(experiment, b) for b in experiment.evaluation.benchmarks), default=0)


def _tokens_held(experiment: Experiment, benchmark: Benchmark) -> int:
    sampling = benchmark_sampling(experiment, benchmark)
    return sampling.max_tokens if benchmark.mode is None else benchmark.mode.tokens_held(sampling)
