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
from mrt_hpc.recipe.combinations import (
    data_fit,
    evaluation_fits,
    grading_fits,
    prompt_fits,
    prover_fits,
    sampling_fits,
    serving_fits,
    training_fits,
    verifiers_fit,
)
from mrt_hpc.recipe.prompts import DEFAULT_INSTRUCTION, REFERENCE_MARKERS
from mrt_hpc.recipe.prover import ProverSettings
from mrt_hpc.recipe.registry import ALGORITHMS, PROVERS, VERIFIERS
from mrt_hpc.recipe.resources import Resources
from mrt_hpc.recipe.verifier import VerifierSettings

# -- model ------------------------------------------------------------------------------------------------------------


class HuggingFaceModel(Section):
    """A model directory in Hugging Face format, with its tokenizer."""

    type: Literal["hugging_face"] = "hugging_face"
    path: str
    """Directory with config.json, tokenizer and safetensors; relative paths start at the recipe's folder. Nothing is
    downloaded.
    """


class SmallWorldModel(Section):
    """The embedded small model, made and warm-started by the run's first job; needs neither network nor GPU."""

    type: Literal["small_world"] = "small_world"
    warm_start_steps: Count | None = None
    """Optimiser steps of the supervised warm start; null takes the small world's own number."""
    answer_forms: Positive = 1
    """In how many ways the model learns to write an answer (7, 8-1, 9-2, ...), so that only a verifier knows which
    strings are right.
    """


Model = Annotated[HuggingFaceModel | SmallWorldModel, Field(discriminator="type")]


# -- data -------------------------------------------------------------------------------------------------------------


class ProblemSource(Section):
    """Problems with gold answers."""

    form: ClassVar[str] = "problems"
    verifier: Annotated[VerifierSettings, VERIFIERS] | None = None
    """What decides whether an answer is right; null is ``{type: math}``."""


class JsonlProblems(ProblemSource):
    """Problems from a file of JSON lines, each with "id", "problem" and "answer"."""

    type: Literal["jsonl"] = "jsonl"
    path: str
    """The file; relative paths start at the recipe's folder."""
    limit: Positive | None = None
    """Use only the first so many problems; null uses all."""


class SmallWorldProblems(ProblemSource):
    """Problems of the embedded small world."""

    type: Literal["small_world"] = "small_world"
    split: Literal["train", "held_out"] = "train"
    """The two splits share no problem."""
    problems: Positive | None = None
    """How many; null takes all of the split."""


Problems = Annotated[JsonlProblems | SmallWorldProblems, Field(discriminator="type")]


class Conversations(Section):
    """Conversations for supervised training, from a file of JSON lines, each with "id" and "messages", a list of
    objects with "role" and "content".
    """

    form: ClassVar[str] = "conversations"
    type: Literal["conversations"] = "conversations"
    path: str
    """The file; relative paths start at the recipe's folder."""
    limit: Positive | None = None
    """Use only the first so many; null uses all."""


class Suffixes(Section):
    """Suffixes for supervised training, from a file of JSON lines, each with "id", "problem", "prefix" and "suffix"."""

    form: ClassVar[str] = "suffixes"
    type: Literal["suffixes"] = "suffixes"
    path: str
    """The file; relative paths start at the recipe's folder."""
    limit: Positive | None = None
    """Use only the first so many; null uses all."""


class SmallWorldSamples(Section):
    """Supervised samples of the embedded small world."""

    type: Literal["small_world_samples"] = "small_world_samples"
    form: Literal["conversations", "suffixes"]
    """Whole solutions; or a careless beginning with a patient rest."""
    samples: Count
    """How many."""


TrainingData = Annotated[
    JsonlProblems | SmallWorldProblems | Conversations | Suffixes | SmallWorldSamples, Field(discriminator="type")
]


class Prompt(Section):
    """How a problem becomes a prompt, and where its thought ends."""

    instruction: str = DEFAULT_INSTRUCTION
    """Appended to the problem before the model's chat template is applied."""
    thought_start: str = "<think>\n"
    """Opens the thought; added after the chat template unless the template has written it. Empty for a model that opens
    the thought itself, or writes no tags.
    """
    thought_end: str = "</think>"
    """Closes the thought; what follows is the answer. Empty, with an empty thought_start, for a model that writes no
    tags: then the completion is the thought up to where its last box opens, which holds the answer.
    """
    chat_template: str | None = None
    """A file with a chat template to use in place of the model's own; relative paths start at the recipe's folder."""


# -- method -----------------------------------------------------------------------------------------------------------


class Episodes(Section):
    """How a thought is cut into episodes (method: reference rule)."""

    markers: tuple[str, ...] = REFERENCE_MARKERS
    """A paragraph that begins with one of these may open an episode."""
    min_paragraphs: Positive = 3
    """Paragraphs, at least, between two cuts."""
    max_cuts: NotNegative = 49
    """Cuts a trace, at most."""
    group_size: Count = 1
    """Consecutive steps that merge into one episode."""
    max_episodes: Positive = 6
    """Episodes a trace, at most; what lies beyond joins the last."""


# -- sampling, serving, grading
# -----------------------------------------------------------------------------------------


class Sampling(Section):
    """The rollouts of an iteration. There is no top-p and no top-k: log-probabilities must be of the distribution
    sampled from.
    """

    problems_per_iteration: Count | None = None
    """Problems drawn for each iteration, without repetition until all have been used; supervised algorithms draw
    sequences instead, see ``algorithm.sequences_per_iteration``.
    """
    rollouts_per_problem: Count = 4
    """n, the size of a group."""
    temperature: PositiveFloat = 0.9
    """Sampling temperature; the trainer's log-probabilities use the same."""
    max_prompt_tokens: Positive = 4096
    """Tokens of a prompt, at most, instruction and chat template included; longer ones are found before anything is
    sampled, those of benchmarks as well.
    """
    long_prompts: Literal["refuse", "drop"] = "refuse"
    """Whether a longer prompt stops the run, or its problem is left out of training or benchmark; how many were left
    out stands in the log of the first job, and which in the run's data folder.
    """
    max_tokens: Positive
    """Tokens of a trace, at most. A trace cut here counts by its answer where the last box after thought_end is closed,
    and has reward 0 where that box is still open or the thought has not ended; without tags it always has reward 0.
    """


class AttachedServer(Section):
    """A vLLM server that `mrt-hpc serve` has started, for one inference task at a time."""

    address: Line
    """Where it listens: ``http://HOST:PORT``, or ``unix:PATH`` of a socket on the node of the task."""
    key_file: str
    """The file that holds its key; `mrt-hpc serve` writes it. Relative paths start at the recipe's folder."""


class Serving(Section):
    """The vLLM servers of inference and evaluation tasks."""

    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number format of weights and activations."""
    kv_cache_gib: PositiveFloat = 1.0
    """Size of the key-value cache on CPU, GiB."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Share of the GPU's memory that vLLM takes."""
    max_concurrent_sequences: Positive = 256
    """Sequences in one batch of the server."""
    enforce_eager: bool = False
    """Skip compilation and CUDA graphs: slower on GPU, faster to start."""
    attach: AttachedServer | None = None
    """A vLLM server that runs already and that the inference task uses in place of one of its own; null starts one.
    Servers of evaluations, and of a prover with a model of its own, are started in any case.
    """
    start_limit_s: PositiveFloat = 900.0
    """Seconds for a server to become healthy."""
    stall_limit_s: PositiveFloat = 300.0
    """Seconds without a token, while there are requests, after which a server counts as hung and is started again."""


class Grading(Section):
    """The pool that compares answers with the gold answer."""

    processes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Grader processes an array task."""
    time_limit_s: PositiveFloat = 2.0
    """Processor seconds for one answer; a slower one is killed and scores 0."""
    memory_limit_gib: PositiveFloat = 2.0
    """Memory of a grader process, GiB; an answer that needs more scores 0."""
    strict: bool = True
    """Whether an answer to a gold number must be evaluated, in training and evaluation: a sum, a factorial, a power or
    an equation of two numbers scores 0 even where it comes to the right value, and so does a fraction for an integer.
    """


# -- training ---------------------------------------------------------------------------------------------------------


class Precision(StrEnum):
    """Number formats of the trainer."""

    FP32 = "fp32"
    """Weights, gradients and activations in 32 bits."""
    BF16 = "bf16"
    """Weights and activations in bfloat16, master weights and optimiser in 32 bits."""
    BF16_AUTOCAST = "bf16_autocast"
    """Weights in 32 bits, matrix products in bfloat16."""


class Training(Section):
    """The DeepSpeed update of an iteration."""

    learning_rate: PositiveFloat
    """Peak learning rate of AdamW."""
    warmup_ratio: Share = 0.1
    """Share of all optimiser steps over which the learning rate rises linearly to its peak; the first step has a rate
    above 0.
    """
    warmup_steps: NotNegative | None = None
    """Optimiser steps of that rise, whatever warmup_ratio says; null takes the share. A begun run that is given another
    number of iterations keeps the steps that it began with, and writes them here.
    """
    schedule: Literal["cosine", "constant"] = "cosine"
    """Course of the learning rate after the warm-up."""
    minimum_ratio: Share = 0.0
    """Where the cosine ends, as a share of the peak; it ends one optimiser step beyond the last, which still learns."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW's decoupled weight decay."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """AdamW's betas."""
    gradient_clip: PositiveFloat = 1.0
    """Gradients are scaled down to this global norm."""
    clip_low: Share = 0.2
    """The importance ratio is clipped below 1 less this."""
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    """The importance ratio is clipped above 1 plus this."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """Truncation of the importance weight between the trainer's and vLLM's distributions."""
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence to weights version 0; 0 loads no reference model."""
    optimizer_steps_per_iteration: Count = 1
    """The batch is split into so many mini-batches, one optimiser step each."""
    precision: Precision = Precision.BF16
    """Number format."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 3
    """DeepSpeed ZeRO stage: what is split over the ranks (1 optimiser, 2 and gradients, 3 and weights)."""
    offload_optimizer: bool = False
    """Keep the optimiser's states and its 32-bit weights in the memory of the CPU, and take its steps there: a larger
    model fits on the GPUs, and a step takes longer. It needs zero_stage 1 or higher, and 12 bytes of the memory of
    resources.trainer for each parameter. Results with and without it agree up to rounding.
    """
    max_tokens_per_micro_batch: Positive = 16384
    """Padded tokens of a micro-batch; a longer sequence gets one of its own."""
    weights_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number format of the published weights versions."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass to save memory."""
    deterministic: bool | None = None
    """Use only kernels that give the same bits each time, so that a resumed run repeats an unbroken one; an operation
    that has no such kernel is then an error. null: on for CPU, where it costs nothing, and off on GPU, where the
    backward passes of attention and of the embedding become slower and cuBLAS keeps a workspace of its own.
    """
    checkpoint_every: Positive = 1
    """Iterations between two checkpoints: what a lost trainer may have to compute again."""
    keep_checkpoints: Positive = 2
    """Checkpoints that stay on disk."""
    keep_weights: Annotated[int, Field(ge=2)] = 3
    """Newest weights versions that stay on disk; versions to be evaluated stay in any case."""


# -- schedule, evaluation, resources
# ------------------------------------------------------------------------------------


class Coupling(StrEnum):
    """How inference and trainer of a segment are queued."""

    CONCURRENT = "concurrent"
    """Both start together and work hand in hand."""
    SEQUENTIAL = "sequential"
    """The trainer starts when inference has ended: small jobs for queues where only short jobs start."""


class LengthStage(Section):
    """One step of a length curriculum."""

    first_iteration: NotNegative
    """From this iteration on."""
    max_tokens: Positive
    """Tokens of a trace, at most."""


class Schedule(Section):
    """How many iterations, and how they are cut into jobs."""

    iterations: Count
    """N: updates, and weights versions after version 0."""
    iterations_per_job: Count
    """Iterations of a segment, that is of one pair of jobs."""
    coupling: Coupling = Coupling.CONCURRENT
    """Whether a segment's two jobs run together or one after the other."""
    max_staleness: NotNegative = 0
    """Weights versions that the sampling policy may lag behind the trained one; 0 is strictly on-policy."""
    length_curriculum: tuple[LengthStage, ...] = ()
    """Shorter limits than sampling.max_tokens for the beginning, in ascending order; empty has one limit throughout."""

    def max_tokens(self, iteration: int, limit: int) -> int:
        """The limit of an iteration.

        Args:
            iteration: which.
            limit: ``sampling.max_tokens``, which holds where no stage does.
        """
        reached = [stage.max_tokens for stage in self.length_curriculum if stage.first_iteration <= iteration]
        return reached[-1] if reached else limit


class Resilience(Section):
    """What is done when tasks are lost, wait or fail. Never changes a run's result."""

    retries: NotNegative = 3
    """Times in a row that a task which failed, without having finished anything, is run again before its run is given
    up; preemptions do not count.
    """
    heartbeat_limit_s: PositiveFloat = 60.0
    """Seconds without a heartbeat after which a task counts as lost and its work passes to others."""
    wait_limit_minutes: PositiveFloat = 10.0
    """Minutes that a role waits for another which does not run, before it gives its nodes back."""
    stall_limit_minutes: PositiveFloat = 720.0
    """Minutes that a role waits for another which runs and brings nothing, before it gives its nodes back."""
    full_disk_minutes: PositiveFloat = 60.0
    """Minutes that a role waits for room on a full disk, before it gives its nodes back."""


class Benchmark(Section):
    """One set of problems to evaluate on."""

    name: Name
    """Name in reports and paths."""
    problems: Problems
    """Where the problems come from."""
    samples: Count = 1
    """Completions a problem; pass@1 is their mean reward."""


class Evaluation(Section):
    """The evaluations, queued behind the training."""

    benchmarks: tuple[Benchmark, ...] = ()
    """What to evaluate on; empty turns evaluation off."""
    every: Positive | None = None
    """Iterations between evaluated weights versions; null evaluates the first and the last only."""
    temperature: Annotated[float, Field(ge=0)] = 0.6
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Nucleus of the sampling distribution."""
    max_tokens: Positive = 16384
    """Tokens of a completion, at most."""
    problem_shards: Positive = 1
    """Array tasks that share one version and benchmark."""
    prover: Annotated[ProverSettings, PROVERS] | None = None
    """Values the prefixes of the evaluated traces, for normalised regret; null leaves regret out."""
    episodes: Episodes | None = None
    """How the evaluated traces are cut for it: one rule where algorithms are compared; null is that of the training."""
    regret_budgets: tuple[Positive, ...] = (4096, 8192, 12288, 16384)
    """Tokens up to which regret is measured."""
    regret_tokens: Literal["sampled", "all"] = "sampled"
    """Which tokens regret counts before a boundary: the sampled ones of the trace alone; or all that the model reads
    and writes to answer there, as the authors count: prompt, prefix, the prover's text, the mean length of its answers.
    """


class Expected(Section):
    """What the estimate of ``mrt-hpc plan`` reckons with. Never changes a run's result."""

    trace_tokens: Positive | None = None
    """Mean number of tokens of a trace; null takes half of the token limit."""
    branch_tokens: Positive | None = None
    """Mean number of tokens of a prover's branch; null takes 64 for an answer, half of the limit for a continuation."""


class Tracking(Section):
    """Metrics beyond the plain files."""

    wandb: bool = False
    """Write an offline W&B run, under one run id over all attempts."""
    project: Name = "mrt-hpc"
    """W&B project."""


class Recipe(Section):
    """One experiment."""

    name: Name
    """Name of the experiment, and of its run directory unless another is given."""
    seed: NotNegative = 0
    """The one seed from which all others follow."""
    model: Model
    """The starting policy."""
    data: TrainingData
    """Training problems, or given samples for supervised training."""
    prompt: Prompt = Prompt()
    """From problem to prompt."""
    episodes: Episodes = Episodes()
    """Segmentation of thoughts."""
    algorithm: Annotated[AlgorithmSettings, ALGORITHMS]
    """What the advantages are made of."""
    prover: Annotated[ProverSettings, PROVERS] | None = None
    """How prefixes get their values, for algorithms that ask for them."""
    sampling: Sampling
    """Rollouts."""
    serving: Serving = Serving()
    """vLLM servers."""
    grading: Grading = Grading()
    """Graders."""
    training: Training
    """Updates."""
    schedule: Schedule
    """Iterations and jobs."""
    evaluation: Evaluation = Evaluation()
    """Benchmarks."""
    resources: Resources = Resources()
    """What each role needs."""
    resilience: Resilience = Resilience()
    """Losses, waits and failures."""
    tracking: Tracking = Tracking()
    """W&B."""
    expected: Expected = Expected()
    """What `mrt-hpc plan` reckons with."""

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
        evaluation_fits(self)
        self.algorithm.check(self)
        grading_fits(self)
        sampling_fits(self)
        serving_fits(self)
        training_fits(self)
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
