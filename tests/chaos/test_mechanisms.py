"""The table of mechanisms is up to date; `mechanisms.py` finds out whether tests notice when they are taken out."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from mechanisms import ROOT, Mechanism, mechanisms

if TYPE_CHECKING:
    from collections.abc import Iterator


def out_of_date(mechanism: Mechanism) -> Iterator[str]:
    """What the table says of a mechanism and is not so."""
    file = ROOT / mechanism.file
    before = file.read_text()
    try:
        after = mechanism.taken_out(before)
    except ValueError as wrong:
        yield str(wrong)
        return
    if after == before or (file.suffix == ".py" and ast.dump(ast.parse(after)) == ast.dump(ast.parse(before))):
        yield f"{mechanism.name}: nothing changes"
    for test in mechanism.tests:
        path, *names = test.split("::")
        text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
        if not text or any(f"def {name.partition('[')[0]}(" not in text for name in names):
            yield f"{mechanism.name}: there is no test {test}"


def test_each_mechanism_stands_where_the_table_says() -> None:
    assert [wrong for mechanism in mechanisms() for wrong in out_of_date(mechanism)] == []


SOURCE = """
class Store:
    def save(self, path):
        if path.exists():  # another was faster
            return False
        write(path)
        return True
"""


@pytest.mark.parametrize(
    ("code", "instead", "expected"),
    [
        ("path.exists()", "False", "        if False:  # another was faster"),
        ("write( path )", "pass", "        pass\n        return True"),
        ("write(path)", "erase(path)\nwrite(path)", "        erase(path)\n        write(path)\n"),
        ("if path.exists():\n  return False", "pass", "        pass\n        write(path)"),
    ],
)
def test_code_is_found_whatever_its_layout(code: str, instead: str, expected: str) -> None:
    assert expected in Mechanism("", "one", "m:Store.save", code, instead, ()).taken_out(SOURCE)


@pytest.mark.parametrize(
    ("where", "code"), [("m:Store.save", "gone()"), ("m:save", "write(path)"), ("m:Store.load", "1")]
)
def test_code_that_is_not_there_is_an_error(where: str, code: str) -> None:
    with pytest.raises(ValueError, match=r"stands 0 times|no function"):
        Mechanism("", "one", where, code, "pass", ()).taken_out("def load(): 2\n" + SOURCE.replace("save", "load"))
