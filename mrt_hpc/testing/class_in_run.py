"""Tries a class of the user's own on what a run has stored."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mrt_hpc.algorithms.base import RolloutAlgorithm, WholeTraces, trace_settings
from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.algorithms.learnt_batch import learnt_batch
from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.errors import UserError
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import SamplingSettings
from mrt_hpc.inference.sampler import RolloutPlan, TraceCutter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start
from mrt_hpc.modes.base import Mode
from mrt_hpc.modes.writer import Writer
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.base import Section, require_kind
from mrt_hpc.recipe.field_docs import sections_with_own_classes
from mrt_hpc.recipe.kinds import AlgorithmSettings
from mrt_hpc.recipe.lock import changed_recipe, read_recipe_lock
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.user_code import own_class
from mrt_hpc.run.archive import read_iteration, sampled_iterations, unsampled_error
from mrt_hpc.run.groups import Group
from mrt_hpc.run.layout import RunLayout, existing_run
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.records import Problem, Rollout, golds_of
from mrt_hpc.run.weights import published_versions
from mrt_hpc.testing import promises as contracts
from mrt_hpc.testing.promises import Promise, Replay
from mrt_hpc.training.loss_kinds import Loss

PLACES = {
    "algorithm": "algorithm",
    "prover": "prover",
    "training.loss": "training.loss",
    "data.verifier": "data.verifier",
    "evaluation.benchmarks.mode": "evaluation.benchmarks.0.mode",
}
"""The place of each kind in the recipe, by the section that it is found by."""
PROBLEMS = 4
"""The number of problems and rollouts whose traces are sampled or valued again."""


@dataclass(frozen=True)
class ClassInRun:
    kind: str
    """The section that the class is of."""
    recipe: Recipe
    layout: RunLayout
    iteration: int
    groups: list[Group]

    @staticmethod
    def of(name: str, run: Path, iteration: int | None, overrides: Sequence[str]) -> "ClassInRun":
        """Put the class into the recipe of a run; a prover that an algorithm does not use is taken out.

        Args:
            name: ``module:Class``, or ``module:function`` of a verifier; the module may lie in the working directory.
            iteration: a stored one; None takes the last.
            overrides: fields of the recipe.
        """
        section, changes = class_and_changes(name, PLACES)
        layout = existing_run(run)
        recipe = changed_recipe(layout.recipe_lock, read_recipe_lock(layout.recipe_lock), [*changes, *overrides])
        chosen = next(sampled_iterations(layout), 0) if iteration is None else iteration
        if not (groups := read_iteration(layout, chosen)):
            raise unsampled_error(layout, chosen)
        return ClassInRun(section, recipe, layout, chosen, groups)

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups for rollout in group.rollouts]

    def promises(self) -> Iterator[Promise]:
        """What a run takes for granted of the class, each with whether it is kept."""
        kinds: dict[str, Callable[[], Iterator[Promise]]] = {
            "algorithm": self._of_algorithm,
            "prover": self._of_prover,
            "training.loss": self._of_loss,
            "data.verifier": self._of_verifier,
        }
        return kinds.get(self.kind, self._of_mode)()

    def _of_algorithm(self) -> Iterator[Promise]:
        algorithm = self.recipe.algorithm
        if not isinstance(algorithm, RolloutAlgorithm):
            what = "this algorithm learns samples, which are not made from stored rollouts of an iteration"
            expected = "a subclass of RolloutAlgorithm"
            raise UserError(what, value=algorithm.type, expected=expected, advice="submit a small recipe with it")
        return contracts.algorithm_contract(algorithm, self.recipe, self._batch)

    @property
    def _batch(self) -> Batch:
        return learnt_batch(self.groups, self.recipe, self._question_ids)

    def _question_ids(self) -> Sequence[int]:
        prover = self.recipe.prover
        return [] if prover is None else self._prompter.ids(prover.question)

    def _of_prover(self) -> Iterator[Promise]:
        assert self.recipe.prover is not None
        rollouts, problems = self.rollouts, self._problems
        factory = ProverFactory.of(self.recipe.prover, ProverModel.of(self._prompter), self.recipe.seed)
        settings = trace_settings(self.recipe, self._prompter, self.iteration)
        traces = [_trace(r, problems[r.problem_id], settings) for r in rollouts[:PROBLEMS]]
        return contracts.prover_contract(factory, traces, Replay(rollouts))

    def _of_loss(self) -> Iterator[Promise]:
        training = self.recipe.training
        return contracts.loss_contract(require_kind(training.loss, Loss), training)

    def _of_verifier(self) -> Iterator[Promise]:
        grading = self.recipe.grading
        verifier = require_kind(verifier_of(self.recipe.problems, grading), Verifier)
        pool = partial(GraderPool, verifier, 1, grading.time_limit_s, memory_limit_gib=grading.memory_limit_gib)
        golds = [gold for problem in self._problems.values() for gold in golds_of(problem.answer)]
        texts = [rollout.text for rollout in self.rollouts]
        return contracts.verifier_contract(verifier, pool, texts, list(dict.fromkeys(golds)))

    def _of_mode(self) -> Iterator[Promise]:
        benchmark, prompter = self.recipe.evaluation.benchmarks[0], self._prompter
        sampling = self.recipe.sampling_of(benchmark)
        mode = require_kind(Section() if benchmark.mode is None else benchmark.mode, Mode)
        settings = SamplingSettings(sampling.max_tokens, sampling.temperature, stop_token_ids=prompter.stop_token_ids)
        plan = RolloutPlan(self.recipe.seed, 0, len(mode.stages), thought_end=sampling.prompt.thought_end.encode())
        writer = Writer(Replay(self.rollouts), prompter, TraceCutter(TokenBytes(prompter.tokenizer), plan), settings)
        starts = WholeTraces(prompter, len(mode.stages), settings, sampling.max_prompt_tokens)
        problems = [*self._problems.values()][:PROBLEMS]
        return contracts.mode_contract(mode, writer, sampling, [starts.group(problem) for problem in problems])

    @property
    def _prompter(self) -> Prompter:
        """With the tokenizer of a weights version of the run."""
        versions = published_versions(self.layout)
        return Prompter.of(self.layout.weights_version(max(versions, default=0)), self.recipe.prompt)

    @property
    def _problems(self) -> dict[str, Problem]:
        wanted = {rollout.problem_id for rollout in self.rollouts}
        return {problem.id: problem for problem in read_problems(self.layout.train_data) if problem.id in wanted}


def class_and_changes(name: str, sections: Iterable[str]) -> tuple[str, list[str]]:
    """The section of a class, one of ``sections``, and the changes that put it into a recipe."""
    registries = dict(sections_with_own_classes(Recipe))
    section, own = own_class(name, {section: registries[section] for section in sections})
    return section, [f"{PLACES[section]}={json.dumps({'type': name})}", *_prover_removals(section, own)]


def _prover_removals(section: str, own: type) -> list[str]:
    """Changes that take out a prover that would be refused beside the class: an algorithm may not use one, and a
    verifier may not find the answers that it has the model write.
    """
    if section == "data.verifier":
        return ['algorithm={"type": "grpo"}', "prover=null", "evaluation.prover=null"]
    return ["prover=null"] if issubclass(own, AlgorithmSettings) and not own.needs_prover else []


def _trace(rollout: Rollout, problem: Problem, settings: SamplingSettings) -> SampledTrace:
    """A stored rollout as it was before it was graded."""
    start = Start(rollout.prompt_ids, 1, settings, forced=rollout.forced)
    completion = Completion(
        0, 0, rollout.seed, rollout.token_ids, rollout.logprobs, rollout.finish_reason, rollout.weights_version,
        len(rollout.prompt_ids), None, [], rollout.started, rollout.seconds,
    )  # fmt: skip
    return SampledTrace(
        iteration=rollout.iteration,
        group=PromptedGroup(problem, rollout.prompt_ids, (start,)),
        start=start,
        sample=rollout.sample,
        text=rollout.text,
        answer_text=rollout.text,
        boundaries=rollout.boundaries,
        completion=completion,
    )
