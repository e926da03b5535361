"""Files of models and of runs, damaged by a seed: every command answers, and none ends with a traceback or hangs."""

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

import pytest
from click.testing import CliRunner
from synthetic_run import Shape, SyntheticRun

from mrt_hpc.attempt.ledger import record_site, record_submission
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.model_files import ModelFiles
from mrt_hpc.run.events import EventKind, event_file
from mrt_hpc.run.heartbeats import Heart
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

LOOKS = (["status"], ["explain"], ["cost"], ["status", "--json"])
"""What is typed after each mutation of a file of a run; ``runs`` is asked for the folder of the run."""
TRAINER = "segment-000.trainer"
LONGEST_S = 60.0  # within which a command must answer
MUTATIONS = 16
MODEL = "model"
"""A kind of file beside those of runs; recipes, profiles and data: ``test_damaged_inputs`` and ``test_field_words``."""
WRONG: list[Any] = [
    None, True, -1, 0, 2**64, 10**400, 1.5, 1e308, float("inf"), float("nan"), "", "\0", "x" * 5000, "/", "../..",
    "\ud800", [], {}, [[]], {"a": None}, "[bold]", "nowhere:Class",
]  # fmt: skip
"""What takes the place of a value."""
MEMORY_BYTES = 8 * 2**30
"""Of this process: a command that reads a device without end fails, and takes nothing from the machine."""
NO_FILES = ("pipe", "folder", "circle", "device", "nothing", "socket")


@contextmanager
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answers(words: list[str]) -> str:
    with within(LONGEST_S), little_memory():
        result = CliRunner().invoke(main, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"mrt-hpc {' '.join(words)}: {result.exception!r}") from result.exception
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


def a_run(root: Path) -> None:
    layout = SyntheticRun(root / "runs" / "run", Shape(2, 1, ("aime24",), problems=2, paragraphs=1)).write()
    for version in (1, 2):
        shutil.copytree(layout.weights_version(0), layout.weights_version(version))
    record_site(layout, SlurmSite(name="cluster"))
    record_submission(layout, TRAINER, "12", "cluster")
    write_task(layout, "prepare", 0, TaskRecord(TaskState.DONE, attempt="a"))
    write_task(layout, TRAINER, 0, TaskRecord(TaskState.RUNNING, attempt="12.0", message="so"))
    Heart(layout.heart(TRAINER, 0), "12.0", 60.0)._beat()
    where = {"host": "n", "pid": 7, "job": TRAINER, "task": 0, "rank": 0, "attempt": "12.0"}
    earlier = {"attempt": "11.0", "until": 1.7e9}
    events = [
        {"kind": EventKind.TASK_STARTED, **where, "world_size": 1, "began": 1.74e9, "earlier": earlier},
        {"kind": EventKind.USE, "use": "training", "host": "n", "pid": 7},
        {"kind": EventKind.PUBLISHED, "version": 1, "host": "n", "pid": 7},
        {"kind": EventKind.GROUP_COMMITTED, "rollout_tokens": 9},
        {"kind": EventKind.TASK_ENDED, "outcome": "gave back", **where},
    ]  # fmt: skip
    lines = [json.dumps({"time": 1.75e9 + n, **event}) for n, event in enumerate(events)]
    event_file(layout.events, TRAINER, 0, 0, "12.0").write_text("".join(f"{line}\n" for line in lines))
    files, fork = files_of(layout), {"run": "/r", "recipe": "r", "version": 0, "digest": "d", "changes": [], "data": []}
    files["claim"].write_text(json.dumps({"pid": os.getpid(), "started": "1", "host": "elsewhere"}))
    files["fork"].write_text(json.dumps(fork))
    files["passed over"].write_text("[1]")


def files_of(layout: RunLayout) -> dict[str, Path]:
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
    """Type what reads a run; reports take seconds."""
    run = str(layout.root)
    for words in LOOKS:
        answers([words[0], run, *words[1:]])
    told = answers(["runs", str(layout.root.parent)])
    assert "next: mrt-hpc status" in told or "no runs in" in told, told
    if reports:
        answers(["report", run])
        answers(["compare", f"{run}@0", f"{run}@2"])


KINDS = sorted(files_of(RunLayout(Path("run"))))


def a_model(directory: Path) -> None:
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "num_attention_heads": 8,
        "num_key_value_heads": 4, "hidden_size": 64, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (directory / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))


def check_model(directory: Path) -> None:
    files = ModelFiles(directory, "model.path")
    for check in (lambda: files.check(100), lambda: files.check_division(2), lambda: files.check_sharing(2)):
        with suppress(UserError), within(LONGEST_S):
            check()


def a_place(folder: Path) -> Path:
    a_run(folder)
    a_model(folder / "model")
    return folder


def fuzz(place: Path, kind: str, name: str, *, reports: bool = False) -> None:
    """Damage a file of a kind by the seed ``name``, and let what reads it look at it."""
    if kind == MODEL:
        with mutated(random.Random(f"{name}/file").choice(sorted((place / "model").glob("*.json"))), name):
            check_model(place / "model")
        return
    layout = RunLayout(place / "runs" / "run")
    with mutated(files_of(layout)[kind], name):
        look(layout, reports=reports)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_place(tmp_path_factory.mktemp("fuzzed"))


@pytest.fixture
def layout(place: Path) -> RunLayout:
    return RunLayout(place / "runs" / "run")


@pytest.fixture(autouse=True)
def no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Slurm is asked, and no working directory is written to."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_files_without_damage_are_read_without_a_fault(layout: RunLayout) -> None:
    assert "cannot be read" not in answers(["runs", str(layout.root.parent)])
    assert all(path.is_file() for path in files_of(layout).values())


@pytest.mark.parametrize("kind", [*KINDS, MODEL])
def test_no_damage_ends_in_a_traceback(place: Path, kind: str) -> None:
    for number in range(MUTATIONS * (20 if kind == MODEL else 1)):
        fuzz(place, kind, f"tests/{kind}/{number}", reports=kind == "summary" and number < 2)


@pytest.mark.parametrize("what", NO_FILES)
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
        *((EventKind.TASK_STARTED, *it) for it in (("time", "now"), ("rank", []), ("earlier", {}), ("job", None))),
        (EventKind.USE, "use", "resting"),
        (EventKind.TASK_ENDED, "outcome", 7),
        (EventKind.GROUP_COMMITTED, "rollout_tokens", "9"),
    ):
        with restored(path) as before:
            events = [json.loads(line) for line in before.splitlines()]
            changed = [{**event, field: value} if event["kind"] == kind else event for event in events]
            path.write_text("".join(json.dumps(event) + "\n" for event in changed))
            told = answers(["cost", str(layout.root)])
            assert "an event is damaged" in told and str(path) in told.replace("\n", ""), (kind, field)
            answers(["status", str(layout.root), "--json"])


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("architectures", [float("inf"), [7], [["x"]], {"a": 1}]),
        ("max_position_embeddings", [10**400, -1]),
        ("num_attention_heads", [float("nan"), "\0", True]),
        ("num_key_value_heads", [10**400]),
        ("rope_scaling", [{"rope_type": "linear", "factor": float("nan")}, {"type": "ntk", "factor": "x"}]),
    ],
)
def test_a_number_that_no_model_has_is_refused_in_words(place: Path, field: str, values: list[object]) -> None:
    path = place / "model" / "config.json"
    for value in values:
        with restored(path) as config, pytest.raises(UserError, match=r"config\.json"):
            path.write_text(json.dumps({**json.loads(config), field: value}))
            ModelFiles(path.parent, "model.path").check(100)
            ModelFiles(path.parent, "model.path").check_division(2)
            pytest.fail(f"{value!r} is taken")
