"""Tables of cases as YAML, in which texts need no quotes: ``tests/cases`` has a file for a file of tests."""

from functools import cache
from typing import Any

from basics import ROOT
from ruamel.yaml import YAML


@cache
def tables(name: str) -> Any:
    """The tables of a file by their names."""
    return YAML(typ="safe", pure=True).load((ROOT / "tests" / "cases" / f"{name}.yaml").read_text())
