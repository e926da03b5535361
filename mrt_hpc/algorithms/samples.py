"""Inputs of supervised algorithms: collected groups, files of samples, and the conversion from text to tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import TemplateError

from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.mrt.sft import ChatFormat, Conversation, MaskedTokens, Message, Suffix, mask_conversation, mask_suffix
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.records import Branch, FinishReason, Rollout

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Group


@dataclass(frozen=True)
class SampleSource:
    """The sources from which the samples of a run are made."""

    recipe: Recipe
    train_data: Path
    """The run's training data: problems, conversations or suffixes."""
    prompter: Prompter
    tokens: TokenBytes
    """The token bytes of the policy's tokenizer."""
    collected: Callable[[], Iterator[Group]]
    """A function that reads the groups collected with a weights version, one at a time, by the problems' positions; it
    raises UserError where some are missing.
    """
    keep: Callable[[Sequence[Conversation | Suffix]], None]
    """A function that writes selected samples to a file, for other runs to learn."""

    def trace(self, rollout: Rollout) -> MaskedTokens:
        """Return a whole trace, learnt after its prompt."""
        return mask_suffix(trace_name(rollout), rollout.prompt_ids, [], rollout.token_ids)

    def ended(self, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens with the token that ends a completion, which a branch that ended with its box lacks."""
        stops = self.prompter.stop_token_ids
        return [*token_ids] if token_ids[-1] in stops else [*token_ids, self.prompter.end_token_id]

    def conversation(self, conversation: Conversation) -> MaskedTokens:
        """Return a conversation, of which every turn of the assistant is learnt.

        Raises:
            UserError: the chat template does not allow turns to be marked by their position.
        """
        end = self.prompter.tokenizer.convert_ids_to_tokens(self.prompter.end_token_id)
        try:
            masked = mask_conversation(conversation, ChatFormat(self._render, self.prompter.ids, end))
        except (ValueError, IndexError, TypeError, TemplateError) as error:
            raise UserError(
                f"the chat template does not fit conversation {conversation.id}: {error}",
                advice="set prompt.chat_template to a template that writes each turn unchanged, or learn suffixes",
            ) from error
        ids = self.prompter.begun(masked.token_ids)
        before = np.zeros(len(ids) - len(masked.token_ids), dtype=np.bool_)
        return MaskedTokens(masked.id, ids, np.concatenate([before, masked.learnt]))

    def suffix(self, suffix: Suffix) -> MaskedTokens:
        """Return a suffix, learnt after the problem and its prefix."""
        prompt = self.prompter.encoded(suffix.problem)
        written = self.ended(self.prompter.ids(suffix.suffix))
        return mask_suffix(suffix.id, prompt, self.prompter.ids(suffix.prefix), written)

    def _render(self, messages: Sequence[Message], open_next: bool) -> str:
        rows = [{"role": m.role, "content": m.content} for m in messages]
        return self.prompter.rendered(rows, open_next)


def is_whole(sampled: Branch | Rollout) -> bool:
    """Return whether a branch or rollout is right and was not cut off by the limit; training needs its end."""
    return sampled.reward == 1.0 and sampled.finish_reason is FinishReason.STOP


def trace_name(rollout: Rollout) -> str:
    """Return the name of a sample that is a trace."""
    return f"{rollout.problem_id}/{rollout.sample}"


def values_of(group: Group, rollout: Rollout) -> np.ndarray:
    """Return [k + 1] the values of a rollout's boundaries."""
    mine = {v.boundary: v.value for v in group.values if v.sample == rollout.sample}
    return np.array([mine[j] for j in range(len(rollout.boundaries))])
