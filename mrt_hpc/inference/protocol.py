"""What the client and the server's own route say to each other: requests as one JSON body, finished samples as lines
of JSON, each behind its checksum.

Both ends import this module, so it imports neither vLLM nor an HTTP library. vLLM's own routes spend, on a small
model, as much time on one object per token and on text that is not read as the engine does on the model; here a
sample is two flat lists.
"""

from __future__ import annotations

from binascii import crc32

import msgspec

GENERATE_PATH = "/mrt/generate"
MOST_LOGPROBS = 64
"""Tokens whose log-probabilities a request may ask for at one position."""
FIRST_VERSION_VARIABLE = "MRT_HPC_WEIGHTS_VERSION"
"""Environment of the server: the weights version that it starts with."""


class SamplingSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to sample. The log-probabilities that come back are those of exactly this distribution."""

    max_tokens: int
    temperature: float = 1.0
    """Greedy at 0, where log-probabilities are those of temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0 for all tokens."""
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    """The one that ends a sample is the last of its token ids."""
    ignore_stop: bool = False
    """Go on to ``max_tokens`` whatever is sampled (for measurements)."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """One prompt, and a sample of it for each seed."""

    prompt_ids: list[int]
    seeds: list[int]
    settings: SamplingSettings
    score_ids: list[int] = []
    """Also return the log-probability of each of these tokens at the first position sampled."""
    top: int = 0
    """Also return so many of the likeliest tokens at every position, with their log-probabilities."""


class RequestBatch(msgspec.Struct, frozen=True):
    """The body of a request to ``GENERATE_PATH``."""

    requests: list[Request]


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished sample: a line of the response, sent as soon as it is finished."""

    request: int
    """Index into the requests of the batch."""
    sample: int
    """Index into its seeds."""
    token_ids: list[int] = []
    logprobs: list[float] = []
    finish_reason: str = ""
    cached_tokens: int | None = None
    weights_versions: list[int] = []
    """Every weights version that sampled a token of it, in order."""
    scores: list[float] = []
    """[len(score_ids)]"""
    top_ids: list[int] = []
    """[T * top] position after position."""
    top_logprobs: list[float] = []
    """[T * top]"""
    error: str | None = None
    """The request was refused, and why."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Sample).decode


def sample_line(sample: Sample) -> bytes:
    """One line of the response."""
    text = _encode(sample)
    return b"%08x %b\n" % (crc32(text), text)


def read_sample_line(line: bytes) -> Sample:
    """The sample of a line without its end.

    Raises:
        ValueError: the line is not as it was sent.
    """
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % crc32(text):
        raise ValueError(f"an answer that was damaged on its way: {line[:80]!r}")
    return _decode(text)
