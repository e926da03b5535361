"""Learning given samples: whole conversations, or suffixes of a prefix that another model wrote."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from mrt_hpc.algorithms.base import SupervisedAlgorithm
from mrt_hpc.algorithms.samples import SampleSource, read_conversations, read_suffixes
from mrt_hpc.mrt.sft import MaskedTokens


class SftConversations(SupervisedAlgorithm):
    """Every turn of the assistant in given conversations is learnt, see ``data``."""

    data_form: ClassVar[str] = "conversations"
    type: Literal["sft_conversations"] = "sft_conversations"

    def samples(self, source: SampleSource) -> Iterator[MaskedTokens]:
        return map(source.conversation, read_conversations(source.train_data))


class SftSuffix(SupervisedAlgorithm):
    """A suffix is learnt, given the problem and a prefix that another model wrote, see ``data``."""

    data_form: ClassVar[str] = "suffixes"
    type: Literal["sft_suffix"] = "sft_suffix"

    def samples(self, source: SampleSource) -> Iterator[MaskedTokens]:
        return map(source.suffix, read_suffixes(source.train_data))
