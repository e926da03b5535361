"""Messages between the client and the server's sampling route: requests as one JSON body, finished samples as lines of
JSON, each behind its checksum.

Both ends import this module, so it imports neither vLLM nor an HTTP library. vLLM's own routes, with an object a token
and unread text, take as much time as a small model.
"""

from binascii import crc32
from math import isfinite

import msgspec

GENERATE_PATH = "/mrt/generate"
MOST_LOGPROBS = 64
"""The most tokens with log-probabilities that a request may ask for at one position."""
FIRST_VERSION_VARIABLE = "MRT_HPC_WEIGHTS_VERSION"
"""The server's variable with the weights version that it starts with."""
NOT_FINITE = "NotFinite"
"""Begins the refusal of a sample whose log-probabilities are not all finite."""
PAUSE_PATH = "/pause"
"""vLLM's route that pauses the engine, before new weights are loaded."""


class SamplingSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The returned log-probabilities are those of exactly this distribution."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy, with the log-probabilities of temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """The likeliest tokens to sample from; 0 for all."""
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    """The one that ended a sample is the last of its token ids."""
    ignore_stop: bool = False
    """Whether to continue to ``max_tokens`` after a stop token (for measurements)."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """One prompt, with one sample for each seed."""

    prompt_ids: list[int]
    seeds: list[int]
    settings: SamplingSettings
    score_ids: list[int] = []
    """Their log-probabilities at the first sampled position are also returned."""
    top: int = 0
    """Likeliest tokens to return, with their log-probabilities, at every position."""
    family: str = ""
    """The problem of the request. A task with several servers sends all of one problem to the same one, whose prefix
    cache holds their common beginning.
    """


class RequestBatch(msgspec.Struct, frozen=True):
    requests: list[Request]


class ServedSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the response, sent as soon as the sample is finished."""

    request: int
    sample: int
    """Index of its seed in the request."""
    token_ids: list[int] = []
    logprobs: list[float] = []
    finish_reason: str = ""
    cached_tokens: int | None = None
    weights_spans: list[tuple[int, int]] = []
    """Each weights version that sampled some of its tokens, with the index of the first, in order."""
    scores: list[float] = []
    """[len(score_ids)]"""
    top_ids: list[int] = []
    """[T * top] position after position."""
    top_logprobs: list[float] = []
    """[T * top]"""
    error: str | None = None


def not_finite(sample: ServedSample) -> str | None:
    """The NaN or infinity of a sample, behind ``NOT_FINITE``: JSON holds neither, so the server has to report it."""
    for name, values in (("logprobs", sample.logprobs), ("scores", sample.scores), ("tops", sample.top_logprobs)):
        if not all(map(isfinite, values)):
            place = next(place for place, value in enumerate(values) if not isfinite(value))
            return f"{NOT_FINITE}: number {place} of {len(values)} {name} is {values[place]}"
    return None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ServedSample).decode


def sample_line(sample: ServedSample) -> bytes:
    text = _encode(sample)
    return b"%08x %b\n" % (crc32(text), text)


def read_sample_line(line: bytes) -> ServedSample:
    """A line, without its end, that differs from the one that was sent is a ValueError."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % crc32(text):
        raise ValueError(f"the server's answer was damaged in transfer: {line[:80]!r}")
    return _decode(text)
