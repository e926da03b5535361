"""Defines a way of evaluating: a section of the recipe that says how the traces of a benchmark are sampled, and where
their boundaries are. The prover, the graders and the records are the same for all of them.

Add one: a module with a subclass of ``Mode``, and its name in :data:`mrt_hpc.recipe.kinds.MODES`; or a class of your
own anywhere, named in the recipe as ``mode: {type: my_module:MyMode}`` of a benchmark.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.sampler import TraceSampler
from mrt_hpc.modes.writer import Writer
from mrt_hpc.recipe.base import misfit
from mrt_hpc.recipe.kinds import ModeSettings
from mrt_hpc.recipe.sections import BenchmarkSampling


class Mode(ModeSettings):
    """One way of evaluating."""

    @abstractmethod
    def sampler(self, writer: Writer) -> TraceSampler | None:
        """Return the object that samples the traces; None samples each in one request from the prompt to its end.

        Args:
            writer: samples through the server that holds the evaluated weights.
        """

    def longest(self, prompter: Prompter, sampling: BenchmarkSampling) -> int:  # noqa: ARG002 - some ways need the tokenizer
        """Return the maximum number of tokens of a trace after the prompt of its problem, with all that is inserted."""
        return sampling.max_tokens


def needs_tags(sampling: BenchmarkSampling, mode: ModeSettings) -> None:
    """Refuse a prompt without a closing tag: nothing marks where a thought ends that is to be cut or continued."""
    if not sampling.prompt.thought_end:
        raise misfit("prompt.thought_end", f"a closing tag with mode {mode.type}, which ends or continues thoughts")


def check_texts(sampling: BenchmarkSampling, mode: ModeSettings, words: Sequence[str], forced_text: str) -> None:
    """Refuse an empty word, after which the model would end its thought again at the same place; and a text that shall
    end a thought and does not hold the closing tag.
    """
    if not all(word.strip() for word in words):
        raise misfit(
            "evaluation.benchmarks", f"words of mode {mode.type} with letters in them; one of {words} is empty"
        )
    if sampling.prompt.thought_end not in forced_text:
        raise misfit(
            "evaluation.benchmarks",
            f"a forced_text of mode {mode.type} with prompt.thought_end in it ({sampling.prompt.thought_end}): it ends "
            "the thought",
        )


class Direct(Mode):
    """Each completion is sampled from the prompt to its end, in one request, as in training."""

    type: Literal["direct"] = "direct"

    def sampler(self, writer: Writer) -> None:
        """Nothing is sampled in another way."""
