"""The commands as a user meets them: wrong inputs, what terminals and pipes get, and what the shell offers."""

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from basics import JOBS, QUICKSTART, ROOT
from canned_queue import canned_run
from click.shell_completion import ShellComplete
from commands import in_a_process, python, typed
from run_of import run_of
from small_weights import publish_models
from synthetic_run import Shape, SyntheticRun
from tables import tables
from terminals import into_a_closed_pipe, on_a_terminal

from mrt_hpc.cli.main import main
from mrt_hpc.cli.terminal import echo_json
from mrt_hpc.errors import ExitCode, visible, word
from mrt_hpc.run.layout import RunLayout

TABLES = tables("cli")


def words_of(line: str) -> list[str]:
    return [word.replace("RECIPE", str(QUICKSTART)) for word in shlex.split(line)]


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return run_of(tmp_path / "run")


@pytest.mark.parametrize(("words", "fact"), TABLES["wrong_inputs"])
def test_a_wrong_input_is_refused_and_leaves_nothing_behind(tmp_path: Path, words: str, fact: str) -> None:
    refused = typed(*words_of(words), "--run", tmp_path / "run", exits=2).stderr
    assert (fact in refused, refused.splitlines()[-1][:8]) == (True, "  next: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "fact"), TABLES["wrong_words"])
def test_a_wrong_word_is_refused_with_what_to_type(run: RunLayout, words: str, fact: str) -> None:
    assert fact in typed(*words_of(words.replace("RUN", str(run.root))), exits=2).stderr


@pytest.mark.parametrize("make", [
    os.mkfifo, Path.touch, lambda path: path.symlink_to(path), lambda path: path.symlink_to("no")
], ids=["pipe", "file", "circle", "dangling"])  # fmt: skip
@pytest.mark.parametrize("below", ["", "x"])
def test_a_place_that_is_no_directory_is_refused(tmp_path: Path, make: Callable[[Path], None], below: str) -> None:
    make(place := tmp_path / "place")
    for command in ("plan", "submit"):
        assert str(place) in typed(command, QUICKSTART, "--run", place / below, exits=2).stderr


def test_a_directory_that_is_no_run_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    typed("submit", QUICKSTART, "--run", tmp_path, exits=2)
    typed("status", tmp_path, exits=2)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    program = "import os; from mrt_hpc.cli.main import main; os.rmdir(os.getcwd()); main()"
    (tmp_path / "gone").mkdir()
    told = python("-c", program, "plan", QUICKSTART, cwd=tmp_path / "gone", exits=2).stderr
    assert "Traceback" not in told and told.splitlines()[-1].startswith("  next:")


def test_a_configuration_that_cannot_be_written_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "gone"))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert "--output FILE" in typed("init", "box", "--yes", exits=2).stderr


def test_on_a_full_disk_nothing_half_made_is_left(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False).returncode:
        pytest.skip("mounting a small filesystem needs root")
    try:
        typed("submit", QUICKSTART, "--run", tmp_path / "run", exits=ExitCode.RETRYABLE)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_terminal_that_lacks_a_character_ends_no_command(tmp_path: Path) -> None:
    (folder := tmp_path / "noch–da").mkdir()
    assert "noch\\u2013da" in in_a_process("runs", folder, PYTHONIOENCODING="latin-1")


def test_plan_obeys_overrides_and_expands_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    changes = ("--set", "schedule.iterations_per_job=10", "--set", "resources.trainer.memory_gib=0.5")
    shown = typed("plan", "quickstart", *changes, "--run", "~/x").output
    for fact in ("20 iterations in 2 segment(s)", "segment-001.trainer", "submit will refuse", str(tmp_path / "x")):
        assert fact in shown


def test_a_run_directory_is_private_and_its_key_stands_nowhere_else(run: RunLayout) -> None:
    assert run.root.stat().st_mode & 0o777 == 0o700
    key = (run.secrets / "server_key").read_text()
    others = [p for p in run.root.rglob("*") if p.is_file() and p.parent != run.secrets]
    assert not [p for p in others if key in p.read_text(errors="replace")]


def test_the_log_of_a_role_is_not_hidden_by_that_of_its_server(run: RunLayout) -> None:
    for number, what in enumerate(("rank0", "server")):
        log = run.logs / f"segment-000.inference.00000.a.{what}.log"
        log.write_text("".join(f"line {i}\n" for i in range(100)) + f"of the {what}\n")
        os.utime(log, (1000.0 + number, 1000.0 + number))
    (run.logs / "prepare.00000.b.rank0.log").write_text("other\n")
    shown = typed("logs", run.root, "inference", "-n", "2").output
    assert (shown.endswith("line 99\nof the rank0\n"), "line 98" in shown) == (True, False)
    assert typed("logs", run.root, "inference", "--server").output.endswith("of the server\n")
    log.with_name("segment-000.inference.00000.a.rank0.log").unlink()
    assert "inference --server" in typed("logs", run.root, "inference", exits=2).stderr


@pytest.mark.parametrize(("words", "facts"), TABLES["judged"])
def test_an_answer_is_judged_with_the_reason(words: tuple[str, ...], facts: tuple[str, ...]) -> None:
    printed = typed("judge", *words).output
    assert [fact for fact in facts if fact not in printed] == [], printed


def test_code_that_ends_python_is_no_success_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.cli.fields.print_fields", lambda *_, **__: sys.exit(0))
    assert "code that it called ended Python" in typed("fields", exits=2).stderr


def test_an_answer_is_judged_as_a_run_judges_it(run: RunLayout) -> None:
    printed = typed("judge", r"Wait, \boxed{3}", "3", "--recipe", run.root).output
    assert "right" in printed and "does not end its thought with </think>" in printed


# -- what commands write


PACKAGE = ROOT / "mrt_hpc"
EXIT = PACKAGE / "cli" / "terminal.py"
CLICK = {"echo", "secho", "style", "echo_via_pager"}
STREAMS = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__", "sys.stdout.buffer"}
"""What would write past the exit."""
TASKS = ("attempt", "backends", "roles", "domains", "training", "inference")
"""The rooms whose processes write logs of tasks, which `logs` shows."""
HOSTILE = (
    "q[/x] [bold]lr[/] 'a \"b;touch pwned $(id) `id`\x1b]0;t\x07\x1b]52;c;aGk=\x07\x1b[31m\x9b32m\u202eevil\n"
    "next: touch pwned"
)
NAMES = [
    HOSTILE, "q[/x]", "sweep[lr]", "a b;touch pwned $(id)", "it's", 'a"b', "läuf 走る", "-rf", "~x", "a\\b",
    "tab\tline\nend", "\udcff\udcfe.bin", "\u202e", "\x1b", "#", "!", "*", "", "\u115f", "\u034f",
]  # fmt: skip
WORD, CLOCK = re.compile(r"[\w.%@:+-]+"), re.compile(r"\d\d:\d\d(:\d\d)?")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    layout = SyntheticRun(tmp_path_factory.mktemp("seen") / "run", Shape(4, 2, problems=4, paragraphs=1)).write()
    shutil.rmtree(layout.weights)
    publish_models(layout, 0, 4)
    (layout.root.parent / "problems.jsonl").write_text('{"id": "a", "problem": "1+1", "answer": "2"}\n' * 2)
    return layout


# -- one exit


def writers(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    from_rich = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and f"{n.module}".startswith("rich")]
    rich = {alias.name for node in from_rich for alias in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        owner, _, name = ast.unparse(node.func).rpartition(".")
        drawn = name in rich & {"Console", "Table", "Prompt", "print", "escape"} or name == "from_markup"
        if drawn or (owner == "click" and name in CLICK) or (not owner and name == "print") or owner in STREAMS:
            yield f"{path.relative_to(PACKAGE)}:{node.lineno} calls {owner}.{name}"


def test_commands_write_through_one_exit() -> None:
    """Whatever a command prints is printed by `terminal.py`, where no text of others has an effect."""
    commands = [p for p in PACKAGE.rglob("*.py") if p != EXIT and p.relative_to(PACKAGE).parts[0] not in TASKS]
    assert [line for path in commands for line in writers(path) if not line.endswith(("isatty", "fileno"))] == []


def test_words_of_a_command_are_the_same_words_for_a_shell_and_can_be_seen() -> None:
    words = [word(name) for name in NAMES]
    said = subprocess.run(["bash", "-c", rf"printf '%s\0' {' '.join(words)}"], capture_output=True, check=True).stdout
    assert said.split(b"\0")[:-1] == [os.fsencode(name) for name in NAMES]
    assert [one for one in words if visible(one) != one or not one.isprintable()] == []


# -- names and texts of others


def test_no_name_of_a_folder_controls_a_terminal_or_hides_others(finished: RunLayout, tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE
    run = folder / "sweep[lr]"
    shutil.copytree(finished.root, run)
    plan = run / "plan.json"
    plan.write_text(plan.read_text().replace('"long-run"', '"[/x]\\u001b]0;t\\u0007"'))
    commands = [
        ["runs", folder], ["runs", folder, "--size"], ["status", run], ["explain", run], ["cost", run], ["logs", run],
        ["logs", run, "trainer"], ["traces", run], ["traces", run, "--evaluation", "4"], ["compare", run],
        ["plan", run], ["clean", run], ["report", run, "--page", folder / "p.html"], ["sync", run],
        ["status", folder], ["status", run, "--json"], ["runs", folder, "--json"], ["explain", run, "trainer"],
        ["traces", run, "--problem", HOSTILE], ["plan", folder / "no.yaml"], ["compare", f"{run}@9"],
        ["data", "check", folder / "no.jsonl"], ["judge", "1", "2", "--recipe", run],
        ["fork", run, "--at", "99", "--run", folder / "n"], ["analyze", "regret", run, "--benchmark", HOSTILE],
    ]  # fmt: skip
    printed = dict(zip(map(str, commands), on_a_terminal(*commands, here=tmp_path, TERM="dumb"), strict=True))
    wrong = {}
    for command, (code, text) in printed.items():
        shown = text.replace("\r\n", "\n")
        assert (CONTROL.findall(shown), "Traceback" in shown, code in (0, 1, 2)) == ([], False, True), (command, shown)
        assert not [line for line in shown.splitlines() if line.startswith("next: touch")], (command, shown)
        typed = " ".join(line for line in shown.splitlines() if re.search(r"^ *next:|mrt-hpc ", line))
        typed = re.sub(r"\$'(?:[^'\\]|\\.)*'", "", typed)  # words that a shell reads back as the name
        if "pwned" in typed and "--json" not in command:
            wrong[command] = typed
    assert wrong == {}
    listed = on_a_terminal(["runs", folder], here=tmp_path, TERM="dumb")[0].text
    assert "sweep[lr]" in listed and "[/x]" in listed
    assert not [*tmp_path.rglob("pwned")]


# -- pipes, colours, widths


def table_rows(run: Path) -> list[list[object]]:
    return [
        ["traces", run], ["plan", "quickstart"], ["plan", run], ["status", run], ["cost", run], ["compare", run],
        ["runs", run.parent], ["recipes", "list"], ["data", "check", "problems.jsonl"], ["data", "fetch", "--list"],
        ["analyze", "--list"], ["eval", run, "--suite", "small_world", "--plan"], ["explain", run],
        ["fields", "algorithm"], ["doctor"], ["compare", run, "--published"], ["clean", run],
        ["status", run, "--json"], ["plan", "quickstart", "--json"], ["--help"], ["status", "--help"], ["logs", run],
    ]  # fmt: skip


def test_into_a_pipe_that_nothing_reads_a_command_ends_in_silence(finished: RunLayout) -> None:
    (finished.logs / "prepare").mkdir(parents=True, exist_ok=True)
    (finished.logs / "prepare" / "1_0_log.out").write_text("begun\n")
    commands = table_rows(finished.root)
    for command, (code, errors) in zip(commands, into_a_closed_pipe(*commands, here=finished.root.parent), strict=True):
        notices = [line for line in errors.splitlines() if not line.startswith(("recipe: ", "the tasks run", "site"))]
        assert (code, notices) == (ExitCode.CLOSED_PIPE, []), command


def test_a_closed_pipe_leaves_no_word_at_the_end_of_the_process(finished: RunLayout) -> None:
    runs = f"{sys.executable} -m mrt_hpc runs {finished.root.parent}"
    script = f"exec 3> >(exec true); sleep 0.3; {runs} 2>&1 >&3 3>&- | cat"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert done.stdout + done.stderr == ""


def test_no_color_is_honoured_by_all_that_is_written(finished: RunLayout) -> None:
    commands = [["plan", "nothere"], ["fields", "algorithm"], ["recipes", "list"], ["status", finished.root]]
    for no_color, coloured in (("1", False), ("", True)):
        printed = on_a_terminal(*commands, here=finished.root.parent, NO_COLOR=no_color)
        assert any(re.search("\x1b\\[(\\d+;)*3\\d", said.text) for said in printed) is coloured


@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_terminal_loses_no_value(finished: RunLayout, columns: int) -> None:
    shown = {"cost", "compare", "runs", "status", "data"}
    others = [c for c in table_rows(finished.root) if c[0] in shown and not {"--json", "--help"} & {*c}]
    commands = [["plan", finished.root], *others]
    environment = {"TERM": "dumb", "here": finished.root.parent}
    wide = on_a_terminal(*commands, columns=400, **environment)
    narrow = on_a_terminal(*commands, columns=columns, **environment)
    for command, long, short in zip(commands, wide, narrow, strict=True):
        there, words = "".join(re.findall(r"[^\s│┃]", short.text)), {*WORD.findall(short.text)}
        values = [value for value in WORD.findall(long.text) if not CLOCK.fullmatch(value)]
        assert [value for value in values if value not in (words if len(value) < 20 else there)] == [], command
        assert "…" not in short.text, command


def test_a_terminal_without_utf_8_shows_curves_and_bars(finished: RunLayout) -> None:
    environment = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    said = in_a_process("status", finished.root, **environment)
    assert "\\u258" not in said
    assert re.search(r"reward +[_.,\-~=+#]{4} ", said)


INTERRUPTED = """
import os, signal, sys
def interrupt(event, arguments):
    if event == "import" and arguments[0] == "mrt_hpc.cli.analyze":
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
from mrt_hpc.cli import start
start()
"""


def test_ctrl_c_while_the_program_loads_is_no_traceback() -> None:
    done = python("-c", INTERRUPTED, exits=-signal.SIGINT)
    assert (done.stdout, done.stderr) == ("", "")


def test_programs_are_printed_json(finished: RunLayout, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    echo_json({"a": [float("nan"), (1.5, float("inf"))], "b": "\x9b\u202e"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": [None, [1.5, None]], "b": "\x9b\u202e"} and printed.isascii()
    run = finished.root
    for words in (
        ["explain", run], ["traces", run, "-n", "2"], ["traces", run, "--evaluation", "4"], ["cost", run],
        ["fields", "num_generations"], ["judge", "1/2", "0.5", "--recipe", run], ["compare", run],
        ["analyze", "votes", run, "--benchmark", "aime24", "--out", tmp_path / "out"],
    ):  # fmt: skip
        assert json.loads(typed(*words, "--json").stdout, parse_constant=pytest.fail), words


def test_traces_are_printed_without_what_draws_figures() -> None:
    heavy = "any(module in sys.modules for module in ('matplotlib', 'scipy.stats'))"
    python("-c", f"import sys, mrt_hpc.roles.run_samples; sys.exit({heavy})")


def test_a_home_that_cannot_be_written_is_no_word_of_a_report(finished: RunLayout, tmp_path: Path) -> None:
    nowhere = {name: "/proc/nowhere" for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR")}
    said = in_a_process("report", finished.root, "--page", tmp_path / "p.html", MRT_HPC_SITE="local", **nowhere)
    assert said == f"page: {tmp_path / 'p.html'}\n"


@pytest.mark.parametrize(("words", "place", "goes_on"), [
    (("plan", "quickstart", "--site", "local"), "mrt_hpc.cli.plan.print_plan", False),
    (("submit", "quickstart", "--site", "local"), "mrt_hpc.cli.submit.submit", True),
    (("analyze", "gradients"), "mrt_hpc.plan.jobs.read_plan", False),
])  # fmt: skip
def test_after_ctrl_c_a_run_is_promised_only_where_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, finished: RunLayout, words: tuple[str, ...], place: str, goes_on: bool
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupt)
    run = [finished.root] if "analyze" in words else ["--run", finished.root.parent / "other"]
    said = typed(*words, *run, exits=ExitCode.INTERRUPTED).stderr
    assert ("continues the run" in said, "stopped" in said) == (goes_on, True)


# -- what the shell offers after TAB


def offered(words: str, incomplete: str = "", kind: str = "plain") -> list[str]:
    """The words that are offered after others; those of another kind stand for any file or folder."""
    complete = ShellComplete(main, {}, "mrt-hpc", "_MRT_HPC_COMPLETE")
    return [item.value for item in complete.get_completions(words.split(), incomplete) if item.type == kind]


def test_names_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (folder := tmp_path / "mrt-hpc" / "sites").mkdir(parents=True)
    (folder / "mycluster.yaml").write_text("type: slurm\n")
    for words, begun, found in TABLES["offered"]:
        assert found in offered(words, begun)
    assert offered("plan x --site", "my") == ["mycluster"] and offered("submit", kind="file")
    assert offered("submit x --set", "training.learning_rate=2") == []


def test_runs_are_offered_and_their_jobs_and_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = canned_run(tmp_path, monkeypatch, "resources.inference.tasks=4", name="runs/mine").layout.root
    monkeypatch.chdir(tmp_path)
    for command in ("status", "logs", "cancel", "report", "regrade", "explain", "compare", "eval"):
        assert offered(command) == offered(command, "runs/m") == ["runs/mine"], command
        assert offered(command, "x") == [] and offered(command, kind="dir")
    assert offered("status", f"{root.parent}/") == [str(root)] and offered("explain runs/mine") == list(JOBS)
    assert offered("explain runs/mine", f"{JOBS[1]}[") == [f"{JOBS[1]}[{n}]" for n in range(4)]
    assert offered("explain no-run") == []
