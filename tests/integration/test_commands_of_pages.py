"""Every command of README and the pages is typed as it stands there, by somebody with an empty home, in a folder of its
page: it ends well, or it begins its work, or it is refused with the sentence that the table has for it.
"""

import gzip
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from data_files import parquet
from documents import DOCS, README, ROOT, Command, blocks, commands
from new_user import Ended, NewUser
from tables import tables

from mrt_hpc.errors import ExitCode
from mrt_hpc.run.layout import RunLayout

PAGES = [README, *DOCS, ROOT / "recipes" / "README.md"]
QUICKSTART = "runs/quickstart"
FINISHED = ("quickstart", "smoke", "grpo", "mrt-online", "mrt-online-1.5b", "quickstart-slurm")
"""The runs at which pages look. Those that take GPUs, or a model of the hub, are copies of the quickstart here."""
SHARED = "/shared/me"
"""The user's folder on a cluster, as the pages call it."""
STANDS_FOR = {"RUN": QUICKSTART, "RECIPE": "quickstart"}
"""What is typed for some of the names that stand for many things; others are typed as they are."""
EXAMPLES = ("my_loss", "my_mode", "my_verifier", "my_service", "my_queue")
"""What a user copies as docs/extending.md says, which writes out the command for `my_method` alone."""
BEGINS = "begins"
OUTCOMES: list[tuple[str, str]] = tables("commands_of_pages")["outcomes"]


def outcome_of(words: tuple[str, ...]) -> str | None:
    line = " ".join(words)
    return next((outcome for pattern, outcome in OUTCOMES if re.search(pattern, line)), None)


def commands_once() -> dict[Path, list[Command]]:
    """The commands of each page, copies of files first, without those that a page before it has, except where they
    read or make a file of the page.
    """
    seen: set[tuple[str, ...]] = set()
    found: dict[Path, list[Command]] = {}
    for page in PAGES:
        new = dict.fromkeys(c for c in commands(page) if c.words not in seen or names_own_file(c))
        found[page] = sorted(new, key=lambda command: command.words[:2] != ("recipes", "copy"))
        seen |= {command.words for command in new}
    return found


def names_own_file(command: Command) -> bool:
    return any(re.fullmatch(r"\w+\.yaml|example:\w+", word) for word in command.words)


ONCE = commands_once()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def at_work(page: Path, home: Path, folder: Path, finished: Path) -> NewUser:
    """The reader of a page, with the runs and the files that the page has."""
    user = NewUser(home, folder)
    named = {word for command in commands(page) for word in re.findall(r"runs/([\w.-]+)", " ".join(command.words))}
    for name in {*named, "quickstart"} & {*FINISHED}:
        shutil.copytree(finished, folder / "runs" / name)
    quiz = b'{"question": "1 + 5?", "options": ["A)6", "B)7"], "rationale": "Add.", "correct": "A"}\n'
    for name, content in {
        "rows.jsonl": b'{"question": "What is 1 + 1?", "answer": "2"}\n',
        "rows.parquet": parquet([{"question": "What is 1 + 2?", "answer": "3"}]),
        "rows.json": b'[{"text": "What is 1 + 3?", "label": "4"}]',
        "sheet.csv": "question;answer\nWie groß ist 1 + 4?;5\n".encode("latin-1"),
        "svamp.json": b'[{"Body": "Ann has 5 bags.", "Question": "How many are there?", "Answer": 5}]',
        "quiz.jsonl.gz": gzip.compress(quiz),
    }.items():
        (folder / name).write_bytes(content)
    if any("recipes/" in word for command in commands(page) for word in command.words):
        shutil.copytree(ROOT / "recipes", folder / "recipes")
    for language, text in blocks(page):
        if language == "yaml" and (name := re.match(r"^# (\w+\.yaml)\n", text)):
            (folder / name[1]).write_text(text)
    for example in EXAMPLES if page.name == "extending.md" else ():
        assert user.types("recipes", "copy", f"example:{example}").status == 0
    return user


def typed(user: NewUser, words: tuple[str, ...]) -> Ended:
    whole = [STANDS_FOR.get(word, word.replace(SHARED, str(user.folder / "shared"))) for word in words]
    if outcome_of(words) == BEGINS:
        return user.begins(*whole)
    if "--watch" in words:
        return user.looks(*whole)
    return user.types(*whole) if words in firsts() else user.types_in_fork(*whole)


@cache
def firsts() -> set[tuple[str, ...]]:
    """The first line of README and the pages of each command, which is typed in a Python of its own; for the others,
    what commands import is imported already.
    """
    every = [command.words for page in PAGES for command in ONCE[page]]
    return set({words[:1]: words for words in reversed(every)}.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_ends_as_it_should(
    page: Path, home: Path, tmp_path: Path, quickstart: RunLayout
) -> None:
    user = at_work(page, home, tmp_path, quickstart.root)
    wrong = []
    for command in ONCE[page]:
        outcome, (status, printed) = outcome_of(command.words), typed(user, command.words)
        expected = {None: ExitCode.OK, BEGINS: ExitCode.INTERRUPTED}.get(outcome)
        is_right = outcome in printed and status if expected is None else status == expected
        wrong += [] if is_right else [f"mrt-hpc {' '.join(command.words)}: {outcome}, ended with {status}\n{printed}"]
    assert not wrong, "\n\n".join(wrong)


def test_no_command_is_left_out_and_every_outcome_is_that_of_a_command() -> None:
    every = {command.words for page in PAGES for command in commands(page)}
    assert {command.words for page in PAGES for command in ONCE[page]} == every
    assert len(every) > 150
    for pattern, _ in OUTCOMES:
        assert any(re.search(pattern, " ".join(words)) for words in every), pattern
