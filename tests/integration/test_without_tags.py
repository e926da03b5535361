"""A whole run of a model without thinking tags: its completion up to the last box is the thought."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT, submit

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.groups import complete_groups, read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.groups import Group

pytestmark = pytest.mark.timeout(1800)
CHANGES = {
    "prompt": '{instruction: "", thought_start: "", thought_end: ""}',
    "prover.forced_text": r'"Time is up.\n\nSo \\boxed{"',
    "sampling.problems_per_iteration": "8",
    "sampling.rollouts_per_problem": "4",
    "schedule": "{iterations: 2, iterations_per_job: 2}",
    "evaluation.benchmarks": "[]",
    "serving.kv_cache_gib": "0.25",
}
"""The small world's model writes a closing tag as it writes any other word: here it means nothing."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """A finished run."""
    return finished("mrt_online", tmp_path_factory.mktemp("tagless") / "run", {})


def finished(recipe: str, directory: Path, changes: dict[str, str]) -> RunLayout:
    options = [word for field, value in (CHANGES | changes).items() for word in ("--set", f"{field}={value}")]
    submit(ROOT / "recipes" / "small_world" / f"{recipe}.yaml", directory, *options)
    return RunLayout(directory)


def groups(layout: RunLayout) -> list[Group]:
    return [read_group(layout.group(i, p)) for i in range(2) for p in sorted(complete_groups(layout.groups(i)))]


def test_traces_are_cut_and_answers_found_where_the_last_box_opens(run: RunLayout) -> None:
    recipe = read_recipe_lock(run.recipe_lock)
    tokens = TokenBytes(Prompter.of(run.weights_version(0), recipe.prompt).tokenizer)
    rollouts = [r for g in groups(run) for r in g.rollouts]
    answered = [r for r in rollouts if r.answer is not None]
    assert answered
    for rollout in answered:
        assert tokens.text(rollout.token_ids[rollout.boundaries[-1] :]).startswith("\\boxed{" + (rollout.answer or ""))
    assert any(r.reward == 1.0 for r in answered)
    assert any(len(r.boundaries) > 2 for r in rollouts)


def test_every_prefix_has_a_value_and_the_report_is_there(run: RunLayout) -> None:
    for group in groups(run):
        prefixes = {(r.sample, j) for r in group.rollouts for j in range(len(r.boundaries))}
        assert {(v.sample, v.boundary) for v in group.values} == prefixes
    assert all(b.text.startswith("So \\boxed{") for g in groups(run) for b in g.branches)
    assert "2 of 2 iterations done" in run.report.read_text()
    measured = [IterationMetrics.read(run.metrics(i)) for i in range(2)]
    assert all(m.loss is not None and m.answered_share for m in measured)
    assert "answered" in run.report.read_text()


def test_the_log_shows_what_a_trace_looks_like(run: RunLayout) -> None:
    logs = "".join(path.read_text(errors="replace") for path in run.logs.rglob("*") if path.is_file())
    assert logs.count("a trace of problem ") == 1


def renamed(model: Path, directory: Path) -> Path:
    """A copy whose configuration names a class that would build another tokenizer, as several byte-level models do."""
    shutil.copytree(model, directory)
    (directory / MANIFEST).unlink()
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "LlamaTokenizerFast"}))
    return directory


def test_prefixes_of_stale_traces_are_closed_without_tags(run: RunLayout, tmp_path: Path) -> None:
    model = f"{{type: hugging_face, path: {renamed(run.weights_version(0), tmp_path / 'model')}}}"
    layout = finished("mrt", tmp_path / "run", {"model": model, "data.problems": "24"})
    assert "2 of 2 iterations done" in layout.report.read_text()
    forced = [r for g in groups(layout) for r in g.rollouts if r.forced]
    assert forced
    assert all("So \\boxed{" in r.text for r in forced)
