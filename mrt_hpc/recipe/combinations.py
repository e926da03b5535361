"""Checks which choices of a training fit together: algorithm, sampling, servers, weights and schedule. Every refusal
names the field to change first, and the reason.
"""

from typing import TYPE_CHECKING

from mrt_hpc.recipe.base import misfit
from mrt_hpc.recipe.sections import Coupling, ServerLayout, WeightSwap, nodes_of

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Experiment, Recipe


def names_fit(field: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise misfit(field, f"each name once; they are {names}")


def algorithm_fits(recipe: "Recipe") -> None:
    """Refuse the wrong kind or form of data for the algorithm, a prover that it does not use, or the lack of one."""
    algorithm, prover = recipe.algorithm, recipe.prover
    if (given := recipe.data.form) != (wanted := algorithm.data_form):
        raise misfit("data.type", f"one of {wanted}, as algorithm {algorithm.type} wants; these are {given}")
    if prover is not None and not algorithm.needs_prover:
        why = "makes no use of a prover, whose branches would cost tokens: remove `prover`"
        raise misfit("prover", f"algorithm {algorithm.type} {why}")
    if prover is None and algorithm.needs_prover:
        usual = algorithm.usual_prover
        raise misfit("prover", f"algorithm {algorithm.type} needs a prover: add `prover: {{type: {usual}}}`")
    if prover is not None:
        prover.check(recipe)


def training_fits(recipe: "Recipe") -> None:
    if recipe.training.offload_optimizer and recipe.training.zero_stage == 0:
        why = "false with zero_stage: 0; a stage of 1 or higher can offload"
        raise misfit("training.offload_optimizer", why, "false")
    trainer = recipe.resources.trainer
    sharing, ranks = recipe.training.sequence_parallel, trainer.ranks
    if trainer.ranks_per_node is not None and ranks % trainer.ranks_per_node:
        raise misfit("resources.trainer.ranks", f"a multiple of ranks_per_node ({trainer.ranks_per_node})")
    if ranks % sharing:
        raise misfit("resources.trainer.ranks", f"a multiple of training.sequence_parallel ({sharing})")
    if sharing > 1 and recipe.training.batching == "padded":
        why = "packed or shared with training.sequence_parallel above 1: ranks share one row"
        raise misfit("training.batching", why)
    if sharing > 1 and recipe.training.loss.whole_sequences:
        why = "a loss without sums over a sequence with training.sequence_parallel above 1"
        raise misfit("training.loss", f"{why}: its parts lie on several ranks")


def sampling_fits(recipe: "Recipe") -> None:
    """Refuse numbers that the algorithm does not use, or that are too small for it."""
    sampling, algorithm, schedule = recipe.sampling, recipe.algorithm, recipe.schedule
    useless = {
        "sampling.problems_per_iteration": sampling.problems_per_iteration is not None,
        "sampling.resample": sampling.resample != "none",
        "schedule.length_curriculum": bool(schedule.length_curriculum),
        "schedule.max_staleness": schedule.max_staleness > 0,
        "training.kl_coefficient": recipe.training.kl_coefficient > 0,
        "training.loss": recipe.training.loss.type != "clipped",
        "training.aggregation": recipe.training.aggregation != "token",
        "training.overlong": recipe.training.overlong != "keep",
    }
    if not algorithm.samples_rollouts:
        for field in (field for field, is_set in useless.items() if is_set):
            why = "learns given sequences, and samples none while it trains"
            raise misfit(field, f"not set: algorithm {algorithm.type} {why}")
        return
    if sampling.problems_per_iteration is None:
        raise misfit("sampling.problems_per_iteration", f"required by algorithm {algorithm.type}")
    if sampling.rollouts_per_problem < 2:
        why = "at least 2: the outcome advantage compares the rollouts of a group"
        raise misfit("sampling.rollouts_per_problem", why, "2")
    if sampling.problems_per_iteration < recipe.resources.inference.tasks:
        why = "no more than sampling.problems_per_iteration: some tasks would have nothing to do"
        raise misfit("resources.inference.tasks", why, str(sampling.problems_per_iteration))
    _overlong_fits(recipe)
    starts = [stage.first_iteration for stage in schedule.length_curriculum]
    limits = [stage.max_tokens for stage in schedule.length_curriculum]
    if starts and starts[0] != 0:
        why = "a first stage at iteration 0: before it the longest limit would hold"
        raise misfit("schedule.length_curriculum", why)
    if sorted(set(starts)) != starts or sorted(limits) != limits:
        raise misfit("schedule.length_curriculum", "stages in ascending order of first_iteration and of max_tokens")
    if limits and limits[-1] > sampling.max_tokens:
        raise misfit("schedule.length_curriculum", "limits up to sampling.max_tokens, which the servers are made for")
    if starts and starts[-1] >= schedule.iterations:
        raise misfit("schedule.length_curriculum", "stages that begin within schedule.iterations")


def _overlong_fits(recipe: "Recipe") -> None:
    training, schedule = recipe.training, recipe.schedule
    if training.overlong != "keep" and recipe.algorithm.collects:
        raise misfit(
            "training.overlong", f"keep: traces of algorithm {recipe.algorithm.type} begin at prefixes", "keep"
        )
    shortest = min([recipe.sampling.max_tokens, *(stage.max_tokens for stage in schedule.length_curriculum)])
    buffer, penalises = training.overlong_buffer, training.overlong == "penalise"
    if penalises != (buffer is not None) or (buffer or 0) > shortest:
        why = f"a number of tokens up to {shortest} with training.overlong: penalise, and null otherwise"
        raise misfit("training.overlong_buffer", why)


def schedule_fits(recipe: "Recipe") -> None:
    """Refuse iterations that do not fit their jobs, or whose weights are gone before they are read."""
    schedule, loaded = recipe.schedule, recipe.schedule.max_staleness + 2
    ahead, every = schedule.max_staleness + 1, recipe.algorithm.refresh_period
    if every is not None and every % schedule.iterations_per_job:
        raise misfit(
            "algorithm.refresh_every",
            f"a multiple of schedule.iterations_per_job ({schedule.iterations_per_job}): the traces are sampled again "
            "between two jobs of the trainer",
        )
    sequential = schedule.coupling is Coupling.SEQUENTIAL and recipe.algorithm.samples_rollouts
    if sequential and schedule.iterations_per_job > ahead:
        raise misfit(
            "schedule.iterations_per_job",
            f"{ahead} or less: with coupling: sequential, inference ends before the trainer starts "
            f"and can run {ahead} iteration(s) ahead (max_staleness + 1)",
            str(ahead),
        )
    if schedule.weight_swap is not WeightSwap.DRAIN and not schedule.max_staleness:
        why = "drain with max_staleness: 0: no newer weights appear while traces are sampled"
        raise misfit("schedule.weight_swap", why, "drain")
    if recipe.is_colocated:
        _colocation_fits(recipe)
    if recipe.training.keep_weights < loaded:
        why = f"at least {loaded} (schedule.max_staleness + 2): servers still load these versions"
        raise misfit("training.keep_weights", why, str(loaded))


def _colocation_fits(recipe: "Recipe") -> None:
    """Refuse a colocated segment whose inference and trainer do not have the same GPUs of one node."""
    resources, trainer = recipe.resources, recipe.resources.trainer
    if resources.inference.tasks > 1:
        raise misfit("resources.inference.tasks", "1 with coupling: colocated: a segment is one task", "1")
    if trainer.ranks_per_node not in (None, trainer.ranks):
        why = "null with coupling: colocated: a segment is on one node"
        raise misfit("resources.trainer.ranks_per_node", why, "null")
    if resources.inference.gpus != (gpus := trainer.ranks * trainer.gpus):
        raise misfit(
            "resources.inference.gpus",
            f"{gpus} with coupling: colocated, as many as resources.trainer.ranks x resources.trainer.gpus: both use "
            "the same GPUs",
            str(gpus),
        )
    if recipe.resources.inference.nodes > 1:
        raise misfit("resources.inference.nodes", "1 with coupling: colocated: a segment is on one node", "1")


def serving_fits(recipe: "Recipe") -> None:
    layout_fits(recipe, "inference", *(("evaluation",) if recipe.evaluation.benchmarks else ()))


def layout_fits(recipe: "Experiment", *roles: str) -> None:
    """Refuse GPUs that the servers of these roles do not use, or lack."""
    for role in roles:
        resources = getattr(recipe.resources, role)
        gpus = resources.gpus
        if gpus and nodes_of(resources) > 1:
            _spanning_fits(recipe, gpus, nodes_of(resources))
            continue
        layout = ServerLayout.of(recipe.serving, gpus)
        needed = layout.servers * layout.tensor_parallel
        if gpus and needed != gpus:
            raise misfit(
                f"resources.{role}.gpus",
                f"{needed}, a multiple of serving.tensor_parallel ({layout.tensor_parallel}), as each server has GPUs "
                "of its own; section serving holds for all roles",
                str(needed),
            )


def _spanning_fits(recipe: "Experiment", gpus: int, nodes: int) -> None:
    """Refuse a server that does not span exactly the nodes of its task."""
    if recipe.prover is not None and recipe.prover.model is not None:
        why = "1 where prover.model is a model of its own: two servers cannot share GPUs across nodes"
        raise misfit("resources.inference.nodes", why, "1")
    if gpus * nodes % (width := recipe.serving.tensor_parallel or gpus):
        raise misfit(
            "serving.tensor_parallel",
            f"a divisor of {gpus * nodes}, the GPUs of {nodes} nodes, and not {width}: one server spans the nodes of a "
            "task",
        )


OF_TRAINING = (sampling_fits, serving_fits, training_fits, schedule_fits)
