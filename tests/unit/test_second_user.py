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

from mrt_hpc.backends.user_settings import VARIABLE
from mrt_hpc.cli.main import main
from mrt_hpc.cli.options import RunName

ROWS = "OWN.rows.jsonl"
ANALYSES = ("regret", "scaling", "votes", "attempts", "progress", "efficiency", "extrapolate")
LINES = {
    "plan": ["RUN", "RUN --site OWN", "THEIRS/recipe.yaml", "quickstart"],
    "submit": ["RUN --site OWN", "THEIRS/recipe.yaml", "quickstart --run NEW"],
    "resume": ["RUN --site OWN", "quickstart --run NEW"],
    "eval": ["RUN@0 --suite small_world --run NEW", "THEIRS/model --suite small_world --run NEW",
             "THEIRS/piped_model --suite small_world --run NEW", f"hub:{HUB_PIPED} --suite small_world --run NEW",
             "RUN@0 --suite small_world --plan"],
    "regrade": ["RUN --site local", "RUN"],
    "compare": ["--arm a=RUN@0 --arm b=MINE@0", "RUN@0 RUN@1"],
    "fields": [""],
    **{f"analyze {name}": ["RUN@0 --out out", "RUN@0", "RUN@0 --suite small_world"] for name in ANALYSES},
    "analyze gradients": ["RUN@0 --out out", "RUN@0"],
    "cancel": ["RUN"],
    "check": [f"{MODULE}:Mine --run RUN"],
    "clean": ["RUN --yes --what logs", "RUN --yes --what checkpoints", "RUN --yes"],
    "container build": ["cpu image.sif"],
    "container check": ["THEIRS/image.sif", ""],
    "container shell": ["THEIRS/image.sif", ""],
    "cost": ["RUN"],
    "data prepare": [f"hub:{HUB_DATA} THEIRS/open/rows.jsonl --force",
                     "THEIRS/rows.jsonl made.jsonl --force", "THEIRS/data made.jsonl --force",
                     "THEIRS/pipe.jsonl made.jsonl --force", f"hub:{HUB_DATA} made.jsonl --force",
                     f"{ROWS} THEIRS/open/rows.jsonl --force"],
    "data check": ["THEIRS/rows.jsonl", "THEIRS/pipe.jsonl", f"{ROWS} --verifier {MODULE}:Mine", ROWS],
    "data fetch": [f"hub:{HUB_DATA} fetched.jsonl --force"],
    "doctor": ["--site local", "--recipe quickstart"],
    "explain": ["RUN"],
    "fork": ["RUN --at 0 --run NEW", "RUN --at 0 --run NEW --site OWN"],
    "init": ["own --yes --output made.yaml --force"],
    "judge": ["1 1"],
    "logs": ["RUN", "RUN trainer"],
    "model fetch": [HUB_MODEL],
    "recipes list": [""],
    "recipes copy": ["THEIRS/recipe.yaml copied.yaml --force", "quickstart THEIRS/open/copied.yaml --force"],
    "report": ["RUN", "RUN --page page.html"],
    "runs": ["THEIRS", "RUN"],
    "status": ["RUN"],
    "sync": ["RUN"],
    "traces": ["RUN", "RUN --evaluation 0"],
}  # fmt: skip
"""The lines of each command. RUN is each run of the second user, THEIRS the folder of this one, OWN a site profile of
the first, and NEW a place where nothing is. Options that take something of the second user are added to the last line,
with a run of the first. That line, and those without a run, are typed once more in the folder of the second.
"""
OPTIONS: dict[str, list[str]] = {
    "site": ["THEIRS/slurm/sites/classes.yaml", "THEIRS/slurm/sites/lines.yaml"],
    "overrides": ["model={type: hugging_face, path: THEIRS/model}",
                  "model={type: hugging_face, path: THEIRS/piped_model}",
                  f"model={{type: hugging_face, path: 'hub:{HUB_PIPED}'}}",
                  "data={type: jsonl, path: THEIRS/rows.jsonl}"],
    "data": ["THEIRS/data"],
    "run": ["THEIRS/run", "THEIRS/open/NEW"],
    "results": ["THEIRS/open"],
    "suite": ["THEIRS/suite.yaml"],
    "recipe": ["THEIRS/run", "THEIRS/recipe.yaml"],
    "recipe_name": ["THEIRS/recipe.yaml"],
    "arms": ["a=THEIRS/run,THEIRS/plain"],
    "out": ["THEIRS/open"], "markdown": ["THEIRS/open"],
    "csv": ["THEIRS/open/numbers.csv"], "csv_file": ["THEIRS/open/numbers.csv"], "page": ["THEIRS/open/page.html"],
    "output": ["THEIRS/open/site.yaml"],
    "against": ["THEIRS/rows.jsonl"],
    "cache": ["THEIRS/hub_home/hub"],
}  # fmt: skip
"""What is typed for each option that takes a path, or a name of something that may be another user's."""
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
        filled = {"RUN": run, "THEIRS": box.theirs, "OWN": box.site, "MINE": box.mine, "NEW": f"new/{next(NUMBERS)}"}
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
