"""What only a GPU can show: all of it in order, within 45 minutes on one H100 and without a network, into one JSON.

    python benchmarks/gpu/first_day.py --output first_day.json
    python benchmarks/gpu/first_day.py --steps facts attention parking --minutes 9 --output first_day.json
    python benchmarks/gpu/first_day.py --tiny --steps attention parking benchmark saving     # on a CPU, in a minute

Each step is a process of its own with a time limit. What it has found is in the JSON after each of its parts, so a day
that is cut off keeps what it has. An error is written there with its traceback, and the next step goes on; a step that
cannot run says why. A file that is there keeps the steps that are not run again.

It needs one GPU of 80 GB, 40 GB of disk, and no model or data. ``serving`` needs vLLM, so the environment of
``env/setup cuda``. All other steps need torch and transformers; where a machine has no more than these, bring a folder
of wheels along. Each has the version of ``env/cuda.lock``:

    pip download --no-deps --only-binary=:all: -d wheels annotated-types hjson msgspec pydantic pydantic-core \\
        typing-inspection
    pip wheel --no-deps -w wheels deepspeed
    pip install --no-index --no-deps --target site wheels/*.whl     # there; then PYTHONPATH=site

``tests/integration/test_first_day.py`` runs all steps but ``memory`` and ``serving`` with ``--tiny``.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT)]

from mrt_hpc.run.atomic import write_json  # noqa: E402

LOOK_EVERY_S = 0.2
LOG_TAIL = 8000  # the characters at the end of a step's output that are kept where it failed


@dataclass(frozen=True)
class Step:
    name: str
    seconds: float  # its time limit, which is about twice what an H100 should take; tiny shapes on a CPU have none
    what: str


STEPS = (
    Step("facts", 120, "versions, compilers, limits, and the product's own check of the driver"),
    Step("attention", 180, "packed, shared and padded rows against 32 bits"),
    Step("parking", 300, "engines that leave the GPU and come back, at ZeRO stages 1 to 3"),
    Step("benchmark", 560, "updates of the trainer at the recipes' stages, 2 and 3"),
    Step("memory", 400, "the peak of updates beside what plan says"),
    Step("saving", 400, "checkpoint, published weights and resume"),
    Step("serving", 580, "a server: start, reloads, swaps in flight, sleep, and a second start; needs vLLM"),
)


@dataclass
class Day:
    """The steps of one call, and their JSON."""

    output: Path
    folder: Path  # for files of the steps
    minutes: float
    tiny: bool = False
    found: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = time.monotonic() + 60 * self.minutes
        earlier = json.loads(self.output.read_text())["steps"] if self.output.is_file() else {}
        self.found = {"begun": datetime.now(UTC).isoformat(), "tiny": self.tiny, "steps": earlier}

    def run(self, step: Step) -> dict[str, Any]:
        """Run one step, unless it might not end in time; return what is kept of it."""
        left = self._ends - time.monotonic()
        if not self.tiny and step.seconds > left:
            reason = f"it may take {step.seconds:.0f} s, and {max(0.0, left):.0f} s of --minutes are left"
            return self._keep(step, {"status": "skipped", "why": reason, "parts": {}})
        started = time.monotonic()
        file, log = self.folder / f"{step.name}.json", self.folder / f"{step.name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*_command(step, file, self.folder), *(["--tiny"] if self.tiny else [])],
                env=os.environ | {"PYTHONPATH": _import_path(), "TMPDIR": str(self.folder)},
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            why = self._watch(process, step, file)
        finally:
            _kill(process)
        ended = _read(file) | {"seconds": round(time.monotonic() - started, 1)}
        if ended["status"] == "running":
            ended |= {"status": "failed", "why": why}
        if ended["status"] == "failed":
            ended["log"] = log.read_text(errors="replace")[-LOG_TAIL:]
        return self._keep(step, ended)

    def _watch(self, process: subprocess.Popen[bytes], step: Step, file: Path) -> str:
        """Wait until the step ends or its time is over, and keep each part; return how it ended."""
        limit, seen = time.monotonic() + (math.inf if self.tiny else step.seconds), None
        while process.poll() is None:
            if time.monotonic() > limit:
                return f"it did not end within its time limit of {step.seconds:.0f} s"
            time.sleep(LOOK_EVERY_S)
            if (now := _read(file)) != seen:
                seen = self._keep(step, now)
        return f"its process ended with status {process.returncode}"

    def _keep(self, step: Step, found: dict[str, Any]) -> dict[str, Any]:
        self.found["steps"][step.name] = {"what": step.what, **found}
        write_json(self.output, self.found)
        return found


def _command(step: Step, file: Path, folder: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "steps", step.name, str(file), str(folder), str(step.seconds)]


def _import_path() -> str:
    own = [HERE, HERE.parent, ROOT / "tests" / "integration", ROOT]
    return os.pathsep.join([*map(str, own), *filter(None, [os.environ.get("PYTHONPATH")])])


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"status": "running", "parts": {}}
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [step.name for step in STEPS]
    parser.add_argument("--steps", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--output", type=Path, default=Path("first_day.json"))
    parser.add_argument("--minutes", type=float, default=45.0, help="a step that might end later is not begun")
    parser.add_argument("--tiny", action="store_true", help="shapes so small that a CPU takes seconds for a step")
    parser.add_argument("--folder", type=Path, help="for files of the steps, 40 GB; default: one in TMPDIR")
    return parser.parse_args()


def main() -> None:
    given = options()
    failed = False
    with tempfile.TemporaryDirectory(prefix="first-day-", dir=given.folder) as folder:
        day = Day(given.output.resolve(), Path(folder), given.minutes, given.tiny)
        for step in (step for step in STEPS if step.name in given.steps):
            ended = day.run(step)
            failed |= ended["status"] == "failed"
            why = ended.get("why", "").strip().rpartition("\n")[2]
            print(f"{step.name}: {ended['status']}, {ended.get('seconds', 0):.0f} s {why}".rstrip(), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
