"""Reads the Markdown pages: their blocks of code, the commands in them, and their code spans."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from mrt_hpc.cli.main import main

ROOT = Path(__file__).parents[2]
DOCS = sorted(path for path in (ROOT / "docs").glob("*.md"))
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
OTHERS = ("AGENTS.md", "CONTRIBUTING.md", "llms.txt", "recipes/README.md")
PAGES = [*DOCS, README, ARCHITECTURE, *(ROOT / name for name in OTHERS)]
_BLOCK = re.compile(r"^[ ]*```(\w+)\n(.*?)^[ ]*```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Command:
    page: Path
    words: tuple[str, ...]  # what follows ``mrt-hpc``

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {' '.join(self.words)}"


def blocks(page: Path) -> list[tuple[str, str]]:
    return _BLOCK.findall(page.read_text())


def spans(page: Path) -> list[str]:
    return _SPAN.findall(_BLOCK.sub("", page.read_text()))


def links(page: Path) -> list[str]:
    """What a page links to, without what lies on other hosts."""
    return [link for link in _LINK.findall(_BLOCK.sub("", page.read_text())) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as mkdocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def commands(page: Path) -> list[Command]:
    """The commands of the blocks of a page, and those of its code spans."""
    lines = [line for language, text in blocks(page) if language == "bash" for line in _joined(text).splitlines()]
    return [Command(page, words) for line in [*lines, *spans(page)] for words in _commands_of(line)]


def _joined(text: str) -> str:
    return text.replace("\\\n", " ")


def _commands_of(line: str) -> list[tuple[str, ...]]:
    """The words of each command of a line, which may join several by ``&&``."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a code span that is no shell command
        return []
    found: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            found.append([])
        else:
            found[-1].append(word)
    return [tuple(one[1:]) for one in found if one and one[0] in ("mrt-hpc", ".venv/bin/mrt-hpc")]


def resolved(words: tuple[str, ...]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and its arguments; a word in capitals stands for any."""
    command: click.Command = main
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-") and not rest[0].isupper():
        named = command.commands.get(rest[0])
        assert named is not None, f"{command.name} has no command {rest[0]}"
        command, rest = named, rest[1:]
    return command, rest


def options_of(words: tuple[str, ...]) -> None:
    """Check that the options exist and have values, without running anything."""
    command, rest = resolved(words)
    command.make_parser(click.Context(command)).parse_args(rest)
