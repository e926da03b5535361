"""A headless Chromium, driven through chromedriver's WebDriver interface, for tests of pages."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PROGRAMS = ("chromium", "chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
REQUIRED = "MRT_HPC_TEST_BROWSER"
"""The environment variable with which CI refuses to skip the tests of pages: ``required``."""
START_S, CALL_S = 60, 120  # the seconds that a busy machine has for chromedriver to answer, and for one command
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which WebDriver names an element


def reason_to_skip() -> str | None:
    """Why the tests of pages are skipped here; None where they run, or have to run, as in CI."""
    missing = _missing_programs()
    return None if not missing or os.environ.get(REQUIRED) == "required" else _words(missing)


def _missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


def _words(missing: Sequence[str]) -> str:
    return f"not installed: {', '.join(missing)} (Debian: chromium chromium-driver)"


@dataclass(frozen=True)
class Browser:
    client: httpx.Client
    session: str

    def call(self, method: str, path: str, **body: Any) -> Any:
        """The answer to one WebDriver command."""
        content = None if method == "GET" else json.dumps(body)
        answer = self.client.request(method, f"/session/{self.session}/{path}", content=content).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['message']}")
        return answer

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("POST", "goog/cdp/execute", cmd=command, params=parameters)

    def open(self, page: Path, width: int, *, dark: bool = False, scripts: bool = True) -> None:
        """Open a file in a window of this width, CSS pixels."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self.devtools("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("POST", "url", url=page.as_uri())

    def script(self, source: str, *arguments: Any) -> Any:
        return self.call("POST", "execute/sync", script=source, args=list(arguments))

    def console(self) -> list[str]:
        """What the console has said since it was last asked, refusals of the security policy included."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.call("POST", "se/log", type="browser")]

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own below a folder; it ends with the block."""
    if missing := _missing_programs():
        raise RuntimeError(_words(missing))
    said = folder / "chromedriver.log"
    with said.open("w") as log, subprocess.Popen(["chromedriver", "--port=0"], stdout=log, stderr=log) as driver:
        try:
            address = f"http://127.0.0.1:{_port(said, driver)}"
            with httpx.Client(base_url=address, timeout=CALL_S, trust_env=False) as client:
                session = _session(client, folder / "profile")
                yield Browser(client, session)
                client.delete(f"/session/{session}")
        finally:
            driver.terminate()


def _port(said: Path, driver: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and driver.poll() is None:
        for line in said.read_text().splitlines():
            if "started successfully on port" in line:
                return int(line.rstrip(".").rpartition(" ")[2])
        time.sleep(0.05)
    raise RuntimeError(f"chromedriver does not answer: {said.read_text()}")


def _session(client: httpx.Client, profile: Path) -> str:
    options = {"args": [*FLAGS, f"--user-data-dir={profile}"]}
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    answer = client.post("/session", content=json.dumps({"capabilities": {"alwaysMatch": wanted}})).json()["value"]
    if "sessionId" not in answer:
        raise RuntimeError(f"no browser: {answer}")
    return str(answer["sessionId"])
