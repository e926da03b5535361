"""The tests of the page are skipped where there is no browser, and fail in CI, which would be green without them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import sandboxes
from browser import PROGRAMS, REQUIRED, browser, reason_to_skip

CI = Path(__file__).parents[2] / ".ci" / "run"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(REQUIRED, raising=False)
    return tmp_path


def test_without_a_browser_the_tests_are_skipped_with_a_reason(programs: Path) -> None:
    (programs / PROGRAMS[1]).touch(mode=0o755)
    assert reason_to_skip() == "not installed: chromium (Debian: chromium chromium-driver)"


def test_with_a_browser_nothing_is_skipped(programs: Path) -> None:
    for name in PROGRAMS:
        (programs / name).touch(mode=0o755)
    assert reason_to_skip() is None


@pytest.mark.usefixtures("programs")
def test_where_it_is_required_its_absence_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUIRED, "required")
    assert reason_to_skip() is None
    with pytest.raises(RuntimeError, match="not installed: chromium, chromedriver"), browser(tmp_path):
        pass


def test_ci_requires_it() -> None:
    for variable in (REQUIRED, sandboxes.REQUIRED):
        assert f"export {variable}=required" in CI.read_text()
    assert CI.stat().st_mode & stat.S_IXUSR
