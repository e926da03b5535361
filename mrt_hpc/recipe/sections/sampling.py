"""The rollouts of an iteration, and the length of prompts."""

from __future__ import annotations

from typing import Literal

from mrt_hpc.recipe.base import Count, Section, Temperature, Tokens

LongPrompts = Literal["refuse", "drop"]


class PromptLimits(Section):
    """The length of prompts."""

    max_prompt_tokens: Tokens = 4096
    """The maximum number of tokens of a prompt, with instruction and chat template. The first job finds longer prompts
    before anything is sampled, those of benchmarks as well.
    """
    long_prompts: LongPrompts = "refuse"
    """Whether a longer prompt stops the run (refuse), or its problem is left out of training or benchmark (drop). The
    log of the first job says how many were left out, and the run's data folder says which.
    """


class Sampling(PromptLimits):
    """The rollouts of an iteration. There is no top-p and no top-k: log-probabilities must be of the distribution
    sampled from.
    """

    problems_per_iteration: Count | None = None
    """The number of problems drawn for each iteration, without repetition until all have been used. Supervised
    algorithms draw sequences instead, see ``algorithm.sequences_per_iteration``.
    """
    rollouts_per_problem: Count = 4
    """The number of rollouts of a problem: n, the size of a group."""
    temperature: Temperature = 0.9
    """The sampling temperature. The trainer's log-probabilities use the same."""
    max_tokens: Tokens
    """The maximum number of tokens of a trace. The answer of a trace that is cut here counts where the last box after
    thought_end is closed. The reward is 0 where that box is still open, where the thought has not ended, and for models
    without tags.
    """
