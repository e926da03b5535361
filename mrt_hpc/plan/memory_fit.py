"""Whether each role of a recipe fits the memory that it gets: GPUs of the site, or ``memory_gib`` without a GPU; and
the change to propose where a role does not fit.

Everything is arithmetic on config.json and the recipe. Where the model is not there, nothing is checked, and a sentence
says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from mrt_hpc.errors import UserError
from mrt_hpc.plan import memory
from mrt_hpc.plan.hours import BYTES, PROMPT_TOKENS, sequence_tokens
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.hub_models import not_fetched
from mrt_hpc.recipe.model_files import divides
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.sections import HuggingFaceModel, RoleResources, ServerLayout, nodes_of
from mrt_hpc.recipe.site import SiteSettings

TIGHT = 0.9
"""The share of the memory above which a role may fail: an estimate is right within some 15 %."""
CPU_LIBRARIES_GIB = 0.75
"""What a trainer without a GPU takes before it loads a model: torch, DeepSpeed and transformers."""
GPU_LIBRARIES_GIB = 1.7
"""What a trainer takes of a GPU beside its tensors: its CUDA context, and the buffers of NCCL, measured with one rank
on an H100. A colocated trainer keeps it while the server uses the GPU.
"""
SLEEPING_SERVER_GIB = 3.0
"""What a colocated server leaves on a GPU while the trainer uses it: the same, and its CUDA graphs. It was not measured
on a GPU.
"""
KV_CACHE = "serving.kv_cache_gib"
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
    """GiB by what they are for; together what is needed."""
    needed: float
    """The least that the process has to get."""
    limit: float
    source: str
    """Where the limit is from, in words."""
    known: bool = True
    """Whether the limit is stated and not assumed."""
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
        """The roles that cannot fit, by limits that the site or the recipe states."""
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
            roles += part(recipe, memory.gpu_memory(site))
        except memory.UnknownShapeError as error:
            unchecked.append(str(error))
    return Fits(tuple(roles), tuple(dict.fromkeys(unchecked)))


# -- models -----------------------------------------------------------------------------------------------------------


def policy_shape(recipe: Experiment) -> memory.ModelShape:
    """The shape of the trained model.

    Raises:
        UnknownShapeError: it is not there, or of an unknown kind.
    """
    return _shape(recipe.model.path, "model.path") if isinstance(recipe.model, HuggingFaceModel) else memory.SMALL_WORLD


def _shape(path: str, field: str) -> memory.ModelShape:
    if missing := not_fetched(path):
        raise memory.UnknownShapeError(f"The memory was not checked, as the model of {field} is not there: {missing}")
    try:
        return memory.shape_in(Path(path))
    except memory.UnknownShapeError as error:
        raise memory.UnknownShapeError(f"The memory was not checked for {field}: {error}.") from error


def evaluated_shape(recipe: Experiment) -> memory.ModelShape:
    """The shape of the evaluated model that takes the most memory, of those that are there."""
    if recipe.trains:
        return policy_shape(recipe)
    there = [model for model in recipe.models if model.run is None or Path(model.path).is_dir()]
    if not there:
        raise memory.UnknownShapeError("The memory was not checked, as the runs have yet to publish the models.")
    return max((_shape(model.path, f"model {model.name}") for model in there), key=lambda shape: shape.parameters)


# -- trainer ----------------------------------------------------------------------------------------------------------


def _trainer(recipe: Experiment, gpu: memory.GpuMemory) -> Iterator[RoleFit]:
    if not isinstance(recipe, Recipe):
        return
    resources, training = recipe.resources.trainer, recipe.training
    setting = memory.TrainerSetting(
        training,
        policy_shape(recipe),
        resources.ranks,
        recipe.algorithm.longest_trained(recipe),
        on_gpu=resources.gpus > 0,
    )
    taken, last = memory.trainer_memory(setting), memory.last_published_bytes(setting)
    parts = {
        "weights": taken.weights + (0.0 if setting.on_gpu else last),
        "optimiser": taken.optimizer,
        "gradients": taken.gradients,
        "exchange": taken.exchange,
        "activations": taken.activations,
        "logits": taken.logits,
        "other": _beside(setting)
        + (SLEEPING_SERVER_GIB * memory.GIB if setting.on_gpu and _takes_turns(recipe) else 0.0),
    }
    yield _fit(Role.TRAINER, "trainer", parts, resources, gpu)
    if setting.on_gpu and (taken.host or last or _takes_turns(recipe)):
        yield _on_node(Role.TRAINER, "trainer, off the GPU", _off_the_gpu(recipe, setting, taken), resources)


def _off_the_gpu(recipe: Recipe, setting: memory.TrainerSetting, taken: memory.TrainerMemory) -> dict[str, float]:
    """What a trainer with a GPU has in the memory of its node: an offloaded optimiser, and all of its state while a
    colocated server has the GPU; and the weights that it publishes, with those that it published last where versions
    are deltas.
    """
    copies = BYTES[recipe.training.weights_dtype] * setting.shape.parameters + memory.last_published_bytes(setting)
    waiting = _takes_turns(recipe)
    return {
        "weights": copies + (taken.weights if waiting else 0.0),
        "optimiser": taken.host + (taken.optimizer if waiting else 0.0),
        "gradients": taken.gradients if waiting else 0.0,
        "other": HOST_LIBRARIES_GIB * memory.GIB,
    }


def _takes_turns(recipe: Experiment) -> bool:
    """Whether inference and trainer take turns on the same GPUs."""
    return recipe.colocated and recipe.resources.trainer.gpus > 0


def _beside(setting: memory.TrainerSetting) -> float:
    """Bytes beside the model's. A process without a GPU keeps small blocks that it has freed: about as much as it had
    for activations.
    """
    return (
        GPU_LIBRARIES_GIB * memory.GIB
        if setting.on_gpu
        else CPU_LIBRARIES_GIB * memory.GIB + memory.activation_bytes(setting)
    )


def _fit(role: Role, name: str, parts: dict[str, float], resources: RoleResources, gpu: memory.GpuMemory) -> RoleFit:
    """A process that takes what it needs, of a GPU or of the memory."""
    if not resources.gpus:
        return _on_node(role, name, parts, resources)
    in_gib = {part: value / memory.GIB for part, value in parts.items()}
    return RoleFit(role, name, "GPU", in_gib, sum(in_gib.values()), gpu.gib, gpu.source, gpu.known)


def _on_node(role: Role, name: str, parts: dict[str, float], resources: RoleResources, note: str = "") -> RoleFit:
    in_gib = {part: value / memory.GIB for part, value in parts.items()}
    source = f"resources.{role}.memory_gib"
    return RoleFit(role, name, "memory", in_gib, sum(in_gib.values()), resources.memory_gib, source, note=note)


# -- servers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Server:
    """One server of a task."""

    name: str
    shape: memory.ModelShape
    width: int
    longest: int
    mean: float
    share: float = 1.0
    """Its share of the memory for serving."""

    def setting(self, recipe: Experiment, layout: ServerLayout | None, gpu: memory.GpuMemory) -> memory.ServerSetting:
        """What its memory depends on; ``layout`` is None without a GPU."""
        serving, gpus = recipe.serving, 0 if layout is None else layout.tensor_parallel
        share = gpu.gib * serving.gpu_memory_utilization if gpus else serving.kv_cache_gib
        batch = serving.max_concurrent_sequences
        mean = min(self.mean, self.longest)
        return memory.ServerSetting(
            self.shape,
            self.width,
            self.longest,
            mean,
            batch,
            gpus,
            share * self.share * memory.GIB,
            1 if layout is None else layout.stages,
        )


def _inference(recipe: Experiment, gpu: memory.GpuMemory) -> Iterator[RoleFit]:
    if not isinstance(recipe, Recipe) or not recipe.samples_traces or recipe.serving.attach is not None:
        return
    prover, width = recipe.prover, BYTES[recipe.serving.dtype]
    longest, mean = recipe.longest_in_training, sequence_tokens(recipe, recipe.schedule.iterations)
    own = prover is not None and prover.model is not None
    share = prover.memory_share if prover is not None and own else 0.0
    servers = [_Server("inference", policy_shape(recipe), width, longest, mean, 1 - share)]
    if prover is not None and prover.model is not None:
        held = prover.model_max_tokens or longest
        shape = _shape(prover.model, "prover.model")
        servers.append(_Server("inference, prover", shape, width, held, mean, share))
    yield from _servers(Role.INFERENCE, servers, recipe, recipe.resources.inference, gpu)


def _evaluation(recipe: Experiment, gpu: memory.GpuMemory) -> Iterator[RoleFit]:
    evaluation = recipe.evaluation
    if not evaluation.benchmarks:
        return
    trace = min(evaluation.max_tokens, recipe.expected.trace_tokens or evaluation.max_tokens / 2)
    width, longest = BYTES[recipe.evaluation_dtype], recipe.longest_in_evaluation
    server = _Server("evaluation", evaluated_shape(recipe), width, longest, PROMPT_TOKENS + trace)
    yield from _servers(Role.EVALUATION, [server], recipe, recipe.resources.evaluation, gpu)


def _servers(
    role: Role, servers: list[_Server], recipe: Experiment, resources: RoleResources, gpu: memory.GpuMemory
) -> Iterator[RoleFit]:
    """The servers of one task. On GPUs each has its share; without a GPU they share the memory of the task."""
    layout = ServerLayout.of(recipe.serving, resources.gpus, nodes_of(resources))
    divided = layout if resources.gpus else None
    memories = [(server, memory.server_memory(server.setting(recipe, divided, gpu))) for server in servers]
    if not resources.gpus:
        yield from _servers_on_node(role, memories, layout.servers, resources)
        return
    for server, taken in memories:
        limit = gpu.gib * recipe.serving.gpu_memory_utilization * server.share
        limit -= max(0.0, limit + GPU_LIBRARIES_GIB - gpu.gib) if _takes_turns(recipe) else 0.0
        source = f"serving.gpu_memory_utilization of {gpu.gib:g} GiB ({gpu.source})"
        parts, note = _server_parts(taken), _note(server, taken)
        yield RoleFit(role, server.name, "GPU", parts, taken.least / memory.GIB, limit, source, gpu.known, note)
    if role is Role.INFERENCE and _takes_turns(recipe):
        asleep = layout.servers * layout.tensor_parallel * layout.stages * sum(taken.weights for _, taken in memories)
        yield _on_node(
            role, "inference, asleep", {"weights": asleep, "other": HOST_LIBRARIES_GIB * memory.GIB}, resources
        )


def _servers_on_node(
    role: Role, memories: list[tuple[_Server, memory.ServerMemory]], copies: int, resources: RoleResources
) -> Iterator[RoleFit]:
    """The servers of one task without a GPU, of each of which there are ``copies``."""
    notes = "; ".join(_note(server, taken) for server, taken in memories)
    parts = {
        "weights": copies * sum(taken.weights for _, taken in memories),
        "KV cache": copies * sum(taken.cache for _, taken in memories),
        "other": copies * sum(taken.overhead for _, taken in memories),
    }
    yield _on_node(role, str(role), parts, resources, notes)
    for server, taken in memories:
        if taken.longest > taken.cache:
            needed, limit = taken.longest / memory.GIB, taken.cache / memory.GIB
            name = f"{server.name}, KV cache"
            yield RoleFit(role, name, "memory", {"KV cache": needed}, needed, limit, KV_CACHE)


def _server_parts(taken: memory.ServerMemory) -> dict[str, float]:
    """GiB by what they are for; of the cache what one longest sequence takes, so that the parts add up to the least."""
    cache = taken.longest
    parts = {"weights": taken.weights, "activations": taken.activations, "KV cache": cache, "other": taken.overhead}
    return {part: value / memory.GIB for part, value in parts.items()}


def _note(server: _Server, taken: memory.ServerMemory) -> str:
    shorter = f", or {taken.at_once(taken.mean):,} of {server.mean:,.0f}" if server.mean < server.longest else ""
    return (
        f"{server.name}: the KV cache has {max(0.0, taken.cache) / memory.GIB:.1f} GiB and holds "
        f"{taken.at_once(taken.longest):,} sequences of {server.longest:,} tokens at once{shorter}"
    )


def rounded_up(gib: float) -> int:
    """A whole number of GiB that is not tight."""
    return ceil(gib / TIGHT)


# -- the change to propose --------------------------------------------------------------------------------------------


S = TypeVar("S", bound=BaseModel)
Changes = tuple[tuple[str, object], ...]
"""Fields of the recipe, with dots, that change together, and their values."""
GROWTH = (2, 4, 8)
MOST_GPUS = 8
"""The GPUs of a node."""
LARGER_SHARES = (0.85, 0.9, 0.95)
"""Shares of the memory that vLLM may take on a GPU of its own."""


def refuse_unfit(recipe: Experiment, site: SiteSettings) -> None:
    """Refuse a recipe whose roles cannot fit the memory that they get.

    Raises:
        UserError: naming the role, what it needs of what, and the nearest change that fits.
    """
    if refused := fits(recipe, site).refused:
        raise unfit(refused[0], recipe, site)


def unfit(role: RoleFit, recipe: Experiment, site: SiteSettings) -> UserError:
    """The error for a role that does not fit."""
    largest = max(role.parts, key=lambda part: role.parts[part] if part != "KV cache" or len(role.parts) == 1 else 0.0)
    change = nearest_change(role.role, recipe, site)
    words = " ".join(f"--set {field}={_text(value)}" for field, value in change or ())
    taken = "GPU memory" if role.place == "GPU" else "memory"
    return UserError(
        f"{role.name} does not fit: it needs {role.needed:.1f} GiB of the {taken} of a process, "
        f"{role.parts[largest]:.1f} GiB of it for {largest}",
        value=f"{role.needed:.1f} GiB",
        where=f"resources.{role.role}",
        expected=f"at most {role.limit:.1f} GiB: {role.source}",
        advice=words or f"{_shorter(role, recipe)}, a smaller model, or GPUs with more memory",
    )


def _shorter(role: RoleFit, recipe: Experiment) -> str:
    """The fields to change where no change was found that is sure to help."""
    if role.role is Role.EVALUATION:
        return "a lower evaluation.max_tokens"
    spans = role.role is Role.INFERENCE and recipe.resources.inference.gpus > 0 and not _takes_turns(recipe)
    return "a lower sampling.max_tokens" + (", more resources.inference.nodes" if spans else "")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest_change(role: Role, recipe: Experiment, site: SiteSettings) -> Changes | None:
    """The first change of a list with which all of a role fits; None where none is enough. More memory of the node,
    where the role or the change needs it, is a part of each.
    """
    for change in ((), *_changes(role, recipe, site)):
        whole = _with_memory(change, role, recipe, site)
        if all(need.fits for need in _of_role(role, changed(recipe, whole), site)):
            return whole
    return None


def _of_role(role: Role, recipe: Experiment, site: SiteSettings) -> list[RoleFit]:
    return [need for need in fits(recipe, site).roles if need.role is role]


def _with_memory(change: Changes, role: Role, recipe: Experiment, site: SiteSettings) -> Changes:
    """A change, with as much memory of the node as the role then needs."""
    source = f"resources.{role}.memory_gib"
    needs = _of_role(role, changed(recipe, change), site)
    lacking = [need.needed for need in needs if need.source == source and not need.fits]
    return (*change, (source, float(rounded_up(max(lacking))))) if lacking else change


def changed(recipe: S, change: Changes) -> S:
    """A recipe with other values in some fields."""
    for field, value in change:
        recipe = _with(recipe, field.split("."), value)
    return recipe


def _with(section: S, path: list[str], value: object) -> S:
    inner = value if len(path) == 1 else _with(getattr(section, path[0]), path[1:], value)
    return section.model_copy(update={path[0]: inner})


def _changes(role: Role, recipe: Experiment, site: SiteSettings) -> Iterator[Changes]:
    """What may be changed for a role, the nearest first. A value that the recipe has already helps no role that does
    not fit, so it is passed over.
    """
    if role is Role.TRAINER and isinstance(recipe, Recipe):
        yield from _trainer_changes(recipe)
        return
    resources = getattr(recipe.resources, str(role))
    if not resources.gpus:
        shares = [need.share for need in _of_role(role, recipe, site) if need.source == KV_CACHE]
        yield from (((KV_CACHE, float(rounded_up(share * recipe.serving.kv_cache_gib))),) for share in shares)
        return
    current = recipe.serving.gpu_memory_utilization
    yield from ((("serving.gpu_memory_utilization", share),) for share in LARGER_SHARES if share > current)
    if not _takes_turns(recipe) and nodes_of(resources) == 1:
        yield from _more_gpus(role, recipe, resources.gpus)


def _trainer_changes(recipe: Recipe) -> Iterator[Changes]:
    """Single changes; and at the end all that cost nothing but time, together and with more ranks."""
    training, ranks, heads = recipe.training, recipe.resources.trainer.ranks, policy_shape(recipe).heads
    micro_batch = min(training.max_tokens_per_micro_batch, recipe.algorithm.longest_trained(recipe))
    savings = {
        "gradient_checkpointing": True,
        "projection": "fused",
        "max_tokens_per_micro_batch": micro_batch,
        "zero_stage": 3,
    }
    together = tuple((f"training.{name}", value) for name, value in savings.items() if getattr(training, name) != value)
    if training.zero_stage < 2:
        yield (("training.zero_stage", 2),)
    yield from ((change,) for change in together)
    packed: Changes = (("training.batching", "packed"),) if training.batching == "padded" else ()
    for parts in (training.sequence_parallel * factor for factor in GROWTH):
        if not (ranks % parts or heads % parts):
            yield (*packed, ("training.sequence_parallel", parts))
    if recipe.resources.trainer.gpus and training.zero_stage:
        yield (("training.offload_optimizer", True),)
    more = [] if _takes_turns(recipe) else [("resources.trainer.ranks", ranks * factor) for factor in GROWTH]
    yield from ((change,) for change in more)
    yield together
    yield from ((*together, change) for change in more)


def _more_gpus(role: Role, recipe: Experiment, gpus: int) -> Iterator[Changes]:
    """More GPUs for each server, where they divide the heads."""
    now, shape = ServerLayout.of(recipe.serving, gpus).tensor_parallel, evaluated_shape(recipe)
    for width in (now * factor for factor in GROWTH):
        counts = _gpus_for(role, recipe, width)
        if divides(width, shape.heads, shape.kv_heads) and all(count <= MOST_GPUS for _, count in counts):
            yield (("serving.tensor_parallel", width), *counts)


def _gpus_for(role: Role, recipe: Experiment, width: int) -> tuple[tuple[str, int], ...]:
    """The GPUs of each role whose number has to change for servers of so many each, that of ``role`` first: as many
    servers as the recipe states, or as few GPUs more as leave none without a server.
    """
    changes = []
    for role_changed in (role, *(other for other in (Role.INFERENCE, Role.EVALUATION) if other is not role)):
        gpus = getattr(recipe.resources, str(role_changed)).gpus
        needed = width * (recipe.serving.servers or ceil(gpus / width))
        if gpus and needed != gpus:
            changes.append((f"resources.{role_changed}.gpus", needed))
    return tuple(changes)
