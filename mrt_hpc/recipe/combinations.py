"""Checks which choices of a recipe fit together. Every refusal names the field to change first, and the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.recipe.base import misfit
from mrt_hpc.recipe.benchmark_sampling import benchmark_sampling
from mrt_hpc.recipe.server_layout import layout_fits

if TYPE_CHECKING:
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.recipe.sections.prompt import Prompt


def prover_fits(recipe: Recipe) -> None:
    """Refuse a prover that the algorithm does not use, or the lack of one."""
    algorithm, prover = recipe.algorithm, recipe.prover
    if prover is not None and not algorithm.needs_prover:
        raise misfit(
            "prover",
            f"algorithm {algorithm.type} makes no use of a prover, whose branches would cost tokens: remove `prover`",
        )
    if prover is None and algorithm.needs_prover:
        wanted = algorithm.usual_prover
        raise misfit("prover", f"algorithm {algorithm.type} needs a prover: add `prover: {{type: {wanted}}}`")
    if prover is not None:
        prover.check(recipe)


def prompt_fits(recipe: Experiment) -> None:
    """Refuse a thought that is opened and never closed, and shots without examples, in each prompt of a recipe."""
    evaluation = recipe.evaluation
    _one_prompt_fits("prompt", recipe.prompt)
    _one_prompt_fits("evaluation.prompt", evaluation.prompt)
    for number, benchmark in enumerate(evaluation.benchmarks):
        _one_prompt_fits(f"evaluation.benchmarks.{number}.prompt", benchmark.prompt)


def _one_prompt_fits(field: str, prompt: Prompt | None) -> None:
    if prompt is None:
        return
    if prompt.shots and prompt.examples is None:
        raise misfit(f"{field}.examples", f"a file of examples where {field}.shots is {prompt.shots}")
    if prompt.thought_start and not prompt.thought_end:
        raise misfit(
            f"{field}.thought_start",
            'an empty text ("") where prompt.thought_end is empty: a model that writes no closing tag gets no opening '
            "one",
        )


def verifiers_fit(recipe: Experiment) -> None:
    """Refuse a prover that opens a box where the verifier of the problems reads none."""
    sections = {"prover": (getattr(recipe, "prover", None), [getattr(recipe, "data", None)])}
    sections["evaluation.prover"] = (recipe.evaluation.prover, [b.problems for b in recipe.evaluation.benchmarks])
    for field, (prover, problems) in sections.items():
        verifiers = [v for source in problems if (v := getattr(source, "verifier", None)) is not None]
        unboxed = [v.type for v in verifiers if not v.reads_boxes]
        if prover is not None and prover.opens_box and unboxed:
            raise misfit(
                f"{field}.type",
                f"one that opens no box, such as forced_answer with a text of your own: verifier {unboxed[0]} "
                "looks for no box",
            )


def extraction_fits(recipe: Experiment) -> None:
    """Refuse a rule of extraction beside a verifier that finds answers by a rule of its own."""
    benchmarks = {f"evaluation.benchmarks.{n}.problems": b.problems for n, b in enumerate(recipe.evaluation.benchmarks)}
    for field, source in {"data": getattr(recipe, "data", None), **benchmarks}.items():
        rule, verifier = getattr(source, "extraction", None), getattr(source, "verifier", None)
        if rule is not None and verifier is not None and not verifier.reads_boxes:
            raise misfit(
                f"{field}.extraction",
                f"null: verifier {verifier.type} reads no boxes, and finds answers by its own rule",
            )


def data_fit(recipe: Recipe) -> None:
    """Refuse problems where samples are learnt, samples where problems are sampled from, and one form for the other."""
    wanted = recipe.algorithm.data_form
    if (given := recipe.data.form) != wanted:
        raise misfit("data.type", f"one of {wanted}, as algorithm {recipe.algorithm.type} wants; these are {given}")


def evaluation_fits(recipe: Experiment) -> None:
    """Refuse settings that an evaluation cannot apply."""
    evaluation, prover = recipe.evaluation, recipe.evaluation.prover
    for benchmark in evaluation.benchmarks:
        if benchmark.mode is not None:
            benchmark.mode.check(benchmark_sampling(recipe, benchmark))
    if prover is None:
        return
    if prover.model is not None:
        raise misfit(
            "evaluation.prover.model", "null: regret is measured with the evaluated policy as its own prover", "null"
        )
    if not prover.values_stopping:
        raise misfit(
            "evaluation.prover.type",
            f"one that estimates how often stopping at once answers right, not {prover.type}: regret is made of that",
        )
    if evaluation.regret_tokens == "all" and not prover.samples_answers:
        raise misfit(
            "evaluation.regret_tokens", f"sampled with prover {prover.type}, which samples no answers to be counted"
        )
    if max(evaluation.regret_budgets, default=0) > evaluation.max_tokens:
        raise misfit(
            "evaluation.regret_budgets", "no more than evaluation.max_tokens: nothing is known of longer traces"
        )


def training_fits(recipe: Recipe) -> None:
    """Refuse settings that the trainer cannot apply."""
    if recipe.training.offload_optimizer and recipe.training.zero_stage == 0:
        raise misfit(
            "training.offload_optimizer", "false with zero_stage: 0; a stage of 1 or higher can offload", "false"
        )
    sharing, ranks = recipe.training.sequence_parallel, recipe.resources.trainer.ranks
    if sharing == 1:
        return
    if ranks % sharing:
        raise misfit("resources.trainer.ranks", f"a multiple of training.sequence_parallel ({sharing})")
    if recipe.training.batching == "padded":
        raise misfit(
            "training.batching", "packed or shared with training.sequence_parallel above 1: ranks share one row"
        )


def weights_fit(recipe: Recipe) -> None:
    """Refuse deltas of weights that no task would read, or that the server could not."""
    if recipe.training.full_weights_every == 1:
        return
    attach, schedule, inference = recipe.serving.attach, recipe.schedule, recipe.resources.inference
    reasons = {
        f"algorithm {recipe.algorithm.type} samples nothing while it trains": not recipe.algorithm.samples_rollouts,
        "with schedule.iterations_per_job: 1 every version ends a segment": schedule.iterations_per_job == 1,
        "with coupling: sequential inference has ended when versions are published": schedule.coupling == "sequential",
        "a server at an http address does not see the folder in which an inference task puts versions together": (
            attach is not None and attach.address.startswith("http")
        ),
        "with resources.inference.nodes above 1 the server's GPUs are on several nodes, and an inference task puts "
        "versions together in a folder of its first node": inference.gpus > 0 and inference.nodes > 1,
    }
    for reason, holds in reasons.items():
        if holds:
            raise misfit("training.full_weights_every", f"1: {reason}", "1")


def sampling_fits(recipe: Recipe) -> None:
    """Refuse numbers that the algorithm does not use, or that are too small for it."""
    sampling, algorithm, schedule = recipe.sampling, recipe.algorithm, recipe.schedule
    if not algorithm.samples_rollouts:
        _nothing_is_sampled(recipe)
        return
    if sampling.problems_per_iteration is None:
        raise misfit("sampling.problems_per_iteration", f"required by algorithm {algorithm.type}")
    if sampling.rollouts_per_problem < 2:
        raise misfit(
            "sampling.rollouts_per_problem", "at least 2: the outcome advantage compares the rollouts of a group", "2"
        )
    if sampling.problems_per_iteration < recipe.resources.inference.tasks:
        raise misfit(
            "resources.inference.tasks",
            "no more than sampling.problems_per_iteration: some tasks would have nothing to do",
            str(sampling.problems_per_iteration),
        )
    starts = [stage.first_iteration for stage in schedule.length_curriculum]
    limits = [stage.max_tokens for stage in schedule.length_curriculum]
    if starts and starts[0] != 0:
        raise misfit(
            "schedule.length_curriculum", "a first stage at iteration 0: before it the longest limit would hold"
        )
    if sorted(set(starts)) != starts or sorted(limits) != limits:
        raise misfit("schedule.length_curriculum", "stages in ascending order of first_iteration and of max_tokens")
    if limits and limits[-1] > sampling.max_tokens:
        raise misfit("schedule.length_curriculum", "limits up to sampling.max_tokens, which the servers are made for")
    if starts and starts[-1] >= schedule.iterations:
        raise misfit("schedule.length_curriculum", "stages that begin within schedule.iterations")


def _nothing_is_sampled(recipe: Recipe) -> None:
    name, schedule, training = recipe.algorithm.type, recipe.schedule, recipe.training
    useless = {
        "sampling.problems_per_iteration": recipe.sampling.problems_per_iteration is not None,
        "schedule.length_curriculum": bool(schedule.length_curriculum),
        "schedule.max_staleness": schedule.max_staleness > 0,
        "training.kl_coefficient": training.kl_coefficient > 0,
    }
    for field, is_set in useless.items():
        if is_set:
            raise misfit(field, f"not set: algorithm {name} learns given sequences, and samples none while it trains")


def colocation_fits(recipe: Recipe) -> None:
    """Refuse a colocated segment whose inference and trainer do not have the same GPUs of one node."""
    resources, trainer = recipe.resources, recipe.resources.trainer
    if recipe.schedule.coupling != "colocated" or not recipe.algorithm.samples_rollouts:
        return
    if resources.inference.tasks > 1:
        raise misfit("resources.inference.tasks", "1 with coupling: colocated: a segment is one task", "1")
    if trainer.ranks_per_node not in (None, trainer.ranks):
        raise misfit(
            "resources.trainer.ranks_per_node", "null with coupling: colocated: a segment is on one node", "null"
        )
    if resources.inference.gpus != (gpus := trainer.ranks * trainer.gpus):
        raise misfit(
            "resources.inference.gpus",
            f"{gpus} with coupling: colocated, as many as resources.trainer.ranks x resources.trainer.gpus: both use "
            "the same GPUs",
            str(gpus),
        )
    if recipe.serving.attach is not None:
        raise misfit("serving.attach", "null with coupling: colocated: the task starts a server of its own", "null")
    if recipe.resources.inference.nodes > 1:
        raise misfit("resources.inference.nodes", "1 with coupling: colocated: a segment is on one node", "1")


def serving_fits(recipe: Recipe) -> None:
    """Refuse servers that do not fit the GPUs, and several inference tasks at one server, which holds one weights
    version at a time.
    """
    layout_fits(recipe, "inference", *(("evaluation",) if recipe.evaluation.benchmarks else ()))
    attach, tasks = recipe.serving.attach, recipe.resources.inference.tasks
    if attach is None:
        return
    if tasks > 1:
        raise misfit(
            "resources.inference.tasks", "1 with serving.attach: a server holds one weights version at a time", "1"
        )
    if not attach.address.startswith(("unix:", "http://", "https://")):
        raise misfit("serving.attach.address", "http://HOST:PORT or unix:PATH")
