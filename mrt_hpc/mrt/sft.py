"""Supervised samples: whole conversations, or a suffix given a prefix that another model wrote (paper, backtracking).

The learnt tokens are marked by position, never by tokens added to the vocabulary: a sample becomes token ids and one
truth value per token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
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
    """Written by another model or an earlier version."""
    suffix: str


@dataclass(frozen=True)
class MaskedTokens:
    id: str
    token_ids: list[int]
    """[T] with the prompt."""
    learnt: NDArray[np.bool_]
    """[T] whether each token is learnt."""

    @property
    def first_learnt(self) -> int:
        """T when none is learnt."""
        positions = np.flatnonzero(self.learnt)
        return int(positions[0]) if positions.size else len(self.token_ids)


@dataclass(frozen=True)
class ChatFormat:
    """A chat template and a tokenizer."""

    render: Callable[[Sequence[Message], bool], str]
    """The text of messages; if the second argument is true, with the opening of the assistant's next turn."""
    encode: Callable[[str], list[int]]
    end: str
    """Ends a turn of the assistant; nothing after it is learnt."""


def mask_conversation(conversation: Conversation, form: ChatFormat) -> MaskedTokens:
    """The tokens of a conversation, with those of the assistant's turns learnt.

    Learnt stretches and those between them are tokenized separately, as a prompt and its answer are when sampled.

    Raises:
        ValueError: the template writes earlier turns differently once later ones follow, so that positions mean
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
            last = end.rfind(form.end, len(start)) if form.end else -1
            stop = last + len(form.end) if last >= 0 else len(end)  # some templates write more behind the last turn
            if not (whole.startswith(start) and whole.startswith(end[:stop]) and done <= len(start) <= stop):
                raise ValueError(
                    f"conversation {conversation.id}: the chat template writes turn {index} differently when more "
                    "turns follow, or its opening of the turn differs from the beginning of the turn"
                )
            yield whole[done : len(start)], False
            yield whole[len(start) : stop], True
            done = stop
    yield whole[done:], False


def mask_suffix(sample_id: str, prompt: Sequence[int], prefix: Sequence[int], suffix: Sequence[int]) -> MaskedTokens:
    """Prompt and prefix as context, followed by the suffix, which is learnt and holds the end of the turn.

    Raises:
        ValueError: the suffix is empty.

    Source: the authors' code, which masks by added tokens instead.
    """
    if not suffix:
        raise ValueError(f"sample {sample_id} has no suffix to learn")
    context = [*prompt, *prefix]
    learnt = np.arange(len(context) + len(suffix)) >= len(context)
    return MaskedTokens(sample_id, [*context, *suffix], learnt)
