"""The samples of a supervised run: given ones, or those selected from the traces that a weights version has sampled.

Every sample follows from the run directory alone, in an order of its own, so that each rank and each attempt has the
same. What was selected as conversations or suffixes is also written down, for other runs to learn.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.algorithms.base import supervised_algorithm
from mrt_hpc.algorithms.samples import SampleSource
from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.roles.sampling.collected import Collection
from mrt_hpc.training.sequence import TrainingSequence
from mrt_hpc.training.supervised import write_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.mrt.sft import Conversation, MaskedTokens, Suffix
    from mrt_hpc.roles.task.context import Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Samples:
    """The samples that a supervised run learns."""

    sequences: list[TrainingSequence]
    digest: str
    """The identity of all samples."""

    @staticmethod
    def of(task: Task, version: int = 0) -> Samples:
        """The samples of a run.

        Args:
            task: whose.
            version: of the weights that sampled what they are selected from, where they are selected.

        Raises:
            UserError: there is none to learn, or the chat template cannot tell turns by their position.
        """
        algorithm, identity = supervised_algorithm(task.recipe), hashlib.sha256()
        sequences, too_long = [], 0
        for masked in algorithm.samples(_source(task, version)):
            if len(masked.token_ids) > algorithm.max_tokens:
                too_long += 1
                continue
            identity.update(json.dumps([masked.id, masked.token_ids, masked.learnt.astype(int).tolist()]).encode())
            sequences.append(_sequence(masked))
        if too_long:
            log.warning("%d samples are longer than %d tokens and are left out", too_long, algorithm.max_tokens)
        if not sequences:
            raise UserError(
                f"nothing to learn: no sample was selected, and {too_long} were longer than algorithm.max_tokens",
                where=task.layout.root,
                advice="another run (--run DIR) with more problems, more attempts at each, or a milder selection",
            )
        return Samples(sequences, identity.hexdigest())


def _source(task: Task, version: int) -> SampleSource:
    prompter = Prompter.of(task.layout.weights_version(0), task.recipe.prompt)

    def keep(samples: Sequence[Conversation | Suffix]) -> None:
        if task.rank == 0 and samples:
            path = task.layout.selected_samples
            task.retrying(partial(write_samples, path, samples), "the selected samples")

    return SampleSource(
        recipe=task.recipe,
        train_data=task.layout.train_data,
        prompter=prompter,
        tokens=TokenBytes(prompter.tokenizer),
        collected=Collection(task, version).groups,
        keep=keep,
    )


def _sequence(masked: MaskedTokens) -> TrainingSequence:
    """A sequence that is learnt with weight 1; the tokens before the first learnt one are context."""
    start = masked.first_learnt
    learnt = masked.learnt[start:]
    return TrainingSequence(
        prompt_ids=masked.token_ids[:start],
        token_ids=masked.token_ids[start:],
        advantages=learnt.astype(np.float32),
        behaviour_logprobs=np.zeros(len(learnt), dtype=np.float32),
        mask=learnt,
        group=masked.id,
    )
