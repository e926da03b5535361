"""Files of users and of runs, damaged by a seed: every command answers, and none ends with a traceback or hangs.

    python -m tests.unit.test_fuzzed_files 1000 [SEED]

makes a thousand mutations of each kind of file; the tests make a few of each, and those cases that failed once.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from mrt_hpc.attempt.ledger import record_site, record_submission
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.model_files import ModelFiles
from mrt_hpc.run.events import EventKind, event_file
from mrt_hpc.run.heartbeats import Heart
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from tests.support.synthetic_run import Shape, SyntheticRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
RECIPES = [ROOT / "recipes" / name for name in ("quickstart.yaml", "mrt.yaml", "mrt_online.yaml")]
LOOKS = (["status"], ["explain"], ["cost"], ["status", "--json"])
"""What is typed after each mutation of a file of a run; ``runs`` is asked for the folder of the run."""
LONGEST_S = 60.0
"""Seconds within which a command must answer."""
MUTATIONS = 16
"""Of each kind of file, in the tests."""
WRONG: list[Any] = [
    None, True, -1, 0, 2**64, 10**400, 1.5, 1e308, float("inf"), float("nan"), "", "\0", "x" * 5000, "/", "../..",
    "\ud800", [], {}, [[]], {"a": None}, "[bold]", "nowhere:Class",
]  # fmt: skip
"""What takes the place of a value."""


MEMORY_BYTES = 8 * 2**30
"""Of this process: a command that reads a device without end fails, and takes nothing from the machine."""


@contextmanager
def little_memory() -> Iterator[None]:
    """Limit the memory of this process during the block."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise where the block takes longer."""

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
    """What a command prints; it ends well, or with an error in words.

    Raises:
        AssertionError: it ended with a traceback, or did not answer.
    """
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
    """Put something that is no file at a place."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "nothing":
        path.symlink_to("gone")
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket may be short only
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
        os.chdir(here)


NO_FILES = ("pipe", "folder", "circle", "device", "nothing", "socket")


@contextmanager
def mutated(path: Path, draw: random.Random) -> Iterator[str]:
    """A file with one mutation during the block; says which."""
    content = path.read_bytes()
    kind = draw.choice(["value", "value", "value", "bytes", "bytes", "no file", "gone"])
    try:
        if kind == "value":
            path.write_bytes(wrong_json(content, draw))
        elif kind == "bytes":
            path.write_bytes(wrong_bytes(content, draw))
        else:
            path.unlink()
            if kind == "no file":
                no_file(path, kind := draw.choice(NO_FILES))
        shown = path.read_bytes()[:300] if kind in ("value", "bytes") else b""
        yield f"{kind} of {path}: {shown!r}"
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.write_bytes(content)


# -- a run with a file of each kind


def a_run(root: Path) -> RunLayout:
    """A run that has begun, with every kind of file that commands read."""
    run = SyntheticRun(root / "runs" / "run", Shape(2, 1, ("aime24",), problems=2, paragraphs=1))
    layout = run.write()
    for version in (1, 2):
        shutil.copytree(layout.weights_version(0), layout.weights_version(version))
    site = SlurmSite(name="cluster")
    record_site(layout, site)
    record_submission(layout, "segment-000.trainer", "12", "cluster")
    write_task(layout, "prepare", 0, TaskRecord(TaskState.DONE, attempt="a"))
    write_task(layout, "segment-000.trainer", 0, TaskRecord(TaskState.RUNNING, attempt="12.0", message="so"))
    claim = {"pid": os.getpid(), "started": "1", "host": "elsewhere"}
    (layout.jobs / "local-00001.json").write_text(json.dumps(claim))
    heart = Heart(layout.heart("segment-000.trainer", 0), "12.0", 60.0)
    heart._beat()
    where = {"host": "n", "pid": 7, "job": "segment-000.trainer", "task": 0, "rank": 0, "attempt": "12.0"}
    started = {"time": 1.75e9, "kind": EventKind.TASK_STARTED, **where, "world_size": 1, "began": 1.74e9}
    earlier = {**started, "earlier": {"attempt": "11.0", "until": 1.7e9}}
    rest = [
        {"time": 1.75e9 + 1, "kind": EventKind.USE, "use": "training", "host": "n", "pid": 7},
        {"time": 1.75e9 + 2, "kind": EventKind.PUBLISHED, "version": 1, "host": "n", "pid": 7},
        {"time": 1.75e9 + 3, "kind": EventKind.SHARD_COMMITTED, "what": "group", "rollout_tokens": 9},
        {"time": 1.75e9 + 4, "kind": EventKind.TASK_ENDED, "outcome": "gave back", **where},
    ]  # fmt: skip
    path = event_file(layout.events, "segment-000.trainer", 0, 0, "12.0")
    path.write_text("".join(json.dumps(event) + "\n" for event in [earlier, *rest]))
    (layout.root / "forked_from.json").write_text(
        json.dumps({"run": "/r", "recipe": "r", "version": 0, "digest": "d", "changes": [], "data": []})
    )
    layout.first_evaluation_settings.write_text(json.dumps({"aime24": {"sampled": "a", "summarised": "b"}}))
    layout.versions_passed_over.write_text(json.dumps({"versions": [1]}))
    return layout


def files_of(layout: RunLayout) -> dict[str, Path]:
    """A file of each kind, by its name in a message."""
    return {
        "lock": layout.recipe_lock,
        "plan": layout.plan,
        "claim": layout.jobs / "local-00001.json",
        "submission": layout.jobs / "queued-000001.json",
        "site": layout.jobs / "site-cluster.json",
        "task": layout.root / "tasks" / "segment-000.trainer" / "00000.json",
        "heart": layout.heart("segment-000.trainer", 0),
        "events": event_file(layout.events, "segment-000.trainer", 0, 0, "12.0"),
        "metrics": layout.metrics(1),
        "summary": layout.evaluation_summary(2, "aime24"),
        "settings": layout.first_evaluation_settings,
        "passed over": layout.versions_passed_over,
        "fork": layout.forked_from,
        "benchmark": layout.benchmark_data("aime24"),
        "problems": layout.train_data,
        "name": layout.identity,
        "manifest": layout.evaluation_shard(2, "aime24", 0) / "MANIFEST.json",
    }


REPORTED = ("metrics", "summary", "fork", "benchmark", "problems", "events", "manifest", "name")
"""Kinds of files that reports and comparisons read beyond what other commands read."""


def look(layout: RunLayout, *, reports: bool) -> None:
    """Type what reads a run; reports take seconds."""
    run = str(layout.root)
    for words in LOOKS:
        answers([words[0], run, *words[1:]])
    told = answers(["runs", str(layout.root.parent)])
    assert "next: mrt-hpc status" in told or "no runs in" in told, told
    if reports:
        answers(["report", run])
        answers(["compare", f"{run}@0", f"{run}@2"])


def fuzz_run(layout: RunLayout, kind: str, count: int, seed: str, *, reports: bool = False) -> None:
    """Damage one kind of file of a run, and look at the run, again and again."""
    for number in range(count):
        name = f"{seed}/{kind}/{number}"
        with mutated(files_of(layout)[kind], random.Random(name)) as what:
            try:
                look(layout, reports=reports and kind in REPORTED)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"seed {name}, {what}: {error}") from error


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    return a_run(tmp_path_factory.mktemp("fuzzed"))


@pytest.fixture(autouse=True)
def no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Slurm is asked, and no working directory is written to."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


KINDS = sorted(files_of(RunLayout(Path("run"))))


def test_a_whole_run_is_looked_at_without_a_fault(layout: RunLayout) -> None:
    assert "Traceback" not in answers(["status", str(layout.root)])
    assert "cannot be read" not in answers(["runs", str(layout.root.parent)])
    assert all(path.is_file() for path in files_of(layout).values())


@pytest.mark.parametrize("kind", KINDS)
def test_no_damage_to_a_file_of_a_run_ends_in_a_traceback(layout: RunLayout, kind: str) -> None:
    fuzz_run(layout, kind, MUTATIONS, "tests")


def test_reports_of_a_damaged_summary_are_written(layout: RunLayout) -> None:
    fuzz_run(layout, "summary", 2, "reports", reports=True)


@pytest.mark.parametrize("what", NO_FILES)
@pytest.mark.parametrize("kind", ["claim", "submission", "task", "heart", "events", "metrics", "summary", "site"])
def test_what_is_no_file_holds_no_command_up(layout: RunLayout, kind: str, what: str) -> None:
    path = files_of(layout)[kind]
    content = path.read_bytes()
    path.unlink()
    try:
        no_file(path, what)
        look(layout, reports=False)
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.write_bytes(content)


KNOWN: list[tuple[str, Callable[[Any], Any] | bytes, list[str]]] = [
    ("claim", b'{"pid": 1', ["runs", "status", "explain"]),
    ("claim", lambda it: {**it, "of_a_later_version": 1}, ["runs", "status", "explain"]),
    ("claim", lambda it: {**it, "pid": "1"}, ["runs", "status", "explain"]),
    ("claim", b"[]", ["runs"]),
    ("submission", b"", ["runs", "status", "explain", "cost"]),
    ("submission", lambda it: {k: v for k, v in it.items() if k != "job"}, ["status"]),
    ("metrics", b"\xff\xfe", ["runs", "status"]),
    ("metrics", lambda it: {**it, "reward_mean": [1]}, ["runs", "status"]),
    ("metrics", b"[]", ["status"]),
    ("task", b"\xff", ["status", "explain", "runs"]),
]
"""A kind of file, what stands in it, and the commands that ended with a traceback or showed no run."""
EVENTS = [
    (EventKind.TASK_STARTED, "time", "now"),
    (EventKind.TASK_STARTED, "began", "x"),
    (EventKind.TASK_STARTED, "rank", []),
    (EventKind.TASK_STARTED, "earlier", {}),
    (EventKind.TASK_STARTED, "job", None),
    (EventKind.USE, "use", "resting"),
    (EventKind.TASK_ENDED, "outcome", 7),
    (EventKind.SHARD_COMMITTED, "rollout_tokens", "9"),
]
"""A kind of event, and a field with a value that ended ``cost`` with a traceback."""


@pytest.mark.parametrize(("kind", "content", "commands"), KNOWN)
def test_one_damaged_file_hides_nothing_else(
    layout: RunLayout, kind: str, content: Callable[[Any], Any] | bytes, commands: list[str]
) -> None:
    path = files_of(layout)[kind]
    before = path.read_bytes()
    later = content is KNOWN[1][1]
    try:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content(json.loads(before))).encode())
        for command in commands:
            told = answers([command, str(layout.root.parent if command == "runs" else layout.root)])
            assert "run" in told
            assert later or str(path) in told.replace("\n", ""), told
            assert later or "cannot be read" in told, told
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(("kind", "field", "value"), EVENTS)
def test_a_damaged_event_is_named_and_the_rest_is_reckoned(
    layout: RunLayout, kind: EventKind, field: str, value: object
) -> None:
    path = files_of(layout)["events"]
    before = path.read_bytes()
    events = [json.loads(line) for line in before.splitlines()]
    try:
        for event in events:
            if event["kind"] == kind:
                event[field] = value
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        told = answers(["cost", str(layout.root)])
        assert "an event is damaged" in told
        assert str(path) in told.replace("\n", "")
        answers(["status", str(layout.root), "--json"])
    finally:
        path.write_bytes(before)


# -- what users write


def fuzz_model(directory: Path, count: int, seed: str) -> None:
    """Damage the files of a model directory, and check it."""
    for number in range(count):
        draw = random.Random(f"{seed}/model/{number}")
        path = draw.choice(sorted(directory.glob("*.json")))
        with mutated(path, draw) as what:
            try:
                check_model(directory)
            except Exception as error:
                raise AssertionError(f"seed {seed}/model/{number}, {what}: {error!r}") from error


def check_model(directory: Path) -> None:
    files = ModelFiles(directory, "model.path")
    for check in (lambda: files.check(100), lambda: files.check_division(2), lambda: files.check_sharing(2)):
        try:
            with within(LONGEST_S):
                check()
        except UserError:
            continue


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_directory(tmp_path / "model")


def model_directory(directory: Path) -> Path:
    """A model whose files alone show no fault."""
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
    return directory


def test_no_damage_to_a_model_directory_ends_in_a_traceback(model: Path) -> None:
    check_model(model)
    fuzz_model(model, 20 * MUTATIONS, "tests")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", float("inf")),
        ("architectures", [7]),
        ("architectures", [["x"]]),
        ("architectures", {"a": 1}),
        ("max_position_embeddings", 10**400),
        ("max_position_embeddings", -1),
        ("num_attention_heads", float("nan")),
        ("num_attention_heads", "\0"),
        ("num_attention_heads", True),
        ("num_key_value_heads", 10**400),
        ("rope_scaling", {"rope_type": "linear", "factor": float("nan")}),
        ("rope_scaling", {"type": "ntk", "factor": "x"}),
    ],
)
def test_a_number_that_no_model_has_is_refused_in_words(model: Path, field: str, value: object) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, field: value}))
    files = ModelFiles(model, "model.path")
    with pytest.raises(UserError) as refusal:
        files.check(100)
        files.check_division(2)
    assert "config.json" in refusal.value.message()


def fuzz_settings(kind: str, folder: Path, count: int, seed: str) -> None:
    """Set fields of recipes, or of a site profile, to what makes no sense, and plan."""
    for number in range(count):
        draw = random.Random(f"{seed}/{kind}/{number}")
        path, name = folder / "recipe.yaml", f"{seed}/{kind}/{number}"
        source = draw.choice(RECIPES) if kind == "recipe" else ROOT / "slurm/sites/example.yaml"
        target = path if kind == "recipe" else folder / "site.yaml"
        shutil.copy(RECIPES[0], path)
        lines = source.read_text().splitlines()
        at = draw.choice([n for n, line in enumerate(lines) if ":" in line and not line.lstrip().startswith("#")])
        try:
            value = json.dumps(draw.choice(WRONG))
        except ValueError:
            continue
        lines[at] = f"{lines[at].partition(':')[0]}: {value}"
        target.write_text("\n".join(lines) + "\n")
        try:
            answers(["validate", str(path)] if kind == "recipe" else ["plan", str(path), "--site", str(target)])
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"seed {name}, {source.name} line {at + 1} is {lines[at][:200]!r}: {error}") from error


@pytest.mark.parametrize(("kind", "count"), [("recipe", 8 * MUTATIONS), ("site", 2 * MUTATIONS)])
def test_no_value_in_a_recipe_or_a_site_ends_in_a_traceback(tmp_path: Path, kind: str, count: int) -> None:
    fuzz_settings(kind, tmp_path, count, "tests")


def fuzz_data(folder: Path, count: int, seed: str) -> None:
    """Damage lines of problems, and look at the file."""
    from mrt_hpc.run.data import read_problems

    path = folder / "problems.jsonl"
    rows = [{"id": f"p{i}", "problem": f"What is {i}?", "answer": str(i)} for i in range(5)]
    for number in range(count):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with mutated(path, random.Random(f"{seed}/data/{number}")) as what:
            try:
                with within(LONGEST_S):
                    read_problems(path)
            except UserError:
                continue
            except Exception as error:
                raise AssertionError(f"seed {seed}/data/{number}, {what}: {error!r}") from error


def test_no_damage_to_data_ends_in_a_traceback(tmp_path: Path) -> None:
    fuzz_data(tmp_path, 20 * MUTATIONS, "tests")


def fuzz_all(count: int, seed: str) -> int:
    """Every kind of file, with so many mutations each; prints what failed, and returns how often."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mrt-hpc-fuzz-") as folder:
        place = Path(folder)
        os.environ["PATH"] = folder  # no Slurm is asked
        layout, model = a_run(place), model_directory(place / "model")
        kinds: dict[str, Callable[[str], None]] = {
            **{kind: partial(fuzz_run, layout, kind, 1, reports=True) for kind in KINDS},
            **{kind: partial(fuzz_settings, kind, place, 1) for kind in ("recipe", "site")},
            "data": partial(fuzz_data, place, 1),
            "model": partial(fuzz_model, model, 1),
        }
        for kind, fuzz in kinds.items():
            began = time.monotonic()
            for number in range(count):
                try:
                    fuzz(f"{seed}.{number}")
                except AssertionError as error:
                    failed += 1
                    print(f"FAILED {error}"[:1000], flush=True)
            print(f"{kind:12s} {count} mutations, {time.monotonic() - began:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(bool(fuzz_all(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else str(time.time_ns()))))
