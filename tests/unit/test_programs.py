"""Programs as answers: what proves that one is right, what cannot forge the proof, and what holds it in its sandbox."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
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
from mrt_hpc.domains.grader_queue import GraderPool, judge_timed
from mrt_hpc.domains.python import PythonVerifier, assertions
from mrt_hpc.domains.sandbox import bwrap
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.submit.submission import objections_to, refuse_objections

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe

pytestmark = needs_sandbox

RECIPES = Path(__file__).parents[2] / "recipes"

DOUBLE = "def double(x):\n    return 2 * x\n"
TRIPLE = "def double(x):\n    return 3 * x\n"
GOLD = "assert double(3) == 6\nassert double(0) == 0"
QUICK = PythonVerifier(time_limit_s=1.0, memory_limit_gib=0.5)


def is_right(answer: str, gold: str = GOLD) -> bool:
    return QUICK.judge(answer, gold).correct


# -- the proof

FORGERIES = {
    "exit": "exit()",
    "quit": "quit()",
    "sys.exit": "import sys\nsys.exit(0)",
    "SystemExit": "raise SystemExit",
    "os._exit": "import os\nos._exit(0)",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\nexit()",
    "main": f"{TRIPLE}if __name__ == '__main__':\n    raise SystemExit(0)",
    "exit in the function": "import os\ndef double(x):\n    os._exit(0)",
    "exit of the function": "def double(x):\n    raise SystemExit(0)",
    "no end": "def double(x):\n    while True: pass",
    "equals everything": "class Any:\n    def __eq__(self, other): return True\ndef double(x): return Any()",
    "equals everything, as a number": "class Any(int):\n    def __eq__(self, other): return True\n"
    "    __hash__ = int.__hash__\ndef double(x): return Any(7)",
    "equals everything, by its type": "class Meta(type):\n    def __eq__(self, other): return True\n"
    "    __hash__ = type.__hash__\nclass Any(metaclass=Meta): pass\ndef double(x): return Any",
    "ends the loop": "def double(x):\n    raise StopIteration",
    "builtins": f"{TRIPLE}import builtins\nbuiltins.AssertionError = None\nbuiltins.compile = lambda *a, **k: ''\n"
    "builtins.exec = lambda *a: None",
    "modules": f"{TRIPLE}import ast, json, sys\nast.parse = lambda *a: ast.Module([], [])\n"
    "json.dumps = lambda *a: '{\"nonce\": 1, \"held\": [[1, 0], [2, 0]]}'\nsys.modules['ast'] = None",
    "every open file": f"{TRIPLE}import os\nfor number in range(64):\n    for _ in range(9):\n        try:\n"
    '            os.write(number, b\'{"value": 6}\\n{"nonce": "", "held": [[1, 0], [2, 0]]}\\n\')\n'
    "        except OSError: pass",
    "frames": f"{TRIPLE}import gc, sys\nframe = sys._getframe()\nwhile frame:\n"
    "    frame.f_locals.update(held=[[1, 0], [2, 0]], finished=True)\n    frame = frame.f_back\n"
    "for one in gc.get_objects():\n    if type(one) is dict and 'nonce' in one: one['held'] = [[1, 0], [2, 0]]",
}


@pytest.mark.parametrize("answer", FORGERIES.values(), ids=FORGERIES)
def test_no_wrong_program_is_taken_for_right(answer: str) -> None:
    assert not is_right(answer)
    assert not is_right(answer, "for x, y in ((3, 6), (0, 0)):\n    assert double(x) == y")


def test_no_truth_is_taken_from_what_is_no_value() -> None:
    for answer in ("def even(x): raise StopIteration", "def even(x): yield", "def even(x): return object()"):
        assert not is_right(answer, "assert even(2)\nassert all(map(even, [2, 4]))")


def test_a_loop_over_nothing_shows_nothing() -> None:
    gold = "for found, expected in zip(squares(2), [1, 4]):\n    assert found == expected"
    assert is_right("def squares(n): return [i * i for i in range(1, n + 1)]", gold)
    assert not is_right("def squares(n): return []", gold)


def test_the_answer_sees_neither_the_gold_answer_nor_what_it_is_compared_with() -> None:
    seek = """
import gc, sys
def found():
    texts = [text for one in gc.get_objects() if type(one) in (dict, list, tuple)
             for text in (one.values() if type(one) is dict else one) if type(text) is str]
    return [text for text in [*texts, *sys.argv] if "sec" + "ret" in text and "ti" + "tle" in text]
"""
    assert is_right(seek, "title = 'secret title'\nassert found() == []")


RIGHT = {
    "main": (f"{DOUBLE}if __name__ == '__main__':\n    print(double(2))\n    raise SystemExit(0)", GOLD),
    "prints": (f"print('6')\n{DOUBLE}", GOLD),
    "a check of the gold answer's": (DOUBLE, "def check(f):\n    assert f(3) == 6\n\ncheck(double)"),
    "two functions": ("def a(x): return x\ndef b(x): return a(x) + 1", "assert b(a(1)) == 2"),
    "all kinds of values": (
        "def same(x): return x",
        "for x in (None, True, 7, 2**200, -1.5, float('inf'), 1j, 'a\\u00e9\\ud800', b'\\xff', (1, [2]), {1: {2}}, "
        "frozenset({3}), {(1, 2): [None]}):\n    assert same(x) == x and type(same(x)) is type(x)",
    ),
    "in place": ("def order(xs, seen):\n    xs.sort()\n    seen['n'] = len(xs)",
                 "xs, seen = [3, 1, 2], {}\nassert order(xs, seen) is None\nassert (xs, seen['n']) == ([1, 2, 3], 3)"),
    "nested in place": ("def flip(grid): grid[0][1] = 9", "row = [1, 2]\nflip([row])\nassert row == [1, 9]"),
    "a class": ("class Stack(list):\n    def push(self, x): self.append(x)\n    @property\n    def top(self): "
                "return self[-1]", "s = Stack()\ns.push(4)\nassert s.top == 4 and len(s) == 1 and s[0] == 4\n"
                "assert isinstance(s, Stack)"),
    "a dataclass": ("from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n"
                    "    x: int\n    y: int = 0", "assert P(1) == P(1, 0)\nassert P(1) != P(2)\nassert P(1).x == 1"),
    "a generator": ("def up(n):\n    yield from range(n)", "assert list(up(3)) == [0, 1, 2]"),
    "a named tuple": ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
                      "assert f() == (1, 2)"),
    "a counter": ("from collections import Counter\ndef f(s): return Counter(s)", "assert f('aa') == {'a': 2}"),
    "a linked list": ("class Node:\n    def __init__(self, v, next=None): self.v, self.next = v, next\n"
                      "def last(n):\n    while n.next: n = n.next\n    return n",
                      "tail = Node(2)\nhead = Node(1, tail)\nassert last(head) is tail\nassert last(head).v == 2"),
    "errors": ("def f(x):\n    if x < 0: raise ValueError('negative')\n    return x",
               "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n    assert 'neg' in str(error)\n"
               "assert f(1) == 1"),
    "a constant that changes": ("n = 0\ndef up():\n    global n\n    n += 1", "assert n == 0\nup()\nassert n == 1"),
    "threads": ("from concurrent.futures import ThreadPoolExecutor\ndef f(xs):\n"
                "    with ThreadPoolExecutor(4) as pool: return list(pool.map(abs, xs))", "assert f([-1]) == [1]"),
    "a file of its own": ("def f():\n    with open('x.txt', 'w') as file: file.write('hi')\n"
                          "    return open('x.txt').read()", "assert f() == 'hi'"),
    "numpy": ("import numpy as np\ndef f(xs): return np.asarray(xs, dtype=np.int64).sum()", "assert f([1, 2]) == 3"),
    "a fraction, a decimal and a date": (
        "from fractions import Fraction\nfrom decimal import Decimal\nfrom datetime import date\n"
        "def f(): return [Fraction(1, 2), Decimal('0.3'), date(2020, 1, 2), range(3)]",
        "from fractions import Fraction\nfrom decimal import Decimal\nfrom datetime import date\n"
        "assert f() == [Fraction(1, 2), Decimal('0.3'), date(2020, 1, 2), range(3)]"),
    "an array": ("import numpy as np\ndef f(xs): return np.asarray(xs) * 2.0",
                 "import numpy as np\nassert np.allclose(f([1, 2]), [2, 4])"),
    "an approximate value": ("def f(x): return x / 3", "import math\nassert math.isclose(f(1), 0.3333, rel_tol=1e-3)"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "gold"), RIGHT.values(), ids=RIGHT)
def test_a_right_program_is_right(answer: str, gold: str) -> None:
    verdict = PythonVerifier().judge(answer, gold)
    assert verdict.error is None
    assert verdict.correct


def test_objects_of_the_answer_equal_no_plain_value() -> None:
    assert not is_right("class P:\n    def __eq__(self, other): return True", "assert P() == 3")


def test_no_memory_of_the_gold_answer_s_process_is_reached() -> None:
    """numpy asks what looks like an array for an address."""
    empty = (
        "class A:\n    __array_interface__ = dict(data=b'', shape=(0, 3), typestr='<f8', version=3)\n"
        "def f(x): return A()"
    )
    assert not is_right(empty, "import numpy as np\nassert np.allclose(f([1, 2]), [2, 4, 6])")
    assert is_right("class A:\n    __version__ = 3", "assert A.__version__ == 3")


FAULTS = {
    "assert f(lambda x: x + 1) == 2": ("def f(g): return g(1)", "a function, which is no plain value"),
    "assert 7 in f(1)": (
        "class A:\n    def __contains__(self, x): return True\ndef f(x): return A()",
        "which only the answer can say",
    ),
    "from collections import deque\nassert f(1) == deque([1])": (
        "from collections import deque\ndef f(x): return deque([x])",
        "cannot be compared with a deque",
    ),
}


@pytest.mark.parametrize("gold", FAULTS)
def test_what_the_gold_answer_may_not_do_is_said_and_is_no_verdict_on_the_answer(gold: str) -> None:
    answer, words = FAULTS[gold]
    verdict = QUICK.judge(answer, gold)
    assert not verdict.correct
    assert not verdict.readable
    assert words in str(verdict.error)


def test_a_decimal_that_differs_from_itself_is_no_right_answer() -> None:
    answer = "from decimal import Decimal\ndef f(): return Decimal('0.3')"
    assert not is_right(answer, "from decimal import Decimal\nassert f() != Decimal('0.3')")


GOLDS = {
    "assert f(1) == 2": (1, 0),
    "assert f(1) == 2, 'no'\nassert f(2)": (2, 0),
    "x = f(1)\nassert x": (1, 0),
    "for x in (1, 2):\n    assert f(x)\n    if x:\n        assert f(x) == x": (1, 1),
    "try:\n    assert f(1)\nexcept ValueError:\n    pass": (0, 1),
    "def check(c):\n    assert c(1)\ncheck(f)": (1, 0),
    "def check(c):\n    assert c(1)": (0, 0),
    "f(1)": (0, 0),
    "assert True": (0, 0),
    "assert 1 == 1": (0, 0),
    "assert len('abc') == 3": (0, 0),
    "f(1)\nassert True": (0, 0),
    "assert (f(1) == 2, 'always true')": (0, 0),
    "x = 1\nassert x": (0, 0),
    "import math\nassert math.pi > 3": (0, 0),
    "assert f(1": (0, 0),
    "not a program": (0, 0),
    "": (0, 0),
    "import asyncio\nasync def go():\n    assert await f(1)\nasyncio.run(go())": (0, 0),
    "try:\n    assert f(1)\nexcept MyError:\n    pass": (0, 0),
    "class Mine(Base):\n    pass\nassert Mine().x": (0, 0),
    "from solution import f\nassert f(1) == g(1)": (0, 0),
    "import json, os.path\nassert f(1) == json.loads('1')": (1, 0),
}


@pytest.mark.parametrize(("gold", "expected"), GOLDS.items())
def test_a_gold_answer_is_read_where_its_assertions_depend_on_the_answer(gold: str, expected: tuple[int, int]) -> None:
    found = assertions(gold)
    assert (len(found.always), len(found.in_branches)) == expected
    assert PythonVerifier().reads(gold) is any(expected)
    if not any(expected):
        assert not PythonVerifier().judge("def f(x): return x", gold).correct


# -- the sandbox


@pytest.mark.parametrize(
    ("program", "correct", "readable"),
    [
        (DOUBLE, True, True),
        (TRIPLE, False, True),
        ("def double(x:\n    return x", False, False),
        ("return 1", False, True),
        (f"x = 'a' * 10**10\n{DOUBLE}", False, True),
        (f"open('big', 'wb').write(bytes(20 * 2**20))\n{DOUBLE}", False, True),
        (f"import os\nassert os.listdir() == []\n{DOUBLE}", True, True),
    ],
)
def test_a_program_is_right_within_its_limits(program: str, correct: bool, readable: bool) -> None:
    judged = QUICK.judge(program, GOLD)
    assert (judged.correct, judged.readable) == (correct, readable)


ATTACKS = {
    "fork bomb": "import os\ndef attack():\n    children = 0\n    for _ in range(300):\n        if not os.fork():\n"
    "            os._exit(0)\n        children += 1\n    return children",
    "child that outlives it": "import subprocess, sys\ndef attack():\n    subprocess.Popen([sys.executable, '-c', "
    "'import os, time; os.setsid(); time.sleep(60)'], start_new_session=True)\n    return True",
    "spawn": "import os\ndef attack(): return os.posix_spawn('/bin/true', ['true'], {})",
    "memory": "def attack(): return len(bytes(600 * 2**20))",
    "memory without a process": "import os\ndef attack(): return os.write(os.memfd_create('x'), b'x')",
    "shared memory": "import ctypes\ndef attack():\n    libc = ctypes.CDLL(None, use_errno=True)\n"
    "    if libc.shmget(0, 2**20, 0o1600) < 0: raise OSError(ctypes.get_errno(), 'shmget')\n    return True",
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
    "trace": "import ctypes\ndef attack():\n    libc = ctypes.CDLL(None, use_errno=True)\n"
    "    if libc.ptrace(16, {pid}, 0, 0): raise OSError(ctypes.get_errno(), 'ptrace')\n    return True",
    "mount": "import ctypes\ndef attack():\n    libc = ctypes.CDLL(None, use_errno=True)\n"
    "    if libc.mount(b'x', b'/own', b'tmpfs', 0, None): raise OSError(ctypes.get_errno(), 'mount')\n    return True",
    "namespace": "import ctypes\ndef attack():\n    libc = ctypes.CDLL(None, use_errno=True)\n"
    "    if libc.unshare(0x10000000): raise OSError(ctypes.get_errno(), 'unshare')\n    return True",
    "keyring": "import ctypes\ndef attack():\n    libc = ctypes.CDLL(None, use_errno=True)\n"
    "    if libc.syscall(250, 0, -3, 0) < 0: raise OSError(ctypes.get_errno(), 'keyctl')\n    return True",
}


STOPPED = """
try:
    attack()
except (OSError, MemoryError, KeyError):
    stopped = True
else:
    stopped = False
assert stopped
"""


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_program_does_not_get_out_of_its_sandbox(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    marker = str(int(0.437 * 2**30)).encode()
    assert not verifier.judge("import time\ndef double(x): time.sleep(600)", GOLD).correct
    assert not verifier.judge("import os, time\ntry: os.setsid()\nfinally: time.sleep(600)", GOLD).correct
    wait_until(lambda: not _running_with(marker), reason="the end of the sandboxes", deadline_s=5)


def _running_with(marker: bytes) -> list[Path]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path] if marker in path.read_bytes() else []
        except OSError:
            continue
    return found


# -- where there is no sandbox


@pytest.fixture(params=["no bwrap", "a bwrap that may not", "a bwrap that does nothing"])
def no_sandbox(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine without one; the words of the refusal."""
    scripts = {
        "a bwrap that may not": "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n",
        "a bwrap that does nothing": "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n",
    }  # fmt: skip
    if request.param in scripts:
        (tmp_path / "bwrap").write_text(scripts[request.param])
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return {"no bwrap": "no bubblewrap", "a bwrap that may not": "No permissions to create"}.get(
        request.param, "none can be made"
    )


def test_a_machine_without_a_sandbox_is_refused(no_sandbox: str) -> None:
    refusal = PythonVerifier().refusal()
    assert refusal is not None
    assert no_sandbox in refusal.message()
    assert "doctor" in str(refusal.advice)


def test_a_sandbox_that_does_not_start_is_no_wrong_answer(no_sandbox: str) -> None:
    with pytest.raises(UserError, match=no_sandbox):
        judge_timed(QUICK, DOUBLE, GOLD, 2.0)


def test_here_is_a_sandbox() -> None:
    assert Path(bwrap()).is_file()
    assert PythonVerifier().refusal() is None


@pytest.fixture
def recipe() -> Recipe:
    """One whose answers are programs."""
    return load_recipe(RECIPES / "small_world" / "grpo.yaml", ("data.verifier=python",))


def test_a_submission_is_refused_where_its_tasks_would_run_without_a_sandbox(recipe: Recipe, no_sandbox: str) -> None:
    local, cluster = LocalSite().backend(), SlurmSite(name="c", python="/shared/env/bin/python").backend()
    plan = compile_plan(recipe, LocalSite())
    with pytest.raises(UserError, match=no_sandbox):
        refuse_objections(recipe, plan, local, lambda _: None)
    assert no_sandbox in objections_to(recipe, plan, local).refused[-1]
    assert objections_to(recipe, plan, cluster).error is None
    assert "mrt-hpc doctor --on-node" in objections_to(recipe, plan, cluster).doubts[-1]
    assert objections_to(load_recipe(RECIPES / "quickstart.yaml"), plan, local).error is None


@pytest.mark.usefixtures("no_sandbox")
def test_plan_shows_the_refusal(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    print_objections(
        console_of(sys.stdout), compile_plan(recipe, LocalSite()), recipe, ChosenSite(LocalSite()), "submit"
    )
    told = " ".join(capsys.readouterr().out.split())
    assert "submit will refuse" in told
    assert "programs of answers run in a sandbox only" in told


@pytest.mark.usefixtures("no_sandbox")
def test_doctor_finds_it_here_and_asks_a_node(recipe: Recipe, tmp_path: Path) -> None:
    (here,) = local_checks.verifiers(Situation(LocalSite(), recipe, tmp_path))
    assert (here.verdict, here.check) == (CheckVerdict.FAILS, "python")
    (there,) = local_checks.verifiers(Situation(SlurmSite(name="c"), recipe, tmp_path))
    assert (there.verdict, there.remedy) == (CheckVerdict.NOT_CHECKED, "add --on-node")


def test_a_node_tries_the_verifiers_of_its_jobs(recipe: Recipe, no_sandbox: str, tmp_path: Path) -> None:
    situation = Situation(SlurmSite(name="c"), recipe, tmp_path)
    asked = on_node.verifiers_judging(situation, "cpu")
    write_json(tmp_path / "order", asdict(NodeOrder(verifiers=asked)))
    order = node_half.read_order(tmp_path / "order")
    assert order.verifiers[0][1]["type"] == "python"
    ((verifier, (evidence, advice)),) = node_half.refusals(order)
    assert verifier == "python"
    assert no_sandbox in evidence
    assert "doctor" in advice


def test_a_task_stops_before_it_samples(no_sandbox: str) -> None:
    with pytest.raises(UserError, match=no_sandbox), GraderPool(QUICK):
        pass


def test_where_there_is_a_sandbox_nothing_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    assert objections_to(recipe, compile_plan(recipe, LocalSite()), LocalSite().backend()).error is None
    (here,) = local_checks.verifiers(Situation(LocalSite(), recipe, tmp_path))
    assert here.verdict is CheckVerdict.OK
