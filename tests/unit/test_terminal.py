"""What commands write: to a terminal, to a pipe that closes, with names and texts of others that would do something."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from basics import ROOT
from commands import in_a_process, python, typed
from small_weights import publish_models
from synthetic_run import Shape, SyntheticRun
from terminals import into_a_closed_pipe, on_a_terminal

from mrt_hpc.cli.terminal import echo_json
from mrt_hpc.errors import ExitCode, visible, word
from mrt_hpc.run.layout import RunLayout

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
    found = [line for path in commands for line in writers(path) if not line.endswith(("isatty", "fileno"))]
    assert found == []


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


def tables(run: Path) -> list[list[object]]:
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
    commands = tables(finished.root)
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
    others = [c for c in tables(finished.root) if c[0] in shown and not {"--json", "--help"} & {*c}]
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


def test_what_is_printed_for_programs_is_json(
    finished: RunLayout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.parametrize(
    ("words", "place", "goes_on"),
    [
        (("plan", "quickstart", "--site", "local"), "mrt_hpc.cli.plan.print_plan", False),
        (("submit", "quickstart", "--site", "local"), "mrt_hpc.cli.submit.submit", True),
        (("analyze", "gradients"), "mrt_hpc.plan.jobs.read_plan", False),
    ],
)
def test_after_ctrl_c_a_run_is_promised_only_where_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, finished: RunLayout, words: tuple[str, ...], place: str, goes_on: bool
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupt)
    run = [finished.root] if "analyze" in words else ["--run", finished.root.parent / "other"]
    said = typed(*words, *run, exits=ExitCode.INTERRUPTED).stderr
    assert ("continues the run" in said, "stopped" in said) == (goes_on, True)
