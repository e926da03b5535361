"""The table of mechanisms is up to date; `mechanisms.py` finds out whether tests notice when they are taken out."""

from __future__ import annotations

import ast

import pytest
from mechanisms import ROOT, Mechanism, mechanisms


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda mechanism: mechanism.name)
def test_each_mechanism_stands_where_the_table_says(mechanism: Mechanism) -> None:
    file = ROOT / mechanism.file
    before = file.read_text()
    after = mechanism.taken_out(before)
    assert after != before
    if file.suffix == ".py":
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    for test in mechanism.tests:
        assert (ROOT / test.partition("::")[0]).is_file(), test


SOURCE = """
class Store:
    def save(self, path):
        if path.exists():  # another was faster
            return False
        write(path)
        return True
"""


@pytest.mark.parametrize(
    ("where", "code", "instead", "expected"),
    [
        ("m:Store.save", "path.exists()", "False", "        if False:  # another was faster"),
        ("m:Store.save", "write( path )", "pass", "        pass\n        return True"),
        ("m:Store.save", "write(path)", "erase(path)\nwrite(path)", "        erase(path)\n        write(path)\n"),
        ("m:Store.save", "if path.exists():\n  return False", "pass", "        pass\n        write(path)"),
    ],
)
def test_code_is_found_whatever_its_layout(where: str, code: str, instead: str, expected: str) -> None:
    assert expected in Mechanism("", "one", where, code, instead, ()).taken_out(SOURCE)


@pytest.mark.parametrize(
    ("where", "code"), [("m:Store.save", "gone()"), ("m:save", "write(path)"), ("m:Store.load", "1")]
)
def test_code_that_is_not_there_is_an_error(where: str, code: str) -> None:
    with pytest.raises(ValueError, match=r"stands 0 times|no function"):
        Mechanism("", "one", where, code, "pass", ()).taken_out("def load(): 2\n" + SOURCE.replace("save", "load"))
