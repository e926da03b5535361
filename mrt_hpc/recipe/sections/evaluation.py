"""The benchmarks, and how their completions are sampled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mrt_hpc.recipe.base import Count, Name, NumberFormat, PathText, SamplingTemperature, Section, Tokens
from mrt_hpc.recipe.mode import ModeSettings
from mrt_hpc.recipe.prover import ProverSettings
from mrt_hpc.recipe.registry import MODES, PROVERS
from mrt_hpc.recipe.sections.data import Problems
from mrt_hpc.recipe.sections.episodes import Episodes
from mrt_hpc.recipe.sections.prompt import Prompt
from mrt_hpc.recipe.sections.sampling import LongPrompts


class Benchmark(Section):
    """One set of problems to evaluate on."""

    name: Name
    """The name of the benchmark in reports and paths."""
    problems: Problems
    """The problems of the benchmark."""
    samples: Count = 1
    """The number of completions of a problem; pass@1 is their mean reward."""
    prompt: Prompt | None = None
    """How its problems become prompts; null takes evaluation.prompt."""
    temperature: SamplingTemperature | None = None
    """The sampling temperature; null takes evaluation.temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """The nucleus of the sampling distribution; null takes evaluation.top_p."""
    max_tokens: Tokens | None = None
    """The maximum number of tokens of a completion; null takes evaluation.max_tokens."""
    mode: Annotated[ModeSettings, MODES] | None = None
    """The way of evaluating: how a completion is sampled, and at which tokens its values are asked for. null is
    ``{type: direct}``.
    """


class Evaluation(Section):
    """The benchmarks, and how their completions are sampled."""

    suite: Name | None = None
    """The suite that the fields of this section come from: the name of a file in recipes/suites. Fields that stand
    beside it replace those of the suite. null takes none.
    """
    results: PathText | None = None
    """The results folder. What other evaluations with the same weights, problems and settings have sampled there is
    used, and what this one samples is added. A relative path starts at the recipe's folder; null uses none.
    """
    prompt: Prompt | None = None
    """How problems of benchmarks become prompts; null takes the recipe's prompt."""
    max_prompt_tokens: Tokens | None = None
    """The maximum number of tokens of a prompt of a benchmark; null takes sampling.max_prompt_tokens."""
    long_prompts: LongPrompts | None = None
    """Whether a longer prompt of a benchmark stops the run (refuse), or its problem is left out (drop); null takes
    sampling.long_prompts.
    """
    dtype: NumberFormat | None = None
    """The number format of weights and activations in the servers of evaluations; null takes serving.dtype."""
    benchmarks: tuple[Benchmark, ...] = ()
    """The benchmarks to evaluate on; an empty list turns evaluation off."""
    every: Count | None = None
    """The number of iterations between evaluated weights versions; null evaluates only the first and the last version.
    """
    temperature: SamplingTemperature = 0.6
    """The sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """The nucleus of the sampling distribution."""
    max_tokens: Tokens = 16384
    """The maximum number of tokens of a completion."""
    problem_shards: Count = 1
    """The number of array tasks that share one version and benchmark."""
    prover: Annotated[ProverSettings, PROVERS] | None = None
    """The prover that values the prefixes of evaluated traces, for normalised regret; null leaves regret out."""
    episodes: Episodes | None = None
    """The rule that cuts evaluated traces into episodes for regret. One rule makes algorithms comparable; null takes
    that of the training.
    """
    regret_budgets: tuple[Tokens, ...] = (4096, 8192, 12288, 16384)
    """The numbers of tokens up to which regret is measured."""
    regret_tokens: Literal["sampled", "all"] = "sampled"
    """The tokens that regret counts before a boundary: the sampled ones of the trace alone; or all that the model reads
    and writes to answer there, as the authors count: prompt, prefix, the prover's text, and the mean length of its
    answers.
    """
