"""The tests of the page are skipped where there is no browser, and fail in CI, which would be green without them."""

from pathlib import Path

import pytest
from browser import PROGRAMS, REQUIRED, browser, reason_to_skip

CI = Path(__file__).parents[2] / ".ci" / "run"


def test_without_a_browser_tests_are_skipped_but_not_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # the only folder in which programs are looked for
    monkeypatch.delenv(REQUIRED, raising=False)
    assert f"not installed: {PROGRAMS[0]}" in str(reason_to_skip())
    monkeypatch.setenv(REQUIRED, "required")
    assert reason_to_skip() is None
    with pytest.raises(RuntimeError, match=f"not installed: {PROGRAMS[0]}"), browser(tmp_path):
        pass
    assert f"export {REQUIRED}=required" in CI.read_text()
