"""The tests of the page are skipped where there is no browser, and fail in CI, which would be green without them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import sandboxes
from browser import PROGRAMS, REQUIRED, browser, reason_to_skip

CI = Path(__file__).parents[2] / ".ci" / "run"


def test_without_a_browser_the_tests_are_skipped_or_fail_where_it_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # the only folder in which programs are looked for
    monkeypatch.delenv(REQUIRED, raising=False)
    first, second = PROGRAMS
    (tmp_path / second).touch(mode=0o755)
    assert f"not installed: {first} (" in str(reason_to_skip())
    monkeypatch.setenv(REQUIRED, "required")
    assert reason_to_skip() is None
    with pytest.raises(RuntimeError, match=first), browser(tmp_path):
        pass
    monkeypatch.delenv(REQUIRED)
    (tmp_path / first).touch(mode=0o755)
    assert reason_to_skip() is None


def test_ci_requires_it() -> None:
    for variable in (REQUIRED, sandboxes.REQUIRED):
        assert f"export {variable}=required" in CI.read_text()
    assert CI.stat().st_mode & stat.S_IXUSR
