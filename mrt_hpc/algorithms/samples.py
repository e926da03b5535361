"""Inputs of supervised algorithms: collected groups, files of samples, and the conversion from text to tokens."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError

from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.mrt import sft
from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.problems import read_lines, text_field
from mrt_hpc.run.records import Branch, FinishReason, Rollout

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Group


@dataclass(frozen=True)
class SampleSource:
    recipe: Recipe
    train_data: Path
    """Problems, conversations or suffixes."""
    prompter: Prompter
    tokens: TokenBytes
    """Of the policy's tokenizer."""
    collected: "Callable[[], Iterator[Group]]"
    """Reads a version's collected groups, one at a time, by the problems' positions; raises UserError where some are
    missing.
    """
    keep: Callable[[Sequence[sft.Conversation | sft.Suffix]], None]
    """Writes selected samples to a file, for other runs to learn."""

    def trace(self, rollout: Rollout) -> sft.MaskedTokens:
        """Learnt after its prompt."""
        return sft.mask_suffix(trace_name(rollout), rollout.prompt_ids, [], rollout.token_ids)

    def append_end_token(self, token_ids: Sequence[int]) -> list[int]:
        """A branch that ended with its box lacks the token that ends a completion."""
        stops = self.prompter.stop_token_ids
        return [*token_ids] if token_ids[-1] in stops else [*token_ids, self.prompter.end_token_id]

    def conversation(self, conversation: sft.Conversation) -> sft.MaskedTokens:
        """Every turn of the assistant is learnt.

        Raises:
            UserError: the chat template does not allow turns to be marked by their position.
        """
        end = self.prompter.tokenizer.convert_ids_to_tokens(self.prompter.end_token_id)
        try:
            masked = sft.mask_conversation(conversation, sft.ChatFormat(self._render, self.prompter.ids, end))
        except (ValueError, IndexError, TypeError, TemplateError) as error:
            raise UserError(
                f"the chat template does not fit conversation {conversation.id}: {error}",
                advice="set prompt.chat_template to a template that writes each turn unchanged, or learn suffixes",
            ) from error
        ids = self.prompter.add_beginning(masked.token_ids)
        before = np.zeros(len(ids) - len(masked.token_ids), dtype=np.bool_)
        return sft.MaskedTokens(masked.id, ids, np.concatenate([before, masked.learnt]))

    def suffix(self, suffix: sft.Suffix) -> sft.MaskedTokens:
        """Learnt after the problem and its prefix."""
        prompt = self.prompter.encode_problem(suffix.problem)
        written = self.append_end_token(self.prompter.ids(suffix.suffix))
        return sft.mask_suffix(suffix.id, prompt, self.prompter.ids(suffix.prefix), written)

    def _render(self, messages: Sequence[sft.Message], open_next: bool) -> str:
        rows = [{"role": m.role, "content": m.content} for m in messages]
        return self.prompter.render_messages(rows, open_next)


def is_whole(sampled: Branch | Rollout) -> bool:
    """Whether it is right and was not cut off by the limit; training needs its end."""
    right = sampled.right if isinstance(sampled, Rollout) else is_right(sampled.reward)
    return sampled.judged and right and sampled.finish_reason is FinishReason.STOP


def trace_name(rollout: Rollout) -> str:
    return f"{rollout.problem_id}/{rollout.sample}"


def values_of(group: "Group", rollout: Rollout) -> np.ndarray:
    """[k + 1] of a rollout's boundaries."""
    mine = {v.boundary: v.value for v in group.values if v.sample == rollout.sample}
    return np.array([mine[j] for j in range(len(rollout.boundaries))])


# Reading, with strict checks, and writing of supervised samples. Imports nothing heavy: ``submit`` uses it too.


_CONVERSATION = (
    'each line is one object such as {"id": "s-1", "messages": [{"role": "user", "content": "What is 1+1?"}, '
    '{"role": "assistant", "content": "2"}]}'
)
_SUFFIX = 'each line is one object such as {"id": "s-1", "problem": "What is 1+1?", "prefix": "Well, ", "suffix": "2."}'


def read_conversations(path: Path, limit: int | None = None) -> list[sft.Conversation]:
    """An error names the first wrong line and its field."""
    return read_lines(path, limit, _conversation, lambda c: c.id, _CONVERSATION)


def read_suffixes(path: Path, limit: int | None = None) -> list[sft.Suffix]:
    """An error names the first wrong line and its field."""
    return read_lines(path, limit, _suffix, lambda s: s.id, _SUFFIX)


def write_samples(path: Path, samples: Sequence[sft.Conversation | sft.Suffix]) -> None:
    """As JSON lines; the file appears complete or not at all."""
    write_text(path, sample_lines(samples))


def sample_lines(samples: Sequence[sft.Conversation | sft.Suffix]) -> str:
    return "".join(json.dumps(_row(s), ensure_ascii=False) + "\n" for s in samples)


def _conversation(row: dict[str, Any], where: str) -> sft.Conversation:
    turns = row.get("messages")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        raise UserError("messages: wrong value", value=turns, where=where, expected="a list of objects, not empty",
                        advice=_CONVERSATION)  # fmt: skip
    messages = tuple(
        sft.Message(
            text_field(turn, "role", f"{where}, messages[{n}]", _CONVERSATION),
            text_field(turn, "content", f"{where}, messages[{n}]", _CONVERSATION, empty=True),
        )
        for n, turn in enumerate(turns)
    )
    if not any(message.role == sft.ASSISTANT for message in messages):
        raise UserError("the conversation has no turn of the assistant to learn", where=where, advice=_CONVERSATION)
    return sft.Conversation(text_field(row, "id", where, _CONVERSATION), messages)


def _suffix(row: dict[str, Any], where: str) -> sft.Suffix:
    return sft.Suffix(
        id=text_field(row, "id", where, _SUFFIX),
        problem=text_field(row, "problem", where, _SUFFIX),
        prefix=text_field(row, "prefix", where, _SUFFIX, empty=True),
        suffix=text_field(row, "suffix", where, _SUFFIX),
    )


def _row(sample: sft.Conversation | sft.Suffix) -> dict[str, Any]:
    if isinstance(sample, sft.Conversation):
        return {"id": sample.id, "messages": [{"role": m.role, "content": m.content} for m in sample.messages]}
    return {"id": sample.id, "problem": sample.problem, "prefix": sample.prefix, "suffix": sample.suffix}
