"""The recipe: everything that decides a run's result, strictly checked, every field with its unit.

What decides only where and how fast it runs (partitions, accounts, modules) is the site's, see
:mod:`mrt_hpc.recipe.site`. Unknown fields and wrong types are errors; combinations that make no sense are refused here
with the reason, before anything is submitted. Each section of the recipe is a module of :mod:`mrt_hpc.recipe.sections`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ValidationInfo, model_validator

from mrt_hpc.recipe.algorithm import AlgorithmSettings, check_refresh
from mrt_hpc.recipe.base import Name, Section, Seed, misfit
from mrt_hpc.recipe.combinations import (
    colocation_fits,
    data_fit,
    evaluation_fits,
    extraction_fits,
    prompt_fits,
    prover_fits,
    sampling_fits,
    serving_fits,
    training_fits,
    verifiers_fit,
    weights_fit,
)
from mrt_hpc.recipe.prover import ProverSettings
from mrt_hpc.recipe.registry import ALGORITHMS, LOOKING, PROVERS
from mrt_hpc.recipe.sections.data import ProblemSource, TrainingData
from mrt_hpc.recipe.sections.episodes import Episodes
from mrt_hpc.recipe.sections.evaluation import Evaluation
from mrt_hpc.recipe.sections.expected import Expected
from mrt_hpc.recipe.sections.grading import Grading
from mrt_hpc.recipe.sections.model import Model
from mrt_hpc.recipe.sections.prompt import Prompt
from mrt_hpc.recipe.sections.resilience import Resilience
from mrt_hpc.recipe.sections.resources import Resources
from mrt_hpc.recipe.sections.sampling import Sampling
from mrt_hpc.recipe.sections.schedule import Coupling, Schedule, WeightSwap
from mrt_hpc.recipe.sections.serving import Serving
from mrt_hpc.recipe.sections.tracking import Tracking
from mrt_hpc.recipe.sections.training import Training


class Recipe(Section):
    """One experiment."""

    name: Name
    """The name of the experiment, and of its run directory unless another one is given."""
    seed: Seed = 0
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
    def _method_fits(self, info: ValidationInfo) -> Recipe:
        if info.context == LOOKING:
            return self  # it was checked when the run was made, with the classes that are not there now
        data_fit(self)
        prompt_fits(self)
        prover_fits(self)
        verifiers_fit(self)
        extraction_fits(self)
        evaluation_fits(self)
        self.algorithm.check(self)
        sampling_fits(self)
        serving_fits(self)
        training_fits(self)
        weights_fit(self)
        check_refresh(self)
        return self

    @model_validator(mode="after")
    def _schedule_fits(self, info: ValidationInfo) -> Recipe:
        if info.context == LOOKING:
            return self
        ahead, per_job = self.schedule.max_staleness + 1, self.schedule.iterations_per_job
        sequential = self.schedule.coupling is Coupling.SEQUENTIAL and self.algorithm.samples_rollouts
        if sequential and per_job > ahead:
            raise misfit(
                "schedule.iterations_per_job",
                f"{ahead} or less: with coupling: sequential, inference ends before the trainer starts "
                f"and can run {ahead} iteration(s) ahead (max_staleness + 1)",
                str(ahead),
            )
        if self.schedule.weight_swap is not WeightSwap.DRAIN and not self.schedule.max_staleness:
            raise misfit(
                "schedule.weight_swap",
                "drain with max_staleness: 0: no newer weights appear while traces are sampled",
                "drain",
            )
        colocation_fits(self)
        trainer = self.resources.trainer
        if trainer.ranks_per_node is not None and trainer.ranks % trainer.ranks_per_node:
            raise misfit("resources.trainer.ranks", f"a multiple of ranks_per_node ({trainer.ranks_per_node})")
        if self.training.keep_weights < (loaded := self.schedule.max_staleness + 2):
            raise misfit(
                "training.keep_weights",
                f"at least {loaded} (schedule.max_staleness + 2): servers still load these versions",
                str(loaded),
            )
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Recipe:
        names = [b.name for b in self.evaluation.benchmarks]
        if len(set(names)) < len(names):
            raise misfit("evaluation.benchmarks", f"each name once; they are {names}")
        return self
