"""Reading, with strict checks, and writing of supervised samples. Imports nothing heavy: ``submit`` uses it too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mrt_hpc.errors import UserError
from mrt_hpc.mrt.sft import ASSISTANT, Conversation, Message, Suffix
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.problems import read_lines, text_field

_CONVERSATION = (
    'each line is one object such as {"id": "s-1", "messages": [{"role": "user", "content": "What is 1+1?"}, '
    '{"role": "assistant", "content": "2"}]}'
)
_SUFFIX = 'each line is one object such as {"id": "s-1", "problem": "What is 1+1?", "prefix": "Well, ", "suffix": "2."}'


def read_conversations(path: Path, limit: int | None = None) -> list[Conversation]:
    """Read all conversations of a JSONL file (the first ``limit``).

    Raises:
        UserError: a line is wrong; the error names the first such line and its field.
    """
    return read_lines(path, limit, _conversation, lambda c: c.id, _CONVERSATION)


def read_suffixes(path: Path, limit: int | None = None) -> list[Suffix]:
    """Read all suffix samples of a JSONL file (the first ``limit``).

    Raises:
        UserError: a line is wrong; the error names the first such line and its field.
    """
    return read_lines(path, limit, _suffix, lambda s: s.id, _SUFFIX)


def write_samples(path: Path, samples: Sequence[Conversation | Suffix]) -> None:
    """Write samples as JSON lines; the file appears complete or not at all."""
    write_text(path, sample_lines(samples))


def sample_lines(samples: Sequence[Conversation | Suffix]) -> str:
    """Samples as JSON lines: the content of a data file."""
    return "".join(json.dumps(_row(s), ensure_ascii=False) + "\n" for s in samples)


def _conversation(row: dict[str, Any], where: str) -> Conversation:
    turns = row.get("messages")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        raise UserError("messages: wrong value", value=turns, where=where, expected="a list of objects, not empty",
                        advice=_CONVERSATION)  # fmt: skip
    messages = tuple(
        Message(
            text_field(turn, "role", f"{where}, messages[{n}]", _CONVERSATION),
            text_field(turn, "content", f"{where}, messages[{n}]", _CONVERSATION, empty=True),
        )
        for n, turn in enumerate(turns)
    )
    if not any(message.role == ASSISTANT for message in messages):
        raise UserError("the conversation has no turn of the assistant to learn", where=where, advice=_CONVERSATION)
    return Conversation(text_field(row, "id", where, _CONVERSATION), messages)


def _suffix(row: dict[str, Any], where: str) -> Suffix:
    return Suffix(
        id=text_field(row, "id", where, _SUFFIX),
        problem=text_field(row, "problem", where, _SUFFIX),
        prefix=text_field(row, "prefix", where, _SUFFIX, empty=True),
        suffix=text_field(row, "suffix", where, _SUFFIX),
    )


def _row(sample: Conversation | Suffix) -> dict[str, Any]:
    if isinstance(sample, Conversation):
        return {"id": sample.id, "messages": [{"role": m.role, "content": m.content} for m in sample.messages]}
    return {"id": sample.id, "problem": sample.problem, "prefix": sample.prefix, "suffix": sample.suffix}
