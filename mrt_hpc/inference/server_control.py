"""The control routes of a vLLM server: its health, its counters, new weights in place of the old ones.

They are the same for a server that a task has started and for one that runs already.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import httpx
import msgspec

from mrt_hpc.errors import ExitCode, UserError, word
from mrt_hpc.inference.protocol import PAUSE_PATH, SERVED_PATH, ServedSettings
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.run.retries import list_directory

CONTROL_TIMEOUT_S = 60.0
"""The time-out for control routes that answer without waiting."""
LOOK_TIMEOUT_S = 10.0
"""The time-out for routes that a healthy server answers at once."""
READ_LOG = "read the end of the server's log; mrt-hpc submit RUN starts the server again"
"""The advice in an error of a server that does not name its log."""
T = TypeVar("T")
UNIX = "unix:"
"""The prefix of an address that is the path of a Unix socket."""


@dataclass(frozen=True)
class Address:
    """The address at which a server listens."""

    text: str
    """``http://HOST:PORT``, or ``unix:PATH`` of a Unix socket."""

    @staticmethod
    def of_socket(path: Path) -> "Address":
        """Return the address of a Unix socket."""
        return Address(f"{UNIX}{path}")

    @property
    def socket(self) -> Path | None:
        """The Unix socket; None for a network address."""
        return Path(self.text.removeprefix(UNIX)) if self.text.startswith(UNIX) else None

    @property
    def url(self) -> str:
        """What requests begin with; behind a Unix socket the name of the host means nothing."""
        return "http://vllm" if self.socket is not None else self.text.rstrip("/")


class Servers(Protocol):
    """The servers of one model that a task samples with: a single one, or several side by side."""

    @property
    def each(self) -> "Sequence[Server]":
        """All of them."""

    def load_weights(self, directory: Path, version: int, swap: WeightSwap = WeightSwap.DRAIN) -> dict[str, Any]:
        """Load new weights into the running model.

        Args:
            directory: of the weights.
            version: their number.
            swap: what happens to running samples.

        Raises:
            UserError: the directory holds no weights, or the reload failed.
        """

    def close(self) -> None:
        """End the servers that the task has started."""


class Server(Servers, Protocol):
    """A vLLM server that serves one model: the task's own, or one that runs already."""

    @property
    def control(self) -> "ServerControl":
        """The client of its control routes."""

    @property
    def pid(self) -> int | None:
        """The process id of the API server; None where the task did not start it."""

    @property
    def weights_version(self) -> int:
        """The weights version that was loaded last."""

    @property
    def is_loading(self) -> bool:
        """Whether it is loading weights, and samples nothing meanwhile."""

    def sleep(self) -> None:
        """Free the memory of its GPUs: weights go to the memory of the node, the key-value cache is dropped. On CPU
        nothing happens.

        Raises:
            UserError: the server does not answer.
        """

    def wake_up(self) -> None:
        """Take the memory back, with the weights as they were.

        Raises:
            UserError: the server does not answer.
        """

    def restart_if_dead(self) -> bool:
        """Restart the server if it does not answer; return whether it was restarted.

        Raises:
            UserError: the server cannot be restarted.
        """

    def restart(self) -> None:
        """Restart the server, in any state.

        Raises:
            UserError: the server cannot be restarted.
        """


class _Cleared(msgspec.Struct):
    success: bool


class _Model(msgspec.Struct):
    max_model_len: int


class _Models(msgspec.Struct):
    data: Annotated[list[_Model], msgspec.Meta(min_length=1)]


class _Reports(msgspec.Struct):
    results: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class ServerControl:
    """A client of the control routes of one server."""

    address: Address
    key: str = field(repr=False)
    where: object
    """The place that an error names: the log of the server, or its address."""
    advice: str
    """The advice in an error when the server has failed."""

    def status(self) -> int | None:
        """Return the status of its health route, an error once the engine has died; None when it does not answer."""
        try:
            return self.call("GET", "/health", timeout=LOOK_TIMEOUT_S).status_code
        except httpx.TransportError:
            return None

    def tokens_done(self) -> int | None:
        """Return the tokens read and generated since it started, by its own counters; None when it does not answer."""
        try:
            totals = metric_totals(self.call("GET", "/metrics", timeout=LOOK_TIMEOUT_S).text)
            return int(sum(totals.get(f"vllm:{kind}_tokens_total", 0.0) for kind in ("prompt", "generation")))
        except (httpx.TransportError, ValueError, IndexError, OverflowError):  # all but the first: no page of metrics
            return None

    def metrics(self) -> dict[str, float]:
        """Return vLLM's counters and gauges, summed over their labels."""
        return metric_totals(self.request("/metrics", method="GET").text)

    def reset_prefix_cache(self, *, running: bool = False) -> None:
        """Clear the prefix cache.

        Args:
            running: clear the keys and values of running samples as well, which are then computed again.

        Raises:
            UserError: the server does not answer, or samples that still run hold parts of the cache.
        """
        path = "/reset_prefix_cache"
        if not self._answer(path, _Cleared, params={"reset_running_requests": running}).success:
            raise self._failure("the vLLM server did not clear its prefix cache: samples that run still hold it", path)

    def sleep(self, deadline_s: float) -> None:
        """Let the server sleep after its running samples have ended; its prefix cache is cleared.

        Args:
            deadline_s: the time in which it must be asleep, and no more.
        """
        self.request("/sleep", timeout=deadline_s, params={"level": 1, "mode": "wait"})

    def wake_up(self, deadline_s: float) -> None:
        """Wake it.

        Args:
            deadline_s: the time in which it must be awake.
        """
        self.request("/wake_up", timeout=deadline_s)

    def longest_sequence(self) -> int:
        """Return the number of tokens of the longest sequence that it serves."""
        return self._answer("/v1/models", _Models, method="GET").data[0].max_model_len

    def served(self) -> ServedSettings:
        """Return the settings with which it was started."""
        return self._answer(SERVED_PATH, ServedSettings, method="GET")

    def load(
        self,
        directory: Path,
        version: int,
        *,
        swap: WeightSwap = WeightSwap.DRAIN,
        pause_deadline_s: float,
        read_deadline_s: float,
    ) -> dict[str, Any]:
        """Load new weights into the running model; a sample that begins afterwards finds no cached prefix of the old
        ones.

        Every worker compares its embedding with the directory and its output head with its weights before this
        returns.

        Args:
            directory: of the weights.
            version: their number.
            swap: what happens to running samples. Unless they are drained, each continues with the new weights, and
                says which weights have sampled which of its tokens.
            pause_deadline_s: the seconds in which the engine has to pause, and to finish running samples that are
                drained.
            read_deadline_s: the seconds in which it has to read the model.

        Returns:
            The report of the first worker: the ``seconds`` it took, and the ``directory``.

        Raises:
            UserError: the server refused, or stopped during the reload: it may then hold a part of each version.
        """
        mode = "wait" if swap is WeightSwap.DRAIN else "keep"
        # by default vLLM clears the cache when it pauses, that of running samples as well
        self.request(PAUSE_PATH, timeout=pause_deadline_s, params={"mode": mode, "clear_cache": False})
        arguments = {"method": "reload_and_verify", "args": [str(directory)]}
        reports = self._answer("/collective_rpc", _Reports, timeout=read_deadline_s, json=arguments).results
        if other := [read for report in reports if (read := report.get("directory", str(directory))) != str(directory)]:
            raise self._failure(f"the vLLM server has loaded {other[0]!r}, not {directory}", "/collective_rpc")
        if swap is not WeightSwap.KEEP:  # the cache of a running sample cannot be cleared without its own
            self.reset_prefix_cache(running=swap is WeightSwap.RECOMPUTE)
        self.request("/update_weight_version", json={"new_version": str(version)})
        self.request("/resume")
        return reports[0]

    def _answer(self, path: str, kind: type[T], **arguments: Any) -> T:
        """Call a route that must succeed, and return its answer.

        Raises:
            UserError: as for ``request``; or the answer is none of this kind.
        """
        response = self.request(path, **arguments)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except ValueError as error:
            raise self._failure(f"what answers is no vLLM server of this version: {error}", path) from error

    def request(
        self, path: str, *, method: str = "POST", timeout: float = CONTROL_TIMEOUT_S, **arguments: Any
    ) -> httpx.Response:
        """Call a route that must succeed.

        Raises:
            UserError: the server does not answer, or refuses.
        """
        try:
            response = self.call(method, path, timeout=timeout, **arguments)
        except httpx.TransportError as error:
            raise self._failure(f"the vLLM server does not answer: {error!r}", path) from error
        if response.status_code != httpx.codes.OK:
            said = response.text.strip() or f"status {response.status_code}"
            raise self._failure(f"the vLLM server refused: {said}", path)
        return response

    def call(self, method: str, path: str, *, timeout: float, **arguments: Any) -> httpx.Response:
        """Call a route and return its answer, whatever the status."""
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
        UserError: the directory has no configuration or no weights.
    """
    if not (directory / "config.json").is_file() or not list_directory(directory, "*.safetensors"):
        expected = "config.json and *.safetensors"
        raise UserError(
            "the directory holds no weights to load",
            where=directory,
            expected=expected,
            advice=f"ls {word(directory)} shows what is there; mrt-hpc submit RUN runs the task again",
            exit_code=ExitCode.RETRYABLE,
        )


def metric_totals(text: str) -> dict[str, float]:
    """Return the metrics of a Prometheus page, summed over labels."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals
