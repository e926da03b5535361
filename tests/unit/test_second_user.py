"""An ordinary user types every command on what another ordinary user has laid out, while that one exchanges files."""

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import click
import pytest
import typing_user
from hostile import HUB_DATA, HUB_MODEL, HUB_PIPED, MODULE, PRIVATE, Box, lay_out, rows
from hub_server import Repository, serving
from other_users import FIRST, ROOT_ONLY, SECOND, as_user, shared_folder
from tables import tables

from mrt_hpc.backends.user_settings import VARIABLE
from mrt_hpc.cli.main import main
from mrt_hpc.cli.options import RunName

TABLES = tables("second_user")
LINES: dict[str, list[str]] = TABLES["lines"]
OPTIONS: dict[str, list[str]] = TABLES["options"]
NUMBERS = count()
EXCHANGES = """
import os, sys, time
places = [words.split("=") for words in sys.argv[1:]]
def exchanged(here, target):
    aside = os.path.join(os.path.dirname(here), "." + os.path.basename(here))
    os.rename(here, aside)
    os.symlink(target, here)
    time.sleep(0.01)
    os.rename(aside, aside + "2")
    os.unlink(here)
    os.rename(aside + "2", here)
while True:
    for here, target in places:
        exchanged(here, target)
    time.sleep(0.01)
"""


Line = tuple[Path, tuple[str, ...]]
"""The folder in which the first user types, and what."""


def commands(group: click.Group = main, *above: str) -> Iterator[tuple[str, click.Command]]:
    """Each command with its whole name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        else:
            yield " ".join((*above, name)), command


def takes_from_others(parameter: click.Parameter) -> bool:
    """Whether an option takes a path, or a name that may lead to something of another user."""
    is_path = isinstance(parameter.type, click.Path | RunName) or parameter.name in OPTIONS
    return is_path and isinstance(parameter, click.Option)


def all_lines(box: Box) -> list[Line]:
    return [line for name, command in commands() for line in lines_of(box, name, command)]


def lines_of(box: Box, name: str, command: click.Command) -> Iterator[Line]:
    last, options = LINES[name][-1], [*filter(takes_from_others, command.params)]

    def line(text: str, run: Path = box.mine, folder: Path = box.work, *more: str) -> Line:
        places = {"RUN": run, "THEIRS": box.theirs, "OWN": box.site, "MINE": box.mine, "NEW": f"new/{next(NUMBERS)}"}
        filled = {**places, "CODE": MODULE, "HUB_DATA": HUB_DATA, "HUB_MODEL": HUB_MODEL, "HUB_PIPED": HUB_PIPED}
        words = (*name.split(), *shlex.split(text), *more)
        return folder, tuple(re.sub("|".join(filled), lambda key: str(filled[key[0]]), word) for word in words)

    for text in LINES[name]:
        yield from (line(text, run) for run in (box.runs if "RUN" in text else [box.mine]))
    yield from (line(text, box.mine, box.theirs) for text in LINES[name] if text == last or "RUN" not in text)
    yield from (line(last, box.mine, box.work, o.opts[0], value) for o in options for value in OPTIONS[str(o.name)])
    if any(option.name == "site" for option in options):
        yield line(last, box.mine, box.theirs, "--site", "lines")


@pytest.fixture
def box() -> Iterator[Box]:
    with shared_folder() as root:
        box = Box(root)
        lay_out(box)
        yield box


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of the hub."""
    model = {"config.json": b"{}", "model.safetensors": bytes(2000), "tokenizer.json": b"{}"}
    yield from serving(Repository(HUB_MODEL, model, kind="models"), Repository(HUB_DATA, {"test.jsonl": rows()}))


def told(box: Box, lines: Sequence[Line], hub: str) -> list[dict[str, Any]]:
    """What became of each line that the first user has typed."""
    file = box.root / "lines.json"
    file.write_text(json.dumps([(str(folder), words) for folder, words in lines]))
    variables = {"HF_HOME": str(box.theirs / "hub_home"), "HF_ENDPOINT": hub, VARIABLE: str(box.site)}
    words = (typing_user.__file__, file, box.home, box.work, box.marks)
    user = as_user(FIRST, box.home, *words, **variables, PATH=str(Path(sys.executable).parent))
    output, _ = user.communicate(timeout=900)
    ended = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(ended) == len(lines), output[-3000:]
    return ended


def assert_no_harm(box: Box, ended: Sequence[dict[str, Any]], *kinds: str) -> None:
    """No line has done what is of these kinds, and the second user's folder holds nothing private to the first."""
    found = [(end, kind) for end in ended for kind in kinds if end[kind]]
    harm = [f"mrt-hpc {shlex.join(end['words'])}, typed in {end['folder']}: {k}: {end[k]}" for end, k in found]
    assert not harm, "\n".join(harm)
    files = (path for path in box.theirs.rglob("*") if path.is_file() and not path.is_symlink())
    assert [path for path in files if PRIVATE.encode() in path.read_bytes()] == []


def test_each_command_and_each_option_that_takes_a_place_has_lines() -> None:
    assert LINES.keys() == {name for name, _ in commands()}
    taking = [option.name for _, command in commands() for option in filter(takes_from_others, command.params)]
    assert {*taking} == {*OPTIONS}
    for name, command in commands():
        if any(isinstance(p.type, RunName) and isinstance(p, click.Argument) for p in command.params):
            assert any("RUN" in text for text in LINES[name]), name


@ROOT_ONLY
def test_nothing_of_the_first_user_changes_and_no_code_of_the_second_runs(box: Box, hub: str) -> None:
    assert_no_harm(box, told(box, all_lines(box), hub), "failed", "misused", "made", "changed", "ran")


@ROOT_ONLY
def test_nothing_changes_while_the_second_user_exchanges_files(box: Box, hub: str) -> None:
    changing = [str(box.theirs / name) for name in ("run", "plain", "rows", "model", "slurm", "hub_home")]
    lines = [line for line in all_lines(box) if any(place in word for word in line[1] for place in changing)]
    driver = as_user(SECOND, box.theirs, "-c", EXCHANGES, *(f"{place}={target}" for place, target in box.exchanged))
    try:
        ended = told(box, lines, hub)
        assert driver.poll() is None, driver.communicate()
    finally:
        driver.kill()
        driver.communicate()
    assert_no_harm(box, ended, "failed", "changed", "ran")
