"""Every recipe of the small world, shrunk, from its plan to its report; and what is particular to each algorithm.

Most leave out their evaluations, which other tests run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from conftest import ROOT, submit
from transformers import AutoModelForCausalLM

from mrt_hpc.algorithms.batch import batch_of
from mrt_hpc.algorithms.mrt_online import branch_sequences
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.cli.main import main
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.archive import read_sampled, sampled_positions
from mrt_hpc.run.groups import Group, read_group
from mrt_hpc.run.layout import COLLECTION, RunLayout, collection_of
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.run.weights import is_delta
from mrt_hpc.run.weights_delta import chain_to, put_together
from mrt_hpc.training.supervised import read_suffixes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mrt_hpc.run.records import Rollout

RECIPES = sorted((ROOT / "recipes" / "small_world").glob("*.yaml"))
ITERATIONS = 3
SHRUNK = {
    "schedule.iterations": ITERATIONS,
    "schedule.iterations_per_job": ITERATIONS,
    "evaluation.benchmarks": "[]",
    "serving.kv_cache_gib": 0.25,
}
SAMPLING = {"sampling.problems_per_iteration": 8, "sampling.rollouts_per_problem": 4}
FORCED = 'forced_text: "Time is up.\\n\\n</think>\\n\\n\\\\boxed{", temperature: 1.0'
EVALUATED = {
    "evaluation.benchmarks": "[{name: held-out, problems: {type: small_world, split: held_out, problems: 16}}]",
    "evaluation.prover": f"{{type: gold_likelihood, {FORCED}}}",
    "evaluation.regret_budgets": "[32, 256]",
}
COLLECTING = {"data.problems": 24}
IN_FLIGHT = {"schedule.max_staleness": 1, "training.keep_weights": 4}
DELTAS = {"training.full_weights_every": ITERATIONS}
"""Version 2, between two whole models, is a delta."""
REFRESHED = 2
"""The weights version that samples the stale traces once more, where they are refreshed."""
REFRESHING = {"algorithm.refresh_every": REFRESHED, "schedule.iterations_per_job": REFRESHED}
LEARNING = {"algorithm.sequences_per_iteration": 16}
SAMPLES = {"data.samples": 32}
PARTICULAR = {
    "grpo": {**SAMPLING, **EVALUATED, "training.schedule": "constant"},
    "length_curriculum": {
        **SAMPLING,
        **DELTAS,
        "schedule.length_curriculum": "[{first_iteration: 0, max_tokens: 24}, {first_iteration: 1, max_tokens: 48}]",
    },
    "dr_grpo": {
        "model": f"{{type: hugging_face, path: {STARTING_MODEL}}}",
        **SAMPLING,
        **IN_FLIGHT,
        **DELTAS,
        "schedule.weight_swap": "keep",
    },
    "length_penalty": {**SAMPLING, **IN_FLIGHT, "schedule.weight_swap": "recompute"},
    "mrt": {**SAMPLING, **COLLECTING, **REFRESHING},
    "mrt_online_train_branches": SAMPLING,
    "mrt_next_episode": {**SAMPLING, **COLLECTING},
    "star": {**COLLECTING, **LEARNING},
    "mrt_star": {**COLLECTING, **LEARNING},
    "backtracking": {**COLLECTING, **LEARNING, "prover.branches": 8},
    "sft_conversations": {**SAMPLES, **LEARNING},
    "sft_suffix": {**SAMPLES, **LEARNING},
}
PROVERS = {
    "boxed_answer": f"{{type: boxed_answer, max_tokens: 4, branches: 2, {FORCED}}}",
    "gold_likelihood": f"{{type: gold_likelihood, {FORCED}}}",
    "majority": f"{{type: majority, max_tokens: 4, branches: 3, {FORCED}}}",
    "continuation": "{type: continuation, max_tokens: 64, branches: 2, temperature: 1.0}",
    "another model": f"{{type: boxed_answer, max_tokens: 4, branches: 2, model: MODEL, {FORCED}}}",
}
"""Of mrt_online, beside those that have a recipe."""


def options(name: str, attach: str, **changed: object) -> list[str]:
    """The options of a submission of a recipe, with a prover behind the word with."""
    recipe, _, prover = name.partition(" with ")
    changes = {**SHRUNK, "serving.attach": attach, **PARTICULAR.get(recipe, SAMPLING), **changed}
    if prover:
        changes["prover"] = PROVERS[prover].replace("MODEL", str(STARTING_MODEL))
    return [word for field, value in changes.items() for word in ("--set", f"{field}={value}")]


@pytest.fixture(scope="module")
def run(warm_server: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunLayout]:
    """Finished runs of recipes by their names, each made once. They sample through one server, one after the other."""
    finished: dict[str, RunLayout] = {}

    def of(name: str) -> RunLayout:
        if name not in finished:
            recipe = name.partition(" with ")[0]
            directory = tmp_path_factory.mktemp(recipe) / "run"
            chosen = options(name, warm_server)
            with ThreadPoolExecutor(1) as pool:
                copied = pool.submit(copy_of_delta, RunLayout(directory)) if has_deltas(name) else None
                submit(ROOT / "recipes" / "small_world" / f"{recipe}.yaml", directory, *chosen)
                if copied is not None:
                    copied.result()
            finished[name] = RunLayout(directory)
        return finished[name]

    return of


def has_deltas(name: str) -> bool:
    return DELTAS.items() <= PARTICULAR.get(name, {}).items()


def during(layout: RunLayout) -> RunLayout:
    """Where weights versions of a run are kept that are removed at its end."""
    return RunLayout(layout.root.parent / "during")


def copy_of_delta(layout: RunLayout) -> None:
    """Copy the version that is a delta, and its base, while the run goes on."""
    wait_until(layout.weights_version(2).is_dir, reason="version 2", deadline_s=300, longest_pause_s=0.05)
    during(layout).root.mkdir()
    shutil.copy(layout.identity, during(layout).identity)
    for version in (1, 2):
        shutil.copytree(layout.weights_version(version), during(layout).weights_version(version))


def groups(layout: RunLayout, iteration: int) -> list[Group]:
    return [read_sampled(layout, iteration, p) for p in sorted(sampled_positions(layout, iteration))]


def metrics(layout: RunLayout) -> list[IterationMetrics]:
    return [IterationMetrics.read(layout.metrics(i)) for i in range(ITERATIONS)]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_runs_to_its_report(run: Callable[[str], RunLayout], recipe: Path) -> None:
    layout = run(recipe.stem)
    assert f"{ITERATIONS} of {ITERATIONS} iterations done" in layout.report.read_text()
    assert layout.weights_version(ITERATIONS).is_dir()
    assert all(np.isfinite(m.loss) and m.grad_norm > 0 for m in metrics(layout) if m.loss is not None and m.grad_norm)


@pytest.mark.parametrize("recipe", ["dr_grpo", "length_penalty"])
def test_staleness_counts_from_the_oldest_weights_of_a_trace(run: Callable[[str], RunLayout], recipe: str) -> None:
    for iteration in range(ITERATIONS):
        for rollout in (r for group in groups(run(recipe), iteration) for r in group.rollouts):
            versions = [rollout.weights_version, *(version for _, version in rollout.later_weights)]
            assert versions == sorted(set(versions))
            assert iteration - 1 <= versions[0] <= versions[-1] <= iteration


@pytest.mark.parametrize("prover", PROVERS)
def test_every_prover_values_every_prefix(run: Callable[[str], RunLayout], prover: str) -> None:
    layout = run(f"mrt_online with {prover}")
    for group in (g for i in range(ITERATIONS) for g in groups(layout, i)):
        prefixes = {(r.sample, j) for r in group.rollouts for j in range(len(r.boundaries))}
        assert {(v.sample, v.boundary) for v in group.values} == prefixes
        assert all(0.0 <= v.value <= 1.0 + 1e-6 for v in group.values)
        assert group.statistics.branch_tokens > 0


def test_another_model_has_a_server_of_its_own(run: Callable[[str], RunLayout]) -> None:
    assert list(run("mrt_online with another model").logs.glob("*vllm-mu.log"))


def test_looking_ahead_spends_its_branches_where_answers_are_open(run: Callable[[str], RunLayout]) -> None:
    values = [v for i in range(ITERATIONS) for g in groups(run("mrt_online_look_ahead"), i) for v in g.values]
    assert len({v.branches for v in values}) > 1
    assert min(v.branches for v in values) == 1
    branches = [b for i in range(ITERATIONS) for g in groups(run("mrt_online_look_ahead"), i) for b in g.branches]
    assert any(b.look_ahead != 0.0 for b in branches)


def test_the_variance_that_progress_reached_is_told(run: Callable[[str], RunLayout]) -> None:
    uniform, planned = metrics(run("mrt_online")), metrics(run("mrt_online_look_ahead"))
    assert all(m.progress_error and m.progress_error_share == 1.0 for m in uniform)
    assert all(m.progress_error_share and 0.0 < m.progress_error_share < 1.0 for m in planned)
    noise = [np.mean([m.progress_error or 0.0 for m in of]) for of in (uniform, planned)]
    assert 0.0 < noise[1] < noise[0]
    assert "error of progress" in run("mrt_online").report.read_text()
    assert all(m.prefilled_tokens for m in uniform)


def test_a_length_curriculum_limits_each_iteration(run: Callable[[str], RunLayout]) -> None:
    layout = run("length_curriculum")
    longest = [max(len(r.token_ids) for g in groups(layout, i) for r in g.rollouts) for i in range(ITERATIONS)]
    assert longest[0] <= 24 < longest[1] <= 48
    assert longest[2] <= 48


@pytest.mark.parametrize("name", ["length_curriculum", "dr_grpo"])
def test_versions_between_whole_models_are_deltas(run: Callable[[str], RunLayout], name: str) -> None:
    layout = run(name)
    assert [is_delta(during(layout).weights_version(version)) for version in (1, 2)] == [False, True]
    assert not any(is_delta(path) for path in layout.weights.iterdir()), "no task loads one any more"


def test_a_version_that_was_put_together_is_the_one_that_was_sampled_with(
    run: Callable[[str], RunLayout], tmp_path: Path
) -> None:
    layout = run("length_curriculum")
    put_together(chain_to(during(layout), 2), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    temperature = read_recipe_lock(layout.recipe_lock).sampling.temperature
    sampled = [rollout for group in groups(layout, 2) for rollout in group.rollouts]
    assert {rollout.weights_version for rollout in sampled} == {2}
    for rollout in sampled[::4]:
        found = token_logprobs(model, rollout.prompt_ids, rollout.token_ids, temperature)
        assert found.numpy() == pytest.approx(rollout.logprobs, abs=1e-3)


@pytest.mark.parametrize("name", ["mrt", "mrt_next_episode"])
def test_half_of_a_group_goes_on_from_a_stale_prefix(run: Callable[[str], RunLayout], name: str) -> None:
    layout = run(name)
    algorithm = read_recipe_lock(layout.recipe_lock).algorithm
    collections = {version: groups(layout, collection_of(version)) for version in algorithm.traces_versions(ITERATIONS)}
    assert [*collections] == ([0, REFRESHED] if name == "mrt" else [0])
    traces = {v: {g.rollouts[0].problem_id: g.rollouts[0] for g in there} for v, there in collections.items()}
    assert all(len(stale) == 24 for stale in traces.values())
    for iteration, group in ((i, g) for i in range(ITERATIONS) for g in groups(layout, i)):
        stale = traces[algorithm.traces_version(iteration)]
        going_on = [r for r in group.rollouts if not r.forced]
        stopped = [r for r in group.rollouts if r.forced]
        assert len(going_on) == len(stopped) == 2
        trace = stale[group.rollouts[0].problem_id]
        prefixes = [[*trace.prompt_ids, *trace.token_ids[:cut]] for cut in trace.boundaries[:-1] or [0]]
        assert going_on[0].prompt_ids in prefixes
        assert stopped[0].prompt_ids[: -stopped[0].forced] == going_on[0].prompt_ids


def test_refreshed_traces_are_sampled_by_the_weights_of_their_iteration(run: Callable[[str], RunLayout]) -> None:
    layout = run("mrt")
    for version in (0, REFRESHED):
        collected = [r for g in groups(layout, collection_of(version)) for r in g.rollouts]
        assert len({r.problem_id for r in collected}) == 24
        assert {r.weights_version for r in collected} == {version}
    texts = [[r.text for g in groups(layout, collection_of(v)) for r in g.rollouts] for v in (0, REFRESHED)]
    assert texts[0] != texts[1]
    assert layout.weights_version(REFRESHED).is_dir()


def test_the_next_episode_is_valued_where_one_was_thought(run: Callable[[str], RunLayout]) -> None:
    for group in (g for i in range(ITERATIONS) for g in groups(run("mrt_next_episode"), i)):
        valued = {v.sample for v in group.values}
        assert valued == {r.sample for r in group.rollouts if not r.forced and len(r.boundaries) > 1}
        assert {b.boundary for b in group.branches} <= {1}


def test_branches_of_a_trace_share_their_seeds_and_the_known_answers_hold_most_of_the_mass(
    run: Callable[[str], RunLayout],
) -> None:
    everything = [g for i in range(ITERATIONS) for g in groups(run("mrt_online_rao_blackwell"), i)]
    for branches in ([b for b in g.branches if b.sample == 0] for g in everything):
        assert len({b.seed for b in branches}) == len({b.branch for b in branches})
    for group in everything:
        for rollout in group.rollouts:
            for boundary in range(len(rollout.boundaries)):
                here = [a for a in group.answers if (a.sample, a.boundary) == (rollout.sample, boundary)]
                assert 0.0 <= sum(a.probability for a in here) <= 1.0 + 1e-6
    assert any(b.known for g in everything for b in g.branches)


@pytest.mark.parametrize("name", ["star", "mrt_star", "backtracking", "sft_conversations", "sft_suffix"])
def test_supervised_algorithms_learn_given_sequences(run: Callable[[str], RunLayout], name: str) -> None:
    learnt = metrics(run(name))
    assert all(m.reward_mean is None for m in learnt)
    assert all(np.isfinite(m.trainer["nll"]) and m.trainer["sequences"] == 16 for m in learnt)


@pytest.mark.parametrize("name", ["backtracking", "sft_conversations", "sft_suffix"])
def test_samples_that_the_policy_did_not_write_become_likelier(run: Callable[[str], RunLayout], name: str) -> None:
    losses = [m.trainer["nll"] for m in metrics(run(name))]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["star", "mrt_star"])
def test_right_traces_that_were_learnt_become_likelier(run: Callable[[str], RunLayout], name: str) -> None:
    layout = run(name)
    right = [r for g in groups(layout, COLLECTION) for r in g.rollouts if r.reward == 1.0]
    before, after = (mean_nll(layout.weights_version(version), right) for version in (0, ITERATIONS))
    assert after < before


def mean_nll(model_dir: Path, rollouts: list[Rollout]) -> float:
    """Of the sampled tokens, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    total = count = 0.0
    for rollout in rollouts:
        total -= token_logprobs(model, rollout.prompt_ids, rollout.token_ids).sum().item()
        count += len(rollout.token_ids)
    return total / count


def token_logprobs(
    model: torch.nn.Module, prompt_ids: Sequence[int], token_ids: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """[T] of the tokens after the prompt."""
    ids = torch.tensor([[*prompt_ids, *token_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1] / temperature
        logprobs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return logprobs[-len(token_ids) :]


def test_backtracking_writes_down_what_it_selected(run: Callable[[str], RunLayout]) -> None:
    layout = run("backtracking")
    selected = {s.id: s for s in read_suffixes(layout.selected_samples)}
    wrong = {g.rollouts[0].problem_id: g for g in groups(layout, COLLECTION) if g.rollouts[0].reward == 0.0}
    assert selected
    assert selected.keys() <= wrong.keys()
    for name, sample in selected.items():
        rollout = wrong[name].rollouts[0]
        assert sample.prefix.startswith(rollout.text[:20])
        assert all(a < b for a, b in pairwise(rollout.boundaries))


def test_an_evaluation_with_a_prover_measures_regret(run: Callable[[str], RunLayout]) -> None:
    layout = run("grpo")
    for version in (0, ITERATIONS):
        summary = EvaluationSummary.read(layout.evaluation_summary(version, "held-out"))
        assert [*summary.regret] == [32, 256]
        assert all(regret.keys() == summary.per_problem.keys() for regret in summary.regret.values())
        assert all(0.0 <= regret <= 1.0 for regret in summary.regret[256].values())
    sampled = read_group(layout.evaluation_shard(ITERATIONS, "held-out", 0))
    assert len(sampled.values) == sum(len(r.boundaries) for r in sampled.rollouts)
    assert "normalised regret" in layout.report.read_text()


def test_a_finished_run_gets_a_benchmark_and_an_iteration_more(
    run: Callable[[str], RunLayout], warm_server: str, tmp_path: Path
) -> None:
    finished, layout = run("grpo"), RunLayout(tmp_path / "run")
    shutil.copytree(finished.root, layout.root)
    shards = [layout.evaluation_shard(version, "held-out", 0) for version in (0, ITERATIONS)]
    before = [path.stat().st_mtime for path in shards]
    both = EVALUATED["evaluation.benchmarks"][:-1] + ", {name: more, problems: {type: small_world, problems: 4}}]"
    changed = {"evaluation.benchmarks": both, "schedule.iterations": ITERATIONS + 1}
    said = submit(ROOT / "recipes/small_world/grpo.yaml", layout.root, *options("grpo", warm_server, **changed))
    assert f"schedule.iterations was {ITERATIONS} and is {ITERATIONS + 1}" in said
    for version in (0, ITERATIONS):
        assert read_manifest(layout.weights_version(version)) == read_manifest(finished.weights_version(version))
    assert [path.stat().st_mtime for path in shards] == before
    for version, benchmark, problems in ((0, "held-out", 16), (0, "more", 4), (4, "held-out", 16), (4, "more", 4)):
        assert EvaluationSummary.read(layout.evaluation_summary(version, benchmark)).problems == problems
    assert not list(layout.set_aside.glob("*"))
    report = layout.report.read_text()
    assert f"{ITERATIONS + 1} of {ITERATIONS + 1} iterations done" in report
    assert "missing" not in report.lower()


def test_episodes_of_real_traces_lie_on_their_tokens(run: Callable[[str], RunLayout]) -> None:
    layout = run("mrt_online")
    tokens = TokenBytes(Prompter.of(layout.weights_version(0), read_recipe_lock(layout.recipe_lock).prompt).tokenizer)
    for rollout in (r for i in range(ITERATIONS) for g in groups(layout, i) for r in g.rollouts):
        episodes = [tokens.pieces(rollout.token_ids[a:b]) for a, b in pairwise(rollout.boundaries)]
        thought = rollout.text.partition("</think>")[0]
        assert b"".join(piece for episode in episodes for piece in episode).decode(errors="replace") == thought
        assert all(b"".join(episode).lstrip().startswith(b"Wait") for episode in episodes[1:])


def test_branches_are_learnt_after_what_they_were_sampled_after(run: Callable[[str], RunLayout]) -> None:
    layout = run("mrt_online_train_branches")
    recipe = read_recipe_lock(layout.recipe_lock)
    assert recipe.prover is not None
    forced = Prompter.of(layout.weights_version(0), recipe.prompt).ids(recipe.prover.forced_text)
    for iteration, measured in enumerate(metrics(layout)):
        learnt, dropped = branch_sequences(batch_of(groups(layout, iteration)), forced)
        sequences = [s for s in learnt if s.has_signal]
        assert measured.trained_branches == len(sequences) > 0
        assert measured.dropped_branches == dropped == 0
        assert measured.trainer["shared_prefix_share"] > 0.2  # each branch has its trace's prefix
        model = AutoModelForCausalLM.from_pretrained(layout.weights_version(iteration), dtype=torch.float32)
        for sequence in sequences[:20]:
            assert token_logprobs(model, sequence.prompt_ids, sequence.token_ids).numpy() == pytest.approx(
                sequence.behaviour_logprobs, abs=1e-3
            )


def test_the_plan_collects_before_it_trains(run: Callable[[str], RunLayout]) -> None:
    plan = json.loads(run("star").plan.read_text())
    assert [job["name"] for job in plan["jobs"]][:3] == ["prepare", "collection.inference", "segment-000.trainer"]


SUITE = """
prompt: {instruction: ""}
prover:
  type: forced_answer
  forced_text: &end "Time is up.\\n\\n</think>\\n\\n\\\\boxed{"
  branches: 4
  max_tokens: 4
  temperature: 1.0
episodes: {markers: [Wait], min_paragraphs: 1, max_episodes: 6}
benchmarks:
  - {name: held-out, samples: 2, problems: &problems {type: small_world, split: held_out, problems: 12}}
  - name: longer
    problems: *problems
    max_tokens: 48
    mode:
      {type: extrapolation, words: [Wait], extensions: 4, tokens: 24, value_every: 2, answer_tokens: 8,
       forced_text: *end}
temperature: 1.0
top_p: 1.0
max_tokens: 128
regret_budgets: [32, 64]
"""
ANALYSES = {
    "regret": {"regret", "areas_by_episode"},
    "scaling": set(),
    "progress": set(),
    "efficiency": set(),
    "extrapolate": {"extrapolation"},
}
"""The analyses, and figures that each of them draws."""


@pytest.fixture(scope="module")
def evaluated(run: Callable[[str], RunLayout], tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """An evaluation on its own of a run of GRPO and one of MRT-online: whole traces, and extrapolation to twice their
    length.
    """
    folder = tmp_path_factory.mktemp("evaluated")
    suite = folder / "suite.yaml"
    suite.write_text(SUITE)
    runs = [str(run(name).root) for name in ("grpo", "mrt_online")]
    command = ["eval", *runs, "--suite", str(suite), "--results", str(folder / "results"), "--run", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "mrt_hpc.cli.main", *command, "--set", "serving.kv_cache_gib=0.25"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return RunLayout(folder / "run")


@pytest.mark.parametrize("analysis", ANALYSES)
def test_every_analysis_of_grpo_and_mrt_online_ends_in_its_figures(evaluated: RunLayout, analysis: str) -> None:
    benchmark = "longer" if analysis == "extrapolate" else "held-out"
    result = CliRunner().invoke(main, ["analyze", analysis, str(evaluated.root), "--benchmark", benchmark])
    assert result.exit_code == 0, result.output
    written = {path.stem for path in (evaluated.root / "analysis" / analysis).glob("*.png")}
    assert written
    assert written >= ANALYSES[analysis]
    assert {path.stem for path in (evaluated.root / "analysis" / analysis).glob("*.svg")} == written
    assert any((evaluated.root / "analysis" / analysis).glob("*.csv"))


def test_extrapolation_and_regret_tell_the_two_apart_or_say_that_they_cannot(evaluated: RunLayout) -> None:
    for analysis, benchmark, words in (
        ("extrapolate", "longer", "accuracy at 144 tokens"),
        ("regret", "held-out", "regret@"),
    ):
        result = CliRunner().invoke(main, ["analyze", analysis, str(evaluated.root), "--benchmark", benchmark])
        (verdict,) = [line for line in result.output.splitlines() if line.startswith(words)]
        assert "cannot be told apart: n = 12 problems" in verdict or " is better: " in verdict
    measures = ["--measure", "pass@1", "--measure", "maj@2", "--benchmark", "held-out"]
    compared = CliRunner().invoke(main, ["compare", str(evaluated.root), *measures])
    assert compared.exit_code == 0, compared.output
    assert "problems" in compared.output
