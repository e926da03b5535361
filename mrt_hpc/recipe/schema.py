"""The recipe: everything that decides a run's result, strictly checked, every field with its unit.

What decides only where and how fast it runs (partitions, accounts, modules) is the site's, see
:mod:`mrt_hpc.recipe.site`. Unknown fields and wrong types are errors; combinations that make no sense are refused here
with the reason, before anything is submitted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from mrt_hpc.recipe.algorithm import AlgorithmSettings, check_refresh
from mrt_hpc.recipe.base import Count, Line, Name, NotNegative, Positive, PositiveFloat, Section, Share, misfit
from mrt_hpc.recipe.batching import Batching, Precision
from mrt_hpc.recipe.combinations import (
    colocation_fits,
    data_fit,
    evaluation_fits,
    extraction_fits,
    grading_fits,
    prompt_fits,
    prover_fits,
    sampling_fits,
    serving_fits,
    training_fits,
    verifiers_fit,
    weights_fit,
)
from mrt_hpc.recipe.extraction import Extraction
from mrt_hpc.recipe.mode import ModeSettings
from mrt_hpc.recipe.prompts import DEFAULT_INSTRUCTION, REFERENCE_MARKERS
from mrt_hpc.recipe.prover import ProverSettings
from mrt_hpc.recipe.registry import ALGORITHMS, MODES, PROVERS, VERIFIERS
from mrt_hpc.recipe.resources import Resources
from mrt_hpc.recipe.verifier import VerifierSettings

NumberFormat = Literal["float32", "bfloat16", "float16"]
LongPrompts = Literal["refuse", "drop"]

# -- model ------------------------------------------------------------------------------------------------------------


class HuggingFaceModel(Section):
    """A model directory in Hugging Face format, with its tokenizer."""

    type: Literal["hugging_face"] = "hugging_face"
    path: str
    """The model directory, with config.json, tokenizer and safetensors; a relative path starts at the recipe's folder.
    Or ``hub:OWNER/NAME@REVISION``, a model that ``mrt-hpc model fetch`` has put into the hub's cache. A run downloads
    nothing.
    """


class SmallWorldModel(Section):
    """The embedded small model, made and warm-started by the run's first job; needs neither network nor GPU."""

    type: Literal["small_world"] = "small_world"
    warm_start_steps: Count | None = None
    """The number of optimiser steps of the supervised warm start; null takes the small world's own number."""
    answer_forms: Positive = 1
    """The number of ways in which the model learns to write an answer (7, 8-1, 9-2, ...). With more than one, only a
    verifier knows which texts are right.
    """


Model = Annotated[HuggingFaceModel | SmallWorldModel, Field(discriminator="type")]


# -- data -------------------------------------------------------------------------------------------------------------


class ProblemSource(Section):
    """Problems with gold answers."""

    form: ClassVar[str] = "problems"
    verifier: Annotated[VerifierSettings, VERIFIERS] | None = None
    """The verifier decides whether an answer is right; null is ``{type: math}``. A name alone is a verifier without
    further settings, as in ``verifier: choice``. ``module:function`` is a function of your own, of answer and gold
    answer, that returns true or false.
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
    path: str
    """The path of the file. A relative path starts at the recipe's folder."""
    limit: Positive | None = None
    """The number of problems to use, from the beginning of the file; null uses all."""


class SmallWorldProblems(ProblemSource):
    """Problems of the embedded small world."""

    type: Literal["small_world"] = "small_world"
    split: Literal["train", "held_out"] = "train"
    """The split that the problems are from. The two splits share no problem."""
    problems: Positive | None = None
    """The number of problems to use; null uses all problems of the split."""


Problems = Annotated[JsonlProblems | SmallWorldProblems, Field(discriminator="type")]


class Conversations(Section):
    """Conversations for supervised training, from a file of JSON lines, each with "id" and "messages", a list of
    objects with "role" and "content".
    """

    form: ClassVar[str] = "conversations"
    type: Literal["conversations"] = "conversations"
    path: str
    """The path of the file. A relative path starts at the recipe's folder."""
    limit: Positive | None = None
    """The number of conversations to use, from the beginning of the file; null uses all."""


class Suffixes(Section):
    """Suffixes for supervised training, from a file of JSON lines, each with "id", "problem", "prefix" and "suffix"."""

    form: ClassVar[str] = "suffixes"
    type: Literal["suffixes"] = "suffixes"
    path: str
    """The path of the file. A relative path starts at the recipe's folder."""
    limit: Positive | None = None
    """The number of suffixes to use, from the beginning of the file; null uses all."""


class SmallWorldSamples(Section):
    """Supervised samples of the embedded small world."""

    type: Literal["small_world_samples"] = "small_world_samples"
    form: Literal["conversations", "suffixes"]
    """The form of the samples: conversations are whole solutions, suffixes are a careless beginning with a patient
    rest.
    """
    samples: Count
    """The number of samples."""


TrainingData = Annotated[
    JsonlProblems | SmallWorldProblems | Conversations | Suffixes | SmallWorldSamples, Field(discriminator="type")
]


class Prompt(Section):
    """How a problem becomes a prompt, and where its thought ends."""

    instruction: str = DEFAULT_INSTRUCTION
    """This text is appended to the problem before the model's chat template is applied."""
    thought_start: str = "<think>\n"
    """This text opens the thought. It is added after the chat template, unless the template has written it. It is empty
    for a model that opens the thought itself, or writes no tags.
    """
    thought_end: str = "</think>"
    """This text closes the thought; the answer follows it. It is empty, with an empty thought_start, for a model that
    writes no tags: then the completion is the thought up to where its last box opens, which holds the answer.
    """
    stop_tokens: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts of further tokens that end a completion, besides those that the model's own files name. Each must be one
    token of the model's tokenizer, as ``<|im_end|>`` or ``</s>`` is.
    """
    chat_template: str | None = None
    """The path of a file with a chat template that replaces the model's own. A relative path starts at the recipe's
    folder.
    """
    examples: str | None = None
    """The path of a file of JSON lines with solved problems for few-shot prompts, each with "id", "problem" and
    "solution". A solution is shown as it stands there. A relative path starts at the recipe's folder.
    """
    shots: Annotated[int, Field(ge=0, le=64)] = 0
    """The number of examples before each problem, as earlier turns: the first ones of the file. An example with the
    problem that is asked is passed over.
    """


# -- method -----------------------------------------------------------------------------------------------------------


class Episodes(Section):
    """How a thought is cut into episodes (method: reference rule)."""

    markers: tuple[str, ...] = REFERENCE_MARKERS
    """A paragraph that begins with one of these may open an episode."""
    min_paragraphs: Positive = 3
    """The minimum number of paragraphs between two cuts."""
    max_cuts: NotNegative = 49
    """The maximum number of cuts per trace."""
    group_size: Count = 1
    """The number of consecutive steps that merge into one episode."""
    max_episodes: Positive = 6
    """The maximum number of episodes per trace; the last one holds the rest."""


# -- sampling, serving, grading
# -----------------------------------------------------------------------------------------


class PromptLimits(Section):
    """The length of prompts."""

    max_prompt_tokens: Positive = 4096
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

    problems_per_iteration: Count | None = None
    """The number of problems drawn for each iteration, without repetition until all have been used. Supervised
    algorithms draw sequences instead, see ``algorithm.sequences_per_iteration``.
    """
    rollouts_per_problem: Count = 4
    """The number of rollouts of a problem: n, the size of a group."""
    temperature: PositiveFloat = 0.9
    """The sampling temperature. The trainer's log-probabilities use the same."""
    max_tokens: Positive
    """The maximum number of tokens of a trace. The answer of a trace that is cut here counts where the last box after
    thought_end is closed. The reward is 0 where that box is still open, where the thought has not ended, and for models
    without tags.
    """


class ServerAttachment(Section):
    """A vLLM server that `mrt-hpc serve` has started, for one inference task at a time."""

    address: Line
    """The address where the server listens: ``http://HOST:PORT``, or ``unix:PATH`` of a socket on the node of the task.
    """
    key_file: str
    """The file that holds the server's key; `mrt-hpc serve` writes it. A relative path starts at the recipe's folder.
    """


class Serving(Section):
    """The vLLM servers of inference and evaluation tasks."""

    dtype: NumberFormat = "bfloat16"
    """The number format of weights and activations."""
    kv_cache_gib: PositiveFloat = 1.0
    """The size of the key-value cache of a server on CPU, GiB."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The share of the GPU's memory that vLLM takes."""
    tensor_parallel: Positive | None = None
    """The number of GPUs that one server divides each layer of the model over; null divides the task's GPUs evenly
    among its servers. It must divide the model's attention heads. Without GPUs, null is 1, and a server of more
    computes in as many processes. In a task of several nodes, null takes the GPUs of one node, and the layers are
    divided into as many stages as there are GPUs for.
    """
    servers: Positive | None = None
    """The number of servers side by side in one task; each has tensor_parallel GPUs of its own, and a group of rollouts
    stays on one of them. null takes as many as the task has GPUs for; without GPUs, null is 1, and the servers share
    the task's cores.
    """
    max_concurrent_sequences: Positive = 256
    """The maximum number of sequences in one batch of a server."""
    enforce_eager: bool = False
    """Whether to skip compilation and CUDA graphs. The server is then slower on a GPU, and starts faster."""
    attach: ServerAttachment | None = None
    """A vLLM server that runs already and that the inference task uses in place of one of its own; null starts one.
    Servers of evaluations, and of a prover with a model of its own, are started in any case.
    """
    start_limit_s: PositiveFloat = 900.0
    """The maximum number of seconds until a server must answer after its start."""
    stall_limit_s: PositiveFloat = 300.0
    """The number of seconds without a token, while there are requests, after which a server counts as hung and is
    started again.
    """


class Grading(Section):
    """The pool that compares answers with the gold answer."""

    processes: Annotated[int, Field(ge=1, le=1024)] = 1
    """The number of grader processes of an array task, on each of its nodes."""
    time_limit_s: PositiveFloat = 2.0
    """The maximum number of processor seconds for one answer. A slower answer scores 0."""
    memory_limit_gib: PositiveFloat = 2.0
    """The maximum memory of a grader process, GiB. An answer that needs more scores 0."""
    strict: bool = True
    """Whether an answer to a gold number must be evaluated, in training and evaluation: a sum, a factorial, a power or
    an equation of two numbers scores 0 even where it comes to the right value, and so does a fraction for an integer.
    """


# -- training ---------------------------------------------------------------------------------------------------------


class Training(Section):
    """The DeepSpeed update of an iteration."""

    learning_rate: PositiveFloat
    """The peak learning rate of AdamW."""
    warmup_ratio: Share = 0.1
    """The share of all optimiser steps over which the learning rate rises linearly to its peak. The first step has a
    rate above 0.
    """
    warmup_steps: NotNegative | None = None
    """The number of optimiser steps of that rise; null takes the share that warmup_ratio gives. A run that is given
    another number of iterations keeps the steps that it began with, and writes them here.
    """
    schedule: Literal["cosine", "constant"] = "cosine"
    """The course of the learning rate after the warm-up."""
    minimum_ratio: Share = 0.0
    """The end of the cosine, as a share of the peak. The cosine ends one optimiser step beyond the last one, so that
    the last step still learns.
    """
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """The decoupled weight decay of AdamW."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """The two betas of AdamW."""
    gradient_clip: PositiveFloat = 1.0
    """The maximum global norm of the gradients; larger gradients are scaled down to it."""
    clip_low: Share = 0.2
    """The importance ratio is clipped below 1 minus this value."""
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    """The importance ratio is clipped above 1 plus this value."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """The maximum of the importance weight between the trainer's and vLLM's distributions; larger weights are
    truncated.
    """
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """The weight of the KL divergence to weights version 0. With 0 no reference model is loaded."""
    optimizer_steps_per_iteration: Count = 1
    """The number of mini-batches that the batch is split into, with one optimiser step each."""
    precision: Precision = Precision.BF16
    """The number format of the trainer."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 3
    """The DeepSpeed ZeRO stage. It says what is partitioned over the ranks: 1 the optimiser, 2 gradients as well, 3
    weights as well.
    """
    offload_optimizer: bool = False
    """Whether the optimiser's states and its 32-bit weights are kept in the memory of the CPU, where it takes its
    steps. A larger model then fits on the GPUs, and a step takes longer. It needs zero_stage 1 or higher, and 12 bytes
    of the memory of resources.trainer for each parameter. Results with and without it agree up to rounding.
    """
    max_tokens_per_micro_batch: Positive = 16384
    """The maximum number of tokens of a micro-batch, padding included; tokens that are computed once for several
    sequences count once. A longer sequence gets a micro-batch of its own.
    """
    batching: Batching = Batching.PADDED
    """How sequences share a micro-batch. Results agree up to rounding."""
    sequence_parallel: Positive = 1
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
    weights_dtype: NumberFormat = "bfloat16"
    """The number format of the published weights versions."""
    gradient_checkpointing: bool = True
    """Whether activations are computed again in the backward pass, which saves memory."""
    deterministic: bool | None = None
    """Whether to use only kernels that give the same bits each time, so that a resumed run repeats an unbroken one. An
    operation that has no such kernel is then an error. null is on for CPU, where it costs nothing, and off on GPU,
    where the backward passes of attention and of the embedding become slower and cuBLAS keeps a workspace of its own.
    """
    checkpoint_every: Positive = 1
    """The number of iterations between two checkpoints. A trainer that is lost computes at most so many again."""
    keep_checkpoints: Positive = 2
    """The number of checkpoints that stay on disk."""
    keep_weights: Annotated[int, Field(ge=2)] = 3
    """The number of the newest weights versions that stay on disk. Versions to be evaluated stay in any case."""
    full_weights_every: Positive = 1
    """The number of weights versions from one that is published as a whole model to the next. Those between hold only
    what has changed since the version before, to the bit; inference tasks put them together. 1 publishes whole models
    only. Versions that are evaluated, sample traces or end a segment are whole models in any case.
    """


# -- schedule, evaluation, resources
# ------------------------------------------------------------------------------------


class Coupling(StrEnum):
    """How inference and trainer of a segment are queued."""

    CONCURRENT = "concurrent"
    """Both start together and work hand in hand."""
    SEQUENTIAL = "sequential"
    """The trainer starts when inference has ended: small jobs for queues where only short jobs start."""
    COLOCATED = "colocated"
    """Both are one job on the same GPUs, which they use by turns: for those who have one to four GPUs. Trainer and
    server leave the memory of the GPUs to each other: each waits in the memory of the node while the other computes.
    """


class WeightSwap(StrEnum):
    """What happens to traces that are being sampled when an inference task takes over a newer weights version."""

    DRAIN = "drain"
    """All running traces end first, with the old weights: the longest of them holds up all others."""
    KEEP = "keep"
    """Running traces are paused while the weights are loaded, and continue with the new ones. They keep the keys and
    values of their tokens, which the old weights have computed.
    """
    RECOMPUTE = "recompute"
    """As ``keep``, but the new weights compute the keys and values of all tokens of a running trace again."""


class LengthStage(Section):
    """One step of a length curriculum."""

    first_iteration: NotNegative
    """The first iteration of this stage."""
    max_tokens: Positive
    """The maximum number of tokens of a trace in this stage."""


class Schedule(Section):
    """How many iterations, and how they are cut into jobs."""

    iterations: Count
    """The number of iterations, N: of updates, and of weights versions after version 0."""
    iterations_per_job: Count
    """The number of iterations of a segment, that is of one pair of jobs, or of one colocated job."""
    coupling: Coupling = Coupling.CONCURRENT
    """Whether a segment's two jobs run together or one after the other, or are one job that uses its GPUs by turns."""
    max_staleness: NotNegative = 0
    """The number of weights versions that the sampling policy may lag behind the trained one; 0 is strictly on-policy.
    """
    weight_swap: WeightSwap = WeightSwap.DRAIN
    """How inference takes over newer weights. With ``keep`` and ``recompute`` the server is never drained: the groups
    of the next iteration begin while the last traces of this one are sampled, as far as max_staleness allows, and one
    trace may be sampled by several weights versions. Staleness counts from the oldest of them.
    """
    length_curriculum: tuple[LengthStage, ...] = ()
    """Shorter limits than sampling.max_tokens for the first iterations, in ascending order; empty keeps one limit
    throughout.
    """

    def max_tokens(self, iteration: int, limit: int) -> int:
        """The limit of an iteration.

        Args:
            iteration: which.
            limit: ``sampling.max_tokens``, which holds where no stage does.
        """
        reached = [stage.max_tokens for stage in self.length_curriculum if stage.first_iteration <= iteration]
        return reached[-1] if reached else limit


class Resilience(Section):
    """What the run does when tasks are lost, wait or fail. These fields never change a run's result."""

    retries: NotNegative = 3
    """The number of consecutive failures without progress after which a task is not retried and the run stops.
    Preemptions do not count.
    """
    heartbeat_limit_s: PositiveFloat = 60.0
    """The number of seconds without a heartbeat after which a task counts as lost and other tasks take over its work.
    """
    wait_limit_minutes: PositiveFloat = 10.0
    """The number of minutes that a role waits for another role that does not run, before it returns its nodes."""
    stall_limit_minutes: PositiveFloat = 720.0
    """The number of minutes that a role waits for another role that runs and finishes nothing, before it returns its
    nodes.
    """
    full_disk_minutes: PositiveFloat = 60.0
    """The number of minutes that a role waits for room on a full disk, before it returns its nodes."""


class Benchmark(Section):
    """One set of problems to evaluate on."""

    name: Name
    """The name of the benchmark in reports and paths."""
    problems: Problems
    """The problems of the benchmark."""
    samples: Count = 1
    """The number of completions of a problem; pass@1 is their mean reward."""
    prompt: Prompt | None = None
    """How its problems become prompts; null takes evaluation.prompt."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """The sampling temperature; null takes evaluation.temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """The nucleus of the sampling distribution; null takes evaluation.top_p."""
    max_tokens: Positive | None = None
    """The maximum number of tokens of a completion; null takes evaluation.max_tokens."""
    mode: Annotated[ModeSettings, MODES] | None = None
    """The way of evaluating: how a completion is sampled, and at which tokens its values are asked for. null is
    ``{type: direct}``.
    """


class Evaluation(Section):
    """The benchmarks, and how their completions are sampled."""

    suite: Name | None = None
    """The suite that the fields of this section come from: the name of a file in recipes/suites. Fields that stand
    beside it replace those of the suite. null takes none.
    """
    results: str | None = None
    """The results folder. What other evaluations with the same weights, problems and settings have sampled there is
    used, and what this one samples is added. A relative path starts at the recipe's folder; null uses none.
    """
    prompt: Prompt | None = None
    """How problems of benchmarks become prompts; null takes the recipe's prompt."""
    max_prompt_tokens: Positive | None = None
    """The maximum number of tokens of a prompt of a benchmark; null takes sampling.max_prompt_tokens."""
    long_prompts: LongPrompts | None = None
    """Whether a longer prompt of a benchmark stops the run (refuse), or its problem is left out (drop); null takes
    sampling.long_prompts.
    """
    dtype: NumberFormat | None = None
    """The number format of weights and activations in the servers of evaluations; null takes serving.dtype."""
    benchmarks: tuple[Benchmark, ...] = ()
    """The benchmarks to evaluate on; an empty list turns evaluation off."""
    every: Positive | None = None
    """The number of iterations between evaluated weights versions; null evaluates only the first and the last version.
    """
    temperature: Annotated[float, Field(ge=0)] = 0.6
    """The sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """The nucleus of the sampling distribution."""
    max_tokens: Positive = 16384
    """The maximum number of tokens of a completion."""
    problem_shards: Positive = 1
    """The number of array tasks that share one version and benchmark."""
    prover: Annotated[ProverSettings, PROVERS] | None = None
    """The prover that values the prefixes of evaluated traces, for normalised regret; null leaves regret out."""
    episodes: Episodes | None = None
    """The rule that cuts evaluated traces into episodes for regret. One rule makes algorithms comparable; null takes
    that of the training.
    """
    regret_budgets: tuple[Positive, ...] = (4096, 8192, 12288, 16384)
    """The numbers of tokens up to which regret is measured."""
    regret_tokens: Literal["sampled", "all"] = "sampled"
    """The tokens that regret counts before a boundary: the sampled ones of the trace alone; or all that the model reads
    and writes to answer there, as the authors count: prompt, prefix, the prover's text, and the mean length of its
    answers.
    """


class Expected(Section):
    """What the estimate of ``mrt-hpc plan`` assumes. These fields never change a run's result."""

    trace_tokens: Positive | None = None
    """The mean number of tokens of a trace; null takes half of the token limit."""
    branch_tokens: Positive | None = None
    """The mean number of tokens of a prover's branch; null takes 64 for an answer, and half of the limit for a
    continuation.
    """


class Tracking(Section):
    """Where metrics are written beside the plain files."""

    wandb: bool = False
    """Whether an offline W&B run is written, under one run id over all attempts."""
    project: Name = "mrt-hpc"
    """The name of the W&B project."""
    tensorboard: bool = False
    """Whether the same metrics are written as TensorBoard event files, into the folder tensorboard of the run."""


class Recipe(Section):
    """One experiment."""

    name: Name
    """The name of the experiment, and of its run directory unless another one is given."""
    seed: NotNegative = 0
    """The seed from which all other seeds follow."""
    model: Model
    """The starting policy."""
    data: TrainingData
    """The training problems, or the given samples of supervised training."""
    prompt: Prompt = Prompt()
    """How a problem becomes a prompt."""
    episodes: Episodes = Episodes()
    """How thoughts are cut into episodes."""
    algorithm: Annotated[AlgorithmSettings, ALGORITHMS]
    """What is sampled for an update, and what it is paid for."""
    prover: Annotated[ProverSettings, PROVERS] | None = None
    """How prefixes get their values, for algorithms that ask for them."""
    sampling: Sampling
    """How rollouts are sampled."""
    serving: Serving = Serving()
    """The vLLM servers of inference and evaluation."""
    grading: Grading = Grading()
    """The processes that compare answers with gold answers."""
    training: Training
    """The updates of the trainer."""
    schedule: Schedule
    """The number of iterations, and how they are cut into jobs."""
    evaluation: Evaluation = Evaluation()
    """The benchmarks, and how they are sampled."""
    resources: Resources = Resources()
    """What each role needs of a machine."""
    resilience: Resilience = Resilience()
    """What the run does about losses, waits and failures."""
    tracking: Tracking = Tracking()
    """Where metrics are written beside the plain files."""
    expected: Expected = Expected()
    """What `mrt-hpc plan` assumes."""

    @property
    def problems(self) -> ProblemSource:
        """The training problems.

        Raises:
            TypeError: the training data are samples.
        """
        if not isinstance(self.data, ProblemSource):
            raise TypeError(f"algorithm {self.algorithm.type} learns samples, and has no problems")
        return self.data

    @model_validator(mode="after")
    def _method_fits(self) -> Recipe:
        data_fit(self)
        prompt_fits(self)
        prover_fits(self)
        verifiers_fit(self)
        extraction_fits(self)
        evaluation_fits(self)
        self.algorithm.check(self)
        grading_fits(self)
        sampling_fits(self)
        serving_fits(self)
        training_fits(self)
        weights_fit(self)
        check_refresh(self)
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> Recipe:
        ahead, per_job = self.schedule.max_staleness + 1, self.schedule.iterations_per_job
        sequential = self.schedule.coupling is Coupling.SEQUENTIAL and self.algorithm.samples_rollouts
        if sequential and per_job > ahead:
            raise misfit(
                "schedule.iterations_per_job",
                f"{ahead} or less: with coupling: sequential, inference ends before the trainer starts "
                f"and can run {ahead} iteration(s) ahead (max_staleness + 1)",
            )
        if self.schedule.weight_swap is not WeightSwap.DRAIN and not self.schedule.max_staleness:
            raise misfit(
                "schedule.weight_swap", "drain with max_staleness: 0: no newer weights appear while traces are sampled"
            )
        colocation_fits(self)
        trainer = self.resources.trainer
        if trainer.ranks_per_node is not None and trainer.ranks % trainer.ranks_per_node:
            raise misfit("resources.trainer.ranks", f"a multiple of ranks_per_node ({trainer.ranks_per_node})")
        if self.training.keep_weights < self.schedule.max_staleness + 2:
            raise misfit(
                "training.keep_weights", "at least schedule.max_staleness + 2: servers still load these versions"
            )
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Recipe:
        names = [b.name for b in self.evaluation.benchmarks]
        if len(set(names)) < len(names):
            raise misfit("evaluation.benchmarks", f"each name once; they are {names}")
        return self
