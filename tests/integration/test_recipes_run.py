"""Every recipe of the small world, shrunk, from its plan to its report; and what is particular to each algorithm. Most
leave out their evaluations, which other tests run.
"""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import typed
from conftest import ROOT, printed_by_forks
from transformers import AutoModelForCausalLM

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import batch_of
from mrt_hpc.algorithms.learnt_batch import part_weights
from mrt_hpc.algorithms.mrt_online import branch_sequences
from mrt_hpc.algorithms.samples import read_suffixes, values_of
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.domains.small_world import STARTING_MODEL
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.mrt.mrt import boundary_before_loss
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.roles.trainer import trainer_settings
from mrt_hpc.run.archive import read_sampled, sampled_positions
from mrt_hpc.run.groups import Group, read_group
from mrt_hpc.run.layout import COLLECTION, RunLayout, collection_of
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.records import Rollout
from mrt_hpc.training.engine import build
from mrt_hpc.training.rendezvous import Ranks

Runs = Callable[[str], RunLayout]

PAPERS = ROOT / "recipes" / "papers"
RECIPES = sorted((ROOT / "recipes" / "small_world").glob("*.yaml"))
RECIPES += [PAPERS / f"{name}.yaml" for name in ("cispo", "gdpo", "spae", "spo")]
FILES = {path.stem: path for path in RECIPES}
ITERATIONS, LONGER = 2, 3
SHRUNK = {
    "schedule.iterations": ITERATIONS,
    "schedule.iterations_per_job": ITERATIONS,
    "evaluation.benchmarks": "[]",
    "serving.kv_cache_gib": 0.25,
}
SAMPLING = {"sampling.problems_per_iteration": 8, "sampling.rollouts_per_problem": 4}
BOX = "Time is up.\\n\\n</think>\\n\\n\\\\boxed{"
HELD_OUT = "{name: held-out, samples: 2, problems: {type: small_world, split: held_out, problems: 8}}"
EXTRAPOLATED = (
    "{name: longer, max_tokens: 48, problems: {type: small_world, split: held_out, problems: 8}, mode: {type: "
    "extrapolation, words: [Wait], extensions: 4, tokens: 24, value_every: 2, answer_tokens: 8, "
    f'forced_text: "{BOX}"}}}}'
)
"""To twice the length."""
EVALUATED = {
    "evaluation.benchmarks": f"[{HELD_OUT}]",
    "evaluation.prover": f'{{type: forced_answer, branches: 4, max_tokens: 4, temperature: 1.0, forced_text: "{BOX}"}}',
    "evaluation.episodes": "{markers: [Wait], min_paragraphs: 1, max_episodes: 6}",
    "evaluation.max_tokens": 128,
    "evaluation.regret_budgets": "[32, 64]",
}
LONG = {"schedule.iterations": LONGER, "schedule.iterations_per_job": LONGER}
COLLECTED = 24
COLLECTING = {"data.problems": COLLECTED}
IN_FLIGHT = {"schedule.max_staleness": 1, "training.keep_weights": 4}
LEARNING = {**LONG, "algorithm.sequences_per_iteration": 16}
SAMPLES = {"data.samples": 32}
PARTICULAR = {
    "grpo": {**SAMPLING, **EVALUATED, "training.schedule": "constant"},
    "length_curriculum": {
        **SAMPLING,
        **LONG,
        "training.keep_weights": LONGER,
        "schedule.length_curriculum": "[{first_iteration: 0, max_tokens: 24}, {first_iteration: 1, max_tokens: 48}]",
    },
    "cispo": {
        "model": f"{{type: hugging_face, path: {STARTING_MODEL}}}",
        **SAMPLING,
        **IN_FLIGHT,
        "schedule.weight_swap": "keep",
    },
    "spo": {**SAMPLING, "prover.branches": 2, "prover.max_tokens": 48},
    "length_penalty": {**SAMPLING, **IN_FLIGHT, "schedule.weight_swap": "recompute"},
    "mrt": {
        **SAMPLING,
        **COLLECTING,
        "algorithm.refresh_every": 1,
        "schedule.iterations_per_job": 1,
        "algorithm.boundary": "first_loss",
    },
    "mrt_next_episode": {
        **SAMPLING,
        **COLLECTING,
        "model": "{type: hugging_face, path: RENAMED}",
        "algorithm.train_terminated": "false",
        "prompt": '{instruction: "", thought_start: "", thought_end: ""}',
        "prover.forced_text": r'"Time is up.\n\nSo \\boxed{"',
    },
    "star": {**COLLECTING, **LEARNING},
    "mrt_star": {
        **COLLECTING,
        **LEARNING,
        "prover": f"{{type: boxed_answer, max_tokens: 4, branches: 4, model: {STARTING_MODEL}, temperature: 1.0, "
        f'forced_text: "{BOX}"}}',
    },
    "backtracking": {**COLLECTING, **LEARNING, "prover.branches": 8},
    "sft_conversations": {**SAMPLES, **LEARNING},
    "sft_suffix": {**SAMPLES, **LEARNING},
}
"""What a recipe is given beside ``SHRUNK``: the prover of one is another model, and the prompt of one has no tags."""


def options(name: str, **changed: object) -> list[str]:
    changes = {**SHRUNK, **PARTICULAR.get(name, SAMPLING), **changed}
    return [word for field, value in changes.items() for word in ("--set", f"{field}={value}")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Finished runs of recipes, each made once."""
    finished: dict[str, RunLayout] = {}

    def of(recipe: str) -> RunLayout:
        if recipe not in finished:
            layout = RunLayout(tmp_path_factory.mktemp(recipe) / "run")
            renamed = renamed_tokenizer(layout.root.parent / "model")
            chosen = [word.replace("RENAMED", str(renamed)) for word in options(recipe)]
            printed_by_forks("submit", FILES[recipe], "--run", layout.root, *chosen)
            finished[recipe] = layout
        return finished[recipe]

    return of


def renamed_tokenizer(directory: Path) -> Path:
    """The starting model with a configuration that names a class that would build another tokenizer, as several
    byte-level models have it.
    """
    shutil.copytree(STARTING_MODEL, directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "LlamaTokenizerFast"}))
    return directory


def iterations(layout: RunLayout) -> int:
    return read_recipe_lock(layout.recipe_lock).schedule.iterations


def groups(layout: RunLayout, iteration: int) -> list[Group]:
    return [read_sampled(layout, iteration, p) for p in sorted(sampled_positions(layout, iteration))]


def all_groups(layout: RunLayout) -> list[Group]:
    return [group for iteration in range(iterations(layout)) for group in groups(layout, iteration)]


def metrics(layout: RunLayout) -> list[IterationMetrics]:
    return [IterationMetrics.read(layout.metrics(i)) for i in range(iterations(layout))]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_runs_to_its_report(run: Runs, recipe: Path) -> None:
    layout = run(recipe.stem)
    last = iterations(layout)
    assert f"{last} of {last} iterations done" in layout.report.read_text()
    assert layout.weights_version(last).is_dir()
    assert all(np.isfinite(m.loss) and m.grad_norm > 0 for m in metrics(layout) if m.loss is not None and m.grad_norm)


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("dapo", "dppo"),
        ("dapo", "gspo_token"),
        ("vineppo", "masked"),
        *((n, "clipped") for n in ("dapo", "dr_grpo", "l1")),
    ],
)
def test_the_other_papers_learn_from_sampled_groups(run: Runs, one_rank: Ranks, name: str, loss: str) -> None:
    recipe, layout = load_recipe(PAPERS / f"{name}.yaml", (f"training.loss={{type: {loss}}}",)), run("spo")
    learnt = require_kind(recipe.algorithm, RolloutAlgorithm).learnt(batch_of(groups(layout, 0)))
    found = build(trainer_settings(recipe), layout.weights_version(0), one_rank).update(learnt.sequences)
    assert found.grad_norm > 0 and np.isfinite(found.loss)


def test_gdpo_divides_each_reward_by_its_deviation_in_the_group_and_the_sum_by_that_of_the_batch(run: Runs) -> None:
    recipe = load_recipe(PAPERS / "gdpo.yaml")
    batch = batch_of(groups(run("gdpo"), 0), weights=part_weights(recipe))
    assert {tuple(r.reward_parts) for r in batch.rollouts if r.answer} == {(1.0, 1.0), (0.0, 0.0)}
    right, problems = batch.right.astype(float), np.array(batch.problem_ids)
    summed = np.zeros(len(right))
    for mine in (problems == problem for problem in set(batch.problem_ids)):
        summed[mine] = (right[mine] - right[mine].mean()) / max(right[mine].std(), 1e-9)
    learnt = require_kind(recipe.algorithm, RolloutAlgorithm).learnt(batch).sequences
    found = [float(s.advantages[0]) for s in learnt]
    np.testing.assert_allclose(found, summed / np.sqrt((summed**2).mean()), rtol=1e-4, atol=1e-6)


def test_a_step_is_credited_with_the_change_of_likelihood_and_confidence(run: Runs) -> None:
    sampled = groups(run("spae"), 0)
    for group in sampled:
        of_gold = {(a.sample, a.boundary): a.probability for a in group.answers}
        sure: dict[tuple[int, int], list[float]] = defaultdict(list)
        for branch in group.branches:
            sure[branch.sample, branch.boundary].append(float(np.exp(np.mean(branch.logprobs))))
        for value in group.values:
            a, c = of_gold[value.sample, value.boundary], np.mean(sure[value.sample, value.boundary])
            assert value.value == pytest.approx(1.5 * a * c + 0.5 * a - c)
    batch = batch_of(sampled)
    learnt = require_kind(load_recipe(PAPERS / "spae.yaml").algorithm, RolloutAlgorithm).learnt(batch).sequences
    for rollout, values, sequence in zip(batch.rollouts, batch.value_arrays, learnt, strict=True):
        assert len(values) == len(rollout.boundaries) and (values > -1.0).all() and (values < 1.0).all()
        of_each = [float(sequence.advantages[start]) for start in rollout.credited[:-1]]
        np.testing.assert_allclose(np.diff(of_each), np.diff(values, n=2), atol=1e-5)


@pytest.mark.parametrize("recipe", ["cispo", "length_penalty"])
def test_staleness_counts_from_the_oldest_weights_of_a_trace(run: Runs, recipe: str) -> None:
    for iteration in range(iterations(run(recipe))):
        for rollout in (r for group in groups(run(recipe), iteration) for r in group.rollouts):
            versions = [rollout.weights_version, *(version for _, version in rollout.later_weights)]
            assert versions == sorted(set(versions))
            assert iteration - 1 <= versions[0] <= versions[-1] <= iteration


def test_another_model_has_a_server_of_its_own_and_values_every_prefix(run: Runs) -> None:
    layout = run("mrt_star")
    assert list(layout.logs.glob("*vllm-mu.log"))
    for group in groups(layout, COLLECTION):
        prefixes = {(r.sample, j) for r in group.rollouts for j in range(len(r.boundaries))}
        assert {(v.sample, v.boundary) for v in group.values} == prefixes
        assert all(0.0 <= v.value <= 1.0 for v in group.values)
        assert group.statistics.branch_tokens > 0


def test_looking_ahead_spends_its_branches_where_answers_are_open(run: Runs) -> None:
    found = all_groups(run("mrt_online_look_ahead"))
    branches = {v.branches for g in found for v in g.values}
    assert len(branches) > 1 == min(branches)
    assert any(b.look_ahead != 0.0 for g in found for b in g.branches)


def test_the_variance_that_progress_reached_is_told(run: Runs) -> None:
    uniform, planned = metrics(run("mrt_online")), metrics(run("mrt_online_look_ahead"))
    assert all(m.progress_error and m.progress_error_share == 1.0 and m.prefilled_tokens for m in uniform)
    assert all(m.progress_error_share and 0.0 < m.progress_error_share < 1.0 for m in planned)
    noise = [np.mean([m.progress_error or 0.0 for m in of]) for of in (uniform, planned)]
    assert 0.0 < noise[1] < noise[0]
    assert "error of progress" in run("mrt_online").report.read_text()


def test_a_length_curriculum_limits_each_iteration(run: Runs) -> None:
    layout = run("length_curriculum")
    longest = [max(len(r.token_ids) for g in groups(layout, i) for r in g.rollouts) for i in range(LONGER)]
    assert longest[0] <= 24 < longest[1] <= 48 >= longest[2]


def test_the_published_weights_are_those_that_were_sampled_with(run: Runs) -> None:
    layout = run("length_curriculum")
    model = AutoModelForCausalLM.from_pretrained(layout.weights_version(2), dtype=torch.float32)
    temperature = read_recipe_lock(layout.recipe_lock).sampling.temperature
    sampled = [rollout for group in groups(layout, 2) for rollout in group.rollouts]
    assert {rollout.weights_version for rollout in sampled} == {2}
    for rollout in sampled[::4]:
        found = token_logprobs(model, rollout.prompt_ids, rollout.token_ids, temperature)
        assert found.numpy() == pytest.approx(rollout.logprobs, abs=1e-3)


@pytest.mark.parametrize("name", ["mrt", "mrt_next_episode"])
def test_half_of_a_group_goes_on_from_a_stale_prefix(run: Runs, name: str) -> None:
    layout = run(name)
    algorithm = read_recipe_lock(layout.recipe_lock).algorithm
    collections = {version: groups(layout, collection_of(version)) for version in algorithm.traces_versions(ITERATIONS)}
    assert [*collections] == ([0, 1] if name == "mrt" else [0])
    traces = {v: {g.rollouts[0].problem_id: g for g in there} for v, there in collections.items()}
    losses = 0
    assert {len(stale) for stale in traces.values()} == {COLLECTED}
    for iteration, group in ((i, g) for i in range(ITERATIONS) for g in groups(layout, i)):
        going_on = [r for r in group.rollouts if not r.forced]
        stopped = [r for r in group.rollouts if r.forced]
        assert len(going_on) == len(stopped) == 2
        stale = traces[algorithm.traces_version(iteration)][group.rollouts[0].problem_id]
        trace = stale.rollouts[0]
        prefixes = [[*trace.prompt_ids, *trace.token_ids[:cut]] for cut in trace.boundaries[:-1] or [0]]
        loss = boundary_before_loss(values_of(stale, trace)) if algorithm.boundary == "first_loss" else None
        losses += loss is not None
        prefixes = prefixes if loss is None else [prefixes[loss]]
        assert going_on[0].prompt_ids in prefixes
        assert stopped[0].prompt_ids[: -stopped[0].forced] == going_on[0].prompt_ids
    assert (losses > 0) == (name == "mrt")


def test_refreshed_traces_are_sampled_by_the_weights_of_their_iteration(run: Runs) -> None:
    collected = {v: [r for g in groups(run("mrt"), collection_of(v)) for r in g.rollouts] for v in (0, 1)}
    for version, rollouts in collected.items():
        assert len({r.problem_id for r in rollouts}) == COLLECTED
        assert {r.weights_version for r in rollouts} == {version}
    assert [r.text for r in collected[0]] != [r.text for r in collected[1]]


def test_the_next_episode_is_valued_where_one_was_thought(run: Runs) -> None:
    for group in all_groups(run("mrt_next_episode")):
        thought = {r.sample for r in group.rollouts if not r.forced and len(r.boundaries) > 1}
        assert {v.sample for v in group.values} == thought
        assert {b.boundary for b in group.branches} <= {1}


def test_without_tags_the_thought_ends_where_the_last_box_opens(run: Runs) -> None:
    """The small world's model writes a closing tag as it writes any other word: here it means nothing."""
    layout = run("mrt_next_episode")
    recipe = read_recipe_lock(layout.recipe_lock)
    tokens = TokenBytes(Prompter.of(layout.weights_version(0), recipe.prompt).tokenizer)
    traces = [r for g in groups(layout, COLLECTION) for r in g.rollouts]
    answered = [r for r in traces if r.answer is not None]
    for rollout in answered:
        assert tokens.text(rollout.token_ids[rollout.boundaries[-1] :]).startswith("\\boxed{" + (rollout.answer or ""))
    assert any(r.reward == 1.0 for r in answered)
    assert any(len(r.boundaries) > 2 for r in traces)
    forced = [r for g in all_groups(layout) for r in g.rollouts if r.forced]
    branches = [b for g in all_groups(layout) for b in g.branches]
    assert forced and all("So \\boxed{" in r.text for r in forced)
    assert branches and all(b.text.startswith("So \\boxed{") for b in branches)
    assert all(m.loss is not None and m.answered_share for m in metrics(layout))


def test_the_log_shows_what_a_trace_looks_like(run: Runs) -> None:
    logs = "".join(path.read_text(errors="replace") for path in run("mrt_online").logs.rglob("*") if path.is_file())
    assert logs.count("a trace of problem ") == 1


def test_branches_of_a_trace_share_their_seeds_and_the_known_answers_hold_most_of_the_mass(run: Runs) -> None:
    everything = all_groups(run("mrt_online_rao_blackwell"))
    for branches in ([b for b in g.branches if b.sample == 0] for g in everything):
        assert len({b.seed for b in branches}) == len({b.branch for b in branches})
    for group in everything:
        mass: Counter[tuple[int, int]] = Counter()
        for answer in group.answers:
            mass[answer.sample, answer.boundary] += answer.probability
        assert all(0.0 <= m <= 1.0 + 1e-6 for m in mass.values())
    assert any(b.known for g in everything for b in g.branches)


@pytest.mark.parametrize("name", ["star", "mrt_star", "backtracking", "sft_conversations", "sft_suffix"])
def test_what_a_supervised_algorithm_learns_becomes_likelier(run: Runs, name: str) -> None:
    """Samples from batch to batch; of traces of the policy, which differ more than that, those that were right."""
    layout, learnt = run(name), metrics(run(name))
    assert all(m.reward_mean is None and m.trainer["sequences"] == 16 for m in learnt)
    losses = [m.trainer["nll"] for m in learnt]
    assert np.isfinite(losses).all()
    if name in ("star", "mrt_star"):
        right = [r for g in groups(layout, COLLECTION) for r in g.rollouts if r.reward == 1.0]
        losses = [mean_nll(layout.weights_version(version), right) for version in (0, LONGER)]
    assert losses[-1] < losses[0]


def mean_nll(model_dir: Path, rollouts: list[Rollout]) -> float:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    total = count = 0.0
    for rollout in rollouts:
        total -= token_logprobs(model, rollout.prompt_ids, rollout.token_ids).sum().item()
        count += len(rollout.token_ids)
    return total / count


def token_logprobs(
    model: torch.nn.Module, prompt_ids: Sequence[int], token_ids: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    ids = torch.tensor([[*prompt_ids, *token_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1] / temperature
        logprobs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return logprobs[-len(token_ids) :]


def test_backtracking_writes_down_what_it_selected(run: Runs) -> None:
    layout = run("backtracking")
    selected = {s.id: s for s in read_suffixes(layout.selected_samples)}
    wrong = {g.rollouts[0].problem_id: g for g in groups(layout, COLLECTION) if g.rollouts[0].reward == 0.0}
    assert selected and selected.keys() <= wrong.keys()
    for name, sample in selected.items():
        rollout = wrong[name].rollouts[0]
        assert sample.prefix.startswith(rollout.text[:20])
        assert all(a < b for a, b in pairwise(rollout.boundaries))


def test_episodes_of_real_traces_lie_on_their_tokens(run: Runs) -> None:
    layout = run("mrt_online")
    tokens = TokenBytes(Prompter.of(layout.weights_version(0), read_recipe_lock(layout.recipe_lock).prompt).tokenizer)
    for rollout in (r for g in all_groups(layout) for r in g.rollouts):
        episodes = [b"".join(tokens.pieces(rollout.token_ids[a:b])) for a, b in pairwise(rollout.boundaries)]
        assert b"".join(episodes).decode(errors="replace") == rollout.text.partition("</think>")[0]
        assert all(episode.lstrip().startswith(b"Wait") for episode in episodes[1:])


def test_branches_are_learnt_after_what_they_were_sampled_after(run: Runs) -> None:
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


def test_an_evaluation_with_a_prover_measures_regret(run: Runs) -> None:
    layout = run("grpo")
    for version in (0, ITERATIONS):
        summary = EvaluationSummary.read(layout.evaluation_summary(version, "held-out"))
        assert [*summary.regret] == [32, 64]
        assert all(regret.keys() == summary.per_problem.keys() for regret in summary.regret.values())
        assert all(0.0 <= regret <= 1.0 for regret in summary.regret[64].values())
    sampled = read_group(layout.evaluation_shard(ITERATIONS, "held-out", 0))
    assert len(sampled.values) == sum(len(r.boundaries) for r in sampled.rollouts)
    assert "normalised regret" in layout.report.read_text()


@pytest.fixture(scope="module")
def extended(run: Runs, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunLayout, str]:
    """A copy of the finished run of GRPO that gets a benchmark and an iteration more, and what the command says."""
    layout = RunLayout(tmp_path_factory.mktemp("extended") / "run")
    shutil.copytree(run("grpo").root, layout.root)
    changed = {"evaluation.benchmarks": f"[{HELD_OUT}, {EXTRAPOLATED}]", "schedule.iterations": ITERATIONS + 1}
    said = printed_by_forks("submit", FILES["grpo"], "--run", layout.root, *options("grpo", **changed))
    return layout, said


def test_a_finished_run_gets_a_benchmark_and_an_iteration_more(run: Runs, extended: tuple[RunLayout, str]) -> None:
    finished, (layout, said) = run("grpo"), extended
    assert f"schedule.iterations was {ITERATIONS} and is {ITERATIONS + 1}" in said
    for version in (0, ITERATIONS):
        assert read_manifest(layout.weights_version(version)) == read_manifest(finished.weights_version(version))
        shards = [one.evaluation_shard(version, "held-out", 0) for one in (finished, layout)]
        assert shards[0].stat().st_mtime == shards[1].stat().st_mtime, "it is not sampled again"
    for version in (0, ITERATIONS + 1):
        for benchmark in ("held-out", "longer"):
            assert EvaluationSummary.read(layout.evaluation_summary(version, benchmark)).problems == 8
    assert not list(layout.set_aside.glob("*"))
    report = layout.report.read_text()
    assert f"{ITERATIONS + 1} of {ITERATIONS + 1} iterations done" in report
    assert "missing" not in report.lower()


@pytest.mark.parametrize(
    ("analysis", "benchmark", "measure"),
    [("regret", "held-out", "regret@"), ("extrapolate", "longer", "accuracy at 144 tokens")],
)
def test_an_analysis_tells_the_models_of_a_run_apart_or_says_that_it_cannot(
    extended: tuple[RunLayout, str], analysis: str, benchmark: str, measure: str, tmp_path: Path
) -> None:
    models = [f"{extended[0].root}@first", extended[0].root]
    said = typed("analyze", analysis, *models, "--benchmark", benchmark, "--out", tmp_path).output
    assert any(tmp_path.glob("*.png")) and any(tmp_path.glob("*.csv"))
    (verdict,) = [line for line in said.splitlines() if line.startswith(measure)]
    assert "n = 8 problems" in verdict or " is better: " in verdict
