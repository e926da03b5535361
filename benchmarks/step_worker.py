"""What both sides of ``bench_against_trl.py`` share: load, reward, the process of a side, and its measured steps.

A side is a process that stays loaded. It takes one step for each line that it reads, and answers with one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import psutil

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Learnt, rollout_sequences
from mrt_hpc.mrt.grpo import Baseline, Normalise, outcome_token_advantages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mrt_hpc.algorithms.batch import Batch

MARK = "measured:"  # the start of the lines that tell a step; libraries write to the standard output as well
STEP, SAMPLE = "step", "sample"
SERVER, ENGINE = "mrt_hpc.inference.server_main", "VLLM::EngineCore"
LEARNING_RATE = 1e-6
PRICE_OF_A_TOKEN = 1e-3


@dataclass(frozen=True)
class Load:
    problems: int = 64
    rollouts: int = 8
    max_tokens: int = 160
    micro_batch_tokens: int = 4096  # the positions of a micro-batch of mrt-hpc, padding included
    micro_batch_rows: int = 32  # the sequences of a micro-batch of TRL
    threads: int = len(os.sched_getaffinity(0))  # of each side's computation
    steps: int = 8

    @property
    def traces(self) -> int:
        return self.problems * self.rollouts

    @staticmethod
    def parse(text: str) -> Load:
        return Load(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))


class BriefAnswers(RolloutAlgorithm):
    """GRPO on the outcome less a price for each token: every group has an advantage, so that both sides compute all
    sequences.
    """

    type: Literal["step_worker:BriefAnswers"] = "step_worker:BriefAnswers"

    def learnt(self, batch: Batch) -> Learnt:
        """Return every rollout with the advantage of its paid outcome."""
        paid = batch.rewards - PRICE_OF_A_TOKEN * np.array(batch.lengths)
        form = {"baseline": Baseline.GROUP, "normalise": Normalise.GROUP_STD}
        advantages = outcome_token_advantages(paid, batch.problem_ids, batch.lengths, **form)
        return Learnt(rollout_sequences(batch, advantages))


@dataclass(frozen=True)
class Measured:
    seconds: float
    tokens: int  # the generated tokens
    phases: dict[str, float] = field(default_factory=dict)  # the seconds of each phase
    cpu: dict[str, float] = field(default_factory=dict)
    """The processor seconds of the side in each phase, those of its server included; ``total`` is the whole step."""
    others: float = 0.0  # the cores that other processes used meanwhile

    def per_token(self, phase: str | None = None) -> float:
        """Milliseconds a generated token, of one phase or of all."""
        return 1e3 * (self.seconds if phase is None else self.phases[phase]) / self.tokens

    def cpu_per_token(self, phase: str) -> float:
        return 1e3 * self.cpu[phase] / self.tokens

    def __str__(self) -> str:
        phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.phases.items())
        return f"{self.seconds:.2f} s, {self.tokens} tokens, {phases}"


def serve(actions: dict[str, Callable[[], Measured]]) -> None:
    """Measure one action for each line of the standard input, until it ends."""
    for line in sys.stdin:
        tell(measured(actions[line.strip()]))


def measured(action: Callable[[], Measured]) -> Measured:
    """An action with the processor time that other processes took meanwhile."""
    meter = Meter()
    return meter.completed(action())


class Meter:
    """Counts, from when it is made, the processor time of other processes than this one and its children."""

    def __init__(self) -> None:
        self._busy, self._own, self._started = _busy(), own_seconds(), time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def completed(self, found: Measured) -> Measured:
        own = own_seconds() - self._own
        others = (_busy() - self._busy - own) / self.seconds
        return replace(found, cpu=found.cpu | {"total": own}, others=max(0.0, others))


def tell(what: Measured) -> None:
    """Answer the process that reads this side's standard output."""
    print(MARK + json.dumps(asdict(what)), flush=True)


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def own_seconds(pid: int | None = None) -> float:
    """The processor seconds of a process and of those that it has started; of this one where none is named."""
    return sum(seconds_by_process(pid).values())


def seconds_by_process(pid: int | None = None) -> dict[str, float]:
    """The same by what each process is: the role, vLLM's API server, its engine, or a grader."""
    own, seconds = psutil.Process(pid), dict[str, float]()
    for process in (own, *own.children(recursive=True)):
        times, name = process.cpu_times(), _name_of(process, own)
        seconds[name] = seconds.get(name, 0.0) + times.user + times.system
    return seconds


def _name_of(process: psutil.Process, own: psutil.Process) -> str:
    if process == own:
        return "role"
    words = " ".join(process.cmdline())
    if ENGINE in words:
        return "engine"
    return "API server" if SERVER in words else "graders"


@dataclass(frozen=True)
class Side:
    """A process that takes steps, as the benchmark sees it."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def measure(self, action: str = STEP) -> Measured:
        """Have one action measured.

        Raises:
            RuntimeError: the process has ended; the message has the end of its log.
        """
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None and answers is not None
        requests.write(f"{action}\n")
        requests.flush()
        for line in answers:
            if line.startswith(MARK):
                return Measured(**json.loads(line.removeprefix(MARK)))
        raise RuntimeError(f"{self.name} ended with status {self.process.wait()}:\n{self.log.read_text()[-5000:]}")


@contextmanager
def side(name: str, command: list[str], environment: dict[str, str], log: Path) -> Iterator[Side]:
    """Start the process of a side; it ends with the block."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=os.environ | environment, text=True, stderr=errors, **pipes) as process,
    ):
        try:
            yield Side(name, process, log)
        except BaseException:
            process.terminate()
            raise
        assert process.stdin is not None
        process.stdin.close()


@dataclass
class Phases:
    """The seconds of the phases of one step, and the processor seconds of this process and its children."""

    seconds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        started, before = time.perf_counter(), seconds_by_process()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
            spent = {process: seconds - before.get(process, 0.0) for process, seconds in seconds_by_process().items()}
            for of, seconds in {name: sum(spent.values()), **{f"{name}, {p}": s for p, s in spent.items()}}.items():
                self.cpu[of] = self.cpu.get(of, 0.0) + seconds
