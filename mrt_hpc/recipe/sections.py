"""The sections of a recipe: their fields with units and ranges, and what follows from one section alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date as Date
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mrt_hpc.recipe import base
from mrt_hpc.recipe.choices import REFERENCE_MARKERS, Aggregation, Batching, Boundaries, Extraction, Precision
from mrt_hpc.recipe.kinds import (
    LOSSES,
    MODES,
    PROVERS,
    VERIFIERS,
    LossSettings,
    ModeSettings,
    ProverSettings,
    VerifierSettings,
    clipped_loss,
)

# -- data --------------------------------------------------------------------------------------------------------------


class ProblemSource(base.Section):
    """Problems with gold answers."""

    form: ClassVar[str] = "problems"
    verifier: Annotated[VerifierSettings, VERIFIERS] | None = None
    """The verifier gives an answer its reward; null is ``{type: math}``. A name alone is a verifier without further
    settings, as in ``verifier: choice``. ``module:function`` is a function of your own, of answer and gold answer, that
    returns true, false or a number from 0 to 1.
    """
    extraction: Extraction | None = None
    """The rule that finds the answer in a completion. ``after_thought`` takes the last box after the thought.
    ``any_box`` takes the last closed box anywhere, in the thought too. ``last_mathematics`` takes the last box after
    the thought, and where there is none the last formula or number. Null is after_thought. By any rule a completion
    without thinking tags has no answer if the token limit cut it.
    """


class JsonlProblems(ProblemSource):
    """Problems from a file of JSON lines, each with "id", "problem" and "answer"."""

    type: Literal["jsonl"] = "jsonl"
    path: base.PathText
    """The path of the file. A relative path starts at the recipe's folder."""
    limit: base.Items | None = None
    """The number of problems to use, from the beginning of the file; null uses all."""


SMALL_WORLD = "mrt_hpc.domains.small_world.equations:SmallWorld"
"""The class of the domain, which lies in a higher package."""


class SmallWorldProblems(ProblemSource):
    """Problems of the embedded small world."""

    domain: ClassVar[str] = SMALL_WORLD
    type: Literal["small_world"] = "small_world"
    split: Literal["train", "held_out"] = "train"
    """The split that the problems are from. The two splits share no problem."""
    problems: base.Items | None = None
    """The number of problems to use; null uses all problems of the split."""


Problems = Annotated[JsonlProblems | SmallWorldProblems, Field(discriminator="type")]


class Conversations(base.Section):
    """Conversations for supervised training, from a file of JSON lines, each with "id" and "messages", a list of
    objects with "role" and "content".
    """

    form: ClassVar[str] = "conversations"
    type: Literal["conversations"] = "conversations"
    path: base.PathText
    """The path of the file. A relative path starts at the recipe's folder."""
    limit: base.Items | None = None
    """The number of conversations to use, from the beginning of the file; null uses all."""


class Suffixes(base.Section):
    """Suffixes for supervised training, from a file of JSON lines, each with "id", "problem", "prefix" and "suffix"."""

    form: ClassVar[str] = "suffixes"
    type: Literal["suffixes"] = "suffixes"
    path: base.PathText
    """The path of the file. A relative path starts at the recipe's folder."""
    limit: base.Items | None = None
    """The number of suffixes to use, from the beginning of the file; null uses all."""


class SmallWorldSamples(base.Section):
    """Supervised samples of the embedded small world."""

    domain: ClassVar[str] = SMALL_WORLD
    type: Literal["small_world_samples"] = "small_world_samples"
    form: Literal["conversations", "suffixes"]
    """The form of the samples: conversations are whole solutions, suffixes are a careless beginning with a patient
    rest.
    """
    samples: base.Count
    """The number of samples."""


TrainingData = Annotated[
    JsonlProblems | SmallWorldProblems | Conversations | Suffixes | SmallWorldSamples, Field(discriminator="type")
]


# -- episodes ----------------------------------------------------------------------------------------------------------


class Episodes(base.Section):
    """How a thought is cut into episodes (method: reference rule)."""

    markers: tuple[base.Visible, ...] = REFERENCE_MARKERS
    """A paragraph that begins with one of these may open an episode."""
    min_paragraphs: base.Count = 3
    """The minimum number of paragraphs of a step before the next step may start."""
    max_cuts: base.NotNegative = 49
    """The maximum number of cuts per trace."""
    group_size: base.Count = 1
    """The number of consecutive steps that merge into one episode."""
    max_episodes: base.Count = 6
    """The maximum number of episodes per trace; the last one holds the rest."""


# -- expected ----------------------------------------------------------------------------------------------------------


class Expected(base.Section):
    """What the estimate of ``mrt-hpc plan`` assumes. These fields never change a run's result."""

    trace_tokens: base.Tokens | None = None
    """The mean number of tokens of a trace; null takes half of the token limit."""
    branch_tokens: base.Tokens | None = None
    """The mean number of tokens of a prover's branch; null takes 64 for an answer, and half of the limit for a
    continuation.
    """


# -- grading -----------------------------------------------------------------------------------------------------------


class Grading(base.Section):
    """The pool that compares answers with the gold answer."""

    processes: Annotated[int, Field(ge=1, le=1024)] = 1
    """The number of grader processes of an array task, on its first node."""
    time_limit_s: base.Seconds = 2.0
    """The maximum number of processor seconds for one answer. A slower answer scores 0."""
    memory_limit_gib: base.Gib = 2.0
    """The maximum memory of a grader process, GiB. An answer that needs more scores 0."""
    strict: bool = True
    """Whether an answer to a gold number must be evaluated, in training and evaluation: a sum, a factorial, a power or
    an equation of two numbers scores 0 even with the right value, and so does a fraction for an integer.
    """


# -- model -------------------------------------------------------------------------------------------------------------


class HuggingFaceModel(base.Section):
    """A model directory in Hugging Face format, with its tokenizer."""

    type: Literal["hugging_face"] = "hugging_face"
    path: base.PathText
    """The model directory, with config.json, tokenizer and safetensors; a relative path starts at the recipe's folder.
    Or ``hub:OWNER/NAME@REVISION``, a model that ``mrt-hpc model fetch`` has put into the hub's cache. A run downloads
    nothing.
    """


class SmallWorldModel(base.Section):
    """The small model that comes with the package; needs neither network nor GPU."""

    domain: ClassVar[str] = SMALL_WORLD
    type: Literal["small_world"] = "small_world"


Model = Annotated[HuggingFaceModel | SmallWorldModel, Field(discriminator="type")]


# -- prompt ------------------------------------------------------------------------------------------------------------


DEFAULT_INSTRUCTION = "\n\nReason step by step, and put your final answer within \\boxed{}."
"""Follows the problem in the prompt."""

Whole = Annotated[int, Field(ge=-(10**12), le=10**12)]
Number = Annotated[float, Field(ge=-1e12, le=1e12)]
"""The numbers that a template can write: finite, and not larger."""


class Prompt(base.Section):
    """How a problem becomes a prompt, and where its thought ends."""

    instruction: str = DEFAULT_INSTRUCTION
    """This text is appended to the problem before the model's chat template is applied."""
    thought_start: str = "<think>\n"
    """This text opens the thought. It is added after the chat template, unless the template has written it. Empty for a
    model that opens the thought itself, or writes no tags.
    """
    thought_end: str = "</think>"
    """This text closes the thought; the answer follows it. Empty, with an empty thought_start, for a model that writes
    no tags: then the completion is the thought up to where its last box opens, which holds the answer.
    """
    stop_tokens: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts of further tokens that end a completion, besides those that the model's files name. Each must be one token
    of the model's tokenizer, as ``<|im_end|>`` or ``</s>``.
    """
    chat_template: base.PathText | None = None
    """The path of a file with a chat template that replaces the model's own. A relative path starts at the recipe's
    folder.
    """
    template_variables: dict[Annotated[str, Field(pattern=base.VARIABLE)], bool | Whole | Number | str | None] = Field(
        default_factory=dict
    )
    """Variables that the chat template reads, with their values, as ``{enable_thinking: true}``. One that the model's
    template does not read is refused.
    """
    date: Date | None = None
    """The day that the chat template writes as today's, as 2025-06-30. Null is 2025-01-01: a prompt is the same on each
    day, and results of different days can be compared.
    """
    examples: base.PathText | None = None
    """The path of a file of JSON lines with solved problems for few-shot prompts, each with "id", "problem" and
    "solution". Solutions are shown unchanged. A relative path starts at the recipe's folder.
    """
    shots: Annotated[int, Field(ge=0, le=64)] = 0
    """The number of examples before each problem, as earlier turns: the first ones of the file, without the problem
    that is asked.
    """


# -- resilience --------------------------------------------------------------------------------------------------------


class Resilience(base.Section):
    """What the run does when tasks are lost, wait or fail. These fields never change a run's result."""

    retries: base.NotNegative = 3
    """The number of consecutive failures of a task without progress after which the run stops. Preemptions do not
    count.
    """
    heartbeat_limit_s: base.Seconds = 60.0
    """The number of seconds without a heartbeat after which a task counts as lost, and other tasks take
    over its work.
    """
    wait_limit_minutes: base.Minutes = 10.0
    """The number of minutes that a role waits for another role that does not run, before it returns its nodes."""
    stall_limit_minutes: base.Minutes = 720.0
    """The number of minutes that a role waits for another role that runs and finishes nothing, before it returns its
    nodes.
    """
    skipped_steps: base.Count = 3
    """The number of optimiser steps in a row that are skipped, because their loss or gradient is not finite, before the
    run ends. A skipped step changes no weights.
    """
    sampler_disagreement: Annotated[float, Field(ge=1e-6, le=100)] | None = None
    """The largest disagreement between the trainer's and the sampler's log-probabilities of the first sampled group;
    above it the run ends before any update. It is the mean absolute difference in nats a token, as a share of the
    sampler's mean negative log-likelihood where that is below one nat. null takes 0.25 where the trainer or the server
    computes in 16 bits, or with weights that were rounded to 16, and else 0.02.
    """
    full_disk_minutes: base.Minutes = 60.0
    """The number of minutes that a role waits for room on a full disk, before it returns its nodes."""


# -- resources ---------------------------------------------------------------------------------------------------------


class RoleResources(base.Section):
    """What one process of a role needs."""

    gpus: base.Gpus = 0
    """The number of GPUs of a process."""
    cpus: base.Cores = 2
    """The number of CPU cores of a process."""
    memory_gib: base.Gib = 8.0
    """The memory of a process, GiB."""
    time_limit_minutes: base.WholeMinutes = 60
    """The wall-clock limit of the job, minutes."""


class InferenceResources(RoleResources):
    """The inference array of a segment."""

    tasks: base.Count = 1
    """The number of array tasks, each with servers of its own (see serving.tensor_parallel). They share the problems of
    an iteration.
    """
    nodes: base.Nodes = 1
    """The number of nodes of a task, each with these gpus, cpus and memory_gib. Above 1 the task starts a Ray cluster
    on them: with GPUs its one server spans all of them. Answers are graded on the first node.
    """
    max_parallel: base.Count | None = None
    """The maximum number of tasks of the array that run at the same time; null leaves it to the queue. With more tasks
    than that, each task of a long collection stays within its time limit.
    """


def nodes_of(resources: RoleResources) -> int:
    """The nodes of an inference or evaluation task."""
    return resources.nodes if isinstance(resources, InferenceResources) else 1


class TrainerResources(RoleResources):
    """The trainer of a segment."""

    ranks: base.Nodes = 1
    """The number of processes; with GPUs each process has its own."""
    ranks_per_node: base.Cores | None = None
    """The number of processes of a node; null puts all on one node."""


class EvaluationResources(RoleResources):
    """The evaluation array of a segment."""

    max_parallel: base.Count | None = None
    """The maximum number of tasks of the array that run at the same time; null leaves it to the queue."""


class Resources(base.Section):
    """What each role needs."""

    prepare: RoleResources = RoleResources()
    """The first job, which makes or copies weights version 0."""
    inference: InferenceResources = InferenceResources()
    """The vLLM servers for rollouts and branches."""
    trainer: TrainerResources = TrainerResources()
    """The DeepSpeed updates."""
    evaluation: EvaluationResources = EvaluationResources()
    """The benchmarks."""
    report: RoleResources = RoleResources(cpus=1, memory_gib=4.0, time_limit_minutes=30)
    """The report and its plots."""


# -- sampling ----------------------------------------------------------------------------------------------------------


LongPrompts = Literal["refuse", "drop"]


class PromptLimits(base.Section):
    """The length of prompts."""

    max_prompt_tokens: base.Tokens = 4096
    """The maximum number of tokens of a prompt, with instruction and chat template. The first job finds longer prompts
    before anything is sampled, those of benchmarks as well.
    """
    long_prompts: LongPrompts = "refuse"
    """Whether a longer prompt stops the run (refuse), or its problem is left out of training or benchmark (drop). The
    log of the first job says how many were left out, and the run's data folder says which.
    """


class Sampling(PromptLimits):
    """The rollouts of an iteration. There is no top-p and no top-k: log-probabilities must be of the distribution
    sampled from.
    """

    problems_per_iteration: base.Count | None = None
    """The number of problems drawn for each iteration, without repetition until all have been used. Supervised
    algorithms draw sequences instead, see ``algorithm.sequences_per_iteration``.
    """
    rollouts_per_problem: base.Count = 4
    """The number of rollouts of a problem: n, the size of a group."""
    resample: Literal["none", "advantage", "outcome"] = "none"
    """Which groups are thrown away, and another problem is sampled in their place: those of which the algorithm learns
    nothing, as all advantages are 0 (advantage), or those whose rewards are all equal (outcome).
    """
    resample_limit: Annotated[int, Field(ge=2, le=100)] = 3
    """With ``resample``, the maximum number of problems that are sampled for one place of an iteration. The last one
    stays, whatever its rewards are.
    """
    temperature: base.Temperature = 0.9
    """The sampling temperature. The trainer's log-probabilities use the same."""
    max_tokens: base.Tokens
    """The maximum number of tokens of a trace. The answer of a trace that is cut here counts where the last box after
    thought_end is closed. The reward is 0 where that box is still open, where the thought has not ended, and for models
    without tags.
    """

    @property
    def problems_per_place(self) -> int:
        """The most problems that may be sampled for one group of an iteration."""
        return 1 if self.resample == "none" else self.resample_limit


# -- evaluation --------------------------------------------------------------------------------------------------------


class Benchmark(base.Section):
    """One set of problems to evaluate on."""

    former_fields: ClassVar[Mapping[str, Any]] = {"temperature": None, "top_p": None}
    name: base.Name
    """The name of the benchmark in reports and paths."""
    problems: Problems
    """The problems of the benchmark."""
    samples: base.Count = 1
    """The number of completions of a problem; pass@1 is their mean reward."""
    prompt: Prompt | None = None
    """How its problems become prompts; null takes evaluation.prompt."""
    max_tokens: base.Tokens | None = None
    """The maximum number of tokens of a completion; null takes evaluation.max_tokens."""
    mode: Annotated[ModeSettings, MODES] | None = None
    """The way of evaluating: how a completion is sampled, and at which tokens its values are asked for. null is
    ``{type: direct}``.
    """

    @property
    def boundaries(self) -> Boundaries:
        return Boundaries.EPISODES if self.mode is None else self.mode.boundaries

    @property
    def adds_stages(self) -> bool:
        """See ``ModeSettings.adds_stages``."""
        return self.mode is not None and self.mode.adds_stages


REGRET_BUDGETS = (4096, 8192, 12288, 16384)
"""The usual budgets of regret, in tokens."""


class Evaluation(base.Section):
    """The benchmarks, and how their completions are sampled."""

    suite: base.Name | None = None
    """The suite that the fields of this section come from: the name of a file in recipes/suites. Fields beside it
    replace those of the suite. null takes none.
    """
    results: base.PathText | None = None
    """The results folder. Samples of other evaluations there, with the same weights, problems and settings, are used,
    and those of this one are added. A relative path starts at the recipe's folder; null takes one in the run.
    """
    prompt: Prompt | None = None
    """How problems of benchmarks become prompts; null takes the recipe's prompt."""
    max_prompt_tokens: base.Tokens | None = None
    """The maximum number of tokens of a prompt of a benchmark; null takes sampling.max_prompt_tokens."""
    long_prompts: LongPrompts | None = None
    """Whether a longer prompt of a benchmark stops the run (refuse), or its problem is left out (drop); null takes
    sampling.long_prompts.
    """
    dtype: base.NumberFormat | None = None
    """The number format of weights and activations in the servers of evaluations; null takes serving.dtype."""
    benchmarks: tuple[Benchmark, ...] = ()
    """The benchmarks to evaluate on; an empty list turns evaluation off."""
    every: base.Count | None = None
    """The number of iterations between evaluated weights versions; null evaluates only the first and the last version.
    """
    temperature: base.SamplingTemperature = 0.6
    """The sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """The nucleus of the sampling distribution."""
    max_tokens: base.Tokens = 16384
    """The maximum number of tokens of a completion."""
    problem_shards: base.Count = 1
    """The number of array tasks that share one version and benchmark."""
    prover: Annotated[ProverSettings, PROVERS] | None = None
    """The prover that values the prefixes of evaluated traces, for normalised regret; null leaves regret out."""
    episodes: Episodes | None = None
    """The rule that cuts evaluated traces into episodes for regret. One rule makes algorithms comparable; null takes
    that of the training.
    """
    regret_budgets: tuple[base.Tokens, ...] | None = None
    """The numbers of tokens up to which regret is measured; null takes those of 4096, 8192, 12288 and 16384 that are at
    most max_tokens, or max_tokens where none is. A benchmark with its own max_tokens has those up to that.
    """
    regret_tokens: Literal["sampled", "all"] = "sampled"
    """The tokens that regret counts before a boundary: the sampled ones of the trace alone; or, as the authors count,
    all that the model reads and writes to answer there: prompt, prefix, the prover's text, and the mean length of its
    answers. Token efficiency counts that length by both.
    """

    @property
    def budgets(self) -> tuple[int, ...]:
        """Budgets of regret, in tokens. Nothing is known of traces beyond max_tokens."""
        if self.regret_budgets is not None:
            return self.regret_budgets
        within = tuple(b for b in REGRET_BUDGETS if b <= self.max_tokens or self.prover is None)
        return within or (self.max_tokens,)


@dataclass(frozen=True)
class BenchmarkSampling:
    """The prompt and the limits of one benchmark, with all defaults resolved."""

    prompt: Prompt
    temperature: float
    top_p: float
    max_tokens: int
    """The limit of a completion."""
    max_prompt_tokens: int
    long_prompts: LongPrompts
    """As in :class:`PromptLimits`."""


# -- schedule ----------------------------------------------------------------------------------------------------------


class Coupling(StrEnum):
    """How inference and trainer of a segment are queued."""

    CONCURRENT = "concurrent"
    """Both jobs start together; the trainer updates while inference samples."""
    SEQUENTIAL = "sequential"
    """The trainer starts when inference has ended: small jobs for queues where only short jobs start."""
    COLOCATED = "colocated"
    """Both are one job, and take turns on the same GPUs: for those who have one to four GPUs. While the trainer or the
    server computes, the other waits in the memory of the node.
    """


class WeightSwap(StrEnum):
    """What happens to running traces when an inference task takes over newer weights."""

    DRAIN = "drain"
    """All running traces end first, with the old weights: the longest of them holds up all others."""
    KEEP = "keep"
    """Running traces are paused while the weights are loaded, and continue with the new ones. They keep the keys and
    values that the old weights have computed.
    """
    RECOMPUTE = "recompute"
    """As ``keep``, but the new weights compute the keys and values of all tokens of a running trace again."""


class LengthStage(base.Section):
    """One step of a length curriculum."""

    first_iteration: base.NotNegative
    """The first iteration of this stage."""
    max_tokens: base.Tokens
    """The maximum number of tokens of a trace in this stage."""


class Schedule(base.Section):
    """How many iterations, and how they are cut into jobs."""

    iterations: base.Count
    """The number of iterations, N: of updates, and of weights versions after version 0."""
    iterations_per_job: base.Count
    """The number of iterations of a segment: of one pair of jobs, or of one colocated job."""
    coupling: Coupling = Coupling.CONCURRENT
    """Whether a segment's two jobs run together or one after the other, or are one job whose trainer and server take
    turns on its GPUs.
    """
    max_staleness: base.NotNegative = 0
    """The number of weights versions that the sampling policy may lag behind the trained one; 0 is strictly
    on-policy.
    """
    weight_swap: WeightSwap = WeightSwap.DRAIN
    """How inference takes over newer weights. With ``keep`` and ``recompute`` the server is never drained: the groups
    of the next iteration begin while the last traces of this one are sampled, as far as max_staleness allows. Several
    weights versions may then sample one trace; staleness counts from the oldest.
    """
    length_curriculum: tuple[LengthStage, ...] = ()
    """Shorter limits than sampling.max_tokens for the first iterations, in ascending order; empty keeps one limit
    throughout.
    """

    def max_tokens(self, iteration: int, limit: int) -> int:
        """``limit`` is ``sampling.max_tokens``, which holds where no stage does."""
        reached = [stage.max_tokens for stage in self.length_curriculum if stage.first_iteration <= iteration]
        return reached[-1] if reached else limit


# -- serving -----------------------------------------------------------------------------------------------------------


class Serving(base.Section):
    """The vLLM servers of inference and evaluation tasks."""

    former_fields: ClassVar[Mapping[str, Any]] = {"attach": None, "servers": None}
    dtype: base.NumberFormat = "bfloat16"
    """The number format of weights and activations."""
    kv_cache_gib: base.Gib = 1.0
    """The size of the key-value cache of a server on CPU, GiB."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The share of the GPU's memory that vLLM takes."""
    tensor_parallel: base.Cores | None = None
    """The number of GPUs that one server divides each layer over, for a model that does not fit one GPU. It must divide
    the model's attention heads. null is 1. A task has as many servers side by side as it has GPUs for. Without GPUs it
    has one server, which computes in as many processes. In a task of several nodes, null takes the GPUs of one node,
    and the layers are divided into as many stages as there are GPUs for.
    """
    max_concurrent_sequences: base.Count = 256
    """The maximum number of sequences in one batch of a server."""
    enforce_eager: bool = False
    """Whether to skip compilation and CUDA graphs. The server is then slower on a GPU, and starts faster."""
    start_limit_s: base.Seconds = 900.0
    """The maximum number of seconds until a server must answer after its start."""
    stall_limit_s: base.Seconds = 300.0
    """The number of seconds without a token, while there are requests, after which a server counts as hung and is
    restarted.
    """


@dataclass(frozen=True)
class ServerLayout:
    """The servers of a task on its GPUs."""

    servers: int
    tensor_parallel: int
    """GPUs that each layer is divided over; without GPUs, processes."""
    stages: int = 1
    """Consecutive parts of each server's layers."""

    @staticmethod
    def of(serving: Serving, gpus: int, nodes: int = 1) -> "ServerLayout":
        """The servers of a task; ``gpus`` is the number of each node, 0 on CPU."""
        if gpus and nodes > 1:
            width = serving.tensor_parallel or gpus
            return ServerLayout(1, width, max(1, gpus * nodes // width))
        width = serving.tensor_parallel or 1
        return ServerLayout(max(1, gpus // width), width)


# -- tracking ----------------------------------------------------------------------------------------------------------


class Tracking(base.Section):
    """Where metrics are written beside the plain files."""

    wandb: bool = False
    """Whether an offline W&B run is written, under one run id over all attempts."""
    project: base.Name = "mrt-hpc"
    """The name of the W&B project."""
    tensorboard: bool = False
    """Whether the same metrics are written as TensorBoard event files, into the folder tensorboard of the run."""


# -- training ----------------------------------------------------------------------------------------------------------


class Training(base.Section):
    """The DeepSpeed update of an iteration."""

    former_fields: ClassVar[Mapping[str, Any]] = {
        "minimum_ratio": 0.0, "betas": [0.9, 0.999], "full_weights_every": 1,
    }  # fmt: skip
    learning_rate: base.LearningRate
    """The peak learning rate of AdamW."""
    warmup_ratio: base.Share = 0.1
    """The share of all optimiser steps over which the learning rate rises linearly to its peak. The first step has a
    rate above 0.
    """
    warmup_steps: base.NotNegative | None = None
    """The number of optimiser steps of that rise; null takes the share of warmup_ratio. A run whose number of
    iterations changes keeps the steps that it began with, and writes them here.
    """
    schedule: Literal["cosine", "constant"] = "cosine"
    """The course of the learning rate after the warm-up. The cosine ends at 0, one optimiser step beyond the last one,
    so that the last step still learns.
    """
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.01
    """The decoupled weight decay of AdamW."""
    gradient_clip: base.Norm = 1.0
    """The maximum global norm of the gradients; larger gradients are scaled down to it."""
    loss: Annotated[LossSettings, LOSSES] = Field(default_factory=clipped_loss)
    """What each trained token of a rollout adds to the loss. The default is ``{type: clipped}``."""
    aggregation: Aggregation = Aggregation.TOKEN
    """The divisor of the loss of rollouts. The KL term has the same."""
    overlong: Literal["keep", "mask", "penalise"] = "keep"
    """What becomes of traces that reach the token limit: they are learnt as others (keep); they are left out of the
    loss, and their rewards stay in the baseline (mask); or their reward falls over the last tokens before the limit
    (penalise).
    """
    overlong_buffer: base.Tokens | None = None
    """With ``overlong: penalise``, the number of tokens before the limit over which the reward falls by one half."""
    clip_low: base.Share = 0.2
    """The importance ratio is clipped below 1 minus this value."""
    clip_high: Annotated[float, Field(gt=0, le=100)] = 0.2
    """The importance ratio is clipped above 1 plus this value."""
    importance_cap: Annotated[float, Field(ge=1, le=1e6)] = 2.0
    """The maximum importance weight between the trainer's and vLLM's distributions; larger ones are truncated."""
    kl_coefficient: Annotated[float, Field(ge=0, le=100)] = 0.0
    """The weight of KL(policy || weights version 0), the divergence of the trained policy from the first one, given
    each token's prefix. With 0 no reference model is loaded.
    """
    optimizer_steps_per_iteration: base.Count = 1
    """The number of mini-batches that the batch is split into, with one optimiser step each."""
    precision: Precision = Precision.BF16
    """The number format of the trainer."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 3
    """The DeepSpeed ZeRO stage, which says what is partitioned over the ranks: 1 the optimiser, 2 gradients as well, 3
    weights as well.
    """
    offload_optimizer: bool = False
    """Whether the optimiser's states and its 32-bit weights are kept in the memory of the CPU, where it takes its
    steps. A larger model then fits on the GPUs, and a step takes longer. It needs zero_stage 1 or higher, and 12 bytes
    of the memory of resources.trainer for each parameter. Results agree up to rounding.
    """
    max_tokens_per_micro_batch: base.Tokens = 16384
    """The maximum number of tokens of a micro-batch, padding included; tokens computed once for several sequences count
    once. A longer sequence gets its own micro-batch.
    """
    batching: Batching = Batching.PADDED
    """How sequences share a micro-batch. Results agree up to rounding. A model that computes sequences in one row
    otherwise than each alone gets padded rows, and the trainer's log says so.
    """
    sequence_parallel: base.Nodes = 1
    """The number of ranks that share each micro-batch, for traces whose activations do not fit one GPU: each computes
    an equal part of its positions, and attention of an equal part of the heads. It must divide resources.trainer.ranks
    and the model's attention heads, and takes batching packed or shared. Results agree up to rounding.
    """
    projection: Literal["chunked", "fused"] = "chunked"
    """How hidden states become log-probabilities. ``chunked`` keeps the logits of a micro-batch for the backward pass,
    or computes them in pieces where they are many. ``fused`` keeps one number a token, and computes the gradient in
    pieces by its formula: less memory, and fewer passes over the logits. Results agree up to rounding.
    """
    entropy: bool = True
    """Whether the entropy of the policy is measured. It takes more passes over all logits, and changes no weight."""
    weights_dtype: base.NumberFormat = "bfloat16"
    """The number format of the published weights versions."""
    gradient_checkpointing: bool = True
    """Whether activations are computed again in the backward pass, which saves memory."""
    deterministic: bool | None = None
    """Whether to use only kernels that give the same bits each time, so that a resumed run repeats an unbroken one. An
    operation without such a kernel is then an error. null is on for CPU, where it costs nothing, and off on GPU, where
    the backward passes of attention and of the embedding become slower and cuBLAS keeps a workspace of its own.
    """
    checkpoint_every: base.Count = 1
    """The number of iterations between two checkpoints. A trainer that is lost computes at most so many again."""
    keep_checkpoints: base.Count = 2
    """The number of checkpoints that stay on disk."""
    keep_weights: Annotated[int, Field(ge=2, le=1_000_000)] = 3
    """The number of the newest weights versions that stay on disk. Versions to be evaluated stay in any case."""
