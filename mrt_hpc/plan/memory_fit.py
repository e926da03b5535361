"""Whether each role fits its memory: the site's GPUs, or ``memory_gib`` without a GPU.

All is arithmetic on config.json and the recipe. Without the model nothing is checked, and a sentence says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan import memory
from mrt_hpc.plan.hours import BYTES, PROMPT_TOKENS, sequence_tokens
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.hub_models import not_fetched
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.sections import HuggingFaceModel, RoleResources, ServerLayout, nodes_of
from mrt_hpc.recipe.site import SiteSettings

TIGHT = 0.9
"""Share of memory above which a role may fail: estimates are right within some 15 %."""
CPU_LIBRARIES_GIB = 0.75
"""Of a CPU trainer before it loads a model: torch, DeepSpeed and transformers."""
GPU_LIBRARIES_GIB = 1.7
"""Of a GPU beside the trainer's tensors: CUDA context and NCCL buffers, measured with one rank on an H100. A colocated
trainer keeps it while the server has the GPU.
"""
SLEEPING_SERVER_GIB = 3.0
"""The same and CUDA graphs, left by a colocated server while the trainer has the GPU; not measured."""
KV_CACHE = "serving.kv_cache_gib"
HOST_LIBRARIES_GIB = 4.0
"""Node memory of a GPU trainer before it loads a model."""


@dataclass(frozen=True)
class RoleFit:
    """The memory of one process at its peak, GiB."""

    role: Role
    name: str
    """Role and part."""
    place: str
    """GPU or memory."""
    parts: dict[str, float]
    """GiB by purpose, in total what is needed."""
    needed: float
    """Least that the process must get."""
    limit: float
    source: str
    """Of the limit, in words."""
    known: bool = True
    """The limit is stated, not assumed."""
    note: str = ""
    """Sequences that the cache holds."""

    @property
    def share(self) -> float:
        """Needed share of the limit."""
        return self.needed / self.limit

    @property
    def fits(self) -> bool:
        return self.needed <= self.limit


@dataclass(frozen=True)
class Fits:
    """Known memory needs of a recipe on a site."""

    roles: tuple[RoleFit, ...]
    unchecked: tuple[str, ...] = ()
    """What was not checked and why, a sentence each."""

    @property
    def refused_roles(self) -> list[RoleFit]:
        """Cannot fit a stated limit."""
        return [role for role in self.roles if not role.fits and role.known]

    @property
    def doubtful(self) -> list[RoleFit]:
        """Tight, or beyond an assumed limit."""
        return [role for role in self.roles if role.needed > TIGHT * role.limit and (role.fits or not role.known)]


def fits(recipe: Experiment, site: SiteSettings) -> Fits:
    """Each role's memory."""
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
        UnknownShapeError: it is missing, or of an unknown kind.
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
    """The shape of the existing evaluated model that takes most memory."""
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
    on_gpu = resources.gpus > 0
    setting = memory.TrainerSetting(
        training, policy_shape(recipe), resources.ranks, recipe.algorithm.cost(recipe, 0).longest, on_gpu=on_gpu
    )
    taken = memory.trainer_memory(setting)
    # A CPU process keeps small freed blocks: about as much as its activations took.
    on_cpu = CPU_LIBRARIES_GIB * memory.GIB + memory.activation_bytes(setting)
    libraries = GPU_LIBRARIES_GIB * memory.GIB if setting.on_gpu else on_cpu
    parts = {
        "weights": taken.weights,
        "optimiser": taken.optimizer,
        "gradients": taken.gradients,
        "exchange": taken.exchange,
        "activations": taken.activations,
        "logits": taken.logits,
        "other": libraries + (SLEEPING_SERVER_GIB * memory.GIB if setting.on_gpu and _takes_turns(recipe) else 0.0),
    }
    yield _fit(Role.TRAINER, "trainer", parts, resources, gpu=gpu if setting.on_gpu else None)
    if setting.on_gpu and (taken.host or _takes_turns(recipe)):
        yield _fit(Role.TRAINER, "trainer, off the GPU", _host_parts(recipe, setting, taken), resources)


def _host_parts(recipe: Recipe, setting: memory.TrainerSetting, taken: memory.TrainerMemory) -> dict[str, float]:
    """Node memory of a GPU trainer: an offloaded optimiser, all state while a colocated server has the GPU, and weights
    being published.
    """
    published = BYTES[recipe.training.weights_dtype] * setting.shape.parameters
    waiting = _takes_turns(recipe)
    return {
        "weights": published + (taken.weights if waiting else 0.0),
        "optimiser": taken.host + (taken.optimizer if waiting else 0.0),
        "gradients": taken.gradients if waiting else 0.0,
        "other": HOST_LIBRARIES_GIB * memory.GIB,
    }


def _takes_turns(recipe: Experiment) -> bool:
    return recipe.is_colocated and recipe.resources.trainer.gpus > 0


def _fit(
    role: Role,
    name: str,
    parts: dict[str, float],
    resources: RoleResources,
    note: str = "",
    gpu: memory.GpuMemory | None = None,
) -> RoleFit:
    """A process that takes what it needs of node memory, or of a GPU."""
    in_gib = {part: value / memory.GIB for part, value in parts.items()}
    place = "memory" if gpu is None else "GPU"
    limit = gpu or memory.GpuMemory(resources.memory_gib, f"resources.{role}.memory_gib")
    return RoleFit(role, name, place, in_gib, sum(in_gib.values()), limit.gib, limit.source, limit.known, note)


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
    """Of memory for serving."""


def _inference(recipe: Experiment, gpu: memory.GpuMemory) -> Iterator[RoleFit]:
    if not isinstance(recipe, Recipe) or not recipe.samples_traces:
        return
    prover, width = recipe.prover, BYTES[recipe.serving.dtype]
    longest, mean = recipe.longest_in_training, sequence_tokens(recipe, recipe.schedule.iterations)
    share = 0.0 if prover is None or prover.model is None else prover.memory_share
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
    """One task's servers: each has a share of GPUs, or all share the task's memory."""
    layout, serving = ServerLayout.of(recipe.serving, resources.gpus, nodes_of(resources)), recipe.serving
    gpus, stages = (layout.tensor_parallel, layout.stages) if resources.gpus else (0, 1)
    gib, batch = serving.kv_cache_gib, serving.max_concurrent_sequences
    if gpus:
        gib = gpu.gib * serving.gpu_memory_utilization
    memories = []
    for s in servers:
        sizes = s.shape, s.width, s.longest, min(s.mean, s.longest)
        setting = memory.ServerSetting(*sizes, batch, gpus, gib * s.share * memory.GIB, stages)
        memories.append((s, memory.server_memory(setting)))
    if not resources.gpus:
        yield from _servers_on_node(role, memories, resources)
        return
    for server, taken in memories:
        limit = gib * server.share
        limit -= max(0.0, limit + GPU_LIBRARIES_GIB - gpu.gib) if _takes_turns(recipe) else 0.0
        source = f"serving.gpu_memory_utilization of {gpu.gib:g} GiB ({gpu.source})"
        # With one longest sequence's cache, the parts add up to the least.
        parts = {"weights": taken.weights, "activations": taken.activations, "KV cache": taken.longest}
        in_gib = {part: value / memory.GIB for part, value in {**parts, "other": taken.overhead}.items()}
        note = _note(server, taken)
        yield RoleFit(role, server.name, "GPU", in_gib, taken.least / memory.GIB, limit, source, gpu.known, note)
    if role is Role.INFERENCE and _takes_turns(recipe):
        asleep = layout.servers * layout.tensor_parallel * layout.stages * sum(taken.weights for _, taken in memories)
        parts = {"weights": asleep, "other": HOST_LIBRARIES_GIB * memory.GIB}
        yield _fit(role, "inference, asleep", parts, resources)


def _servers_on_node(
    role: Role, memories: list[tuple[_Server, memory.ServerMemory]], resources: RoleResources
) -> Iterator[RoleFit]:
    """The servers of a task without a GPU."""
    notes = "; ".join(_note(server, taken) for server, taken in memories)
    parts = {
        "weights": sum(taken.weights for _, taken in memories),
        "KV cache": sum(taken.cache for _, taken in memories),
        "other": sum(taken.overhead for _, taken in memories),
    }
    yield _fit(role, str(role), parts, resources, notes)
    for server, taken in memories:
        if taken.longest > taken.cache:
            needed, limit = taken.longest / memory.GIB, taken.cache / memory.GIB
            name = f"{server.name}, KV cache"
            yield RoleFit(role, name, "memory", {"KV cache": needed}, needed, limit, KV_CACHE)


def _note(server: _Server, taken: memory.ServerMemory) -> str:
    shorter = f", or {taken.capacity(taken.mean):,} of {server.mean:,.0f}" if server.mean < server.longest else ""
    return (
        f"{server.name}: the KV cache has {max(0.0, taken.cache) / memory.GIB:.1f} GiB and holds "
        f"{taken.capacity(taken.longest):,} sequences of {server.longest:,} tokens at once{shorter}"
    )


# -- the refusal ------------------------------------------------------------------------------------------------------


DECIDING = {
    Role.TRAINER: Advice(
        "training.max_tokens_per_micro_batch, training.gradient_checkpointing, training.projection, "
        "training.zero_stage, training.offload_optimizer, training.sequence_parallel and resources.trainer.ranks"
    ),
    Role.INFERENCE: Advice(
        "serving.gpu_memory_utilization, serving.tensor_parallel with resources.inference.gpus, and sampling.max_tokens"
    ),
    Role.EVALUATION: Advice(
        "serving.gpu_memory_utilization, serving.tensor_parallel with resources.evaluation.gpus, and "
        "evaluation.max_tokens"
    ),
}
"""Settings beside the model that decide the memory of a GPU process."""


def refuse_unfit(recipe: Experiment, site: SiteSettings) -> None:
    """Refuse roles that cannot fit; names need and deciding settings."""
    if refused := fits(recipe, site).refused_roles:
        raise unfit(refused[0], recipe)


def unfit(role: RoleFit, recipe: Experiment) -> UserError:
    largest = max(role.parts, key=lambda part: role.parts[part] if part != "KV cache" or len(role.parts) == 1 else 0.0)
    taken = "GPU memory" if role.place == "GPU" else "memory"
    return UserError(
        f"{role.name} does not fit: it needs {role.needed:.1f} GiB of the {taken} of a process, "
        f"{role.parts[largest]:.1f} GiB of it for {largest}",
        value=f"{role.needed:.1f} GiB",
        where=f"resources.{role.role}",
        expected=f"at most {role.limit:.1f} GiB: {role.source}",
        advice=_advice(role, recipe),
    )


def _advice(role: RoleFit, recipe: Experiment) -> Advice:
    """More memory where the recipe states the limit, or deciding settings."""
    command = Advice("mrt-hpc plan RECIPE" if isinstance(recipe, Recipe) else "the same eval command")
    if role.place == "memory":
        stated = recipe.serving.kv_cache_gib if role.source == KV_CACHE else role.limit
        setting = f"{role.source}={ceil(stated * role.share / TIGHT)}"
        command = Advice("{command} --set {setting}", command=command, setting=setting)
        if role.role is not Role.TRAINER:
            return command
        command = Advice("{command}, or", command=command)
    return Advice(
        "{command} with --set SETTING=VALUE for {deciding}; mrt-hpc fields SETTING: what each does",
        command=command,
        deciding=DECIDING[role.role],
    )
