"""The table of mechanisms is up to date; `mechanisms.py` tells whether tests notice when they are taken out."""

from __future__ import annotations

import pytest
from mechanisms import ROOT, Mechanism, mechanisms


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda mechanism: mechanism.name)
def test_each_mechanism_stands_where_the_table_says(mechanism: Mechanism) -> None:
    assert (ROOT / mechanism.file).read_text().count(mechanism.code) == 1
    assert mechanism.instead != mechanism.code
    for test in mechanism.tests:
        assert (ROOT / test.partition("::")[0]).is_file(), test
