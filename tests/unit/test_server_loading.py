"""A server is never restarted in the middle of a load, and samples nothing where a step of the load went wrong."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from mrt_hpc.errors import UserError
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_control import Address, ServerControl
from mrt_hpc.inference.server_start import ServerSettings
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 20.0


class Server(VllmServer):
    """Starts no process, and notes the weights that it would start with."""

    def start(self, _: object = None) -> None:
        """Note the weights."""
        self.started_with = self.weights_version

    def _recovers(self) -> bool:
        return False


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def server(model: Path) -> Server:
    return Server(ServerSettings(model, 8), model / "log")


@pytest.mark.parametrize("fails", [False, True])
def test_a_restart_waits_for_the_end_of_a_load(
    server: Server, model: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, go_on = threading.Event(), threading.Event()

    def load(*_: object, swap: WeightSwap, **__: object) -> dict[str, Any]:
        assert swap is WeightSwap.KEEP
        loading.set()
        assert go_on.wait(DEADLINE_S)
        if fails:
            raise UserError("the vLLM server refused")
        return {}

    def load_quietly() -> None:
        try:
            server.load_weights(model, 1, WeightSwap.KEEP)
        except UserError as error:
            failures.append(error)

    failures: list[UserError] = []
    monkeypatch.setattr(ServerControl, "load", load)
    loader = threading.Thread(target=load_quietly)
    restarter = threading.Thread(target=server.restart_if_dead)
    loader.start()
    assert loading.wait(DEADLINE_S)
    restarter.start()
    wait_until(restarter.is_alive, reason="the restart to begin", deadline_s=DEADLINE_S)
    assert server.is_loading
    assert not hasattr(server, "started_with")
    go_on.set()
    for thread in (loader, restarter):
        thread.join(DEADLINE_S)
    assert server.started_with == (0 if fails else 1), "with the weights that it held last"
    assert bool(failures) == fails
    assert not server.is_loading


@pytest.mark.parametrize("swap", [WeightSwap.DRAIN, WeightSwap.RECOMPUTE])
@pytest.mark.parametrize("cleared", [True, False])
def test_a_cache_that_was_not_cleared_fails_the_load(
    swap: WeightSwap, cleared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM answers that with 200."""
    called: list[str] = []

    def answer(_: object, __: str, path: str, **___: object) -> httpx.Response:
        called.append(path)
        return httpx.Response(200, json={"success": cleared, "results": [{}]})

    monkeypatch.setattr(ServerControl, "call", answer)
    control = ServerControl(Address("unix:/none"), "key", "log", "advice")
    try:
        control.load(tmp_path, 1, swap=swap, pause_deadline_s=1, read_deadline_s=1)
    except UserError:
        assert not cleared
    assert ("/resume" in called) is cleared
