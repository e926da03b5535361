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

import pytest
from click.testing import CliRunner
from synthetic_run import Shape, SyntheticRun

from mrt_hpc import Recipe, RunLayout, UserError
from mrt_hpc.attempt.ledger import record_site, record_submission
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.plan.jobs import Plan, read_plan
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.model_files import ModelFiles
from mrt_hpc.run.events import EventKind, event_file
from mrt_hpc.run.leases import Heart
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

ROOT = Path(__file__).parents[2]
RECIPES = [ROOT / "recipes" / name for name in ("quickstart.yaml", "mrt.yaml", "mrt_online.yaml")]
LOOKS = (["status"], ["explain"], ["cost"], ["status", "--json"])
"""What is typed after each mutation of a file of a run; ``runs`` is asked for the folder of the run."""
TRAINER = "segment-000.trainer"
LONGEST_S = 60.0  # of processor time, within which a command must answer; the test's timeout ends one that only waits
MUTATIONS = 6
OF_USERS = {"recipe": 8 * MUTATIONS, "profile": 2 * MUTATIONS, "data": 20 * MUTATIONS, "model": 20 * MUTATIONS}
"""The mutations of each kind of file that users write; of each kind of file of a run there are less."""
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
    """Raise where the block takes more processor time, which other work on the machine does not change."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def answers(words: list[str]) -> str:
    """What a command prints; it ends well, or with an error in words."""
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
        with blamed(name, f"{kind} of {path}: {shown!r}"):
            yield


@contextmanager
def blamed(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        pass
    except Exception as error:
        raise AssertionError(f"seed {name}, {what}: {error!r}") from error


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
    lines = [json.dumps({"time": 1.75e9 + n, **event}) for n, event in enumerate(events)]
    event_file(layout.events, TRAINER, 0, 0, "12.0").write_text("".join(f"{line}\n" for line in lines))
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
    """Type what reads a run; reports take seconds."""
    run = str(layout.root)
    for words in LOOKS:
        answers([words[0], run, *words[1:]])
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
DAMAGES = 25  # of each of these


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
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (directory / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))


def check_model(directory: Path) -> None:
    files = ModelFiles(directory, "model.path")
    for check in (lambda: files.check(100), lambda: files.check_division(2), lambda: files.check_sharing(2)):
        with suppress(UserError), within(LONGEST_S):
            check()


def plan_with_wrong_settings(folder: Path, kind: str, name: str) -> None:
    """Set a field of a recipe, or of the profile of a site, to what makes no sense, and plan."""
    draw, recipe, site = random.Random(name), folder / "recipe.yaml", folder / "site.yaml"
    source = draw.choice(RECIPES) if kind == "recipe" else ROOT / "slurm/sites/example.yaml"
    shutil.copy(RECIPES[0], recipe)
    lines = source.read_text().splitlines()
    at = draw.choice([n for n, line in enumerate(lines) if ":" in line and not line.lstrip().startswith("#")])
    try:
        value = json.dumps(draw.choice(WRONG))
    except ValueError:
        return
    lines[at] = f"{lines[at].partition(':')[0]}: {value}"
    (recipe if kind == "recipe" else site).write_text("\n".join(lines) + "\n")
    with blamed(name, f"{source.name} line {at + 1} is {lines[at][:200]!r}"):
        answers(["plan", str(recipe), "--site", "local" if kind == "recipe" else str(site)])


def a_place(folder: Path) -> Path:
    """A folder with a file of each kind."""
    a_run(folder)
    a_model(folder / "model")
    rows = [{"id": f"p{i}", "problem": f"What is {i}?", "answer": str(i)} for i in range(5)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def fuzz(place: Path, kind: str, name: str, *, reports: bool = False) -> None:
    """Damage a file of a kind by the seed ``name``, and let what reads it look at it."""
    if kind in KINDS:
        layout = RunLayout(place / "runs" / "run")
        with mutated(files_of(layout)[kind], name):
            look(layout, reports=reports and kind in REPORTED)
    elif kind == "model":
        with mutated(random.Random(f"{name}/file").choice(sorted((place / "model").glob("*.json"))), name):
            check_model(place / "model")
    elif kind == "data":
        with mutated(place / "problems.jsonl", name), within(LONGEST_S):
            read_problems(place / "problems.jsonl")
    else:
        plan_with_wrong_settings(place, kind, name)


# -- the tests


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


def test_files_without_damage_are_read_without_a_fault(place: Path, layout: RunLayout) -> None:
    assert "cannot be read" not in answers(["runs", str(layout.root.parent)])
    assert all(path.is_file() for path in files_of(layout).values())
    assert len(read_problems(place / "problems.jsonl")) == 5


@pytest.mark.parametrize("kind", READ)
def test_a_damaged_file_is_refused_by_its_name_or_is_another_valid_one(
    place: Path, layout: RunLayout, kind: str, tmp_path: Path
) -> None:
    of_users = {"recipe": RECIPES[0], "site": ROOT / "slurm/sites/example.yaml", "problems": place / "problems.jsonl"}
    source = {**of_users, "plan": layout.plan, "lock": layout.recipe_lock}[kind]
    lines = [line for line in source.read_bytes().splitlines(keepends=True) if not line.lstrip().startswith(b"#")]
    whole, path = b"".join(lines), tmp_path / source.name
    for number in range(int(MANY or DAMAGES)):
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


@pytest.mark.parametrize("kind", [*KINDS, *OF_USERS])
def test_no_damage_ends_in_a_traceback(place: Path, kind: str) -> None:
    for number in range(int(MANY or OF_USERS.get(kind, MUTATIONS))):
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


@pytest.mark.parametrize(("kind", "content", "commands"), [
    ("claim", b'{"pid": 1', ["runs", "status", "explain"]),
    ("claim", lambda it: {**it, "pid": "1"}, ["runs", "status", "explain"]),
    ("claim", lambda it: {**it, "of_a_later_version": 1}, ["runs", "status", "explain"]),
    ("submission", b"", ["runs", "status", "explain", "cost"]),
    ("submission", lambda it: {k: v for k, v in it.items() if k != "job"}, ["status"]),
    ("metrics", b"\xff\xfe", ["runs", "status"]),
    ("metrics", lambda it: {**it, "reward_mean": [1]}, ["runs", "status"]),
    ("task", b"\xff", ["status", "explain", "runs"]),
])  # fmt: skip
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


@pytest.mark.parametrize(("field", "values"), [
    ("architectures", [float("inf"), [7], [["x"]], {"a": 1}]),
    ("max_position_embeddings", [10**400, -1]),
    ("num_attention_heads", [float("nan"), "\0", True]),
    ("num_key_value_heads", [10**400]),
    ("rope_scaling", [{"rope_type": "linear", "factor": float("nan")}, {"type": "ntk", "factor": "x"}]),
])  # fmt: skip
def test_a_number_that_no_model_has_is_refused_in_words(place: Path, field: str, values: list[object]) -> None:
    path = place / "model" / "config.json"
    for value in values:
        with restored(path) as config, pytest.raises(UserError, match=r"config\.json"):
            path.write_text(json.dumps({**json.loads(config), field: value}))
            ModelFiles(path.parent, "model.path").check(100)
            ModelFiles(path.parent, "model.path").check_division(2)
            pytest.fail(f"{value!r} is taken")
