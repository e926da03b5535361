"""Supervised samples: whole conversations, or a suffix given a prefix that somebody else wrote (paper, backtracking).

What is learnt is told by position, never by tokens added to the vocabulary: a sample becomes token ids and one truth
value a token. Left out: chat template and tokenizer, which are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

USER, ASSISTANT = "user", "assistant"


@dataclass(frozen=True)
class Message:
    """One turn."""

    role: str
    """``user``, ``assistant`` or another that the chat template knows."""
    content: str


@dataclass(frozen=True)
class Conversation:
    """Every turn of the assistant is learnt."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Suffix:
    """Only the suffix is learnt."""

    id: str
    problem: str
    prefix: str
    """Written by another model, or by an earlier version."""
    suffix: str


@dataclass(frozen=True)
class MaskedTokens:
    """A sample as tokens."""

    id: str
    token_ids: list[int]
    """[T] prompt and all."""
    learnt: NDArray[np.bool_]
    """[T]"""

    @property
    def first_learnt(self) -> int:
        """Where the first learnt token lies; T when none is."""
        positions = np.flatnonzero(self.learnt)
        return int(positions[0]) if positions.size else len(self.token_ids)


@dataclass(frozen=True)
class ChatFormat:
    """How conversations become tokens: a chat template and a tokenizer."""

    render: Callable[[Sequence[Message], bool], str]
    """The text of some messages; the second argument asks for the opening of the assistant's next turn as well."""
    encode: Callable[[str], list[int]]
    """Token ids of a stretch of text."""
    end: str
    """What ends a turn of the assistant: nothing after it is learnt."""


def mask_conversation(conversation: Conversation, form: ChatFormat) -> MaskedTokens:
    """The tokens of a conversation, with those of the assistant's turns learnt.

    Learnt stretches and those between them become tokens one by one, as a prompt and its answer do when sampled.

    Raises:
        ValueError: the template writes earlier turns in another way once later ones follow, so that positions tell
            nothing; or there is no turn of the assistant.

    Source: the authors' code.
    """
    ids: list[int] = []
    learnt: list[bool] = []
    for text, is_learnt in _stretches(conversation, form):
        tokens = form.encode(text) if text else []
        ids += tokens
        learnt += [is_learnt] * len(tokens)
    if not any(learnt):
        raise ValueError(f"conversation {conversation.id} has no turn of the assistant to learn")
    return MaskedTokens(conversation.id, ids, np.array(learnt, dtype=np.bool_))


def _stretches(conversation: Conversation, form: ChatFormat) -> Iterator[tuple[str, bool]]:
    """The text of a conversation in stretches, each learnt or not."""
    messages = conversation.messages
    whole, done = form.render(messages, False), 0
    for index, message in enumerate(messages):
        if message.role == ASSISTANT:
            start, end = form.render(messages[:index], True), form.render(messages[: index + 1], False)
            if not (whole.startswith(start) and whole.startswith(end) and done <= len(start) <= len(end)):
                raise ValueError(
                    f"conversation {conversation.id}: the chat template writes turn {index} in another way when more "
                    "turns follow, or opens it with something else than it begins with"
                )
            last = whole.rfind(form.end, len(start), len(end)) if form.end else -1
            stop = last + len(form.end) if last >= 0 else len(end)
            yield whole[done : len(start)], False
            yield whole[len(start) : stop], True
            done = stop
    yield whole[done:], False


def mask_suffix(sample_id: str, prompt: Sequence[int], prefix: Sequence[int], suffix: Sequence[int]) -> MaskedTokens:
    """Prompt and prefix as context, the suffix learnt.

    Args:
        sample_id: whose.
        prompt: token ids of the problem.
        prefix: of what another model wrote.
        suffix: of what is learnt, with the end of the turn.

    Raises:
        ValueError: nothing to learn.

    Source: the authors' code, which masks by added tokens instead.
    """
    if not suffix:
        raise ValueError(f"sample {sample_id} has no suffix to learn")
    context = [*prompt, *prefix]
    learnt = np.arange(len(context) + len(suffix)) >= len(context)
    return MaskedTokens(sample_id, [*context, *suffix], learnt)
