"""Choices of a recipe that other rooms read. They have their own module, so that the trainer, the verifiers and the
help of commands do without the packages that recipes need. :mod:`mrt_hpc.domains.extraction` has the rules.
"""

from enum import StrEnum
from typing import Literal

Extraction = Literal["after_thought", "any_box", "last_mathematics"]
DEFAULT_EXTRACTION: Extraction = "after_thought"


class Precision(StrEnum):
    """Number formats of the trainer."""

    FP32 = "fp32"
    """Weights, gradients and activations in 32 bits."""
    BF16 = "bf16"
    """Weights and activations in bfloat16, master weights and optimiser in 32 bits."""
    BF16_AUTOCAST = "bf16_autocast"
    """Weights in 32 bits, matrix products in bfloat16."""


class Batching(StrEnum):
    """How sequences share a micro-batch of the trainer."""

    PADDED = "padded"
    """Each sequence gets a row, filled up to the longest."""
    PACKED = "packed"
    """Sequences lie end to end in one row, without padding, and each attends to itself alone. A GPU computes this fast
    only with precision bf16 or bf16_autocast.
    """
    SHARED = "shared"
    """As ``packed``, and where sequences begin with the same tokens, these are computed once: the prompt of a group,
    and the prefix of branches (train_branches) and of the rollouts of algorithm mrt.
    """


class Aggregation(StrEnum):
    """The divisor of a mini-batch's loss. A token that the loss masks counts as any other trained token."""

    TOKEN = "token"
    """The number of trained tokens, so that each counts the same."""
    SEQUENCE = "sequence"
    """Each sequence's trained tokens, and then the number of sequences that have one, so that each sequence counts the
    same.
    """
    CONSTANT = "constant"
    """The number of sequences times sampling.max_tokens (Dr. GRPO): a longer trace counts more, and a mini-batch of
    longer traces too.
    """


REFERENCE_MARKERS = (
    "Wait",
    "But wait",
    "Alternatively",
    "Is there another way",
    "But let me double-check",
    "But hold on",
)
"""The authors' markers of reconsideration."""


class Boundaries(StrEnum):
    """Where the boundaries of the traces of a benchmark are. An analysis says of which of them it makes sense."""

    EPISODES = "the ends of the episodes of one thought"
    LAST_ATTEMPT = "the ends of the episodes of the last of several attempts"
    CUTS = "the places where a thought was cut"
    EXTENSIONS = "the ends of extensions of a thought"
