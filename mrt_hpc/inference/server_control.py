"""The control routes of a vLLM server: its health, its counters, new weights in place of the old ones.

They are the same for a server that a task has started and for one that runs already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.retries import list_directory

CONTROL_TIMEOUT_S = 60.0
"""For control routes that have nothing to wait for."""
LOOK_TIMEOUT_S = 10.0
"""For routes that answer at once, if the server is well."""
UNIX = "unix:"
"""Begins an address that is the path of a Unix socket."""


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    text: str
    """``http://HOST:PORT``, or ``unix:PATH`` of a Unix socket."""

    @staticmethod
    def of_socket(path: Path) -> Address:
        """The address of a Unix socket."""
        return Address(f"{UNIX}{path}")

    @property
    def socket(self) -> Path | None:
        """The Unix socket; None for an address of the network."""
        return Path(self.text.removeprefix(UNIX)) if self.text.startswith(UNIX) else None

    @property
    def url(self) -> str:
        """What requests begin with; behind a Unix socket the name of the host means nothing."""
        return "http://vllm" if self.socket is not None else self.text.rstrip("/")


class Server(Protocol):
    """A vLLM server that serves one model: the task's own, or one that runs already."""

    @property
    def control(self) -> ServerControl:
        """Its control routes."""

    @property
    def pid(self) -> int | None:
        """Process id of the API server; None where it is not the task's own."""

    @property
    def weights_version(self) -> int:
        """The version that was loaded last."""

    def load_weights(self, directory: Path, version: int) -> dict[str, Any]:
        """Put new weights into the running model.

        Raises:
            UserError: the directory holds no weights, or the reload failed.
        """

    def tokens_done(self) -> int | None:
        """Tokens read and generated since it started; None when it does not answer."""

    def restart_if_dead(self) -> bool:
        """Start it again where it does not answer; True when it was restarted.

        Raises:
            UserError: it cannot be started again.
        """

    def restart(self) -> None:
        """Start it again, however it is.

        Raises:
            UserError: it cannot be started again.
        """

    def close(self) -> None:
        """End it, where it is the task's own."""


@dataclass(frozen=True)
class ServerControl:
    """Calls the control routes of one server."""

    address: Address
    key: str = field(repr=False)
    where: object
    """What an error names as its place: the log of the server, or its address."""
    advice: str
    """What the user types where the server has failed."""

    def status(self) -> int | None:
        """Status of its health route, which is an error once the engine has died; None when it does not answer."""
        try:
            return self.call("GET", "/health", timeout=LOOK_TIMEOUT_S).status_code
        except httpx.TransportError:
            return None

    def tokens_done(self) -> int | None:
        """Tokens read and generated since it started, by its own counters; None when it does not answer."""
        try:
            totals = metric_totals(self.call("GET", "/metrics", timeout=LOOK_TIMEOUT_S).text)
        except (httpx.TransportError, ValueError, IndexError):  # the latter: a page that is none
            return None
        return int(sum(totals.get(f"vllm:{kind}_tokens_total", 0.0) for kind in ("prompt", "generation")))

    def metrics(self) -> dict[str, float]:
        """vLLM's counters and gauges, summed over their labels."""
        return metric_totals(self.request("/metrics", method="GET").text)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        self.request("/reset_prefix_cache")

    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that it serves."""
        models = self.request("/v1/models", method="GET").json()["data"]
        return int(models[0]["max_model_len"])

    def load(self, directory: Path, version: int, *, pause_deadline_s: float, read_deadline_s: float) -> dict[str, Any]:
        """Put new weights into the running model, and forget the cached prefixes of the old ones.

        Samples that have begun are finished first, with the old weights. Every worker compares its embedding with the
        directory and its output head with its weights before this returns.

        Returns:
            What the first worker reports: the ``seconds`` it took, and the ``directory``.

        Raises:
            UserError: the server refused, or stopped half-way: it may then hold a part of each version.
        """
        self.request("/pause", timeout=pause_deadline_s, params={"mode": "wait"})
        arguments = {"method": "reload_and_verify", "args": [str(directory)]}
        report = self.request("/collective_rpc", timeout=read_deadline_s, json=arguments).json()["results"][0]
        self.reset_prefix_cache()
        self.request("/update_weight_version", json={"new_version": str(version)})
        self.request("/resume")
        return dict(report)

    def request(
        self, path: str, *, method: str = "POST", timeout: float = CONTROL_TIMEOUT_S, **arguments: Any
    ) -> httpx.Response:
        """Call a route that has to work.

        Raises:
            UserError: the server does not answer, or refuses.
        """
        try:
            response = self.call(method, path, timeout=timeout, **arguments)
        except httpx.TransportError as error:
            raise self._failure(f"the vLLM server does not answer: {error!r}", path) from error
        if response.is_error:
            raise self._failure(f"the vLLM server refused: {response.text.strip()}", path)
        return response

    def call(self, method: str, path: str, *, timeout: float, **arguments: Any) -> httpx.Response:
        """Call a route, whatever it answers."""
        uds = self.address.socket
        # No TLS on a socket: no certificates are read.
        transport = httpx.HTTPTransport(uds=None if uds is None else str(uds), verify=uds is None)
        with httpx.Client(transport=transport, timeout=timeout, trust_env=False) as http:
            headers = {"Authorization": f"Bearer {self.key}"}
            return http.request(method, f"{self.address.url}{path}", headers=headers, **arguments)

    def _failure(self, what: str, path: str) -> UserError:
        return UserError(what, value=path, where=self.where, advice=self.advice, exit_code=ExitCode.RETRYABLE)


def refuse_no_weights(directory: Path) -> None:
    """Refuse a directory that holds no model.

    Raises:
        UserError: it has no configuration or no weights.
    """
    if not (directory / "config.json").is_file() or not list_directory(directory, "*.safetensors"):
        expected = "config.json and *.safetensors"
        raise UserError("no weights to load", where=directory, expected=expected, exit_code=ExitCode.RETRYABLE)


def metric_totals(text: str) -> dict[str, float]:
    """A page of Prometheus metrics, summed over labels."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals
