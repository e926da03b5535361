"""A way of evaluating is a section of the recipe that says how the traces of a benchmark are sampled, and where their
boundaries are. Prover, graders and records are the same for all of them.

To add one, write a module with a subclass of ``Mode`` and add its name to :data:`mrt_hpc.recipe.kinds.MODES`; or name a
class of any module in the recipe as ``mode: {type: my_module:MyMode}`` of a benchmark.
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
    @abstractmethod
    def sampler(self, writer: Writer) -> TraceSampler | None:
        """Samples the traces through the server with the evaluated weights; None samples each in one request from the
        prompt to its end.
        """

    def longest(self, prompter: Prompter, sampling: BenchmarkSampling) -> int:  # noqa: ARG002 - some ways need the tokenizer
        """After the prompt of the problem, with all that is inserted."""
        return sampling.max_tokens


def needs_tags(sampling: BenchmarkSampling, mode: ModeSettings) -> None:
    """Without a closing tag nothing marks the end of a thought that is to be cut or continued."""
    if not sampling.prompt.thought_end:
        raise misfit("prompt.thought_end", f"a closing tag with mode {mode.type}, which ends or continues thoughts")


def check_texts(sampling: BenchmarkSampling, mode: ModeSettings, words: Sequence[str], forced_text: str) -> None:
    """After an empty word the model would end its thought again at the same place; a text that ends a thought needs the
    closing tag.
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
