"""Whether each role of a recipe fits the memory that it gets: GPUs of the site, or ``memory_gib`` without a GPU.

Everything is arithmetic on config.json and the recipe. Where the model is not there, nothing is checked, and a sentence
says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.plan.gpu_memory import gpu_memory
from mrt_hpc.plan.jobs import Role
from mrt_hpc.plan.model_shape import SMALL_WORLD, UnknownShapeError, shape_in
from mrt_hpc.plan.server_memory import GIB, ServerMemory, ServerSetting, server_memory
from mrt_hpc.plan.throughput import BYTES
from mrt_hpc.plan.token_counts import PROMPT_TOKENS, sequence_tokens
from mrt_hpc.plan.trainer_memory import TrainerSetting, activation_bytes, last_published_bytes, trainer_memory
from mrt_hpc.recipe.benchmark_sampling import evaluation_dtype
from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe
from mrt_hpc.recipe.hub_models import not_fetched
from mrt_hpc.recipe.longest import longest_in_evaluation, longest_in_training
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections.model import HuggingFaceModel
from mrt_hpc.recipe.sections.schedule import Coupling
from mrt_hpc.recipe.server_layout import ServerLayout, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.plan.gpu_memory import GpuMemory
    from mrt_hpc.plan.model_shape import ModelShape
    from mrt_hpc.plan.trainer_memory import TrainerMemory
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.sections.resources import RoleResources
    from mrt_hpc.recipe.site import SiteSettings

TIGHT = 0.9
"""The share of the memory above which a role may fail: what is told is right within some 15 %."""
CPU_LIBRARIES_GIB = 0.75
"""What a trainer without a GPU takes before it loads a model: torch, DeepSpeed and transformers."""
GPU_LIBRARIES_GIB = 1.0
"""What CUDA and NCCL take of a GPU before a model is loaded."""
PARKED_TRAINER_GIB = 1.0
"""What a colocated trainer leaves on a GPU while the server uses it: its CUDA context, and the buffers of NCCL."""
SLEEPING_SERVER_GIB = 3.0
"""What a colocated server leaves on a GPU while the trainer uses it: the same, and its CUDA graphs. It was not measured
on a GPU.
"""
HOST_LIBRARIES_GIB = 4.0
"""What a trainer with a GPU takes of the memory of its node before a model is loaded."""


@dataclass(frozen=True)
class RoleFit:
    """The memory of one process of a role, GiB, at its peak."""

    role: Role
    name: str
    """The role, and which of its parts."""
    place: str
    """GPU or memory."""
    parts: dict[str, float]
    """By what it is for."""
    needed: float
    """The least that the process has to get."""
    limit: float
    source: str
    """Where the limit is from, in words."""
    known: bool = True
    """Whether the limit is told and not assumed."""
    note: str = ""
    """How many sequences the cache holds at once."""

    @property
    def share(self) -> float:
        """The needed share of the limit."""
        return self.needed / self.limit

    @property
    def fits(self) -> bool:
        """Whether it is within the limit."""
        return self.needed <= self.limit

    @property
    def is_tight(self) -> bool:
        """Whether it is within the limit, and so near it that the estimate may be wrong."""
        return TIGHT * self.limit < self.needed <= self.limit


@dataclass(frozen=True)
class Fits:
    """What is known of the memory of a recipe on a site."""

    roles: tuple[RoleFit, ...]
    unchecked: tuple[str, ...] = ()
    """What was not checked and why, a sentence each."""

    @property
    def refused(self) -> list[RoleFit]:
        """The roles that cannot fit, by limits that the site or the recipe tells."""
        return [role for role in self.roles if not role.fits and role.known]

    @property
    def doubtful(self) -> list[RoleFit]:
        """The roles that are tight, or that do not fit an assumed limit."""
        return [role for role in self.roles if role.is_tight or (not role.fits and not role.known)]


def fits(recipe: Experiment, site: SiteSettings) -> Fits:
    """The memory of each role of a recipe on a site."""
    roles, unchecked = list[RoleFit](), list[str]()
    for part in (_inference, _trainer, _evaluation):
        try:
            roles += part(recipe, gpu_memory(site))
        except UnknownShapeError as error:
            unchecked.append(str(error))
    return Fits(tuple(roles), tuple(dict.fromkeys(unchecked)))


# -- models -----------------------------------------------------------------------------------------------------------


def policy_shape(recipe: Recipe) -> ModelShape:
    """The shape of the trained model.

    Raises:
        UnknownShapeError: it is not there, or of an unknown kind.
    """
    return _shape(recipe.model.path, "model.path") if isinstance(recipe.model, HuggingFaceModel) else SMALL_WORLD


def _shape(path: str, field: str) -> ModelShape:
    if missing := not_fetched(path):
        raise UnknownShapeError(f"The memory was not checked, as the model of {field} is not there: {missing}")
    try:
        return shape_in(Path(path))
    except UnknownShapeError as error:
        raise UnknownShapeError(f"The memory was not checked for {field}: {error}.") from error


def evaluated_shape(recipe: Experiment) -> ModelShape:
    """The shape of the evaluated model that takes the most memory, of those that are there."""
    if not isinstance(recipe, EvaluationRecipe):
        return policy_shape(recipe)
    there = [model for model in recipe.models if model.run is None or Path(model.path).is_dir()]
    if not there:
        raise UnknownShapeError("The memory was not checked, as the runs have yet to publish the models.")
    return max((_shape(model.path, f"model {model.name}") for model in there), key=lambda shape: shape.parameters)


# -- trainer ----------------------------------------------------------------------------------------------------------


def _trainer(recipe: Experiment, gpu: GpuMemory) -> Iterator[RoleFit]:
    if isinstance(recipe, EvaluationRecipe):
        return
    resources, training = recipe.resources.trainer, recipe.training
    setting = TrainerSetting(
        training,
        policy_shape(recipe),
        resources.ranks,
        recipe.algorithm.longest_trained(recipe),
        on_gpu=resources.gpus > 0,
    )
    memory, last = trainer_memory(setting), last_published_bytes(setting)
    parts = {
        "weights": memory.weights + (0.0 if setting.on_gpu else last),
        "optimiser": memory.optimizer,
        "gradients": memory.gradients,
        "exchange": memory.exchange,
        "activations": memory.activations,
        "logits": memory.logits,
        "other": _beside(setting) + (SLEEPING_SERVER_GIB * GIB if setting.on_gpu and colocated(recipe) else 0.0),
    }
    yield _fit(Role.TRAINER, "trainer", parts, resources, gpu)
    if setting.on_gpu and (memory.host or last or colocated(recipe)):
        yield _on_node(Role.TRAINER, "trainer, off the GPU", _off_the_gpu(recipe, setting, memory), resources)


def _off_the_gpu(recipe: Recipe, setting: TrainerSetting, memory: TrainerMemory) -> dict[str, float]:
    """What a trainer with a GPU has in the memory of its node: an offloaded optimiser, and all of its state while a
    colocated server has the GPU; and the weights that it publishes, with those that it published last where versions
    are deltas.
    """
    copies = BYTES[recipe.training.weights_dtype] * setting.shape.parameters + last_published_bytes(setting)
    waiting = colocated(recipe)
    return {
        "weights": copies + (memory.weights if waiting else 0.0),
        "optimiser": memory.host + (memory.optimizer if waiting else 0.0),
        "gradients": memory.gradients if waiting else 0.0,
        "other": HOST_LIBRARIES_GIB * GIB,
    }


def colocated(recipe: Experiment) -> bool:
    """Whether inference and trainer take turns on the same GPUs."""
    if not isinstance(recipe, Recipe) or not recipe.algorithm.samples_rollouts:
        return False
    return recipe.schedule.coupling is Coupling.COLOCATED and recipe.resources.trainer.gpus > 0


def _beside(setting: TrainerSetting) -> float:
    """Bytes beside the model's. A process without a GPU keeps small blocks that it has freed: about as much as it had
    for activations.
    """
    return GPU_LIBRARIES_GIB * GIB if setting.on_gpu else CPU_LIBRARIES_GIB * GIB + activation_bytes(setting)


def _fit(role: Role, name: str, parts: dict[str, float], resources: RoleResources, gpu: GpuMemory) -> RoleFit:
    """A process that takes what it needs, of a GPU or of the memory."""
    if not resources.gpus:
        return _on_node(role, name, parts, resources)
    in_gib = {part: value / GIB for part, value in parts.items()}
    return RoleFit(role, name, "GPU", in_gib, sum(in_gib.values()), gpu.gib, gpu.source, gpu.known)


def _on_node(role: Role, name: str, parts: dict[str, float], resources: RoleResources, note: str = "") -> RoleFit:
    in_gib = {part: value / GIB for part, value in parts.items()}
    source = f"resources.{role}.memory_gib"
    return RoleFit(role, name, "memory", in_gib, sum(in_gib.values()), resources.memory_gib, source, note=note)


# -- servers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Server:
    """One server of a task."""

    name: str
    shape: ModelShape
    width: int
    longest: int
    mean: float
    share: float = 1.0
    """Its share of the memory for serving."""

    def setting(self, recipe: Experiment, layout: ServerLayout | None, gpu: GpuMemory) -> ServerSetting:
        """What its memory depends on; ``layout`` is None without a GPU."""
        serving, gpus = recipe.serving, 0 if layout is None else layout.tensor_parallel
        share = gpu.gib * serving.gpu_memory_utilization if gpus else serving.kv_cache_gib
        batch = serving.max_concurrent_sequences
        mean = min(self.mean, self.longest)
        return ServerSetting(
            self.shape,
            self.width,
            self.longest,
            mean,
            batch,
            gpus,
            share * self.share * GIB,
            1 if layout is None else layout.stages,
        )


def _inference(recipe: Experiment, gpu: GpuMemory) -> Iterator[RoleFit]:
    samples = isinstance(recipe, Recipe) and (recipe.algorithm.samples_rollouts or recipe.algorithm.collects)
    if not isinstance(recipe, Recipe) or not samples or recipe.serving.attach is not None:
        return
    prover, width = recipe.prover, BYTES[recipe.serving.dtype]
    longest, mean = longest_in_training(recipe), sequence_tokens(recipe, recipe.schedule.iterations)
    own = prover is not None and prover.model is not None
    share = prover.memory_share if prover is not None and own else 0.0
    servers = [_Server("inference", policy_shape(recipe), width, longest, mean, 1 - share)]
    if prover is not None and prover.model is not None:
        held = prover.model_max_tokens or longest
        shape = _shape(prover.model, "prover.model")
        servers.append(_Server("inference, prover", shape, width, held, mean, share))
    yield from _servers(Role.INFERENCE, servers, recipe, recipe.resources.inference, gpu)


def _evaluation(recipe: Experiment, gpu: GpuMemory) -> Iterator[RoleFit]:
    evaluation = recipe.evaluation
    if not evaluation.benchmarks:
        return
    trace = min(evaluation.max_tokens, recipe.expected.trace_tokens or evaluation.max_tokens / 2)
    width, longest = BYTES[evaluation_dtype(recipe)], longest_in_evaluation(recipe)
    server = _Server("evaluation", evaluated_shape(recipe), width, longest, PROMPT_TOKENS + trace)
    yield from _servers(Role.EVALUATION, [server], recipe, recipe.resources.evaluation, gpu)


def _servers(
    role: Role, servers: list[_Server], recipe: Experiment, resources: RoleResources, gpu: GpuMemory
) -> Iterator[RoleFit]:
    """The servers of one task. On GPUs each has its share; without a GPU they share the memory of the task."""
    layout = ServerLayout.of(recipe.serving, resources.gpus, nodes_of(resources))
    divided = layout if resources.gpus else None
    memories = [(server, server_memory(server.setting(recipe, divided, gpu))) for server in servers]
    if not resources.gpus:
        yield from _servers_on_node(role, memories, layout.servers, resources)
        return
    for server, memory in memories:
        limit = gpu.gib * recipe.serving.gpu_memory_utilization * server.share
        limit -= max(0.0, limit + PARKED_TRAINER_GIB - gpu.gib) if colocated(recipe) else 0.0
        source = f"serving.gpu_memory_utilization of {gpu.gib:g} GiB ({gpu.source})"
        parts, note = _server_parts(memory), _note(server, memory)
        yield RoleFit(role, server.name, "GPU", parts, memory.least / GIB, limit, source, gpu.known, note)
    if role is Role.INFERENCE and colocated(recipe):
        asleep = layout.servers * layout.tensor_parallel * layout.stages * sum(memory.weights for _, memory in memories)
        yield _on_node(role, "inference, asleep", {"weights": asleep, "other": HOST_LIBRARIES_GIB * GIB}, resources)


def _servers_on_node(
    role: Role, memories: list[tuple[_Server, ServerMemory]], copies: int, resources: RoleResources
) -> Iterator[RoleFit]:
    """The servers of one task without a GPU, of each of which there are ``copies``."""
    notes = "; ".join(_note(server, memory) for server, memory in memories)
    parts = {
        "weights": copies * sum(memory.weights for _, memory in memories),
        "KV cache": copies * sum(memory.cache for _, memory in memories),
        "other": copies * sum(memory.overhead for _, memory in memories),
    }
    yield _on_node(role, str(role), parts, resources, notes)
    for server, memory in memories:
        if memory.longest > memory.cache:
            needed, limit = memory.longest / GIB, memory.cache / GIB
            name, source = f"{server.name}, KV cache", "serving.kv_cache_gib"
            yield RoleFit(role, name, "memory", {"KV cache": needed}, needed, limit, source)


def _server_parts(memory: ServerMemory) -> dict[str, float]:
    """GiB by what they are for."""
    cache = max(0.0, memory.cache)
    parts = {"weights": memory.weights, "activations": memory.activations, "KV cache": cache, "other": memory.overhead}
    return {part: value / GIB for part, value in parts.items()}


def _note(server: _Server, memory: ServerMemory) -> str:
    mean = min(server.mean, server.longest)
    return (
        f"{server.name}: the KV cache holds {memory.at_once(memory.longest):,} sequences of {server.longest:,} tokens "
        f"at once, or {memory.at_once(memory.mean):,} of {mean:,.0f}"
    )


def rounded_up(gib: float) -> int:
    """A whole number of GiB that is not tight."""
    return ceil(gib / TIGHT)
