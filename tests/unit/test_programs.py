"""Programs as answers: what proves that one is right, what cannot forge the proof, and what holds it in its sandbox."""

import json
import os
import socket
import sys
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from basics import executable
from commands import recipe, refusal
from sandboxes import needs_sandbox

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.sites import ChosenSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.options import console_of
from mrt_hpc.cli.plan import print_objections
from mrt_hpc.cluster.doctor import local_checks, node_half, on_node
from mrt_hpc.cluster.doctor.checks import CheckVerdict
from mrt_hpc.cluster.doctor.node_half import NodeOrder
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.domains.grader_queue import GraderPool, Lane, judge_timed
from mrt_hpc.domains.python import PythonVerifier, assertions
from mrt_hpc.domains.sandbox import bwrap
from mrt_hpc.domains.verifiers import MathVerifier
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.typed_file import typed
from mrt_hpc.submit.submission import objections_to, refuse_objections

pytestmark = needs_sandbox

DOUBLE = "def double(x):\n    return 2 * x\n"
TRIPLE = "def double(x):\n    return 3 * x\n"
GOLD = "assert double(3) == 6\nassert double(0) == 0"
QUICK = PythonVerifier(time_limit_s=1.0, memory_limit_gib=0.5)


CASES = [json.loads(line) for line in (Path(__file__).parent / "program_cases.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_program_is_right_only_where_all_assertions_were_seen_to_hold(case: dict[str, Any]) -> None:
    """``program_cases.jsonl`` has programs that forge the proof, that prove nothing, and that are right."""
    for gold in case["golds"]:
        verdict = (PythonVerifier() if case["right"] else QUICK).judge(case["answer"], gold)
        assert verdict.correct is case["right"]
        assert verdict.error is None or not case["right"]


def test_the_time_of_the_recipe_for_an_answer_does_not_cut_that_of_the_verifier_short() -> None:
    asked: list[float] = []

    class Pool:
        def schedule(self, _: object, *, args: object, timeout: float) -> Future[None]:  # noqa: ARG002 - as pebble's
            asked.append(timeout)
            return Future()

    for verifier in (PythonVerifier(time_limit_s=60.0), MathVerifier()):
        Lane(verifier, 1, 2**30)._schedule(Pool(), "1", "1", 2.0)
    assert asked == [3 * (4 * 60 + 1), 20.0], "the sandboxes may be started three times"


CONTAINS = "class A:\n    def __contains__(self, x): return True\ndef f(x): return A()"
DEQUE = "from collections import deque\n"


def test_what_the_gold_answer_may_not_do_is_said_and_is_no_verdict() -> None:
    for answer, gold, fact in (
        ("def f(g): return g(1)", "assert f(lambda x: x + 1) == 2", "a function"),
        (CONTAINS, "assert 7 in f(1)", "only the answer"),
        (f"{DEQUE}def f(x): return deque([x])", f"{DEQUE}assert f(1) == deque([1])", "deque"),
    ):
        verdict = QUICK.judge(answer, gold)
        assert (verdict.correct, verdict.readable, fact in str(verdict.error)) == (False, False, True)


GOLDS = {
    "assert f(1) == 2": (1, 0),
    "assert f(1) == 2, 'no'\nassert f(2)": (2, 0),
    "x = f(1)\nassert x": (1, 0),
    "for x in (1, 2):\n    assert f(x)\n    if x:\n        assert f(x) == x": (1, 1),
    "try:\n    assert f(1)\nexcept ValueError:\n    pass": (0, 1),
    "def check(c):\n    assert c(1)\ncheck(f)": (1, 0),
    "import json, os.path\nassert f(1) == json.loads('1')": (1, 0),
}
"""The assertions that always depend on the answer, and those that do so in branches."""
NO_GOLDS = [
    "def check(c):\n    assert c(1)", "f(1)", "assert True", "assert 1 == 1", "assert len('abc') == 3",
    "f(1)\nassert True", "assert (f(1) == 2, 'always true')", "x = 1\nassert x", "import math\nassert math.pi > 3",
    "assert f(1", "not a program", "", "import asyncio\nasync def go():\n    assert await f(1)\nasyncio.run(go())",
    "try:\n    assert f(1)\nexcept MyError:\n    pass", "class Mine(Base):\n    pass\nassert Mine().x",
    "from solution import f\nassert f(1) == g(1)",
]  # fmt: skip


@pytest.mark.parametrize("gold", [*GOLDS, *NO_GOLDS])
def test_a_gold_answer_is_read_where_its_assertions_depend_on_the_answer(gold: str) -> None:
    found = assertions(gold)
    assert (len(found.always), len(found.in_branches)) == GOLDS.get(gold, (0, 0))
    assert PythonVerifier().reads(gold) is (gold in GOLDS)
    if gold in NO_GOLDS:
        assert not PythonVerifier().judge("def f(x): return x", gold).correct


def test_a_program_is_right_within_its_limits() -> None:
    for program, correct, readable in (
        (TRIPLE, False, True),
        ("def double(x:\n    return x", False, False),
        ("return 1", False, True),
        (f"x = 'a' * 10**10\n{DOUBLE}", False, True),
        (f"open('big', 'wb').write(bytes(20 * 2**20))\n{DOUBLE}", False, True),
        (f"import os\nassert os.listdir() == []\n{DOUBLE}", True, True),
    ):
        judged = QUICK.judge(program, GOLD)
        assert (judged.correct, judged.readable) == (correct, readable)


def of_libc(failed: str) -> str:
    start = "import ctypes\ndef attack():\n    libc = ctypes.CDLL(None, use_errno=True)\n"
    return f"{start}    if {failed}: raise OSError(ctypes.get_errno(), 'refused')\n    return True"


ATTACKS = {
    "fork bomb": "import os\ndef attack():\n    children = 0\n    for _ in range(300):\n        if not os.fork():\n"
    "            os._exit(0)\n        children += 1\n    return children",
    "child that outlives it": "import subprocess, sys\ndef attack():\n    subprocess.Popen([sys.executable, '-c', "
    "'import os, time; os.setsid(); time.sleep(60)'], start_new_session=True)\n    return True",
    "spawn": "import os\ndef attack(): return os.posix_spawn('/bin/true', ['true'], {})",
    "memory": "def attack(): return len(bytes(600 * 2**20))",
    "memory without a process": "import os\ndef attack(): return os.write(os.memfd_create('x'), b'x')",
    "shared memory": of_libc("libc.shmget(0, 2**20, 0o1600) < 0"),
    "200 MB in 20 files": "def attack():\n    for number in range(20):\n"
    "        with open(str(number), 'wb') as file: file.write(bytes(10 * 2**20))\n    return True",
    "50,000 files": "def attack():\n    for number in range(50_000): open(str(number), 'w').close()\n    return True",
    "files elsewhere": "import os\ndef attack():\n    made = []\n"
    "    for folder in ('/', '/dev', '/dev/shm', '/tmp', '/usr', '/var/tmp', {folder!r}):\n        try:\n"
    "            open(os.path.join(folder, 'escaped'), 'w').close()\n            made.append(folder)\n"
    "        except OSError: pass\n    if not made: raise OSError\n    return made",
    "your files": "def attack(): return open({canary!r}).read()",
    "your folder": "import os\ndef attack(): return os.listdir({folder!r})",
    "environment of the parent": "import os\ndef attack(): return open(f'/proc/{pid}/environ', 'rb').read()",
    "memory of the parent": "import os\ndef attack(): return open(f'/proc/{pid}/mem', 'rb')",
    "its own environment": "import os\ndef attack(): return os.environ['WANDB_API_KEY']",
    "listening": "import socket\ndef attack():\n    with socket.create_server(('127.0.0.1', 0)): return True",
    "connecting": "import socket\ndef attack(): return socket.create_connection(('127.0.0.1', {port}), 1)",
    "connecting by a file": "import socket\ndef attack():\n    s = socket.socket(socket.AF_UNIX)\n"
    "    return s.connect({folder!r} + '/socket')",
    "kill of the parent": "import os\ndef attack(): return os.kill({pid}, 0)",
    "kill of all": "import os, signal\ndef attack(): return os.kill(-1, signal.SIGTERM)",
    "trace": of_libc("libc.ptrace(16, {pid}, 0, 0)"),
    "mount": of_libc("libc.mount(b'x', b'/own', b'tmpfs', 0, None)"),
    "namespace": of_libc("libc.unshare(0x10000000)"),
    "keyring": of_libc("libc.syscall(250, 0, -3, 0) < 0"),
}


STOPPED = """
stopped = False
try: attack()
except (OSError, MemoryError, KeyError): stopped = True
assert stopped
"""


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_program_gets_out_of_its_sandbox(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    canary.touch(0o600)
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, socket.socket(socket.AF_UNIX) as by_file:
        by_file.bind(str(tmp_path / "socket"))
        by_file.listen()
        facts = {"canary": str(canary), "folder": str(tmp_path), "pid": os.getpid(), "port": listener.getsockname()[1]}
        for name, value in facts.items():
            attack = attack.replace(f"{{{name}!r}}", repr(value)).replace(f"{{{name}}}", str(value))
        verdict = QUICK.judge(attack, STOPPED)
    assert verdict.correct
    assert {path.name for path in tmp_path.iterdir()} == {"canary", "socket"}


def test_nothing_of_a_program_is_alive_after_the_verdict() -> None:
    verifier = PythonVerifier(time_limit_s=0.25, memory_limit_gib=0.437)
    marker = str(int(0.437 * 2**30))
    assert not verifier.judge("import os, time\ntry: os.setsid()\nfinally: time.sleep(600)", GOLD).correct

    def is_over() -> bool:
        commands = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
        return not any(marker in " ".join(command) for command in commands)

    wait_until(is_over, reason="the end of the sandboxes", deadline_s=5)


BWRAPS = {
    "no bubblewrap": "",
    "No permissions to create": "echo 'bwrap: No permissions to create new namespace' >&2\nexit 1",
    "none can be made": 'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"',
}
"""Missing, without permission, and one that does nothing, by what the refusal tells."""


@pytest.fixture(params=BWRAPS)
def no_sandbox(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine without one; what the refusal tells."""
    if BWRAPS[request.param]:
        executable(tmp_path / "bwrap", BWRAPS[request.param])
    monkeypatch.setenv("PATH", str(tmp_path))
    return request.param


@pytest.fixture
def programs() -> Recipe:
    return recipe("small_world/grpo", "data.verifier=python")


def test_without_a_sandbox_nothing_is_judged(no_sandbox: str) -> None:
    found = PythonVerifier().refusal()
    assert found is not None
    assert no_sandbox in found.message() and "doctor" in str(found.advice)
    assert no_sandbox in refusal(judge_timed, QUICK, DOUBLE, GOLD, 2.0).message(), "it is no wrong answer"
    with pytest.raises(UserError, match=no_sandbox), GraderPool(QUICK):  # a task stops before it samples
        pass


def test_submit_refuses_without_sandbox(programs: Recipe, no_sandbox: str, capsys: pytest.CaptureFixture[str]) -> None:
    local, cluster = LocalSite().backend(), SlurmSite(name="c", python="/shared/env/bin/python").backend()
    plan = compile_plan(programs, LocalSite())
    with pytest.raises(UserError, match=no_sandbox):
        refuse_objections(programs, plan, local, lambda _: None)
    assert no_sandbox in objections_to(programs, plan, local).refused[-1]
    assert objections_to(programs, plan, cluster).error is None
    assert "mrt-hpc doctor --on-node" in objections_to(programs, plan, cluster).doubts[-1]
    assert objections_to(recipe("quickstart"), plan, local).error is None
    print_objections(console_of(sys.stdout), plan, programs, ChosenSite(LocalSite()), "submit")
    assert no_sandbox in " ".join(capsys.readouterr().out.split())


def test_doctor_finds_it_here_and_a_node_tries_its_verifiers(programs: Recipe, no_sandbox: str, tmp_path: Path) -> None:
    situation = Situation(SlurmSite(name="c"), programs, tmp_path)
    (here,) = local_checks.verifiers(Situation(LocalSite(), programs, tmp_path))
    (there,) = local_checks.verifiers(situation)
    assert (here.verdict, here.check) == (CheckVerdict.FAILS, "python")
    assert (there.verdict, there.remedy) == (CheckVerdict.NOT_CHECKED, "add --on-node")
    write_json(tmp_path / "order", asdict(NodeOrder(verifiers=on_node.verifiers_judging(situation, "cpu"))))
    ((verifier, (evidence, advice)),) = node_half.refusals(typed((tmp_path / "order").read_bytes(), NodeOrder))
    assert (verifier, no_sandbox in evidence, "doctor" in advice) == ("python", True, True)


def test_where_there_is_a_sandbox_nothing_is_refused(programs: Recipe, tmp_path: Path) -> None:
    assert Path(bwrap()).is_file()
    assert PythonVerifier().refusal() is None
    assert objections_to(programs, compile_plan(programs, LocalSite()), LocalSite().backend()).error is None
    (here,) = local_checks.verifiers(Situation(LocalSite(), programs, tmp_path))
    assert here.verdict is CheckVerdict.OK
