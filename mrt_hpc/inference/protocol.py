"""Messages between the client and the server's sampling route: requests as one JSON body, finished samples as lines
of JSON, each behind its checksum.

Both ends import this module, so it imports neither vLLM nor an HTTP library. vLLM's own routes spend, on a small
model, as much time on one object per token and on text that is not read as the engine does on the model; here a
sample is two flat lists.
"""

from binascii import crc32
from math import isfinite

import msgspec

GENERATE_PATH = "/mrt/generate"
MOST_LOGPROBS = 64
"""The maximum number of tokens whose log-probabilities a request may ask for at one position."""
FIRST_VERSION_VARIABLE = "MRT_HPC_WEIGHTS_VERSION"
"""The environment variable of the server with the weights version that it starts with."""
NOT_FINITE = "NotFinite"
"""The beginning of the reason why a sample was refused whose log-probabilities are not all finite."""
PAUSE_PATH = "/pause"
"""vLLM's route that pauses the engine, before new weights are loaded."""
SERVED_PATH = "/mrt/served"
SERVED_VARIABLE = "MRT_HPC_SERVED"
"""The environment variable of the server with the JSON that it answers at ``SERVED_PATH``."""


class ServedSettings(msgspec.Struct, frozen=True):
    """The settings of a server that decide what it samples, for a task that has not started it."""

    dtype: str
    """The number format of weights and activations."""
    noise_by_request: bool
    """Whether samples of equal seeds have the same random numbers, whatever their prompts' lengths."""


class SamplingSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sampling settings. The returned log-probabilities are those of exactly this distribution."""

    max_tokens: int
    temperature: float = 1.0
    """The sampling temperature; 0 is greedy, with the log-probabilities of temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """The number of likeliest tokens to sample from; 0 for all tokens."""
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    """The tokens that end a sample; the one that ended it is the last of its token ids."""
    ignore_stop: bool = False
    """Whether to continue to ``max_tokens`` after a stop token (for measurements)."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """One prompt, with one sample for each seed."""

    prompt_ids: list[int]
    seeds: list[int]
    settings: SamplingSettings
    score_ids: list[int] = []
    """The tokens whose log-probabilities at the first sampled position are also returned."""
    top: int = 0
    """The number of likeliest tokens to return, with their log-probabilities, at every position."""
    family: str = ""
    """The problem that the request belongs to. Requests of one problem begin alike, so a task with several servers
    sends them to the same one, whose prefix cache then holds their common beginning. Servers do not read it.
    """


class RequestBatch(msgspec.Struct, frozen=True):
    """The body of a request to ``GENERATE_PATH``."""

    requests: list[Request]


class ServedSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished sample: a line of the response, sent as soon as it is finished."""

    request: int
    """The index of its request in the batch."""
    sample: int
    """The index of its seed in the request."""
    token_ids: list[int] = []
    logprobs: list[float] = []
    finish_reason: str = ""
    cached_tokens: int | None = None
    weights_spans: list[tuple[int, int]] = []
    """Each weights version that sampled some of its tokens, with the index of the first of them, in order."""
    scores: list[float] = []
    """[len(score_ids)]"""
    top_ids: list[int] = []
    """[T * top] position after position."""
    top_logprobs: list[float] = []
    """[T * top]"""
    error: str | None = None
    """The reason why the request was refused, if it was."""


def not_finite(sample: ServedSample) -> str | None:
    """Return which number of a sample is NaN or infinite, behind ``NOT_FINITE``; None where all are finite. JSON holds
    neither, so the server has to report it.
    """
    for name, values in (("logprobs", sample.logprobs), ("scores", sample.scores), ("tops", sample.top_logprobs)):
        if not all(map(isfinite, values)):
            place = next(place for place, value in enumerate(values) if not isfinite(value))
            return f"{NOT_FINITE}: number {place} of {len(values)} {name} is {values[place]}"
    return None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ServedSample).decode


def sample_line(sample: ServedSample) -> bytes:
    """Return one line of the response."""
    text = _encode(sample)
    return b"%08x %b\n" % (crc32(text), text)


def read_sample_line(line: bytes) -> ServedSample:
    """Return the sample of a line without its line end.

    Raises:
        ValueError: the line differs from the one that was sent.
    """
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % crc32(text):
        raise ValueError(f"the server's answer was damaged in transfer: {line[:80]!r}")
    return _decode(text)
