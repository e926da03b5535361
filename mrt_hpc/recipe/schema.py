"""What a run directory is made from: a recipe that trains, or an evaluation of models on its own.

Every field decides a result; what decides only where and how fast it runs is the site's (:mod:`mrt_hpc.recipe.site`).
All that is wrong, also combinations (:mod:`mrt_hpc.recipe.combinations`), is refused with the reason before anything is
submitted.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, ValidationInfo, model_validator

from mrt_hpc.recipe import answer_combinations, combinations, sections
from mrt_hpc.recipe.base import Line, Name, NotNegative, NumberFormat, PathText, Section, Seed, misfit, refuse_all
from mrt_hpc.recipe.kinds import ALGORITHMS, PROVERS, AlgorithmSettings, ProverSettings
from mrt_hpc.recipe.registry import LOOKING


class Experiment(Section):
    """The fields of both kinds, and what the rest of the package asks about either."""

    trains: ClassVar[bool]
    """False where existing models are evaluated."""

    name: Name
    """The name of the experiment, and of its run directory unless another one is given."""
    seed: Seed = 0
    """The seed from which all other seeds follow."""
    prompt: sections.Prompt = sections.Prompt()
    """How a problem becomes a prompt."""
    sampling: sections.PromptLimits = sections.PromptLimits()
    """The length of prompts."""
    episodes: sections.Episodes = sections.Episodes()
    """How thoughts are cut into episodes."""
    serving: sections.Serving = sections.Serving()
    """The vLLM servers of inference and evaluation."""
    grading: sections.Grading = sections.Grading()
    """The processes that compare answers with gold answers."""
    evaluation: sections.Evaluation = sections.Evaluation()
    """The benchmarks, and how they are sampled."""
    resources: sections.Resources = sections.Resources()
    """What each role needs of a machine."""
    resilience: sections.Resilience = sections.Resilience()
    """What the run does about losses, waits and failures."""
    tracking: sections.Tracking = sections.Tracking()
    """Where metrics are written beside the plain files; an evaluation on its own writes these alone."""
    expected: sections.Expected = sections.Expected()
    """What `mrt-hpc plan` assumes."""

    if TYPE_CHECKING:  # each is a field of one kind, and a property of the other one

        @property
        def model(self) -> sections.Model | None:
            """The starting policy."""

        @property
        def data(self) -> sections.TrainingData | None:
            """None where nothing is trained."""

        @property
        def prover(self) -> ProverSettings | None:
            """The prover of the training; None without one."""

        @property
        def models(self) -> "tuple[EvaluatedModel, ...]":
            """The models of an evaluation on its own."""

    @property
    def model_names(self) -> list[str]:
        names = [model.name for model in self.models]
        return [name if names.count(name) == 1 else f"{name}#{number}" for number, name in enumerate(names)]

    @property
    def iterations(self) -> int:
        return 0

    @property
    def samples_traces(self) -> bool:
        """Traces are sampled in iterations or before them, to learn from."""
        return False

    @property
    def is_colocated(self) -> bool:
        """Whether inference and trainer of a segment are one job."""
        return False

    @property
    def evaluated_versions(self) -> list[int]:
        """One for each model in an evaluation on its own."""
        return list(range(len(self.models)))

    @property
    def model_directories(self) -> dict[str, str]:
        """Model directories, or names of models of the hub, by field or model."""
        return {f"model {model.name}": model.path for model in self.models if model.run is None}

    @property
    def serving_roles(self) -> tuple[str, ...]:
        starts = {"inference": self.samples_traces, "evaluation": bool(self.evaluation.benchmarks)}
        return tuple(role for role in starts if starts[role])

    def benchmark(self, name: str) -> sections.Benchmark:
        return next(benchmark for benchmark in self.evaluation.benchmarks if benchmark.name == name)

    def sampling_of(self, benchmark: sections.Benchmark) -> sections.BenchmarkSampling:
        """A benchmark's own fields win over the section's."""
        how = self.evaluation
        return sections.BenchmarkSampling(
            prompt=benchmark.prompt or how.prompt or self.prompt,
            temperature=how.temperature,
            top_p=how.top_p,
            max_tokens=how.max_tokens if benchmark.max_tokens is None else benchmark.max_tokens,
            max_prompt_tokens=how.max_prompt_tokens or self.sampling.max_prompt_tokens,
            long_prompts=how.long_prompts or self.sampling.long_prompts,
        )

    @property
    def evaluation_dtype(self) -> NumberFormat:
        return self.evaluation.dtype or self.serving.dtype

    @property
    def longest_in_evaluation(self) -> int:
        """The least capacity of an evaluating server: prompt, trace and forced answer, without inserted texts."""
        answer = 0 if self.evaluation.prover is None else self.evaluation.prover.max_tokens
        ways = [(benchmark.mode, self.sampling_of(benchmark)) for benchmark in self.evaluation.benchmarks]
        traces = [sampling.max_tokens if mode is None else mode.tokens_held(sampling) for mode, sampling in ways]
        prompt = self.evaluation.max_prompt_tokens or self.sampling.max_prompt_tokens
        return prompt + max(traces, default=0) + answer

    @property
    def longest_sequence(self) -> int:
        """The least capacity of all servers."""
        return self.longest_in_evaluation if self.evaluation.benchmarks else 0

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> "Experiment":
        if info.context != LOOKING:  # it was checked when the run was made, with the classes that are not there now
            self.check()
        return self

    def check(self) -> None:
        """Refuse all choices that do not fit together."""
        refuse_all(*self.checks())

    def checks(self) -> Iterator[Callable[[], None]]:
        """No check needs the others."""
        names = [benchmark.name for benchmark in self.evaluation.benchmarks]
        yield partial(combinations.names_fit, "evaluation.benchmarks", names)
        yield from (partial(fits, self) for fits in answer_combinations.OF_ALL)


class Recipe(Experiment):
    """A run that trains."""

    trains: ClassVar[bool] = True

    model: sections.Model
    """The starting policy."""
    data: sections.TrainingData
    """The training problems, or the given samples of supervised training."""
    algorithm: Annotated[AlgorithmSettings, ALGORITHMS]
    """What is sampled for an update, and how it is rewarded."""
    prover: Annotated[ProverSettings, PROVERS] | None = None
    """How prefixes get their values, for algorithms that ask for them."""
    sampling: sections.Sampling
    """How rollouts are sampled."""
    training: sections.Training
    """The updates of the trainer."""
    schedule: sections.Schedule
    """The number of iterations, and how they are cut into jobs."""

    @property
    def models(self) -> "tuple[EvaluatedModel, ...]":
        """Weights versions are evaluated instead."""
        return ()

    @property
    def problems(self) -> sections.ProblemSource:
        """A TypeError where samples are learnt."""
        if not isinstance(self.data, sections.ProblemSource):
            raise TypeError(f"algorithm {self.algorithm.type} learns samples, and has no problems")
        return self.data

    @property
    def iterations(self) -> int:
        return self.schedule.iterations

    @property
    def samples_traces(self) -> bool:
        return self.algorithm.samples_rollouts or self.algorithm.collects

    @property
    def is_colocated(self) -> bool:
        return self.schedule.coupling is sections.Coupling.COLOCATED and self.algorithm.samples_rollouts

    @property
    def evaluated_versions(self) -> list[int]:
        """The first, every so many, and the last."""
        if not self.evaluation.benchmarks:
            return []
        last = self.iterations
        return sorted({*range(0, last + 1, self.evaluation.every or last), last})

    @property
    def model_directories(self) -> dict[str, str]:
        """Directories by field."""
        of_prover = None if self.prover is None else self.prover.model
        directories = {"model.path": self.model.path} if isinstance(self.model, sections.HuggingFaceModel) else {}
        return directories if of_prover is None else {**directories, "prover.model": of_prover}

    @property
    def longest_in_training(self) -> int:
        """The least capacity of a training server, in tokens."""
        if not self.samples_traces:
            return self.sampling.max_prompt_tokens
        answer = 0 if self.prover is None else self.prover.max_tokens
        return self.sampling.max_prompt_tokens + self.sampling.max_tokens + answer

    @property
    def longest_sequence(self) -> int:
        return max(self.longest_in_training, super().longest_sequence)

    def check(self) -> None:
        """The other checks need the algorithm's data and prover."""
        combinations.algorithm_fits(self)
        super().check()

    def checks(self) -> Iterator[Callable[[], None]]:
        yield from super().checks()
        yield partial(self.algorithm.check, self)
        yield from (partial(fits, self) for fits in combinations.OF_TRAINING)


class EvaluatedModel(Section):
    """One model to evaluate."""

    name: Line
    """The name of the model in reports: of a run, with its weights version, as in ``grpo@20``."""
    path: PathText
    """The model directory, in Hugging Face format: that of a weights version for a model of a run. A run that still
    trains publishes it later.
    """
    run: PathText | None = None
    """The run directory that publishes the model; null for a model of no run."""
    version: NotNegative | None = None
    """The weights version of that run."""


class EvaluationRecipe(Experiment):
    """An evaluation of models on its own. The weights version *i* of its run directory is model *i*."""

    trains: ClassVar[bool] = False

    models: Annotated[tuple[EvaluatedModel, ...], Field(min_length=1)]
    """The models to evaluate."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """The checksums of the files that the evaluation reads, and the states of its model directories, by path, as they
    were when it was submitted. A file that has changed makes another evaluation.
    """

    @property
    def model(self) -> None:
        """No policy is trained."""

    @property
    def data(self) -> None:
        """Nothing is trained."""

    @property
    def prover(self) -> None:
        """``evaluation.prover`` values the prefixes."""

    def check(self) -> None:
        """Also refuses an evaluation of nothing."""
        if not self.evaluation.benchmarks:
            raise misfit("evaluation.benchmarks", "at least one benchmark")
        super().check()

    def checks(self) -> Iterator[Callable[[], None]]:
        yield partial(combinations.names_fit, "models", [model.name for model in self.models])
        yield from super().checks()
        yield partial(combinations.layout_fits, self, "evaluation")
