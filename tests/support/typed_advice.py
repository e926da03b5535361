"""Types a command in a situation, and then each command that its answer advises, in the same situation."""

import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from advice_places import COMMAND, Place, printed_by, recorded
from basics import ROOT
from canned_queue import CannedRun, submitted_run
from click.testing import CliRunner, Result
from documents import options_of, resolved
from slurm_texts import squeue_prints
from small_weights import publish_models
from submitted import age
from synthetic_run import Shape, SyntheticRun
from tables import tables

from mrt_hpc import RunLayout, UserError
from mrt_hpc.attempt.ledger import record_site, remember_site
from mrt_hpc.backends.user_settings import VARIABLE
from mrt_hpc.cli.main import main
from mrt_hpc.recipe.load import load_site

RUN, FINISHED = "a b", "runs/c d"
"""The run that is queued, and the one that is finished; both are two words of a shell."""
PLACEHOLDER = re.compile(r"(?<![\w$])(?:N|[A-Z]{2,}(?:_[A-Z]+)*)(?!\w)")
TABLES = tables("typed_advice")
FILLS: dict[str, str] = TABLES["fills"]
HERE = "HERE"
"""Stands for the folder of the scene in what a user types."""
ELSEWHERE = [tuple(words.split()) for words in TABLES["elsewhere"]]


@dataclass(frozen=True)
class Scene:
    """A folder in which a user types: a run that is queued on a cluster, a run that is finished, and files."""

    here: Path
    run: CannedRun
    patch: pytest.MonkeyPatch

    @property
    def finished(self) -> RunLayout:
        return RunLayout(self.here / FINISHED)

    def types(self, *words: str) -> None:
        """Type a command that is taken, an hour ago."""
        done = types([*words])
        assert done.exit_code == 0, (done.output, done.exception)
        age_all(self.here)

    def write(self, name: str, text: str) -> Path:
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def replace(self, path: Path, old: str, new: str) -> None:
        """Change a file by hand."""
        text = path.read_text()
        assert old in text, path
        path.write_text(text.replace(old, new))


LOOKS = {"status", "explain", "report", "runs", "recipes", "fields", "cost", "plan", "compare", "analyze"}
"""Commands that say the same each time in a scene in which nothing else happened: each line of them is typed once."""


def age_all(here: Path) -> None:
    """Let all submissions have been an hour ago: the queue lacks them at once."""
    for jobs in here.rglob("jobs"):
        age(RunLayout(jobs.parent))


def nothing(_: Scene) -> object:
    return None


class Situation(NamedTuple):
    """A command, what is so when it is typed, and what the user does by hand before what it advises."""

    words: str
    make: Callable[[Scene], object] = nothing
    exits: int = 2
    by_hand: Callable[[Scene], object] = nothing
    fills: Mapping[str, str] = {}
    told: str = ""  # what is said where a command is refused, with its own next step; data that is fetched on a network
    shows: str = ""  # what the command prints


@dataclass
class Outcome:
    """What a command printed, the places that advised it, and what was wrong with it."""

    printed: str
    places: list[Place] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    typed: list[str] = field(default_factory=list)


def types(words: list[str]) -> Result:
    return CliRunner().invoke(main, words, env={"COLUMNS": None})


def commands_in(text: str) -> Iterator[list[str]]:
    """The words behind each ``mrt-hpc`` of a text, prose behind them included."""
    for match in COMMAND.finditer(text):
        yield list(words_of(text[match.start() + len("mrt-hpc ") :].partition("\n")[0]))


def words_of(text: str) -> Iterator[str]:
    """The words of a shell up to the end of a clause."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();`")
    lexer.whitespace_split, lexer.commenters = True, ""
    with suppress(ValueError):  # an apostrophe of the prose
        while (word := lexer.get_token()) and not set(word) <= set("();`"):
            yield word.rstrip(",:")
            if word.endswith((",", ":")):
                return


def command_of(words: list[str]) -> list[str]:
    """The longest beginning of these words that is a command: prose may follow, but no option."""
    command, _ = resolved(tuple(words))
    before = words.index(str(command.name)) + 1
    refused: Exception | None = None
    for end in range(len(words), before - 1, -1):
        try:
            command.make_context(command.name, words[before:end])
        except (click.UsageError, UserError) as error:
            refused = refused or error
            continue
        if any(word.startswith("-") for word in words[end:]):
            break
        return words[:end]
    raise AssertionError(f"{shlex.join(words)}: {refused}")


class Theatre:
    """Copies the scene for each situation to one path, since a run bears the path at which it was made."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.here, self.store, self.patch = folder / "scene", folder / "store", patch
        self.looked: set[tuple[str, ...]] = set()
        self.here.mkdir()
        self.run = submitted_run(self.here, patch, RUN)
        self.run.command("sbatch", f"echo $((20 + $(grep -c sbatch {self.run.commands}/calls)))")
        self.run.command("scontrol", "exit 0")
        self.run.prints()
        (self.run.commands / "empty").write_text(squeue_prints())
        self.run.command("scancel", f"cp {self.run.commands}/empty {self.run.commands}/queue")
        (self.here / "cluster.yaml").write_text("type: slurm\nname: cluster\n")
        site = load_site(self.here / "cluster.yaml")
        record_site(self.run.layout, site)
        remember_site(self.run.layout, site)
        layout = SyntheticRun(self.here / FINISHED, Shape(4, 2, problems=4, paragraphs=1)).write()
        shutil.rmtree(layout.weights)
        publish_models(layout, 0, 4)
        shutil.copy(ROOT / "slurm" / "sites" / "example.yaml", self.here / "site.yaml")
        shutil.copy(ROOT / "recipes" / "suites" / "small_world.yaml", self.here / "suite.yaml")
        shutil.copytree(self.here, self.store, symlinks=True)

    def tried(self, situation: Situation) -> Outcome:
        """Type the command of a situation, and what it advises."""
        shutil.rmtree(self.here)
        shutil.copytree(self.store, self.here, symlinks=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.here)
            patch.setenv(VARIABLE, str(self.here / "cluster.yaml"))
            patch.setenv("XDG_CONFIG_HOME", str(self.here / "config"))
            scene = Scene(self.here, self.run, patch)
            situation.make(scene)
            words = shlex.split(situation.words.replace(HERE, str(self.here)))
            with recorded() as made:
                done = types(words)
            outcome = Outcome(done.output)
            if done.exit_code != situation.exits or not isinstance(done.exception, SystemExit | None):
                outcome.faults.append(f"it ends with {done.exit_code}, {done.exception!r}")
                return outcome
            found = printed_by(done.output, made)
            outcome.places = [place for place, _ in found]
            situation.by_hand(scene)
            nexts = (line for line in done.output.splitlines() if "next:" in line)
            texts = dict.fromkeys([*(line for _, text in found for line in text.splitlines()), *nexts])
            for advised in (words for text in texts for words in commands_in(text)):
                self._type(advised, words, situation, outcome)
        return outcome

    def _type(self, advised: list[str], before: list[str], situation: Situation, outcome: Outcome) -> None:
        fills = {**FILLS, **situation.fills}
        words = [fills.get(word) or PLACEHOLDER.sub(lambda m: fills.get(m[0], m[0]), word) for word in advised]
        words = [word.replace(HERE, str(self.here)) for word in words]
        if any(tuple(words[: len(begin)]) == begin for begin in ELSEWHERE):
            options_of(tuple(words))
            return
        try:
            command = command_of(words)
        except (AssertionError, ValueError) as error:
            outcome.faults.append(str(error))
            return
        if command == before and situation.by_hand is nothing and situation.exits:
            outcome.faults.append(f"it repeats what has failed: {shlex.join(command)}")
            return
        looks = command[0] in LOOKS and situation.make is nothing
        if looks and tuple(command) in self.looked:
            return
        age_all(self.here)
        done = types([word for word in command if word != "--watch"])  # which needs a terminal
        outcome.typed.append(shlex.join(command))
        self.looked |= {tuple(command)} if looks else set()
        if done.exit_code != 0 and not (situation.told and situation.told in done.output):
            outcome.faults.append(f"{shlex.join(command)} ends with {done.exit_code}: {done.output} {done.exception!r}")
