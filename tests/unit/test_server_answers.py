"""Whatever becomes of a server's answers on their way: the right samples arrive, or a clear error does."""

import asyncio
import math
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import httpx
import msgspec
import pytest
from aiohttp import web
from commands import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from tenacity import wait_none

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference import protocol
from mrt_hpc.inference.client import Completion, Request, SamplingSettings, connect
from mrt_hpc.inference.protocol import RequestBatch, ServedSample, not_finite, read_sample_line, sample_line
from mrt_hpc.inference.server_control import ServerControl
from mrt_hpc.recipe.sections import WeightSwap

FOUR = SamplingSettings(max_tokens=4)
REQUESTS = [Request([1, 2, 3], [10, 11], FOUR), Request([4], [12], FOUR)]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.inference.client.wait_exponential", lambda **_: wait_none())


def right(i: int, j: int) -> ServedSample:
    return ServedSample(i, j, [7, i, j], [-0.5, -1.0, -0.25 * (j + 1)], "stop", 0, [(3, 0)])


def answers(batch: RequestBatch) -> bytes:
    """What the server says to a batch, which holds what is still waited for."""
    known = {seed: (i, j) for i, r in enumerate(REQUESTS) for j, seed in enumerate(r.seeds)}
    return b"".join(
        sample_line(msgspec.structs.replace(right(*known[seed]), request=i, sample=j))
        for i, request in enumerate(batch.requests)
        for j, seed in enumerate(request.seeds)
    )


def asked(damage: Callable[[bytes], bytes], times: int) -> list[Completion]:
    """All samples through a server that damages its first so many responses."""
    left = [times]

    async def generate(request: web.Request) -> web.Response:
        body = answers(msgspec.json.decode(await request.read(), type=RequestBatch))
        left[0] -= 1
        return web.Response(body=damage(body) if left[0] >= 0 else body)

    return answered_by(generate)


def answered_by(generate: Callable[[web.Request], Awaitable[web.Response]]) -> list[Completion]:
    async def answered() -> list[Completion]:
        application = web.Application()
        application.router.add_post(protocol.GENERATE_PATH, generate)
        runner = web.AppRunner(application)
        await runner.setup()
        with tempfile.TemporaryDirectory() as folder:
            await web.UnixSite(runner, f"{folder}/s").start()
            try:
                async with connect(Path(folder) / "s", "key", attempts=2, where="the log", advice="read it") as client:
                    return [c async for c in client.stream(REQUESTS)]
            finally:
                await runner.cleanup()

    return asyncio.run(answered())


ODD = (b"", b"null", b"3", b"[]", b"{}", b'{"data": []}', b'{"results": []}', b"\xff")


def answering(monkeypatch: pytest.MonkeyPatch, status: int = 200, **content: Any) -> ServerControl:
    """A server whose every route answers the same."""
    monkeypatch.setattr(ServerControl, "call", Mock(return_value=httpx.Response(status, **content)))
    return ServerControl(Path("/none"), "key", where="the log", advice="read it")


def load(server: ServerControl, swap: WeightSwap = WeightSwap.DRAIN) -> dict[str, Any]:
    return server.load(Path("w"), 1, 1.0, 1.0, swap=swap)


def test_only_what_was_done_counts_as_done_and_another_kind_of_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for body in ODD:
        server = answering(monkeypatch, content=body)
        assert "no vLLM server" in refusal(server.reset_prefix_cache).what, body
        assert "no vLLM server" in refusal(load, server).what, body
    assert answering(monkeypatch, content=b"vllm:prompt_tokens_total NaN").tokens_done() is None
    assert "302" in refusal(answering(monkeypatch, 302).wake_up, 1.0).what
    loaded = {"results": [{"directory": "w"}, {"directory": "old"}]}
    assert "loaded 'old', not w" in refusal(load, answering(monkeypatch, json=loaded)).what
    for swap in (WeightSwap.DRAIN, WeightSwap.RECOMPUTE):
        server = answering(monkeypatch, json={"success": False, "results": [{}]})
        assert "did not clear its prefix cache" in refusal(load, server, swap).what
        assert "/resume" not in str(cast("Any", server.call).mock_calls)
        server = answering(monkeypatch, json={"success": True, "results": [{}]})
        load(server, swap)
        assert "/resume" in str(cast("Any", server.call).mock_calls)


def check(completions: list[Completion]) -> None:
    found = {(c.request, c.sample): (c.token_ids, c.logprobs, c.seed, c.weights_version) for c in completions}
    wanted = {(i, j): (right(i, j), seed) for i, r in enumerate(REQUESTS) for j, seed in enumerate(r.seeds)}
    assert len(completions) == len(wanted)
    assert found == {place: (s.token_ids, s.logprobs, seed, 3) for place, (s, seed) in wanted.items()}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damage_is_made_good_by_asking_again_or_told(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["none", "flip", "cut", "repeat", "insert", "swap"]))
    place, byte = data.draw(st.integers(0, 400)), data.draw(st.integers(0, 255))

    def damage(body: bytes) -> bytes:
        at = place % len(body)
        return {
            "none": body,
            "flip": body[:at] + bytes([body[at] ^ (byte or 1)]) + body[at + 1 :],
            "cut": body[:at],
            "repeat": body + body[:at],
            "insert": body[:at] + bytes([byte]) + body[at:],
            "swap": body[at:] + body[:at],
        }[kind]

    always = data.draw(st.booleans())
    try:
        completions = asked(damage, 10 if always else 1)
    except UserError as error:
        assert always and kind != "none", "the second answer was undamaged"
        assert (error.exit_code, error.where) == (ExitCode.RETRYABLE, "the log")
    else:
        check(completions)


def with_first(body: bytes, **changes: object) -> bytes:
    first, rest = body.split(b"\n", 1)
    return sample_line(msgspec.structs.replace(read_sample_line(first), **changes)) + rest


WRONG: list[dict[str, object]] = [
    {"token_ids": []}, {"token_ids": [1, 2, 3, 4, 5], "logprobs": [-1.0] * 5},
    *({"logprobs": logprobs} for logprobs in ([-1.0], [0.5, -1.0, -1.0])),
    *({"weights_spans": spans} for spans in ([], [(3, 1)], [(3, 0), (3, 1)], [(4, 0), (3, 1)], [(3, 0), (4, 9)])),
    {"scores": [-1.0]}, *({"request": 5}, {"request": -1}, {"sample": 2}), {"finish_reason": "abort"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_an_answer_that_cannot_be_right_is_not_taken(wrong: dict[str, object]) -> None:
    check(asked(lambda body: with_first(body, **wrong), 1))
    with pytest.raises(UserError) as told:
        asked(lambda body: with_first(body, **wrong), 10)
    assert told.value.exit_code is ExitCode.RETRYABLE


def test_a_request_that_the_server_refuses_is_told_with_its_place() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=400, text="too long")

    def refuse_one(body: bytes) -> bytes:
        return with_first(body, error="ValueError: too long")

    asks = {"2 requests": lambda: answered_by(refuse), "a prompt of 3 tokens": lambda: asked(refuse_one, 1)}
    for value, ask in asks.items():
        with pytest.raises(UserError, match="too long") as refused:
            ask()
        assert (refused.value.value, refused.value.where, refused.value.advice) == (value, "the log", "read it")
        assert refused.value.exit_code is ExitCode.FATAL


def test_numbers_that_are_not_finite_are_told_once_and_not_asked_for_again() -> None:
    """JSON has no NaN: the server finds them, and the same seed with the same weights would give them again."""
    for wrong in ({"logprobs": [-1.0, math.nan, 0.0]}, {"scores": [-math.inf]}, {"top_logprobs": [0.0, math.inf]}):
        assert (not_finite(msgspec.structs.replace(right(0, 0), **wrong)) or "").startswith(protocol.NOT_FINITE)
    assert not_finite(right(0, 0)) is None
    reason, asked_for = not_finite(ServedSample(0, 0, [1], [-math.inf])), []

    async def spoiled(request: web.Request) -> web.Response:
        asked_for.append(await request.read())
        return web.Response(body=sample_line(ServedSample(0, 0, error=reason)))

    with pytest.raises(UserError, match="number 0 of 1 logprobs is -inf") as refused:
        answered_by(spoiled)
    assert len(asked_for) == 1 and refused.value.exit_code is ExitCode.FATAL
    assert refused.value.value == "a prompt of 3 tokens, seed 10"
