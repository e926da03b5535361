"""Tokens of a trace and hours of a plan: tokens by the recipe, seconds by the throughput, hours by job.

An estimate for planning, without queueing, preemptions, loading of weights and rollouts, and the draining at a round's
end. Its inputs can be stated in the recipe (``expected``) and the site profile (``throughput``).
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from operator import add
from pathlib import Path

from mrt_hpc.plan.jobs import EvaluationUnit, Job, JobResources, Plan, Role
from mrt_hpc.recipe.hub_models import hub_model_of
from mrt_hpc.recipe.kinds import ProverSettings
from mrt_hpc.recipe.ownership import file_bytes
from mrt_hpc.recipe.schema import EvaluatedModel, Experiment, Recipe
from mrt_hpc.recipe.sections import Coupling, HuggingFaceModel, Problems
from mrt_hpc.recipe.site import MeasuredThroughput, SiteSettings
from mrt_hpc.run.events import Use
from mrt_hpc.run.layout import is_collection

# Expected tokens of traces and branches, from what a recipe states or limits.


PROMPT_TOKENS = 200
"""Of a problem with its instruction."""
ANSWER_TOKENS = 64
"""Of a branch forced to answer, unless its limit is lower."""


def trace_tokens(recipe: Recipe, iteration: int) -> float:
    """Mean: as stated, else half of the limit."""
    limit = recipe.sampling.max_tokens
    limit = limit if is_collection(iteration) else recipe.schedule.max_tokens(iteration, limit)
    return min(limit, recipe.expected.trace_tokens or limit / 2)


def sequence_tokens(recipe: Recipe, iteration: int) -> float:
    """Mean of a trace with its prompt."""
    return PROMPT_TOKENS + trace_tokens(recipe, iteration)


def boundaries_per_trace(recipe: Recipe) -> int:
    """k + 1 with as many episodes as the recipe allows."""
    return recipe.episodes.max_episodes + 1


def tokens_per_value(prover: ProverSettings | None, recipe: Experiment) -> float:
    """Tokens for one boundary's value: its branches; 0 without a prover."""
    return 0.0 if prover is None else prover.branches_per_boundary * branch_tokens(prover, recipe)


def branch_tokens(prover: ProverSettings, recipe: Experiment) -> float:
    """Mean of a branch: as stated, else half of the limit for continued thought, few for an answer."""
    usual = prover.max_tokens / 2 if prover.thinks_on else ANSWER_TOKENS
    return min(prover.max_tokens, recipe.expected.branch_tokens or usual)


def lengths_taken(recipe: Experiment) -> list[str]:
    """Lengths assumed for traces and branches, with their sources."""
    trace, branch = recipe.expected.trace_tokens, recipe.expected.branch_tokens
    sentences = ["a trace has " + ("half of its limit" if trace is None else f"{trace:,} tokens, or its limit if less")]
    sentences[0] += f" ({_source('trace_tokens', trace)})"
    provers = [recipe.prover, recipe.evaluation.prover]
    lengths = [branch_tokens(prover, recipe) for prover in provers if prover and prover.branches_per_boundary]
    if lengths:
        tokens = " or ".join(dict.fromkeys(f"{length:,.0f}" for length in lengths))
        sentences.append(f"a branch has {tokens} tokens ({_source('branch_tokens', branch)})")
    return sentences


def _source(field: str, value: int | None) -> str:
    name = f"expected.{field} of the recipe"
    return f"assumed, as {name} states nothing" if value is None else f"stated in {name}"


# -- hours of the time limits ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UseHours:
    """One use in one role, expected or spent."""

    role: Role
    use: Use
    hours: float
    """Wall time of all tasks."""
    gpu_hours: float
    core_hours: float


def sum_hours(parts: Iterable[UseHours]) -> list[UseHours]:
    """The hours by role and use, in order of definition."""
    sums: dict[tuple[Role, Use], tuple[float, ...]] = {}
    for part in parts:
        hours, key = (part.hours, part.gpu_hours, part.core_hours), (part.role, part.use)
        sums[key] = tuple(map(add, sums.get(key, (0.0, 0.0, 0.0)), hours))
    return [UseHours(role, use, *sums[role, use]) for role in Role for use in Use if (role, use) in sums]


@dataclass(frozen=True)
class Cost:
    """Hours that time limits allot."""

    gpu_hours: float
    core_hours: float


def plan_cost(plan: Plan, node_gpus: int | None) -> Cost:
    """The cost of a whole plan; ``node_gpus`` where nodes are given whole."""
    hours = [(job.resources, job.tasks * job.resources.time_limit_minutes / 60) for job in plan.jobs]
    gpu_hours = sum(each * charged_gpus(has, node_gpus) for has, each in hours)
    return Cost(gpu_hours, sum(each * has.cpus for has, each in hours))


def charged_gpus(resources: JobResources, node_gpus: int | None) -> int:
    """GPUs that a task is charged for: its own, or all of its whole nodes."""
    if node_gpus is None or not resources.gpus:
        return resources.gpus
    return resources.nodes * max(node_gpus, resources.gpus_per_node)


# -- throughput --------------------------------------------------------------------------------------------------------
# The stated rates are derived from the GPU's memory bandwidth and arithmetic, for models of 1.5 and 7 billion
# parameters, 128 sequences in a server's batch and traces of some 8,000 tokens; other sizes lie on the power law
# through the two. They are meant to be right within a factor of two. A site profile replaces them by measured ones.


SMALL, LARGE = 1.5, 7.0
"""Billions of parameters of the stated rates."""
PUBLISH_S, CHECKPOINT_S = 6.0, 27.0
"""Seconds a billion parameters for publishing and for a checkpoint, at 1 GB/s: bytes are gathered from ranks, written,
and read for checksums.
"""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""By number format, as in recipes and config.json."""
ASSUMED_GPU = "a100"
RATES = ("sampled_tokens_per_second", "trained_tokens_per_second")
"""Fields below ``throughput`` in a site profile that replace the stated rates."""


FULL_SLOTS = 2.4
"""How much faster a GPU samples in an evaluation, with all server slots taken, than in a round of rollouts, which
empties towards its end. Derived, not measured: with all slots taken a step reads weights and caches at three quarters
of the memory bandwidth.
"""


@dataclass(frozen=True)
class StatedRates:
    """Tokens a second of one GPU, for models of ``SMALL`` and ``LARGE`` billion parameters."""

    sampled: tuple[float, float]
    trained: tuple[float, float]


STATED = {
    "h200": StatedRates((6000, 2700), (12500, 5900)),
    "h100": StatedRates((5500, 2400), (12500, 5900)),
    "a100": StatedRates((3700, 1500), (5900, 2000)),
}
"""By GPU name, as in a site profile's ``gpu_type``."""


@dataclass(frozen=True)
class Throughput:
    """What a plan's estimate is based on."""

    sampled_per_s: float
    """Tokens a second of one inference task, on all its GPUs."""
    trained_per_s: float
    """Tokens a second of one trainer rank, forward and backward; 0 where nothing is trained."""
    publish_s: float
    checkpoint_s: float
    source: str
    """Of the rates, in words."""
    evaluation_share: float = 1.0
    """An evaluation task's tokens for each token of an inference task."""
    node_gpus: int | None = None
    """Of a node, where nodes are given whole."""

    @property
    def evaluated_per_s(self) -> float:
        """Tokens a second of one evaluation task."""
        return self.sampled_per_s * self.evaluation_share


def throughput(recipe: Experiment, site: SiteSettings) -> Throughput | None:
    """A recipe's rates on a site; None where neither profile nor table states them. Separate evaluations need no
    training rate.
    """
    stated, given = _table_throughput(recipe, site), site.throughput
    sampled = given.sampled_tokens_per_second or (stated.sampled_per_s if stated else None)
    trained = given.trained_tokens_per_second or (stated.trained_per_s if stated else None)
    if sampled is None or (recipe.trains and trained is None):
        return None
    source = _source_of_rates(given, site, "" if stated is None else stated.source, trains=recipe.trains)
    publish_s, checkpoint_s = (stated.publish_s, stated.checkpoint_s) if stated else (0.0, 0.0)
    # An evaluation's tokens are to those of an inference task as their GPUs, with full slots.
    sampling, evaluation = _sampling_gpus(recipe), recipe.resources.evaluation.gpus
    share = FULL_SLOTS * evaluation / sampling if sampling and evaluation else 1.0
    return Throughput(sampled, trained or 0.0, publish_s, checkpoint_s, source, share, site.limits.node_gpus)


def _source_of_rates(given: MeasuredThroughput, site: SiteSettings, stated: str, *, trains: bool) -> str:
    """The profile's fields, the table, or one rate from each."""
    fields = [name for name in RATES if getattr(given, name)]
    if len(fields) == len(RATES) or (not trains and given.sampled_tokens_per_second):
        return f"throughput of site profile {site.name}"
    return " and ".join([*(f"throughput.{name} of site profile {site.name}" for name in fields if trains), stated])


def _table_throughput(recipe: Experiment, site: SiteSettings) -> Throughput | None:
    """The table's rates; None without GPUs, or for unknown model sizes. Separate evaluations train nothing."""
    billions, sampling = model_billions(recipe), _sampling_gpus(recipe)
    training = recipe.resources.trainer.gpus if recipe.trains else None
    if billions is None or not sampling or training == 0:
        return None
    gpu = next((gpu for gpu in STATED if gpu in site.gpu_name.lower()), ASSUMED_GPU)
    return Throughput(
        sampled_per_s=power_law(STATED[gpu].sampled, billions) * sampling,
        trained_per_s=power_law(STATED[gpu].trained, billions) * (training or 0),
        publish_s=PUBLISH_S * billions / site.throughput.checkpoint_gb_per_second,
        checkpoint_s=CHECKPOINT_S * billions / site.throughput.checkpoint_gb_per_second,
        source=f"stated rates of {gpu} for {billions:.2g} billion parameters",
    )


def _sampling_gpus(recipe: Experiment) -> int:
    """The GPUs of an inference task, or of a separate evaluation's."""
    if not recipe.trains:
        return recipe.resources.evaluation.gpus
    return recipe.resources.inference.gpus * recipe.resources.inference.nodes


def power_law(rates: tuple[float, float], billions: float) -> float:
    """A rate at another model size, by the power law through ``SMALL`` and ``LARGE`` billions."""
    exponent = math.log(rates[1] / rates[0]) / math.log(LARGE / SMALL)
    return float(rates[0] * (billions / SMALL) ** exponent)


def model_billions(recipe: Experiment) -> float | None:
    """Billions of parameters of the policy or the largest evaluated model, by files, else by name; None if unknown."""
    if isinstance(recipe.model, HuggingFaceModel):
        return _billions(Path(recipe.model.path))
    return max(filter(None, map(_evaluated_billions, recipe.models)), default=None)


def _billions(directory: Path) -> float | None:
    """By the files, or a name such as DeepSeek-R1-Distill-Qwen-1.5B."""
    of_hub = hub_model_of(str(directory))
    name = directory.name if of_hub is None else of_hub.name
    match = re.search(r"(?<![0-9.])(\d+(?:\.\d+)?)B(?![a-zA-Z])", name, re.IGNORECASE)
    return _billions_by_files(directory) or (float(match[1]) if match else None)


def _evaluated_billions(model: EvaluatedModel) -> float | None:
    """Another version's where a run has yet to publish this one."""
    path = Path(model.path)
    others = sorted(path.parent.glob("v*")) if model.run is not None else []
    return next(filter(None, map(_billions, (path, *others))), None)


def _billions_by_files(directory: Path) -> float | None:
    """The billions by the size of safetensors files and config.json's number format."""
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    try:
        config = json.loads(file_bytes(directory / "config.json"))
        width = BYTES[config.get("dtype") or config.get("torch_dtype") or "bfloat16"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None  # an estimate does without; whether the model can be used is checked elsewhere
    return size / width / 1e9 or None


# -- expected hours ----------------------------------------------------------------------------------------------------


START_S = 180.0
"""Of a job with a server or trainer: imports, loading weights, compiling."""
SHORT_JOB_S = 360.0
"""Of the first job, and of the report."""


@dataclass(frozen=True)
class ExpectedHours:
    """The expected hours of one job."""

    hours: float
    """Wall time of one task, over all attempts."""
    gpus: int
    """That one task is charged for."""
    gpu_hours: float
    """Charged, of all tasks."""
    longest: float
    """Wall time of the longest task: benchmarks differ in problems."""
    by_use: Mapping[Use, float]
    """Of one task; they add up to ``hours``."""

    def attempts(self, job: Job) -> int:
        """Starts of each task if only its time limit ends it."""
        return ceil(self.longest * 60 / job.resources.time_limit_minutes)


def expected_hours(plan: Plan, recipe: Experiment, throughput: Throughput) -> dict[str, ExpectedHours]:
    """The hours by job name, without jobs whose problem file is missing."""
    seconds = {job.name: _tasks(job, recipe, throughput) for job in plan.jobs}
    known = ((job, tasks) for job in plan.jobs if (tasks := seconds[job.name]) is not None)
    return {job.name: _hours_of(job, tasks, throughput.node_gpus) for job, tasks in known}


def expected_uses(plan: Plan, expected: Mapping[str, ExpectedHours]) -> list[UseHours]:
    """The hours by role and use, of all jobs with known hours."""
    known = [job for job in plan.jobs if job.name in expected]
    parts = ((job, use, hours * job.tasks) for job in known for use, hours in expected[job.name].by_use.items())
    return sum_hours(
        UseHours(job.role, use, hours, hours * expected[job.name].gpus, hours * job.resources.cpus)
        for job, use, hours in parts
    )


Seconds = dict[Use, float]
"""Of a task or a part of it, by use."""


def _hours_of(job: Job, tasks: list[Seconds], node_gpus: int | None) -> ExpectedHours:
    """The hours of a job, by each task's seconds."""
    lengths = [sum(task.values()) / 3600 for task in tasks]
    mean = sum(lengths) / len(lengths)
    by_use = {use: seconds / len(tasks) / 3600 for use, seconds in _add_seconds(tasks).items() if seconds}
    gpus = charged_gpus(job.resources, node_gpus)
    return ExpectedHours(mean, gpus, mean * job.tasks * gpus, max(lengths), by_use)


def _add_seconds(parts: Iterable[Mapping[Use, float]]) -> Seconds:
    whole: Seconds = defaultdict(float)
    for use, seconds in (item for part in parts for item in part.items()):
        whole[use] += seconds
    return whole


def _tasks(job: Job, recipe: Experiment, throughput: Throughput) -> list[Seconds] | None:
    """Each task's seconds of an evaluation, or one entry for equal tasks; None where unknown."""
    if job.role in (Role.PREPARE, Role.REPORT):
        return [{Use.PREPARING if job.role is Role.PREPARE else Use.REPORTING: SHORT_JOB_S}]
    if job.role is Role.EVALUATION:
        units = [_unit_seconds(unit, recipe, throughput) for unit in job.evaluations]
        known = [_add_seconds([{Use.STARTING: START_S}, unit]) for unit in units if unit is not None]
        return None if len(known) < len(units) else known
    assert isinstance(recipe, Recipe), "an evaluation on its own has no other jobs"
    iterations = [_iteration_seconds(job, recipe, iteration, throughput) for iteration in job.iterations]
    parts = [iteration for iteration in iterations if iteration is not None]
    return None if len(parts) < len(iterations) else [_add_seconds([{Use.STARTING: START_S}, *parts])]


def _iteration_seconds(job: Job, recipe: Recipe, iteration: int, throughput: Throughput) -> Seconds | None:
    """How long an iteration keeps a job busy; both jobs of a segment run together, and wait for each other."""
    sampling = _sampling_uses(recipe, iteration, throughput)
    if is_collection(iteration):
        return sampling
    training = {
        Use.TRAINING: recipe.algorithm.cost(recipe, iteration).trained
        / (recipe.resources.trainer.ranks * throughput.trained_per_s),
        Use.SAVING: throughput.publish_s + throughput.checkpoint_s / recipe.training.checkpoint_every,
    }
    if not recipe.algorithm.samples_rollouts or sampling is None:
        return training
    if job.role is Role.COLOCATED:
        return _add_seconds([sampling, training])
    own = sampling if job.role is Role.INFERENCE else training
    if recipe.schedule.coupling is Coupling.SEQUENTIAL:
        return own
    both = sum(sampling.values()), sum(training.values())
    whole = max(both) if recipe.schedule.max_staleness else sum(both)
    return _add_seconds([own, {Use.WAITING: whole - sum(own.values())}])


def _sampling_uses(recipe: Recipe, iteration: int, throughput: Throughput) -> Seconds | None:
    """Sampling, divided between traces and branches by tokens."""
    if (seconds := sampling_seconds(recipe, iteration, throughput)) is None:
        return None
    cost = recipe.algorithm.cost(recipe, iteration)
    return _divide_sampling(seconds, cost.branches / cost.sampled if cost.sampled else 0.0)


def _divide_sampling(seconds: float, branch_share: float) -> Seconds:
    """The seconds, with this share for branches."""
    return {Use.GENERATING: seconds * (1 - branch_share), Use.BRANCHING: seconds * branch_share}


def sampling_seconds(recipe: Recipe, iteration: int, throughput: Throughput) -> float | None:
    """Sampling rollouts and branches of an iteration or collection; None where problems cannot be counted."""
    inference, collects = recipe.resources.inference, is_collection(iteration)
    groups = count_problems(recipe.data) if collects else recipe.sampling.problems_per_iteration
    if groups is None:
        return None
    at_once = min(inference.tasks, inference.max_parallel or inference.tasks)
    tokens = groups * recipe.algorithm.cost(recipe, iteration).sampled
    return tokens / ((inference.tasks if collects else at_once) * throughput.sampled_per_s)


def late_checkpoint(recipe: Recipe, site: SiteSettings, throughput: Throughput) -> str | None:
    """A warning where preemption is expected to end a trainer before it has written a checkpoint.

    It then recomputes updates since its last checkpoint from the same rollouts. Published versions precede the
    checkpoint, and nothing committed is lost.
    """
    notice_s = site.limits.preemption_notice_s
    if notice_s is None or throughput.checkpoint_s <= notice_s:
        return None
    lost = min(recipe.training.checkpoint_every, recipe.schedule.iterations_per_job)
    advice = "; --set training.checkpoint_every=1 makes that one update" if lost > 1 else ""
    return (
        f"a checkpoint is expected to take {throughput.checkpoint_s:.0f} s, and site {site.name} ends a preempted task "
        f"after {notice_s} s (preemption_notice_s): a preempted trainer computes up to {lost} update(s) again{advice}"
    )


def _unit_seconds(unit: EvaluationUnit, recipe: Experiment, throughput: Throughput) -> Seconds | None:
    evaluation, benchmark = recipe.evaluation, recipe.benchmark(unit.benchmark)
    if (problems := count_problems(benchmark.problems)) is None:
        return None
    trace = min(evaluation.max_tokens, recipe.expected.trace_tokens or evaluation.max_tokens / 2)
    if benchmark.mode is not None:
        trace = benchmark.mode.expected_tokens(trace)
    branches = 0.0
    if evaluation.prover is not None:
        episodes = (evaluation.episodes or recipe.episodes).max_episodes
        boundaries = episodes + 1 / benchmark.samples  # a problem's traces share the empty prefix
        branches = boundaries * tokens_per_value(evaluation.prover, recipe)
    samples = problems / evaluation.problem_shards * benchmark.samples
    return _divide_sampling(samples * (trace + branches) / throughput.evaluated_per_s, branches / (trace + branches))


def count_problems(problems: Problems | object) -> int | None:
    """None where the file is missing."""
    limit = getattr(problems, "problems", None) or getattr(problems, "limit", None)
    path = getattr(problems, "path", None)
    if path is None:
        return limit
    try:
        with Path(path).open("rb") as lines:
            count = sum(1 for line in lines if line.strip())
    except OSError:
        return limit
    return count if limit is None else min(count, limit)
