"""The recipe of an evaluation on its own: models and a suite, without any training.

It has the sections of a training recipe that an evaluation uses, so that the same tasks serve both.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, model_validator

from mrt_hpc.recipe.base import Line, Name, NotNegative, PathText, Section, Seed, misfit
from mrt_hpc.recipe.combinations import evaluation_fits, extraction_fits, prompt_fits, verifiers_fit
from mrt_hpc.recipe.registry import LOOKING
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections.episodes import Episodes
from mrt_hpc.recipe.sections.evaluation import Evaluation
from mrt_hpc.recipe.sections.expected import Expected
from mrt_hpc.recipe.sections.grading import Grading
from mrt_hpc.recipe.sections.prompt import Prompt
from mrt_hpc.recipe.sections.resilience import Resilience
from mrt_hpc.recipe.sections.resources import Resources
from mrt_hpc.recipe.sections.sampling import PromptLimits
from mrt_hpc.recipe.sections.serving import Serving
from mrt_hpc.recipe.sections.tracking import Tracking
from mrt_hpc.recipe.server_layout import layout_fits


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


class EvaluationRecipe(Section):
    """An evaluation of models on its own. The weights version *i* of its run directory is model *i*."""

    name: Name
    """The name of the evaluation."""
    seed: Seed = 0
    """The seed from which all other seeds follow."""
    models: Annotated[tuple[EvaluatedModel, ...], Field(min_length=1)]
    """The models to evaluate."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """The checksums of the files that the evaluation reads, and the states of its model directories, by path, as they
    were when it was submitted. A file that has changed makes another evaluation.
    """
    prompt: Prompt = Prompt()
    """How a problem becomes a prompt, unless the evaluation or the benchmark says it."""
    sampling: PromptLimits = PromptLimits()
    """The length of prompts."""
    episodes: Episodes = Episodes()
    """How thoughts are cut into episodes, unless the evaluation says it."""
    serving: Serving = Serving()
    """The vLLM servers."""
    grading: Grading = Grading()
    """The processes that compare answers with gold answers."""
    evaluation: Evaluation
    """The benchmarks, and how they are sampled."""
    resources: Resources = Resources()
    """What each role needs of a machine; inference and trainer are not used."""
    resilience: Resilience = Resilience()
    """What the evaluation does about losses, waits and failures."""
    tracking: Tracking = Tracking()
    """Not used: an evaluation on its own writes neither a W&B run nor TensorBoard event files."""
    expected: Expected = Expected()
    """What `mrt-hpc eval --plan` assumes."""

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> EvaluationRecipe:
        if info.context == LOOKING:
            return self  # as it was checked when it was made, with the classes that are not there now
        if not self.evaluation.benchmarks:
            raise misfit("evaluation.benchmarks", "at least one benchmark")
        names = [benchmark.name for benchmark in self.evaluation.benchmarks]
        if len(set(names)) < len(names):
            raise misfit("evaluation.benchmarks", f"each name once; they are {names}")
        models = [model.name for model in self.models]
        if len(set(models)) < len(models):
            raise misfit("models", f"each name once; they are {models}")
        prompt_fits(self)
        verifiers_fit(self)
        extraction_fits(self)
        evaluation_fits(self)
        layout_fits(self, "evaluation")
        return self


Experiment = Recipe | EvaluationRecipe
"""What a run directory is made from."""
