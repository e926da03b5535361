"""What supervised algorithms are given: the collected groups, the files of samples, and the way from text to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import TemplateError

from mrt_hpc.errors import UserError
from mrt_hpc.mrt.sft import ChatFormat, Conversation, MaskedTokens, Message, Suffix, mask_conversation, mask_suffix
from mrt_hpc.run.records import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mrt_hpc.inference.prompting import Prompter
    from mrt_hpc.inference.tokens import TokenBytes
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.groups import Group
    from mrt_hpc.run.records import Branch, Rollout


@dataclass(frozen=True)
class SampleSource:
    """What the samples of a run are made from."""

    recipe: Recipe
    train_data: Path
    """The run's training data: problems, conversations or suffixes."""
    prompter: Prompter
    tokens: TokenBytes
    """Of the policy's tokenizer."""
    collected: Callable[[], Iterator[Group]]
    """Reads the groups that a weights version has collected, one at a time, by the problems' positions; raises
    UserError where some are missing.
    """
    keep: Callable[[Sequence[Conversation | Suffix]], None]
    """Writes selected samples down, for other runs to learn."""

    def trace(self, rollout: Rollout) -> MaskedTokens:
        """A whole trace, learnt after its prompt."""
        return mask_suffix(trace_name(rollout), rollout.prompt_ids, [], rollout.token_ids)

    def ended(self, token_ids: Sequence[int]) -> list[int]:
        """With the token that ends a completion, which a branch that ended with its box has not."""
        stops = self.prompter.stop_token_ids
        return [*token_ids] if token_ids[-1] in stops else [*token_ids, self.prompter.end_token_id]

    def conversation(self, conversation: Conversation) -> MaskedTokens:
        """Every turn of the assistant, learnt.

        Raises:
            UserError: the chat template cannot tell turns by their position.
        """
        end = self.prompter.tokenizer.convert_ids_to_tokens(self.prompter.end_token_id)
        try:
            return mask_conversation(conversation, ChatFormat(self._render, self.prompter.ids, end))
        except (ValueError, IndexError, TemplateError) as error:
            raise UserError(
                f"the chat template does not fit conversation {conversation.id}: {error}",
                advice="name a template that writes each turn as it is in prompt.chat_template, or learn suffixes",
            ) from error

    def suffix(self, suffix: Suffix) -> MaskedTokens:
        """A suffix, learnt after the problem and its prefix."""
        prompt = self.prompter.encoded(suffix.problem)
        written = self.ended(self.prompter.ids(suffix.suffix))
        return mask_suffix(suffix.id, prompt, self.prompter.ids(suffix.prefix), written)

    def _render(self, messages: Sequence[Message], open_next: bool) -> str:
        rows = [{"role": m.role, "content": m.content} for m in messages]
        return str(self.prompter.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=open_next))


def is_whole(sampled: Branch | Rollout) -> bool:
    """Whether a branch or rollout is right, and the limit has not cut it off: trained on, it must have an end."""
    return sampled.reward == 1.0 and sampled.finish_reason is FinishReason.STOP


def trace_name(rollout: Rollout) -> str:
    """The name of a sample that is a trace."""
    return f"{rollout.problem_id}/{rollout.sample}"


def values_of(group: Group, rollout: Rollout) -> np.ndarray:
    """[k + 1] values of a rollout's boundaries."""
    mine = {v.boundary: v.value for v in group.values if v.sample == rollout.sample}
    return np.array([mine[j] for j in range(len(rollout.boundaries))])
