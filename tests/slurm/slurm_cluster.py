"""The cluster that tests submit to, and the means to use it as an ordinary user."""

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from run_of import bare_run

from mrt_hpc.backends.slurm.queue import QueuedTask, QueueState, queue_states
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.run.access import CACHES
from mrt_hpc.run.retries import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
ONEHOST = Path(__file__).resolve().with_name("onehost")


@dataclass(frozen=True)
class Cluster:
    """The cluster, its ordinary user, and what this user may read."""

    settings: Mapping[str, str]
    user: str
    home: Path  # a folder of the user's for run directories
    python: str  # a Python with the package's requirements
    checkout: Path  # the repository: the one under test, or a copy of it where that is out of the user's reach

    def setting(self, name: str, otherwise: str = "") -> str:
        return {**os.environ, **self.settings}.get(f"ONEHOST_{name}", otherwise)

    @property
    def preempts_by_qos(self) -> bool:
        """Whether the QOS of a job decides who is pushed out; else its partition."""
        return self.setting("PREEMPT") == "qos"

    @property
    def is_plain(self) -> bool:
        """Whether it has no accounting and cancels what it preempts."""
        return self.setting("SHAPE") == "plain"

    @property
    def has_rules(self) -> bool:
        """Whether a plugin of its own changes what is submitted, and no job starts again."""
        return self.setting("RULES") == "1"

    @property
    def tests(self) -> Path:
        return self.checkout / "tests" / "slurm"

    @property
    def python_path(self) -> str:
        """Where Python finds the package and the trivial tasks."""
        return f"{self.checkout}:{self.tests}:{self.tests.parent / 'support'}"

    @property
    def configuration(self) -> Path:
        return self.home / "config"

    def push_out(self, node: str) -> str:
        """Have somebody with a right to the whole of a node ask for it; the id of their job."""
        right = "--qos=urgent" if self.preempts_by_qos else "--partition=cpu"
        where = (f"--nodelist={node}", "--exclusive", "--output=/dev/null")
        sent = self.as_user("sbatch", "--parsable", right, *where, "--wrap=true")
        assert sent.returncode == 0, sent.stderr
        return sent.stdout.strip()

    def onehost(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_onehost(self.settings, *arguments)

    def as_user(self, *command: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command as the ordinary user, from the user's own folder and with settings in it."""
        own = {
            "PYTHONPATH": self.python_path, "PYTHONDONTWRITEBYTECODE": "1", "XDG_CONFIG_HOME": str(self.configuration),
            "XDG_DATA_HOME": str(self.configuration / "data"),
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, str(ONEHOST), "run", *command], env={**_without_caches(), **self.settings, **own},
            cwd=self.home, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def mrt_hpc(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return self.as_user(self.python, "-m", "mrt_hpc", *arguments, timeout=timeout)

    def site(self, **changes: object) -> SlurmSite:
        values: dict[str, object] = {
            "name": "onehost",
            "account": "lab",
            "partitions": {"cpu": "cpu", "gpu": "gpu"},
            "python": self.python,
            "scratch": f"/tmp/oh{self.setting('PORT', '17800')}",  # where each node has a disk of its own
            "environment": {
                "PYTHONPATH": self.python_path,
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_WAIT_POLICY": "passive",  # the cluster shares its two cores with the other tests
            },
        }
        return SlurmSite.model_validate_json(json.dumps({**values, **changes}))

    def folder(self, name: str) -> Path:
        """An empty folder of the user's."""
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.home))
        account = pwd.getpwnam(self.user)
        os.chown(path, account.pw_uid, account.pw_gid)
        return path

    def run_dir(self, name: str) -> Path:
        """A run directory of the user's, for a plan of trivial tasks."""
        return bare_run(self.folder(name)).root

    def _driven(self, command: str, run_dir: Path, request: dict[str, object]) -> subprocess.CompletedProcess[str]:
        """Have the user run the driver with a request."""
        file = run_dir / "request.json"
        file.write_text(json.dumps({"run_dir": str(run_dir), **request}))
        return self.as_user(self.python, str(self.tests / "slurm_submit_driver.py"), command, str(file))

    def submit(
        self, plan: Plan, run_dir: Path, function: str, site: SlurmSite | None = None, **options: object
    ) -> subprocess.CompletedProcess[str]:
        profile = (site or self.site()).model_dump(mode="json")
        request = {"plan": plan.as_json(), "site": profile, "function": function, "known_ids": {}, **options}
        return self._driven("submit", run_dir, request)

    def submit_again(self, run_dir: Path, function: str) -> subprocess.CompletedProcess[str]:
        """What `mrt-hpc submit` does with a run that is there, with trivial tasks."""
        return self._driven("again", run_dir, {"function": function, "site": self.site().model_dump(mode="json")})

    def submitted(
        self, plan: Plan, run_dir: Path, function: str, site: SlurmSite | None = None, **options: object
    ) -> dict[str, str]:
        """The ids of a submission that has to succeed, by job name."""
        done = self.submit(plan, run_dir, function, site, **options)
        assert done.returncode == 0, done.stderr
        return recorded_ids(done.stdout)


def _without_caches() -> dict[str, str]:
    """The environment of this process, without the folders of root's caches that torch names in it once it compiles."""
    return {name: value for name, value in os.environ.items() if name not in CACHES}


def recorded_ids(printed: str) -> dict[str, str]:
    return {line["name"]: line["id"] for line in map(json.loads, printed.splitlines())}


def wait_for_end(ids: Mapping[str, str], seconds: float = 300) -> dict[str, QueuedTask]:
    """The states of all tasks, once none of them will run any more."""

    def ended() -> dict[str, QueuedTask] | None:
        states = queue_states(ids.values())
        return states if all(is_known_to_have_ended(state) for state in states.values()) else None

    return wait_until(ended, reason=f"the end of jobs {sorted(ids.values())}", deadline_s=seconds)


def is_known_to_have_ended(task: QueuedTask) -> bool:
    """Whether it has ended, and how is known; accounting lags behind."""
    return task.has_ended and task.state not in (QueueState.UNKNOWN, QueueState.UNLISTED, QueueState.ENDING)


def notes(run_dir: Path) -> list[dict[str, object]]:
    file = run_dir / "notes.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run_onehost(settings: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ONEHOST), *arguments], env={**os.environ, **settings, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
