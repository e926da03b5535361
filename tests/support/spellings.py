"""The usual other spellings of gold answers: each changes how an answer is written, never what it says."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

FILES = ("aime24", "aime25", "aime_1983_2023", "amc23", "math500", "math_train", "minerva_math")
_INTEGER = re.compile(r"-?[0-9]{4,}")
_BELOW_ONE = re.compile(r"(-?)0(\.[0-9]+)")
_NO_UNIT = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\\[dt]?frac\s*\{[0-9]+\}\s*\{[0-9]+\}|[0-9]*\s*\\sqrt\s*\{?[0-9]+\}?)")
_BRACKETS = re.compile(r"[(\[][^()\[\]]*[)\]]")
_RELATION = ("=", "<", ">", "\\le", "\\ge", "\\in", "\\neq", ",", "\\text", "\\mbox", "\\pm", "\\approx", "\\cup")


def named(gold: str) -> str | None:
    return None if any(sign in gold for sign in _RELATION) else f"x={gold}"


def with_brackets_that_grow(gold: str) -> str | None:
    r"""``\left( \right)`` around what stands in plain brackets."""
    if "\\left" in gold or _BRACKETS.fullmatch(gold) is None:
        return None
    return f"\\left{gold[:-1]}\\right{gold[-1]}"


def with_thousands(gold: str, separator: str) -> str | None:
    """Integers of four digits and more, in groups of three."""
    return f"{int(gold):,}".replace(",", separator) if _INTEGER.fullmatch(gold) else None


def changed(gold: str, other: str) -> str | None:
    return other if other != gold else None


SPELLINGS: dict[str, Callable[[str], str | None]] = {
    "itself": lambda gold: gold,
    r"\dfrac": lambda gold: changed(gold, re.sub(r"\\[dt]?frac(?![A-Za-z])", r"\\dfrac", gold)),
    r"\tfrac": lambda gold: changed(gold, re.sub(r"\\[dt]?frac(?![A-Za-z])", r"\\tfrac", gold)),
    r"\frac": lambda gold: changed(gold, re.sub(r"\\[dt]?frac(?![A-Za-z])", r"\\frac", gold)),
    "a trailing point": lambda gold: f"{gold}.",
    r"a unit in \text{}": lambda gold: f"{gold}\\text{{ units}}" if _NO_UNIT.fullmatch(gold) else None,
    "thousands separators": lambda gold: with_thousands(gold, ","),
    r"\! between thousands": lambda gold: with_thousands(gold, ",\\!"),
    "{,} between thousands": lambda gold: with_thousands(gold, "{,}"),
    "x=": named,
    r"\left( \right)": with_brackets_that_grow,
    ".5": lambda gold: f"{found[1]}{found[2]}" if (found := _BELOW_ONE.fullmatch(gold)) else None,
    "dollar signs": lambda gold: f"${gold}$",
    "blank space": lambda gold: f" {gold} ",
}
"""By name; a spelling is None where an answer has no such spelling."""


def spelt(gold: str) -> dict[str, str]:
    return {name: answer for name, rule in SPELLINGS.items() if (answer := rule(gold)) is not None}


def gold_answers(folder: Path, files: Iterable[str] = FILES) -> list[str]:
    """The gold answers of the files, each once."""
    lines = [line for name in files for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()]
    return list(dict.fromkeys(str(json.loads(line)["answer"]) for line in lines))
