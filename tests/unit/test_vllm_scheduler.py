"""The tokens that vLLM's scheduler holds back: what is passed on when, and that nothing is lost, doubled or moved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("vllm")
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import LogprobsLists

from mrt_hpc.inference import vllm_on_cpu
from mrt_hpc.inference.vllm_on_cpu import HoldingScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

Step = list[EngineCoreOutput]


def token(request: str, place: int, **more: Any) -> EngineCoreOutput:
    """The token at a place of a request, with its log-probability and the two likeliest tokens."""
    if place == 0:
        more["prefill_stats"] = PrefillStats()
    ids, values = np.array([[place, 7, 8]]), np.array([[-float(place), -0.1, -0.2]], np.float32)
    return EngineCoreOutput(request, [place], LogprobsLists(ids, values, np.array([1])), **more)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> HoldingScheduler:
    """One whose steps give the outputs that a test names. A token waits as long as it takes."""
    monkeypatch.setattr(Scheduler, "__init__", lambda self: setattr(self, "_pause_state", PauseState.UNPAUSED))
    monkeypatch.setattr(
        Scheduler,
        "update_from_output",
        lambda _, __, outputs: {0: EngineCoreOutputs(outputs=outputs)} if outputs else {},
    )
    monkeypatch.setattr(Scheduler, "has_finished_requests", lambda _: False)
    monkeypatch.setattr(
        Scheduler, "finish_requests", lambda _, names, __: [SimpleNamespace(request_id=n) for n in names]
    )
    monkeypatch.setattr(vllm_on_cpu, "LONGEST_S", float("inf"))
    made: Callable[[], HoldingScheduler] = HoldingScheduler
    scheduler = made()
    scheduler.requests = {name: SimpleNamespace(client_index=0) for name in "ab"}
    return scheduler


def passed_on(scheduler: HoldingScheduler, *outputs: EngineCoreOutput) -> list[tuple[str, list[int]]]:
    """What a step with these outputs passes on: requests with their tokens."""
    found = scheduler.update_from_output(None, list(outputs))
    given = [output for one in found.values() for output in one.outputs]
    for output in given:
        told = output.new_logprobs
        assert told.logprob_token_ids[:, 0].tolist() == output.new_token_ids
        assert told.logprobs[:, 0].tolist() == [-place for place in output.new_token_ids]
        assert told.logprobs.shape == (len(output.new_token_ids), 3)
        assert told.sampled_token_ranks.shape == (len(output.new_token_ids),)
    return [(output.request_id, output.new_token_ids) for output in given]


def test_the_last_token_takes_those_that_were_held_with_it(scheduler: HoldingScheduler) -> None:
    assert passed_on(scheduler, token("a", 0), token("b", 0)) == [("a", [0]), ("b", [0])]
    assert passed_on(scheduler, token("a", 1), token("b", 1)) == []
    assert passed_on(scheduler, token("a", 2), token("b", 2)) == []
    assert passed_on(scheduler, token("a", 3, finish_reason=FinishReason.STOP), token("b", 3)) == [("a", [1, 2, 3])]
    assert passed_on(scheduler, token("b", 4, finish_reason=FinishReason.LENGTH)) == [("b", [1, 2, 3, 4])]


def test_all_are_passed_on_when_they_have_waited_long_enough(
    scheduler: HoldingScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_on(scheduler, token("a", 0), token("b", 0))
    passed_on(scheduler, token("a", 1), token("b", 1))
    monkeypatch.setattr(vllm_on_cpu, "LONGEST_S", 0.0)
    assert passed_on(scheduler, token("b", 2)) == [("a", [1]), ("b", [1, 2])]


def test_a_pause_waits_for_a_step_that_passes_all_on(scheduler: HoldingScheduler) -> None:
    passed_on(scheduler, token("a", 0))
    passed_on(scheduler, token("a", 1))
    assert not scheduler.has_finished_requests()
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert scheduler.has_finished_requests(), "the engine takes a step, in which nothing is sampled"
    assert passed_on(scheduler) == [("a", [1])]
    assert not scheduler.has_finished_requests()


def test_what_was_held_of_an_aborted_sample_is_dropped(scheduler: HoldingScheduler) -> None:
    passed_on(scheduler, token("a", 0), token("b", 0))
    passed_on(scheduler, token("a", 1), token("b", 1))
    scheduler.finish_requests(["a"], None)
    del scheduler.requests["a"]
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert passed_on(scheduler) == [("b", [1])]


def test_a_sample_keeps_its_own_log_probabilities_beside_one_that_asks_for_more(scheduler: HoldingScheduler) -> None:
    passed_on(scheduler, token("a", 0))
    passed_on(scheduler, token("a", 1))
    wide = token("a", 2)
    wide.new_logprobs = LogprobsLists(*(np.repeat(one, 3, axis=-1) for one in wide.new_logprobs[:2]), np.array([1]))
    passed_on(scheduler, wide)
    assert passed_on(scheduler, token("a", 3, finish_reason=FinishReason.STOP)) == [("a", [1, 2, 3])]
