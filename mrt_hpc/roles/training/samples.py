"""The samples of a supervised run: given ones, or those selected from the traces that a weights version sampled.

Every sample follows from the run directory alone, in an order of its own, so that each rank and each attempt has the
same. What was selected as conversations or suffixes is also written down, for other runs to learn.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import TemplateError

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.mrt.backtracking import (
    Attempt,
    Revision,
    StepContinuation,
    Variant,
    as_conversation,
    as_suffix,
    revise,
)
from mrt_hpc.mrt.mrt_star import select_progressing
from mrt_hpc.mrt.sft import ChatFormat, Conversation, MaskedTokens, Message, Suffix, mask_conversation, mask_suffix
from mrt_hpc.mrt.star import select_correct
from mrt_hpc.recipe.algorithms import Backtracking, MrtStar, SftConversations, SftSuffix, Star, SupervisedAlgorithm
from mrt_hpc.roles.sampling.starts import collected_group, reopen_collection
from mrt_hpc.roles.task.sampled_groups import positions_there
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.layout import collection_of
from mrt_hpc.run.records import FinishReason
from mrt_hpc.training.batch import TrainingSequence
from mrt_hpc.training.supervised import read_conversations, read_suffixes, write_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.groups import Group
    from mrt_hpc.run.records import Branch, Rollout

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Samples:
    """What a supervised run learns."""

    sequences: list[TrainingSequence]
    digest: str
    """Identity of all of them."""

    @staticmethod
    def of(task: Task, version: int = 0) -> Samples:
        """The samples of a run.

        Args:
            task: whose.
            version: of the weights that sampled what they are selected from, where they are selected.

        Raises:
            UserError: there is none to learn, or the chat template cannot tell turns by their position.
        """
        prompter = Prompter.of(task.layout.weights_version(0), task.recipe.prompt)
        made = SampleMaker(task, prompter, TokenBytes(prompter.tokenizer), version).masked()
        algorithm, identity = task.recipe.algorithm, hashlib.sha256()
        assert isinstance(algorithm, SupervisedAlgorithm)  # who else learns samples
        sequences, too_long = [], 0
        for masked in made:
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


def _sequence(masked: MaskedTokens) -> TrainingSequence:
    """Learnt with weight 1; what precedes the first learnt token is context."""
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


@dataclass(frozen=True)
class SampleMaker:
    """Selects samples and turns them into tokens."""

    task: Task
    prompter: Prompter
    tokens: TokenBytes
    version: int
    """Of the weights that sampled what is selected from."""

    def masked(self) -> Iterator[MaskedTokens]:
        """All samples, by the recipe's algorithm; what was collected is read one group at a time."""
        algorithm, layout = self.task.recipe.algorithm, self.task.layout
        if isinstance(algorithm, SftConversations):
            yield from map(self._conversation, read_conversations(layout.train_data))
        elif isinstance(algorithm, SftSuffix):
            yield from map(self._suffix, read_suffixes(layout.train_data))
        elif isinstance(algorithm, Star):
            yield from (m for g in self._collected() for m in self._star(g, algorithm))
        elif isinstance(algorithm, MrtStar):
            yield from (m for g in self._collected() for m in self._mrt_star(g, algorithm))
        else:
            assert isinstance(algorithm, Backtracking)  # all others sample while they train
            yield from self._backtracking(algorithm)

    # -- what was collected
    def _collected(self) -> Iterator[Group]:
        """The groups that the version sampled, by position.

        Raises:
            UserError: some are missing or damaged; the job that collects has to run again.
        """
        layout = self.task.layout
        problems = read_problems(layout.train_data)
        missing = set(range(len(problems))) - positions_there(self.task, collection_of(self.version))
        if missing:
            reopen_collection(self.task, self.version, f"{len(missing)} of its groups are not there")
            raise UserError(
                f"{len(missing)} of {len(problems)} collected groups are missing",
                where=layout.groups(collection_of(self.version)),
                advice="the same submit command again: they are sampled again",
                exit_code=ExitCode.RETRYABLE,
            )
        return map(partial(collected_group, self.task, self.version), range(len(problems)))

    # -- selected traces
    def _star(self, group: Group, algorithm: Star) -> list[MaskedTokens]:
        kept = select_correct([float(_is_whole(r)) for r in group.rollouts], keep=algorithm.keep)
        return [self._trace(group.rollouts[i]) for i in kept]

    def _mrt_star(self, group: Group, algorithm: MrtStar) -> list[MaskedTokens]:
        values = [_values(group, r) for r in group.rollouts]
        rewards = [float(_is_whole(r)) for r in group.rollouts]
        ranked = select_progressing(rewards, values, keep=None, threshold=algorithm.threshold)
        found = (self._cut(group, group.rollouts[s.index], s.boundary) for s in ranked)
        # One that no branch can close makes room for the next.
        return list(islice((m for m in found if m is not None), algorithm.keep))

    def _trace(self, rollout: Rollout) -> MaskedTokens:
        return mask_suffix(_name(rollout), rollout.prompt_ids, [], rollout.token_ids)

    def _cut(self, group: Group, rollout: Rollout, boundary: int) -> MaskedTokens | None:
        """The first episodes of a trace, closed and answered as a right branch did from there; the trace as it is where
        nothing is cut off; None where no branch from there was right.
        """
        if boundary == len(rollout.boundaries) - 1:
            return self._trace(rollout)
        branch = next((b for b in _branches(group, rollout) if b.boundary == boundary and _is_whole(b)), None)
        if branch is None:
            return None
        # The words before the closing tag are the prover's own, and mu may be a model with other tokens.
        closing = self.prompter.ids(self.task.recipe.prompt.thought_end + branch.text)
        prefix = rollout.prefix(boundary)
        return mask_suffix(_name(rollout), rollout.prompt_ids, [], [*prefix, *self._ended(closing)])

    def _ended(self, token_ids: Sequence[int]) -> list[int]:
        """With the token that ends a completion, which a branch that ended with its box has not."""
        stops = self.prompter.stop_token_ids
        return [*token_ids] if token_ids[-1] in stops else [*token_ids, self.prompter.end_token_id]

    # -- backtracking
    def _backtracking(self, algorithm: Backtracking) -> Iterator[MaskedTokens]:
        statements = {p.id: p.problem for p in read_problems(self.task.layout.train_data)}
        variant, sigmas = Variant(algorithm.variant), algorithm.min_loss_sigmas
        attempts = (self._attempt(group, statements) for group in self._collected())
        found = (revise(attempt, variant, min_loss_sigmas=sigmas) for attempt in attempts)
        samples = [self._sample(r, algorithm) for r in found if r is not None]
        if self.task.rank == 0 and samples:
            path = self.task.layout.selected_samples
            self.task.retrying(partial(write_samples, path, samples), "the selected samples")
        yield from (self._conversation(s) if isinstance(s, Conversation) else self._suffix(s) for s in samples)

    def _sample(self, revision: Revision, algorithm: Backtracking) -> Conversation | Suffix:
        if algorithm.emit == "suffixes":
            return as_suffix(revision, algorithm.backtrack_text)
        prompt = self.task.recipe.prompt
        return as_conversation(
            revision, algorithm.backtrack_text, instruction=prompt.instruction, opening=prompt.thought_start
        )

    def _attempt(self, group: Group, statements: dict[str, str]) -> Attempt:
        """A collected trace as steps of text, and what follows its thought."""
        (rollout,) = group.rollouts
        cuts = rollout.boundaries
        ids = [i for i in rollout.token_ids if i not in self.prompter.stop_token_ids]
        continuations: dict[int, list[StepContinuation]] = defaultdict(list)
        for branch in group.branches:
            continuations[branch.boundary].append(StepContinuation(branch.text, branch.reward))
        return Attempt(
            problem_id=rollout.problem_id,
            problem=statements[rollout.problem_id],
            steps=[self.tokens.text(ids[a:b]) for a, b in pairwise(cuts)],
            ending=self.tokens.text(ids[cuts[-1] :]),
            reward=float(_is_whole(rollout)),
            continuations=[continuations[j] for j in range(len(cuts))],
        )

    # -- from text to tokens
    def _conversation(self, conversation: Conversation) -> MaskedTokens:
        end = self.prompter.tokenizer.convert_ids_to_tokens(self.prompter.end_token_id)
        try:
            return mask_conversation(conversation, ChatFormat(self._render, self.prompter.ids, end))
        except (ValueError, IndexError, TemplateError) as error:
            raise UserError(
                f"the chat template does not fit conversation {conversation.id}: {error}",
                advice="name a template that writes each turn as it is in prompt.chat_template, or learn suffixes",
            ) from error

    def _render(self, messages: Sequence[Message], open_next: bool) -> str:
        rows = [{"role": m.role, "content": m.content} for m in messages]
        return str(self.prompter.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=open_next))

    def _suffix(self, suffix: Suffix) -> MaskedTokens:
        prompt = self.prompter.encoded(suffix.problem)
        written = self._ended(self.prompter.ids(suffix.suffix))
        return mask_suffix(suffix.id, prompt, self.prompter.ids(suffix.prefix), written)


def _is_whole(sampled: Branch | Rollout) -> bool:
    """Whether a branch or rollout is right, and the limit has not cut it off: trained on, it must have an end."""
    return sampled.reward == 1.0 and sampled.finish_reason is FinishReason.STOP


def _name(rollout: Rollout) -> str:
    return f"{rollout.problem_id}/{rollout.sample}"


def _branches(group: Group, rollout: Rollout) -> list[Branch]:
    return [b for b in group.branches if b.sample == rollout.sample]


def _values(group: Group, rollout: Rollout) -> np.ndarray:
    """[k + 1] values of a rollout's boundaries."""
    mine = {v.boundary: v.value for v in group.values if v.sample == rollout.sample}
    return np.array([mine[j] for j in range(len(rollout.boundaries))])
