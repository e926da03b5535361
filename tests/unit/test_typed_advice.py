"""Every command that a text of the package advises is typed in a situation that prints it, and is taken there."""

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from advice_places import Place, places
from basics import TRAINER
from canned_queue import CannedRun
from new_user import AT_WORK, NewUser
from tables import tables
from typed_advice import FINISHED, RUN, Outcome, Scene, Situation, Theatre, command_of, commands_in, nothing
from typed_situations import EVERY, MISTAKES, NO_DATA, moved

from mrt_hpc.cli.main import main
from mrt_hpc.run.layout import AGAIN, RunLayout
from mrt_hpc.run.task_state import TaskState

TABLES = tables("typed_advice")

Tried = Callable[[str], Outcome]
OF_TASKS = ("attempt/", "inference/", "roles/", "run/", "training/")
"""Where advice is written that a task records when it fails."""
OF_COMMANDS = (
    "roles/gradient_referee.py", "roles/run_samples.py", "run/archive.py unsampled_error", "run/family.py",
    "run/fork_record.py",
)  # fmt: skip
"""Files and functions there whose advice only commands print."""
VALUES = {"role": "trainer", "again": AGAIN, "status": "mrt-hpc status RUN", "at": "sampling", "tokens": "600"}
"""What the named parts of such advice are in a run; another one is a number."""


def of_a_task(place: Place) -> Situation:
    """A task of a run has failed with this advice: one that has trained where a fork is advised, and one that is queued
    where a job is to be cancelled.
    """
    name = FINISHED if "mrt-hpc fork" in place.text else RUN

    def make(scene: Scene) -> None:
        run = CannedRun(RunLayout(scene.here / name), scene.run.commands)
        values = {**VALUES, "run": run.layout.word, "place": run.layout.word}
        text = place.text.partition("next:")[2] or place.text
        advice = re.sub(r"\{(\w*)\}", lambda match: values.get(match[1], "8"), text)
        run.task(TRAINER, TaskState.FAILED, attempt="13.0", message=f"it does not work\n  next:     {advice}")
        run.log(f"{TRAINER}/13_0_log.out", "begun\n")
        if "mrt-hpc cancel" in place.text:
            run.queue("12_0|PENDING|N/A|Priority|")

    by_hand = moved if "NEWPATH" in place.text else nothing
    return Situation(f"explain '{name}' {TRAINER}", make, 0, by_hand, {"NEWPATH": "moved"}, NO_DATA)


RECORDED = {
    place.name: of_a_task(place)
    for place in places()
    if place.file.startswith(OF_TASKS) and not place.name.startswith(OF_COMMANDS)
}


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    """The outcome of a situation, which is tried once."""
    with pytest.MonkeyPatch.context() as patch:
        theatre = Theatre(tmp_path_factory.mktemp("theatre"), patch)
        yield cache(lambda name: theatre.tried({**EVERY, **RECORDED}[name]))


UNREACHED = TABLES["unreached"]  # fmt: skip
"""The places that no situation here reaches, by the reason. It only shrinks."""
BEGINS = tuple(begin for several in UNREACHED.values() for begin in several)


@pytest.mark.parametrize("name", [*EVERY, *RECORDED])
def test_what_is_advised_is_taken_when_it_is_typed(tried: Tried, name: str) -> None:
    outcome, situation = tried(name), {**EVERY, **RECORDED}[name]
    assert situation.shows in outcome.printed
    assert not situation.exits or "next:" in outcome.printed
    assert not re.search(r"Traceback|\.tmp-|\[key\]", outcome.printed)
    assert not outcome.faults, "\n".join([outcome.printed, *outcome.faults])


def test_mistakes_are_tried_with_each_command() -> None:
    tried = {words.split()[0] for words in MISTAKES}
    assert set(main.commands) - tried == {"resume", "runs"}, "another name of submit, and a list of any folder"


def test_each_place_of_the_package_that_advises_a_command_has_a_situation(tried: Tried) -> None:
    reached = {place.name for name in EVERY for place in tried(name).places}
    left = [place for place in places() if place.name not in {*reached, *RECORDED}]
    assert "\n".join(place.name for place in left if not place.name.startswith(BEGINS)) == ""
    assert [begin for begin in BEGINS if not any(one.name.startswith(begin) for one in left)] == [], "is reached now"


def test_a_run_of_this_machine_that_was_stopped_goes_on_with_what_it_advises(tmp_path: Path) -> None:
    user = NewUser.of(tmp_path)
    user.begins("submit", "quickstart", "--site", "local")
    said = user.types("explain", "runs/quickstart").printed
    (advised,) = {shlex.join(command_of(words)) for words in commands_in(said)}
    assert advised.startswith("submit ") and "Slurm" not in said
    assert AT_WORK in user.begins(*shlex.split(advised)).printed
