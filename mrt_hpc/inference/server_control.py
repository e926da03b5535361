"""The control routes of a vLLM server: health, counters, new weights."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import httpx
import msgspec

from mrt_hpc.errors import Advice, UserError, retryable_error
from mrt_hpc.inference.protocol import PAUSE_PATH
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.run.retries import list_directory

CONTROL_TIMEOUT_S = 60.0
"""The time-out of routes that answer without waiting."""
LOOK_TIMEOUT_S = 10.0
"""The time-out of routes that a healthy server answers at once."""
READ_LOG = "read the end of the server's log; mrt-hpc submit RUN starts the server again"
T = TypeVar("T")
URL = "http://vllm"
"""Behind a Unix socket the host means nothing."""


class _Cleared(msgspec.Struct):
    success: bool


class _Reports(msgspec.Struct):
    results: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class ServerControl:
    socket: Path
    key: str = field(repr=False)
    where: object
    advice: str

    def status(self) -> int | None:
        """The health route's status, an error once the engine has died; None without an answer."""
        try:
            return self.call("GET", "/health", timeout=LOOK_TIMEOUT_S).status_code
        except httpx.TransportError:
            return None

    def tokens_done(self) -> int | None:
        """Tokens read and generated since the start; None without an answer."""
        try:
            totals = metric_totals(self.call("GET", "/metrics", timeout=LOOK_TIMEOUT_S).text)
            return int(sum(totals.get(f"vllm:{kind}_tokens_total", 0.0) for kind in ("prompt", "generation")))
        except (httpx.TransportError, ValueError, IndexError, OverflowError):  # all but the first: no page of metrics
            return None

    def metrics(self) -> dict[str, float]:
        return metric_totals(self.request("/metrics", method="GET").text)

    def reset_prefix_cache(self, *, running: bool = False) -> None:
        """``running`` also clears keys and values of running samples, which are computed again; else the server refuses
        while samples hold parts of the cache.
        """
        path = "/reset_prefix_cache"
        if not self._answer(path, _Cleared, params={"reset_running_requests": running}).success:
            raise self._failure("the vLLM server did not clear its prefix cache: samples that run still hold it", path)

    def sleep(self, deadline_s: float) -> None:
        """Sleep after running samples have ended; clears the prefix cache."""
        self.request("/sleep", timeout=deadline_s, params={"level": 1, "mode": "wait"})

    def wake_up(self, deadline_s: float) -> None:
        self.request("/wake_up", timeout=deadline_s)

    def load(
        self, directory: Path, version: int, pause_deadline_s: float, read_deadline_s: float, *, swap: WeightSwap
    ) -> dict[str, Any]:
        """Load new weights into the running model; later samples find no cached prefix of the old ones. Every worker
        verifies its embedding and output head. Returns the first worker's report: ``seconds`` and ``directory``.

        Args:
            swap: unless drained, running samples continue with the new weights, and say which weights have sampled
                which tokens.
            pause_deadline_s: for the engine to pause, and to drain samples.

        Raises:
            UserError: the server refused, or stopped meanwhile: it may hold a part of each version.
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
        """The route must succeed, and answer with this kind."""
        response = self.request(path, **arguments)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except ValueError as error:
            raise self._failure(f"what answers is no vLLM server of this version: {error}", path) from error

    def request(
        self, path: str, *, method: str = "POST", timeout: float = CONTROL_TIMEOUT_S, **arguments: Any
    ) -> httpx.Response:
        """The route must succeed."""
        try:
            response = self.call(method, path, timeout=timeout, **arguments)
        except httpx.TransportError as error:
            raise self._failure(f"the vLLM server does not answer: {error!r}", path) from error
        if response.status_code != httpx.codes.OK:
            said = response.text.strip() or f"status {response.status_code}"
            raise self._failure(f"the vLLM server refused: {said}", path)
        return response

    def call(self, method: str, path: str, *, timeout: float, **arguments: Any) -> httpx.Response:
        """Return the answer, whatever its status."""
        # There is no TLS on a socket, so no certificates are read.
        transport = httpx.HTTPTransport(uds=str(self.socket), verify=False)
        with httpx.Client(transport=transport, timeout=timeout, trust_env=False) as http:
            headers = {"Authorization": f"Bearer {self.key}"}
            return http.request(method, f"{URL}{path}", headers=headers, **arguments)

    def _failure(self, what: str, path: str) -> UserError:
        return retryable_error(what, value=path, where=self.where, advice=self.advice)


def refuse_no_weights(directory: Path) -> None:
    """The directory needs a configuration and weights."""
    if not (directory / "config.json").is_file() or not list_directory(directory, "*.safetensors"):
        raise retryable_error(
            "the directory holds no weights to load",
            where=directory,
            expected="config.json and *.safetensors",
            advice=Advice(
                "ls {directory} shows what is there; mrt-hpc submit RUN, which runs the task again", directory=directory
            ),
        )


def metric_totals(text: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals
