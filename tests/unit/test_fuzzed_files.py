"""Files of users and of runs, damaged by a seed: every command answers, and none ends with a traceback or hangs.

    MRT_HPC_FUZZ=1000,SEED python -m pytest tests/unit/test_fuzzed_files.py

makes a thousand mutations of each kind of file, with reports; without it the tests make a few of each, and those cases
that failed once.
"""

import json
import os
import random
import resource
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from basics import QUICKSTART, ROOT, TRAINER
from click.testing import CliRunner
from data_files import json_lines
from safetensors.numpy import save_file
from synthetic_run import Shape, SyntheticRun

from mrt_hpc.attempt.ledger import record_site, record_submission
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Plan, read_plan
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.model_files import ModelFiles
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.events import EventKind, event_file
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Heart
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

SITE = ROOT / "slurm/sites/example.yaml"
LONGEST_S = 60.0  # within which a command must answer
MANY, _, SEED = os.environ.get("MRT_HPC_FUZZ", ",tests").partition(",")
WRONG: list[Any] = [
    None, True, -1, 0, 2**64, 10**400, 1.5, 1e308, float("inf"), float("nan"), "", "\0", "x" * 5000, "/", "../..",
    "\ud800", [], {}, [[]], {"a": None}, "[bold]", "nowhere:Class",
]  # fmt: skip
"""What takes the place of a value."""
YAML = [b"null", b"1e999", b"'x'", b"&a *a", b"&b [*b]", b"\t", b"!!python/object:os.system", b": :", b"{[]: 1}"]
"""What is put between the bytes of a file."""
MEMORY_BYTES = 8 * 2**30
"""Of this process: a command that reads a device without end fails, and takes nothing from the machine."""
REPORTED = ("metrics", "summary", "fork", "benchmark", "problems", "events", "manifest", "name")
"""Kinds of files that reports and comparisons read beyond what other commands read."""
NO_FILES = ("pipe", "folder", "circle", "device", "nothing", "socket")


@contextmanager
def bounded() -> Iterator[None]:
    """Limit the memory of this process during the block, and raise where that takes too long."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer within {LONGEST_S:g} s")

    memory, alarm = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, memory[1]))
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        resource.setrlimit(resource.RLIMIT_AS, memory)


def answers(words: list[str]) -> str:
    """What a command prints; it ends well, or with an error in words."""
    with bounded():
        result = CliRunner().invoke(main, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), (words, repr(result.exception))
    assert "Traceback" not in result.output, words
    return result.output


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container below a value, with each of its keys."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, key) for key, _ in items] + [place for _, below in items for place in places(below)]


def wrong_json(content: bytes, draw: random.Random) -> bytes:
    """JSON, or lines of it, with a value that is none of those expected, or without it."""
    lines = content.splitlines(keepends=True) if b"\n{" in content.strip() else [content]
    number = draw.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except ValueError:
        return wrong_bytes(content, draw)
    if not (there := places(value)):
        return json.dumps(draw.choice(WRONG)).encode()
    holder, key = draw.choice(there)
    kind = draw.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder["of_a_later_version"] = holder[key]
    else:
        holder[key] = draw.choice(WRONG)
    lines[number] = json.dumps(value).encode() + b"\n"
    return b"".join(lines)


def wrong_bytes(content: bytes, draw: random.Random) -> bytes:
    """A file that was cut, changed, filled with something else, or is empty."""
    at = draw.randrange(len(content) + 1)
    changed = content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
    cut = [b"", content[:at], content[at:], changed, content[:at] + b"\xff\xfe\0" + content[at:]]
    return draw.choice([*cut, b"[" * 5000, b"\0" * 100, b"7", b"null", b"{}", b"[]"])


def no_file(path: Path, kind: str) -> None:
    """Put something that is no file at a place."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:  # the path of a socket may be short only
            bound.bind(path.name)
    else:
        path.symlink_to({"circle": path.name, "device": "/dev/zero", "nothing": "gone"}[kind])


@contextmanager
def restored(path: Path) -> Iterator[bytes]:
    """What the block does to a file is undone at its end; gives the content."""
    content = path.read_bytes()
    try:
        yield content
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.write_bytes(content)


@contextmanager
def mutated(path: Path, name: str) -> Iterator[None]:
    """A file with one mutation during the block; what fails there is told with the seed. An error in words is none."""
    draw = random.Random(name)
    kind = draw.choice(["value", "value", "value", "bytes", "bytes", "no file", "gone"])
    with restored(path) as content:
        if kind == "value":
            path.write_bytes(wrong_json(content, draw))
        elif kind == "bytes":
            path.write_bytes(wrong_bytes(content, draw))
        else:
            path.unlink()
            if kind == "no file":
                no_file(path, kind := draw.choice(NO_FILES))
        shown = path.read_bytes()[:300] if kind in ("value", "bytes") else b""
        try:
            yield
        except UserError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {name}, {kind} of {path}: {shown!r}: {error!r}") from error


# -- a run with a file of each kind


def a_run(root: Path) -> None:
    """A run that has begun, with every kind of file that commands read."""
    layout = SyntheticRun(root / "runs" / "run", Shape(2, 1, ("aime24",), problems=2, paragraphs=1)).write()
    for version in (1, 2):
        shutil.copytree(layout.weights_version(0), layout.weights_version(version))
    record_site(layout, SlurmSite(name="cluster"))
    record_submission(layout, TRAINER, "12", "cluster")
    write_task(layout, "prepare", 0, TaskRecord(TaskState.DONE, attempt="a"))
    write_task(layout, TRAINER, 0, TaskRecord(TaskState.RUNNING, attempt="12.0", message="so"))
    Heart(layout.heart(TRAINER, 0), "12.0", 60.0).beat()
    where = {"host": "n", "pid": 7, "job": TRAINER, "task": 0, "rank": 0, "attempt": "12.0"}
    earlier = {"attempt": "11.0", "until": 1.7e9}
    events = [
        {"kind": EventKind.TASK_STARTED, **where, "world_size": 1, "began": 1.74e9, "earlier": earlier},
        {"kind": EventKind.USE, "use": "training", "host": "n", "pid": 7},
        {"kind": EventKind.PUBLISHED, "version": 1, "host": "n", "pid": 7},
        {"kind": EventKind.GROUP_COMMITTED, "rollout_tokens": 9},
        {"kind": EventKind.TASK_ENDED, "outcome": "gave back", **where},
    ]  # fmt: skip
    lines = [{"time": 1.75e9 + n, **event} for n, event in enumerate(events)]
    event_file(layout.events, TRAINER, 0, 0, "12.0").write_bytes(json_lines(lines))
    files, fork = files_of(layout), {"run": "/r", "recipe": "r", "version": 0, "digest": "d", "changes": [], "data": []}
    files["claim"].write_text(json.dumps({"pid": os.getpid(), "started": "1", "host": "elsewhere"}))
    files["fork"].write_text(json.dumps(fork))
    files["passed over"].write_text("[1]")


def files_of(layout: RunLayout) -> dict[str, Path]:
    """A file of each kind, by its name in a message."""
    return {
        "lock": layout.recipe_lock, "plan": layout.plan, "name": layout.identity, "fork": layout.forked_from,
        "claim": layout.jobs / "local-00001.json", "submission": layout.jobs / "queued-000001.json",
        "site": layout.jobs / "site-cluster.json", "task": layout.root / "tasks" / TRAINER / "00000.json",
        "heart": layout.heart(TRAINER, 0), "events": event_file(layout.events, TRAINER, 0, 0, "12.0"),
        "metrics": layout.metrics(1), "summary": layout.evaluation_summary(2, "aime24"),
        "passed over": layout.versions_passed_over,
        "benchmark": layout.benchmark_data("aime24"), "problems": layout.train_data,
        "manifest": layout.evaluation_shard(2, "aime24", 0) / "MANIFEST.json",
    }  # fmt: skip


def look(layout: RunLayout, *, reports: bool = False) -> None:
    """Type what reads a run, and ``runs`` for its folder; reports take seconds."""
    run = str(layout.root)
    for words in (["status", run], ["explain", run], ["cost", run], ["status", run, "--json"]):
        answers(words)
    told = answers(["runs", str(layout.root.parent)])
    assert "next: mrt-hpc status" in told or "no runs in" in told, told
    if reports:
        answers(["report", run])
        answers(["compare", f"{run}@0", f"{run}@2"])


READ: dict[str, Callable[[Path], bool]] = {
    "lock": lambda path: isinstance(read_recipe_lock(path), Recipe),
    "plan": lambda path: isinstance(read_plan(path), Plan),
    "problems": lambda path: all(p.id and p.problem for p in read_problems(path)),
    "recipe": lambda path: isinstance(load_recipe(path), Recipe),
    "site": lambda path: isinstance(load_site(path), LocalSite | SlurmSite),
}


KINDS = sorted(files_of(RunLayout(Path("run"))))

# -- what users write


def a_model(directory: Path) -> None:
    """A model whose files alone show no fault."""
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "num_attention_heads": 8,
        "num_key_value_heads": 4, "hidden_size": 64, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    save_file({"w": np.zeros(1, np.float32)}, directory / "model.safetensors")


def check_model(directory: Path) -> None:
    files = ModelFiles(directory, "model.path")
    for check in (lambda: files.check(100), lambda: files.check_division(2), lambda: files.check_sharing(2)):
        with suppress(UserError), bounded():
            check()


def fuzz(place: Path, kind: str, name: str, *, reports: bool = False) -> None:
    """Damage a file of a kind by the seed ``name``, and let what reads it look at it."""
    if kind in KINDS:
        layout = RunLayout(place / "runs" / "run")
        with mutated(files_of(layout)[kind], name):
            look(layout, reports=reports and kind in REPORTED)
    elif kind == "model":
        with mutated(random.Random(f"{name}/file").choice(sorted((place / "model").glob("*.json"))), name):
            check_model(place / "model")
    else:
        with mutated(place / "problems.jsonl", name), bounded():
            read_problems(place / "problems.jsonl")


# -- the tests


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind."""
    folder = tmp_path_factory.mktemp("fuzzed")
    a_run(folder)
    a_model(folder / "model")
    (folder / "problems.jsonl").write_bytes(
        json_lines([{"id": f"p{i}", "problem": f"What is {i}?", "answer": str(i)} for i in range(5)])
    )
    return folder


@pytest.fixture
def layout(place: Path) -> RunLayout:
    return RunLayout(place / "runs" / "run")


@pytest.fixture(autouse=True)
def no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Slurm is asked, and no working directory is written to."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", READ)
def test_a_damaged_file_is_refused_by_its_name_or_is_another_valid_one(
    place: Path, layout: RunLayout, kind: str, tmp_path: Path
) -> None:
    of_users = {"recipe": QUICKSTART, "site": SITE, "problems": place / "problems.jsonl"}
    source = {**files_of(layout), **of_users}[kind]
    lines = [line for line in source.read_bytes().splitlines(keepends=True) if not line.lstrip().startswith(b"#")]
    whole, path = b"".join(lines), tmp_path / source.name
    for number in range(int(MANY or 25)):
        draw = random.Random(f"{SEED}/{kind}/{number}")
        at, line = draw.randrange(len(whole)), draw.randrange(len(lines))
        put_in = whole[:at] + draw.choice(YAML) + whole[at:]
        another = lines[line].partition(b":")[0] + b": " + draw.choice(YAML) + b"\n"
        changed = b"".join([*lines[:line], another, *lines[line + 1 :]])
        path.write_bytes(draw.choice([put_in, changed, wrong_bytes(whole, draw)]))
        try:
            assert READ[kind](path)
        except UserError as error:
            assert str(path) in error.message(), number


@pytest.mark.parametrize("kind", [*KINDS, "data", "model"])
def test_no_damage_ends_in_a_traceback(place: Path, kind: str) -> None:
    for number in range(int(MANY or (6 if kind in KINDS else 120))):
        fuzz(place, kind, f"{SEED}/{kind}/{number}", reports=bool(MANY))


def test_reports_of_a_damaged_summary_are_written(place: Path) -> None:
    for number in range(2):
        fuzz(place, "summary", f"reports/summary/{number}", reports=True)


@pytest.mark.parametrize("what", ["pipe", "folder", "circle", "device"])
@pytest.mark.parametrize("kind", ["claim", "submission", "task", "heart", "events", "metrics", "summary", "site"])
def test_what_is_no_file_holds_no_command_up(layout: RunLayout, kind: str, what: str) -> None:
    path = files_of(layout)[kind]
    with restored(path):
        path.unlink()
        no_file(path, what)
        look(layout)


@pytest.mark.parametrize(
    ("kind", "content", "commands"),
    [
        ("claim", b'{"pid": 1', ["runs", "status", "explain"]),
        ("claim", lambda it: {**it, "pid": "1"}, ["runs", "status", "explain"]),
        ("claim", lambda it: {**it, "of_a_later_version": 1}, ["runs", "status", "explain"]),
        ("submission", b"", ["runs", "status", "explain", "cost"]),
        ("submission", lambda it: {k: v for k, v in it.items() if k != "job"}, ["status"]),
        ("metrics", b"\xff\xfe", ["runs", "status"]),
        ("metrics", lambda it: {**it, "reward_mean": [1]}, ["runs", "status"]),
        ("task", b"\xff", ["status", "explain", "runs"]),
    ],
)
def test_one_damaged_file_hides_nothing_else(
    layout: RunLayout, kind: str, content: Callable[[Any], Any] | bytes, commands: list[str]
) -> None:
    """These ended with a traceback once, or showed no run. A field of a later version is no damage."""
    path = files_of(layout)[kind]
    with restored(path) as before:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content(json.loads(before))).encode())
        for command in commands:
            told = answers([command, str(layout.root.parent if command == "runs" else layout.root)])
            assert "run" in told
            is_named = str(path) in told.replace("\n", "") and "cannot be read" in told
            assert is_named is (b"of_a_later_version" not in path.read_bytes()), told


def test_a_damaged_event_is_named(layout: RunLayout) -> None:
    """And the rest is reckoned; these ended ``cost`` with a traceback."""
    path = files_of(layout)["events"]
    for kind, field, value in (
        (EventKind.TASK_STARTED, "time", "now"), (EventKind.TASK_STARTED, "earlier", {}),
        (EventKind.TASK_STARTED, "job", None), (EventKind.USE, "use", "resting"), (EventKind.TASK_ENDED, "outcome", 7),
        (EventKind.GROUP_COMMITTED, "rollout_tokens", "9"),
    ):  # fmt: skip
        with restored(path) as before:
            events = [json.loads(line) for line in before.splitlines()]
            changed = [{**event, field: value} if event["kind"] == kind else event for event in events]
            path.write_bytes(json_lines(changed))
            told = answers(["cost", str(layout.root)])
            assert "an event is damaged" in told and str(path) in told.replace("\n", ""), (kind, field)
            answers(["status", str(layout.root), "--json"])


def test_a_number_that_no_model_has_is_refused_in_words(place: Path) -> None:
    path = place / "model" / "config.json"
    files = ModelFiles(path.parent, "model.path")
    for field, value in (
        ("architectures", float("inf")), ("architectures", [7]), ("max_position_embeddings", 10**400),
        ("max_position_embeddings", -1), ("num_attention_heads", float("nan")), ("num_attention_heads", True),
        ("num_key_value_heads", "\0"), ("rope_scaling", {"type": "ntk", "factor": "x"}),
    ):  # fmt: skip
        with restored(path) as config, pytest.raises(UserError, match=r"config\.json"):
            path.write_text(json.dumps({**json.loads(config), field: value}))
            files.check(100)
            files.check_division(2)
            pytest.fail(f"{field}: {value!r} is taken")
