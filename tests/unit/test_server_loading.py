"""New weights and a restart at the same time: a server is never restarted in the middle of a load."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from mrt_hpc.errors import UserError
from mrt_hpc.inference.server import VllmServer
from mrt_hpc.inference.server_control import ServerControl
from mrt_hpc.inference.server_settings import ServerSettings
from mrt_hpc.recipe.sections.schedule import WeightSwap
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
