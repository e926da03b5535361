"""The commands in the texts of the package are there, with their options."""

import ast
import re
from collections.abc import Iterator

import click
from advice_places import PACKAGE, text_of
from documents import options_of
from typed_advice import words_of

from mrt_hpc.cli.main import main

PROSE = re.compile(r"X\w*|doctorX+|--help|installed.|again|and|for|in|is|of|on|or|that|to|works|wrote|FIELD|{}")
"""What follows the name of the package where no command does."""


def written() -> Iterator[tuple[str, list[str]]]:
    """The files, and the commands in the texts of the package; X stands for what is filled in."""
    for path in PACKAGE.rglob("*.py"):
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.JoinedStr | ast.Constant)]
        inner = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for text in (re.sub(r"\{\w*\}", "X", text_of(node)) for node in nodes if node not in inner):
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
