"""The first day on GPUs as a script: what it keeps of steps that end in every way. Its steps: tests/integration."""

import json
from pathlib import Path

import first_day
import pytest
from first_day import Day, Step

KEPT = 'record.part("first", dict)'
STEPS = {
    "good": (KEPT, "done", ["first"]),
    "error_in_a_part": (f"{KEPT}; record.part('bad', lambda: 1 / 0); record.part('last', dict)", "failed",
                        ["first", "bad", "last"]),
    "lacks": ("record.needs_gpu_unless_tiny(); raise NotHere('a leash')", "skipped", []),
    "hangs": (f"{KEPT}; time.sleep(600)", "failed", ["first"]),
    "killed": (f"{KEPT}; os._exit(9)", "failed", ["first"]),
}  # fmt: skip
"""For each step the body of its function, how it ends, and the parts that are kept of it."""


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Day:
    real, package = first_day.HERE / "steps", tmp_path / "steps"
    package.mkdir()
    for file in ("__init__.py", "__main__.py", "record.py"):
        (package / file).symlink_to(real / file)
    for name, (body, _, _) in STEPS.items():
        lines = ["import os, time", "from steps.record import NotHere", "def run(record):", f"    {body}"]
        (package / f"{name}.py").write_text("\n".join(lines))
    monkeypatch.setattr(first_day, "HERE", tmp_path)
    return Day(tmp_path / "day.json", tmp_path, minutes=5)


def kept(day: Day) -> dict[str, dict[str, object]]:
    return dict(json.loads(day.output.read_text())["steps"])


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_has_found_is_kept_however_it_ends(day: Day, name: str) -> None:
    day.run(Step(name, 4 if name == "hangs" else 60, "a test"))
    found, (_, status, parts) = kept(day)[name], STEPS[name]
    assert (found["status"], list(found["parts"])) == (status, parts)  # type: ignore[call-overload]
    assert bool(found.get("why")) == (status != "done")
    if "error" in name:
        assert "ZeroDivisionError" in json.dumps(found)


def test_a_step_that_might_not_end_in_time_is_not_begun_and_earlier_steps_stay(day: Day) -> None:
    day.run(Step("good", 60, "a test"))
    later = Day(day.output, day.folder, minutes=1)
    later.run(Step("killed", 61, "a test"))
    assert [step["status"] for step in kept(later).values()] == ["done", "skipped"]
    modules = {file.stem for file in (Path(first_day.__file__).parent / "steps").glob("*.py")}
    assert {step.name for step in first_day.STEPS} <= modules
    assert sum(step.seconds for step in first_day.STEPS) <= 45 * 60
    assert all(step.seconds < 600 for step in first_day.STEPS)  # a queue of short jobs may allow ten minutes
