"""The table of mechanisms is up to date; `mechanisms.py` finds out whether tests notice when they are taken out."""

import ast
from collections.abc import Iterator

import pytest
from mechanisms import ROOT, Mechanism, mechanisms
from tables import tables


def out_of_date(mechanism: Mechanism) -> Iterator[str]:
    file = ROOT / mechanism.file
    before = file.read_text()
    try:
        after = mechanism.taken_out(before)
    except ValueError as wrong:
        yield str(wrong)
        return
    if after == before or (file.suffix == ".py" and ast.dump(ast.parse(after)) == ast.dump(ast.parse(before))):
        yield f"{mechanism.name}: nothing changes"
    for test in mechanism.tests.split():
        path, *names = test.split("::")
        text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
        if not text or any(f"def {name.partition('[')[0]}(" not in text for name in names):
            yield f"{mechanism.name}: there is no test {test}"


def test_each_mechanism_stands_where_the_table_says() -> None:
    assert [wrong for mechanism in mechanisms() for wrong in out_of_date(mechanism)] == []


SOURCE = """
def load(): 2
class Store:
    def save(self, path):
        if path.exists():  # another was faster
            return False
        write(path)
        return True
    def again(self):
        write(path)
"""


@pytest.mark.parametrize(("where", "code", "instead", "expected"), tables("mechanisms")["replaced"])
def test_code_is_found_in_its_function_alone(where: str, code: str, instead: str, expected: str) -> None:
    try:
        found = Mechanism("", "one", where, code, "", instead).taken_out(SOURCE)
    except ValueError as wrong:
        found = str(wrong)
    assert expected in found
