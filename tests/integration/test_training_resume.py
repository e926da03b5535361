"""Publishing, complete or absent, and what the trainer does at its edges. One whose memory was parked continues as one
whose memory stayed, to the bit, and so does one that stops, with each choice of what is learnt. (Other shapes of a
trainer: checkpoints' tests. What is sampled: ``test_rounds.py``.)
"""

import shutil
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from basics import TRAINER
from run_of import bare_run, run_of, say, task_of
from safetensors.torch import load_file
from samples import draw_problems, rollout_with
from training_support import VOCABULARY, in_ranks, plain_logprobs, random_batch, settings, tiny_model
from transformers import AutoModelForCausalLM, CohereConfig, FalconH1Config

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Precision
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.roles.trainer import Trainer
from mrt_hpc.run import weights
from mrt_hpc.run.archive import commit_sampled
from mrt_hpc.run.groups import Sampled
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import verify
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import FinishReason, GroupStatistics, PrefixValue, Rollout
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.training import checkpoint, export, policy
from mrt_hpc.training.accelerator import deepspeed
from mrt_hpc.training.engine import TrainerEngine, build, deepspeed_config
from mrt_hpc.training.host_memory import park, unpark
from mrt_hpc.training.policy import load_policy, parameter_count
from mrt_hpc.training.rendezvous import Ranks, join
from mrt_hpc.training.settings import Objective
from mrt_hpc.training.small_model import make_small
from mrt_hpc.training.trained_state import KEYS, WEIGHT, TrainedState
from mrt_hpc.training.update_statistics import SkippedStep


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def make(model: Path, ranks: Ranks, **changes: object) -> TrainerEngine:
    return build(settings(**changes), model, ranks)


def test_a_model_that_cannot_be_trained_is_refused(one_rank: Ranks, tmp_path: Path) -> None:
    """One that the trainer would compute otherwise; and one that cannot be partitioned, with the stage that helps."""
    make_small(CohereConfig(), tmp_path / "other")
    for stage in (0, 3):
        with pytest.raises(UserError, match="of the head applied to the output of the base model"):
            make(tmp_path / "other", one_rank, zero_stage=stage)
    make_small(FalconH1Config(), tmp_path / "whole")
    with pytest.raises(UserError, match="cannot be computed") as refused:
        make(tmp_path / "whole", one_rank, zero_stage=3)
    assert "--set training.zero_stage=2" in str(refused.value.advice)
    make(tmp_path / "whole", one_rank, zero_stage=2)


def test_partitioned_weights_come_in_one_order(model: Path, one_rank: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "LOGIT_ELEMENTS", 7 * VOCABULARY)
    trainer = make(model, one_rank, zero_stage=3, max_tokens_per_micro_batch=40)
    invalidated = []
    coordinator = trainer.engine.optimizer.parameter_offload.get_param_coordinator()
    invalidate = coordinator._invalidate_trace
    monkeypatch.setattr(coordinator, "_invalidate_trace", lambda: (invalidated.append(1), invalidate()))
    for seed in (0, 1):
        assert len(trainer.prepare(random_batch(seed)).micro_steps) > 2
        assert {m.chunks for m in trainer.prepare(random_batch(seed)).micro_steps} == {6}  # 40 tokens, 7 at once
        trainer.update(random_batch(seed))
    assert not invalidated
    assert coordinator.is_complete_trace()


@pytest.mark.parametrize(("stage", "tied", "dtype", "tolerance"), [
    (0, True, "float32", 1e-5), (2, True, "bfloat16", 0.1), (3, False, "float32", 1e-5)
])  # fmt: skip
def test_published_weights_are_the_trainers(
    stage: int, tied: bool, dtype: str, tolerance: float, one_rank: Ranks, tmp_path: Path
) -> None:
    layout, batch, model = bare_run(tmp_path), random_batch(5), tiny_model(tmp_path / "model", tied=tied)
    (model / "tokenizer_config.json").write_text('{"kept": "as it is"}')
    trainer = make(model, one_rank, zero_stage=stage, max_tokens_per_micro_batch=10_000)
    trainer.update(batch)
    assert weights.publish(layout, 1, export.gather_weights(trainer, dtype).write)
    published = layout.weights_version(1)
    verify(published)
    assert (published / "tokenizer_config.json").read_text() == '{"kept": "as it is"}'
    assert {str(t.dtype) for t in load_file(published / "model.safetensors").values()} == {f"torch.{dtype}"}
    served = AutoModelForCausalLM.from_pretrained(published, dtype=torch.float32)
    probe = next(s for s in batch if s.has_signal)
    ours = trainer.logprobs(trainer.prepare([probe]))[0]
    theirs = plain_logprobs(served, probe, settings().temperature)[torch.from_numpy(probe.mask)]
    assert torch.allclose(ours, theirs.detach(), atol=tolerance)


def test_a_model_is_partitioned_while_it_is_made_and_is_the_whole_one(tmp_path: Path) -> None:
    """Weights, and what belongs to none: the frequencies of positions are in 32 bits in any precision."""
    models = [tiny_model(tmp_path / f"tied-{tied}", tied=tied, hidden=33) for tied in (True, False)]
    for seen in in_ranks(compare_loaded, models, 2, tmp_path):
        assert len(seen) == 6
        for case, tensors in seen.items():
            assert any(name.endswith("inv_freq") for name in tensors)
            assert [name for name, is_same in tensors.items() if not is_same] == [], case


def compare_loaded(_: Ranks, *models: str) -> dict[str, dict[str, bool]]:
    return {f"{Path(m).name} {p.value}": compare(Path(m), p) for m in models for p in Precision}


def compare(model: Path, precision: Precision) -> dict[str, bool]:
    whole = load_policy(model, 1.0, precision)
    config = deepspeed_config(settings(zero_stage=3, precision=precision), parameter_count(model))
    ours = load_policy(model, 1.0, precision, partition=config)
    parameters, wanted = dict(ours.named_parameters()), dict(whole.named_parameters())
    assert {n: p.ds_shape for n, p in parameters.items()} == {n: p.shape for n, p in wanted.items()}
    assert sum(p.ds_numel for p in parameters.values()) == parameter_count(model)
    assert all(p.numel() == 0 for p in parameters.values()), "each parameter leaves its module as soon as there is one"
    with deepspeed.zero.GatheredParameters(list(parameters.values())):
        found = same(parameters, wanted)
    return found | same(dict(ours.named_buffers()), dict(whole.named_buffers()))


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> dict[str, bool]:
    assert ours.keys() == theirs.keys()
    return {n: t.dtype == theirs[n].dtype and torch.equal(t, theirs[n]) for n, t in ours.items()}


@pytest.mark.parametrize("stage", [2, 3])
def test_an_offloaded_optimiser_comes_to_the_same_state(stage: int, model: Path, one_rank: Ranks) -> None:
    states = []
    for offload in (False, True):
        trainer = make(model, one_rank, zero_stage=stage, offload_optimizer=offload)
        trainer.update(random_batch(1))
        states.append(TrainedState(trainer))
    for name, key in product(states[0].shapes, KEYS):
        kept, offloaded = (state.gather(name, key, 0) for state in states)
        assert torch.allclose(kept, offloaded, rtol=0, atol=1e-6), name


@pytest.mark.parametrize("stage", [0, 3])
def test_weights_not_finite_are_published_in_no_form(stage: int, model: Path, one_rank: Ranks, tmp_path: Path) -> None:
    layout, trainer = bare_run(tmp_path), make(model, one_rank, zero_stage=stage)
    name = "model.model.layers.1.mlp.up_proj.weight"
    state = TrainedState(trainer)
    spoiled = state.gather(name, WEIGHT, 0)
    assert spoiled is not None
    spoiled.view(-1)[5] = torch.nan
    state.put(name, WEIGHT, spoiled)
    state.synchronise()
    with pytest.raises(UserError, match="are not finite, and are not published: 1 tensor"):
        export.gather_weights(trainer, "bfloat16")
    with pytest.raises(UserError, match="is not finite, and no checkpoint is written: 1 tensor"):
        checkpoint.save(trainer, layout.checkpoint(1), {})
    assert not layout.checkpoint(1).exists()
    trainer = make(model, one_rank)
    dict(trainer.policy.named_parameters())["model.model.norm.weight"].data[0] = 1e6
    assert export.gather_weights(trainer, "bfloat16")
    with pytest.raises(UserError, match="float16 has none above 65504, bfloat16 does"):
        export.gather_weights(trainer, "float16")


def test_sequences_without_advantage_are_counted_but_not_computed(model: Path, one_rank: Ranks) -> None:
    batch, trainer = random_batch(0), make(model, one_rank)
    nothing = trainer.update([])
    assert (nothing.optimizer_steps, nothing.step, nothing.tokens, nothing.loss) == (0, 0, 0, 0.0)
    stats = trainer.update(batch)
    assert stats.tokens == sum(s.trained_tokens for s in batch)
    assert stats.computed_tokens == sum(s.trained_tokens for s in batch if s.has_signal)


def test_an_address_file_of_an_earlier_attempt_is_refused_and_a_missing_one_told_in_time(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gave up waiting for rank 0"):
        join(Ranks(1, 2, 1), tmp_path / "address.json", timeout_s=0.2)
    (tmp_path / "address.json").write_text("{}")
    with pytest.raises(UserError, match="earlier attempt"):
        join(Ranks(0, 2, 0), tmp_path / "address.json", timeout_s=1)


def test_the_model_that_training_begins_with_holds_the_policy_back(model: Path, one_rank: Ranks) -> None:
    apart = []
    for coefficient in (1e-3, 5.0):
        trainer = build(settings(kl_coefficient=coefficient), model, one_rank)
        first, *_, last = [trainer.update(random_batch(0)).kl_reference for _ in range(5)]
        assert first == pytest.approx(0.0, abs=1e-6)
        apart.append(last)
    assert 0 < apart[1] < 0.5 * apart[0]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_an_infinite_loss_with_a_finite_gradient_takes_no_step(stage: int, model: Path, one_rank: Ranks) -> None:
    """A model that gives a token the logit -inf, in which a supervised sample has that token."""
    trainer = make(model, one_rank, zero_stage=stage, objective=Objective.LIKELIHOOD, max_tokens_per_micro_batch=40)
    batch = [s for s in random_batch(3) if s.has_signal]
    chosen = max(batch, key=lambda s: s.trained_tokens)
    impossible = torch.zeros(VOCABULARY)
    impossible[chosen.token_ids[int(chosen.mask.nonzero()[0][0])]] = -torch.inf
    hook = trainer.policy.model.get_output_embeddings().register_forward_hook(lambda *seen: seen[-1] + impossible)
    told: list[SkippedStep] = []
    before = export.gather(trainer, torch.float32)
    stats = trainer.update(batch, told.append)
    hook.remove()
    after = export.gather(trainer, torch.float32)
    assert (stats.skipped_steps, stats.optimizer_steps, trainer.step) == (1, 0, 0)
    assert told[0].found_in == "loss" and any(s is chosen for s in told[0].sequences)
    assert len(told[0].sequences) < len(batch), "those of one micro-batch"
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trainer.update(batch).optimizer_steps == 1


# -- memory that leaves and comes back


def weights_after(model: Path, stage: int, ranks: Ranks, *, parked: bool) -> list[torch.Tensor]:
    """The weights after two updates, with the memory parked between them or not. They lie in memory that can be freed,
    as on a GPU; on a CPU stage 0 keeps the mapped file.
    """
    engine = build(settings(zero_stage=stage), model, ranks)
    for parameter in engine.policy.parameters() if stage == 0 else ():
        parameter.data = parameter.data.clone()
    engine.update(random_batch(1))
    if parked:
        content = park("cpu")
        sizes = [weight.untyped_storage().nbytes() for weight in held(engine)]
        unpark(content)
        assert set(sizes) == {0}
    engine.update(random_batch(2))
    return [weight.detach().clone() for weight in held(engine)]


def held(engine: TrainerEngine) -> list[torch.Tensor]:
    """The weights that this rank holds: under ZeRO-3 its part of each."""
    return [getattr(parameter, "ds_tensor", parameter) for parameter in engine.policy.parameters()]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_parked_memory_comes_back_to_the_bit(tmp_path: Path, one_rank: Ranks, stage: int) -> None:
    model = tiny_model(tmp_path / "model")
    stayed, moved = (weights_after(model, stage, one_rank, parked=parked) for parked in (False, True))
    assert all(map(torch.equal, stayed, moved))


def test_views_of_parked_memory_stay_views() -> None:
    whole = torch.arange(6.0)
    part = whole[2:4]
    content = park("cpu")
    emptied = whole.untyped_storage().nbytes()
    unpark(content)
    assert emptied == 0
    part += 1.0
    assert whole.tolist() == [0.0, 1.0, 3.0, 4.0, 4.0, 5.0]


# -- a whole trainer that stops, with each choice of what is learnt

ITERATIONS, SIZE, LONGEST = 3, 4, 24
SHRUNK = (
    f"schedule.iterations={ITERATIONS}", f"schedule.iterations_per_job={ITERATIONS}", "evaluation.benchmarks=[]",
    "sampling.problems_per_iteration=2", f"sampling.rollouts_per_problem={SIZE}", "sampling.max_prompt_tokens=4",
    f"sampling.max_tokens={LONGEST}", "data.problems=8", f"training.keep_checkpoints={ITERATIONS}",
    "training.optimizer_steps_per_iteration=2",
)  # fmt: skip
PARTS = "{type: weighted, parts: [{verifier: math, weight: 0.75}, {verifier: exact, weight: 0.25}]"
CHOICES = {
    "none": (), "to_go": ("algorithm.credit=to_go",), "permuted": ("algorithm.credit=permuted",),
    "progress_only": ("algorithm.without_outcome=progress_only",), "drop": ("algorithm.without_outcome=drop",),
    "mask": ("training.overlong=mask",), "penalise": ("training.overlong=penalise", "training.overlong_buffer=16"),
    "cispo": ("training.loss={type: cispo}",), "gspo_token": ("training.loss={type: gspo_token}",),
    "grpo": ("algorithm={type: grpo}", "prover=null"),
    "weighted": ("algorithm={type: grpo}", "prover=null", f"data.verifier={PARTS}, combine: normalise_then_sum}}"),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> dict[str, dict[str, torch.Tensor]]:
    """What the trainers of earlier tests came to."""
    return {}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_trainer_that_stops_goes_on_bit_by_bit_with_each_choice(
    choice: str, model: Path, one_rank: Ranks, tmp_path: Path, trained: dict[str, dict[str, torch.Tensor]]
) -> None:
    layout = run_of(tmp_path / "run", *SHRUNK, *CHOICES[choice], recipe="small_world/mrt_online")
    weights.publish(layout, 0, partial(shutil.copytree, model, dirs_exist_ok=True))
    say(layout, TRAINER, TaskState.RUNNING)
    for iteration in range(ITERATIONS):
        sample(layout, iteration)
    straight = finish(layout, one_rank)
    for later in range(2, ITERATIONS + 1):
        shutil.rmtree(layout.checkpoint(later))
        shutil.rmtree(layout.weights_version(later))
    resumed = finish(layout, one_rank)
    assert straight.keys() == resumed.keys()
    assert [name for name in straight if not torch.equal(straight[name], resumed[name])] == []
    same = [other for other, its in trained.items() if all(torch.equal(its[name], straight[name]) for name in its)]
    assert same == [], "a choice that learns the same shows nothing"
    trained[choice] = straight


def finish(layout: RunLayout, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Train from the newest checkpoint to the end; returns weights and averages."""
    trainer = Trainer.resume_from_checkpoint(task_of(layout, TRAINER), ranks, Tracker())
    while trainer.iteration < ITERATIONS:
        trainer._compared = True  # no server has sampled what is learnt here
        trainer.go_on()
    files = layout.checkpoint(ITERATIONS).glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def sample(layout: RunLayout, iteration: int) -> None:
    """The second group has no right answer, and in each the limit cut a trace."""
    recipe = task_of(layout, TRAINER).recipe
    for position, problem in enumerate(draw_problems(read_problems(layout.train_data), recipe.seed, iteration, 2)):
        draw = np.random.default_rng((iteration, position))
        traces = [trace(draw, iteration, problem.id, number, position) for number in range(SIZE)]
        tokens = sum(rollout.tokens for rollout, _ in traces)
        group = Sampled(
            rollouts=[rollout for rollout, _ in traces],
            values=[value for _, values in traces for value in values],
            statistics=GroupStatistics(SIZE, 0, tokens, 0, 0, 0, 1, {"generation": 1.0}),
        )
        assert commit_sampled(layout, iteration, position, group)


def trace(
    draw: np.random.Generator, iteration: int, problem: str, number: int, position: int
) -> tuple[Rollout, list[PrefixValue]]:
    """Of three episodes. Its reward is the weighted sum of its parts."""
    length = LONGEST if number == 0 else int(draw.integers(12, LONGEST))
    parts = [float(number % 2) * (position == 0), float(number > 1)]
    rollout = rollout_with(
        draw.integers(2, VOCABULARY, length).tolist(), iteration=iteration, problem_id=problem, sample=number,
        weights_version=iteration, reward=0.75 * parts[0] + 0.25 * parts[1], reward_parts=parts,
        boundaries=[0, 4, 8, length - 2], logprobs=(-4 + 0.4 * draw.normal(size=length)).tolist(),
        finish_reason=FinishReason.LENGTH if number == 0 else FinishReason.STOP,
    )  # fmt: skip
    values = [PrefixValue(iteration, problem, number, j, float(draw.random()), 0.1, 0.1, 2, 0.0) for j in range(4)]
    return rollout, values
