"""The samples of one model on one benchmark: rewards, lengths, answers, and the values of the prefixes with the answers
forced there.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.find import SUITES, entries
from mrt_hpc.recipe.source import read_source
from mrt_hpc.run.records import Branch, FinishReason, Rollout

if TYPE_CHECKING:
    from mrt_hpc.run.groups import BranchOutcome, Outcomes, RolloutOutcome, Sampled

EvaluatedProblems = dict[str, "tuple[EvaluatedTrace, ...]"]
SEED = "seed of the evaluation"
GRADER = "grader"
"""Words for two settings that are looked at one by one."""
TOLD = 24
"""Letters of a setting's value in a note; of a longer one it names the setting alone."""
SUITE_WITH = {
    Boundaries.EPISODES: "paper_regret",
    Boundaries.LAST_ATTEMPT: "paper_20_own_attempt",
    Boundaries.EXTENSIONS: "paper_extrapolation",
}
"""A suite whose samples have such boundaries, for advice."""
BENCHMARKS = ("aime24", "aime25", "amc23", "minerva", "math500")
"""Those of the paper, named as in the recipes and suites."""
Counted = Literal["sampled", "all"]


@dataclass(frozen=True)
class GradedAnswer:
    """A branch: one answer of the prover at a boundary."""

    answer: str | None
    reward: float
    tokens: int
    asked: int
    """The tokens before them: prompt, prefix and the prover's text."""
    weight: float | None = None
    """The weight of its vote: 2 to the power of the mean log-probability of its tokens (the authors' code,
    episode_scaling_curve.ipynb); None where every vote counts one.
    """


@dataclass(frozen=True)
class EvaluatedBoundary:
    """The end of an episode; the first boundary is the start of the trace."""

    tokens: int
    """Of the trace before it, with those of earlier rounds and those that a mode inserts."""
    value: float | None
    """V_j; None where the prover was not asked."""
    forced: tuple[GradedAnswer, ...]
    """[G] answers forced there."""


@dataclass(frozen=True)
class SampleAttempt:
    """One of several attempts of a sample, see ``ModeSettings.adds_stages``."""

    reward: float
    answer: str | None
    tokens: int
    """With those that a mode inserts, without those of earlier attempts."""


@dataclass(frozen=True)
class EvaluatedTrace:
    reward: float
    answer: str | None
    tokens: int
    """With those of the final answer, of earlier rounds and those that a mode inserts."""
    boundaries: tuple[EvaluatedBoundary, ...]
    """[k + 1] of k episodes."""
    attempts: tuple[SampleAttempt, ...] = ()
    """In their order, the last one is the result; empty where a sample is one attempt."""
    is_cut: bool = False
    """Whether the token limit cut it off before an answer."""

    @property
    def is_valued(self) -> bool:
        return bool(self.boundaries) and all(boundary.value is not None for boundary in self.boundaries)


@dataclass(frozen=True)
class ModelSamples:
    name: str
    source: str
    """As ``mrt-hpc eval`` takes it, for the commands that an error advises."""
    benchmark: str
    problems: EvaluatedProblems
    """At least one trace of each problem, in the order of sampling."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that decide the samples and verdicts beside the weights, by words for them; empty where not known."""
    counted: Counted = "sampled"
    """The tokens of a boundary, for regret."""
    boundaries: Boundaries = Boundaries.EPISODES
    prover: str = ""
    """Of the run's training, as an override sets it; empty where it has none."""
    weights: str = ""
    """The place, which all evaluations of the weights share."""
    budgets: tuple[int, ...] = ()
    """The tokens that each boundary after the first stands for; empty where boundaries are the ends of episodes."""
    limit: int | None = None
    """Of a trace; None where it is not known."""

    @property
    def mean_tokens(self) -> float:
        return _mean(_mean(trace.tokens for trace in traces) for traces in self.problems.values())

    @property
    def longest(self) -> int:
        return max(trace.tokens for traces in self.problems.values() for trace in traces)

    @property
    def fewest(self) -> int:
        return min(map(len, self.problems.values()))

    @property
    def fewest_forced(self) -> int:
        traces = (trace for traces in self.problems.values() for trace in traces)
        return min((len(boundary.forced) for trace in traces for boundary in trace.boundaries), default=0)

    @property
    def is_valued(self) -> bool:
        return all(trace.is_valued for traces in self.problems.values() for trace in traces)

    def require_boundaries(self, meant: Boundaries) -> None:
        """Refuse other boundaries, with which the analysis would compute another quantity."""
        if self.boundaries is not meant:
            raise UserError(
                f"this analysis would give another quantity: the boundaries of {self.name} on {self.benchmark} are "
                f"{self.boundaries}",
                value=self.boundaries.name.lower(),
                where=self.source,
                expected=f"samples whose boundaries are {meant}",
                advice=self.command_for(meant),
            )

    def require_values(self) -> None:
        if not self.is_valued:
            raise UserError(
                f"{self.name}: the prefixes of these samples were not valued",
                where=self.source,
                expected=f"an evaluation on {self.benchmark} that names a prover",
                advice=self.command_with_prover,
            )

    def command_for(self, boundaries: Boundaries) -> Advice:
        """It evaluates the model on a suite whose samples have such boundaries."""
        return Advice("mrt-hpc eval {source} --suite {suite}", source=self.source, suite=SUITE_WITH[boundaries])

    @property
    def command_with_prover(self) -> Advice:
        return Advice("mrt-hpc eval {source} {with_prover}", source=self.source, with_prover=prover_options(self))


def require_values(models: Sequence[ModelSamples], boundaries: Boundaries) -> None:
    for model in models:
        model.require_boundaries(boundaries)
        model.require_values()


def require_same_budgets(models: Sequence[ModelSamples]) -> None:
    first = models[0]
    for model in models[1:]:
        if model.budgets != first.budgets:
            raise UserError(
                f"{model.name} was extrapolated to other budgets than {first.name}",
                value=list(model.budgets),
                where=model.source,
                expected=", ".join(map(str, first.budgets)),
                advice=Advice(
                    "mrt-hpc eval {source} {source2} --suite {suite_with}",
                    source=first.source,
                    source2=model.source,
                    suite_with=SUITE_WITH[Boundaries.EXTENSIONS],
                ),
            )


def prover_options(model: ModelSamples) -> Advice:
    """Options of ``mrt-hpc eval`` that value the prefixes of a benchmark: a suite that has it and names a prover, or
    one with the prover of the run's training, whose texts and lengths suit the model.
    """
    sections = {entry.name: read_source(entry.path, advice="mrt-hpc recipes list").data for entry in entries(SUITES)}
    suites = [
        name for name, section in sections.items() if _samples_plainly(section.get("benchmarks"), model.benchmark)
    ]
    valued = [name for name in suites if sections[name].get("prover") is not None]
    if valued:
        return Advice("--suite {suite}", suite=valued[0])
    suite = suites[0] if suites else "SUITE"
    setting = f"evaluation.prover={model.prover}" if model.prover else "evaluation.prover.type=forced_answer"
    return Advice("--suite {suite} --set {setting}", suite=suite, setting=setting)


def _samples_plainly(benchmarks: Any, name: str) -> bool:
    """Whether a suite has the benchmark without a way of evaluating of its own."""
    listed = benchmarks if isinstance(benchmarks, list) else []
    return any(isinstance(b, dict) and b.get("name") == name and "mode" not in b for b in listed)


def other_settings(first: ModelSamples, others: Sequence[ModelSamples], *, seeds: bool = True) -> list[str]:
    """A sentence for each model with other settings of sampling or grading than the first; with ``seeds`` also for
    another seed of the evaluation.
    """
    unsaid = set() if seeds else {SEED}
    return [
        f"{mine.name} was evaluated on {mine.benchmark} with other settings than {first.name}: {', '.join(named)}"
        for mine in others
        if (named := _different(first, mine, unsaid))
    ]


def _different(first: ModelSamples, other: ModelSamples, unsaid: Collection[str]) -> list[str]:
    before, after = first.settings, other.settings
    return [
        f"{name} ({after[name]}, not {before[name]})" if max(len(before[name]), len(after[name])) <= TOLD else name
        for name in before
        if name in after and name not in unsaid and before[name] != after[name]
    ]


def _mean(numbers: Iterable[float]) -> float:
    listed = list(numbers)
    return sum(listed) / len(listed)


# -- from the records of an evaluation


def evaluated_problems(parts: "Iterable[Outcomes | Sampled]", *, adds_stages: bool = False) -> EvaluatedProblems:
    """``parts`` are the shards of one version and benchmark, each with all records of its samples; of several rounds or
    budgets the last one counts. The tokens of rounds add up where the mode ``adds_stages``.
    """
    traces_of: dict[str, dict[int, EvaluatedTrace]] = defaultdict(dict)
    for part in parts:
        attempts = attempts_of(part.rollouts) if adds_stages else {}
        values = {(value.problem_id, value.sample, value.boundary): value.value for value in part.values}
        forced = _forced_answers(part.branches)
        for rollout in (r for r in part.rollouts if r.counts):
            mine = attempts.get((rollout.problem_id, rollout.sample // rollout.stages), ())
            before = sum(attempt.tokens for attempt in mine[:-1])
            boundaries = []
            for number, tokens in enumerate(rollout.boundaries):
                where = rollout.problem_id, rollout.sample, number
                boundaries.append(EvaluatedBoundary(before + tokens, values.get(where), tuple(forced.get(where, ()))))
            is_cut = rollout.answer is None and rollout.finish_reason == FinishReason.LENGTH
            traces_of[rollout.problem_id][rollout.sample] = EvaluatedTrace(
                rollout.reward, rollout.answer, before + rollout.tokens, tuple(boundaries), mine, is_cut
            )
    return {problem: tuple(traces[sample] for sample in sorted(traces)) for problem, traces in traces_of.items()}


def _forced_answers(branches: "Sequence[Branch | BranchOutcome]") -> dict[tuple[str, int, int], list[GradedAnswer]]:
    """By problem, sample and boundary."""
    forced: dict[tuple[str, int, int], list[GradedAnswer]] = defaultdict(list)
    for branch in sorted(branches, key=lambda b: b.branch):
        mean = getattr(branch, "mean_logprob", None)  # read only where votes are weighted
        weight = None if mean is None else 2.0**mean  # as in the authors' code
        graded = GradedAnswer(branch.answer, branch.reward, branch.tokens, branch.prompt_tokens, weight)
        forced[branch.problem_id, branch.sample, branch.boundary].append(graded)
    return forced


def attempts_of(rollouts: "Iterable[RolloutOutcome | Rollout]") -> Mapping[tuple[str, int], tuple[SampleAttempt, ...]]:
    attempts: dict[tuple[str, int], list[SampleAttempt]] = defaultdict(list)
    for rollout in sorted(rollouts, key=lambda r: r.stage):
        attempt = SampleAttempt(rollout.reward, rollout.answer, rollout.tokens)
        attempts[rollout.problem_id, rollout.sample // rollout.stages].append(attempt)
    return {sample: tuple(mine) for sample, mine in attempts.items()}
