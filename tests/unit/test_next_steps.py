"""What a ``next:`` line says to type works when it is pasted."""

import ast
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from basics import TRAINER
from canned_queue import CannedRun, submitted_run
from commands import typed
from documents import options_of, resolved
from situations import SITUATIONS
from small_weights import publish_models
from synthetic_run import Shape, SyntheticRun

import mrt_hpc
from mrt_hpc.cli.main import main
from mrt_hpc.cli.options import RunPath
from mrt_hpc.errors import UserError
from mrt_hpc.run.layout import RunLayout, existing_run
from mrt_hpc.submit.extension import extended_recipe
from mrt_hpc.submit.origin import fork_of

NEXT = re.compile(r"\bnext:\s+(.+)$", re.MULTILINE)
PLACEHOLDER = re.compile(r"(?:^|[.=/])[A-Z]{3,}\b")
SHOWS = {"status", "explain", "logs", "report", "runs", "recipes", "fields", "cost", "plan", "validate"}
"""The commands that are run as they are."""
OTHERS = {"cancel", "clean", "sync", "regrade", "serve", "init", "doctor", "model", "data", "compare"}


def advised(printed: str) -> Iterator[list[str]]:
    """The words behind each ``mrt-hpc`` of the lines that say what to type next, prose behind them included."""
    for line in NEXT.findall(printed):
        for rest in line.split("mrt-hpc ")[1:]:
            yield list(words_of(rest))


def words_of(text: str) -> Iterator[str]:
    """The words of a shell up to the end of a clause."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();`")
    lexer.whitespace_split, lexer.commenters = True, ""
    with suppress(ValueError):  # an apostrophe of the prose
        while (word := lexer.get_token()) and not set(word) <= set("();`"):
            yield word.rstrip(",:")
            if word.endswith((",", ":")):
                return


def parsed(words: list[str]) -> tuple[click.Context, list[str]]:
    """The longest beginning of these words that is a command, and its words."""
    command, _ = resolved(tuple(words))
    before = words.index(str(command.name)) + 1
    refused: Exception | None = None
    for end in range(len(words), before - 1, -1):
        try:
            return command.make_context(command.name, words[before:end]), words[:end]
        except (click.UsageError, UserError) as error:
            refused = refused or error
    raise AssertionError(f"{words}: {refused}")


def paste(words: list[str]) -> None:
    context, words = parsed(words)
    given, command = context.params, words[0]
    named = {param.name for param in context.command.params if isinstance(param.type, RunPath)} & {"run", "run_before"}
    for name in named | ({"run_before"} & given.keys()):
        existing_run(given[name])
    if command in SHOWS:
        typed(*words)
    elif command in ("submit", "resume"):
        typed("plan", *words[1:])
    elif command == "fork":
        before = existing_run(given["run_before"])
        fork_of(before, given["at"], given["overrides"], before.root.with_name)
    elif command == "extend":
        extended_recipe(existing_run(given["run"]), given["iterations"])
    elif command == "eval":
        typed(*words, "--plan")
    else:
        assert command in OTHERS, command


def paste_all(printed: str) -> None:
    """Type all that a text advises; where a word in capitals stands for another, only the options are looked at."""
    for words in advised(printed):
        if any(PLACEHOLDER.search(word) for word in words):
            options_of(tuple(words))
        else:
            paste(words)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    """Its path is two words of a shell."""
    monkeypatch.chdir(tmp_path)
    return submitted_run(tmp_path, monkeypatch, "a b")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    layout = SyntheticRun(tmp_path_factory.mktemp("c d") / "run", Shape(4, 2, problems=4, paragraphs=1)).write()
    shutil.rmtree(layout.weights)
    publish_models(layout, 0, 4)
    return layout


@pytest.mark.parametrize("words", SITUATIONS)
def test_what_is_next_in_a_situation_of_a_run_can_be_typed(run: CannedRun, words: str) -> None:
    situated = SITUATIONS[words]
    situated.make(run)
    run.log(f"{TRAINER}/13_0_log.out", "begun\n")
    paste_all(typed("explain", run.layout.root, *situated.words).output)
    paste_all(typed("status", run.layout.root).output)


REFUSED = (
    "status {run}/tasks",
    "status nowhere",
    "status {run} --watch",
    "logs {run} evaluation",
    "explain {run} segment-000.traner",
    "explain {run} segment-000.inference[9]",
    "submit {run} --set training.learning_rate=0.5",
    "submit {finished} --set training.learning_rate=0.5",
    "submit {run} --run elsewhere",
    "submit ram",
    "plan quikstart",
    "plan quickstart --site nowhere",
    "plan quickstart --set training.lora.rank=3",
    "recipes copy quikstart",
    "extend {run} --iterations 3",
    "extend {finished} --iterations 3",
    "extend {finished} --iterations 300",
    "fork {run} --at last",
    "fork {finished} --at 77",
    "fork {finished} --at last --set model.path=x",
    "report {run} {finished}",
    "compare {run}",
    "compare {finished}@77",
    "analyze regret {finished}",
    "analyze regret {run}",
    "analyze scaling {run}",
    "eval {finished}@99 --suite small_world",
    "eval {finished} --suite smal_world",
    "eval nowhere --suite small_world",
    "fields trainnig",
    "fields algorithm.mrt_onlin",
)


@pytest.mark.parametrize("line", REFUSED)
def test_what_a_refusal_advises_can_be_typed(run: CannedRun, finished: RunLayout, line: str) -> None:
    words = [w.format(run=run.layout.root, finished=finished.root) for w in line.split()]
    printed = typed(*words, exits=2).output
    assert "next:" in printed
    paste_all(printed)


PROSE = re.compile(r"X\w*|doctorX+|--help|installed.|again|and|for|in|is|of|on|or|that|to|works|wrote|FIELD|{}")
"""What follows the name of the package where no command does."""


def written() -> Iterator[tuple[str, list[str]]]:
    """The files, and the commands in the texts of the package; X stands for what is filled in."""
    for path in Path(mrt_hpc.__file__).parent.rglob("*.py"):
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.JoinedStr | ast.Constant)]
        inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            values = node.values if isinstance(node, ast.JoinedStr) else [node] if id(node) not in inner else []
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in values)
            for rest in re.split(r"(?<![\w.-])mrt-hpc ", text)[1:]:
                if words := list(words_of(rest)):
                    yield path.name, words


def test_every_command_that_the_package_names_is_there_with_its_options() -> None:
    found = [(file, words) for file, words in written() if not PROSE.fullmatch(words[0])]
    assert len(found) > 200
    assert {words[0] for _, words in found} - set(main.commands) == set()
    for file, words in found:
        try:
            options_of(tuple(words))
        except click.UsageError as error:
            raise AssertionError(f"{file}: {words}: {error}") from error
