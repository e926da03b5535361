"""Grading: from traces and branches to rewards, values and records."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TypeVar

from mrt_hpc.domains.grader_queue import GraderPool, Seen, Verdict, VerdictStatus
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.inference.tokens import thought_and_answer
from mrt_hpc.inference.traces import BoundaryPlan, SampledTrace, Valuation
from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.mrt.values import Estimate, variance_of_progress
from mrt_hpc.provers.base import GradedBoundary
from mrt_hpc.provers.branches import look_ahead_of
from mrt_hpc.provers.prover_session import ProverSession
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import ProblemSource
from mrt_hpc.run.groups import Sampled
from mrt_hpc.run.records import AnswerProbability, Branch, FinishReason, GroupStatistics, Problem, Rollout

TROUBLES = (VerdictStatus.TIMED_OUT, VerdictStatus.MALFORMED, VerdictStatus.UNJUDGED)
"""Answers that the grader could not judge."""
NOT_JUDGED = Estimate(0.0, float("nan"))
"""Of a boundary where nothing could be judged."""
_Valued = tuple[BoundaryPlan, Estimate, float]


@dataclass(frozen=True)
class TraceGrader:
    pool: GraderPool
    thought_end: str
    """Empty for a model without one."""
    asking: ProverSession | None = None
    """None where no values are asked for."""

    async def grade(self, trace: SampledTrace) -> Sampled:
        """Grade a trace, its branches and known answers together.

        An answer counts where its box, the last after the thought, is closed, even if the token limit cut the text
        behind it.
        """
        valuation, gold = trace.valuation, trace.group.problem.answer
        answer = self._answer_of(trace)
        answers_of_branches = [self._answer_of_branch(b.text, b.completion.finish_reason) for b in valuation.branches]
        seen = self._seen_texts(trace)
        first, *of_branches = await self.pool.grade([(a, gold) for a in [answer, *answers_of_branches]], seen)
        verdicts = await self._verdicts(valuation.all_answers, trace.group.problem)
        rewards = {answer: verdict.reward for answer, verdict in verdicts.items()}
        branches = [
            _mark(trace.branch(branch, text, verdict.reward, look_ahead_of(branch, rewards, valuation.trust)), verdict)
            for branch, text, verdict in zip(valuation.branches, answers_of_branches, of_branches, strict=True)
        ]
        answers = [_mark(trace.known_answer(a, rewards[a.answer]), verdicts[a.answer]) for a in valuation.answers]
        drawn_here = [b for b, sampled in zip(branches, valuation.branches, strict=True) if not sampled.is_shared]
        self._learn(trace.group.problem.id, answer, drawn_here)
        self._learn_steps(valuation, branches, rewards)
        estimates = await self._estimates(valuation.plans, branches, answers)
        return Sampled(
            rollouts=[_with_verdict(trace.graded_rollout(answer, first.reward), first, estimates)],
            branches=branches,
            answers=answers,
            values=[trace.value(*estimate) for estimate in estimates],
            statistics=_cost(trace),
            troubles=sum(verdict.status in TROUBLES for verdict in [first, *of_branches]),
        )

    def _answer_of(self, trace: SampledTrace) -> str | None:
        """A rollout forced to answer has no thought that must end first."""
        cut = trace.completion.finish_reason is not FinishReason.STOP
        if self.thought_end or trace.start.forced == 0:
            return self._extract_after_thought(trace.text if self.thought_end else trace.answer_text, cut)
        return self.pool.verifier.extract(trace.answer_text, cut=cut)

    def _extract_after_thought(self, text: str, cut: bool) -> str | None:
        """The answer after a thought. Without tags the last box ends the thought, and a cut text may have had more to
        come.
        """
        if self.thought_end:
            return self.pool.verifier.extract(text, thinking=True, thought_end=self.thought_end, cut=cut)
        return None if cut else self.pool.verifier.extract(text)

    def _seen_texts(self, trace: SampledTrace) -> list[Seen]:
        """Of a trace and its branches, for a verifier that sees them."""
        if not self.pool.verifier.sees_trace:
            return []
        problem, valuation = trace.group.problem.problem, trace.valuation
        texts = [trace.text]
        for branch in valuation.branches:
            assert self.asking is not None  # only a prover draws branches
            sampled = trace.completion.token_ids[: trace.boundaries[branch.boundary]]
            texts.append(self.asking.text_before_answer(trace.start.prefix, sampled) + branch.text)
        return [(problem, text) for text in texts]

    async def _verdicts(self, answers: set[str], problem: Problem) -> dict[str, Verdict]:
        """Half-written answers are not worth a warning."""
        pairs = [(answer, problem.answer) for answer in sorted(answers)]
        return dict(zip(sorted(answers), await self.pool.grade(pairs, log_failures=False), strict=True))

    async def _same(self, branches: Sequence[Branch]) -> dict[str, str]:
        """Answers are compared where branches vote, at the same boundary only."""
        if self.asking is None or not self.asking.estimator.votes:
            return {}
        rewards = {b.answer: b.reward for b in branches if b.answer is not None}
        here: dict[int, set[str]] = defaultdict(set)
        for branch in branches:
            if branch.answer is not None:
                here[branch.boundary].add(branch.answer)
        pairs = sorted(set(chain(*(pairs_to_compare(answers, rewards) for answers in here.values()))))
        verdicts = await self.pool.grade(pairs, log_failures=False)
        equal = {pair for pair, verdict in zip(pairs, verdicts, strict=True) if is_right(verdict.reward, verdict.parts)}
        return representatives(rewards, equal)

    def _answer_of_branch(self, text: str, finish_reason: FinishReason) -> str | None:
        cut = finish_reason is not FinishReason.STOP
        if self.asking is None or not self.asking.branches_think:
            return self.pool.verifier.extract(text, cut=cut)
        return self._extract_after_thought(text, cut)

    def _learn(self, problem_id: str, answer: str | None, branches: list[Branch]) -> None:
        if self.asking is None:
            return
        history = self.asking.history
        history.see(problem_id, answer)
        for branch in branches:
            history.see(problem_id, branch.answer)
            if branch.judged and not branch.known:
                history.learn_unknown(branch.reward)

    def _learn_steps(self, valuation: Valuation, branches: list[Branch], rewards: dict[str, float]) -> None:
        """Record how branches ended that an earlier closed box would have made right."""
        if self.asking is None:
            return
        for sampled, branch in zip(valuation.branches, branches, strict=True):
            for look in () if sampled.is_shared else sampled.looks:
                if branch.judged and look.taken is not None and not look.taken[1] and is_right(rewards[look.taken[0]]):
                    self.asking.history.learn_step(look.step, branch.reward)

    async def _estimates(
        self, plans: Sequence[BoundaryPlan], branches: list[Branch], answers: list[AnswerProbability]
    ) -> list[_Valued]:
        """The values of boundaries in order, with the variance of each one's difference to the one before."""
        same = await self._same(branches)
        estimates: list[_Valued] = []
        before: Estimate | None = None
        for plan in plans:
            here = [b for b in branches if b.boundary == plan.boundary]
            known = [a for a in answers if a.boundary == plan.boundary]
            estimate = self._estimate(plan, here, known, same)
            noise = float("nan") if before is None else variance_of_progress(before, estimate)
            estimates.append((plan, estimate, noise))
            before = estimate
        return estimates

    def _estimate(
        self, plan: BoundaryPlan, here: list[Branch], known: list[AnswerProbability], same: Mapping[str, str]
    ) -> Estimate:
        """Of the branches and answers that could be judged."""
        assert self.asking is not None  # only a prover makes plans
        judged, answers = [b for b in here if b.judged], [a for a in known if a.judged]
        if (here and not judged) or (known and not here and not answers):
            return NOT_JUDGED
        return self.asking.estimator.estimate(GradedBoundary(plan, judged, answers, same))

    async def regrade(self, records: Sampled, problem: Problem) -> Sampled:
        """Judge a recorded trace and its branches again. Look-ahead corrections of rewards stay, as their candidates
        are not recorded.
        """
        (rollout,), gold = records.rollouts, problem.answer
        answer = self._answer_of_record(rollout)
        answers_of_branches = [self._answer_of_branch(b.text, b.finish_reason) for b in records.branches]
        known = [a.answer for a in records.answers]
        pairs = [(a, gold) for a in [answer, *answers_of_branches, *known]]
        first, *others = await self.pool.grade(pairs, self._seen_in_records(records, problem.problem))
        graded = zip(records.branches, answers_of_branches, others[: len(answers_of_branches)], strict=True)
        branches = [replace(b, answer=text, reward=v.reward, judged=v.judged) for b, text, v in graded]
        of_known = zip(records.answers, others[len(answers_of_branches) :], strict=True)
        answers = [replace(a, reward=verdict.reward, judged=verdict.judged) for a, verdict in of_known]
        plans = [BoundaryPlan(v.boundary, v.branches, v.baseline) for v in records.values]
        estimates = await self._estimates(plans, branches, answers)
        values = [
            replace(v, value=e.value, variance=e.variance, progress_variance=noise)
            for v, (_, e, noise) in zip(records.values, estimates, strict=True)
        ]
        graded_again = [_with_verdict(replace(rollout, answer=answer, reward=first.reward), first, estimates)]
        return replace(records, rollouts=graded_again, branches=branches, answers=answers, values=values)

    def _seen_in_records(self, records: Sampled, problem: str) -> list[Seen]:
        """As :meth:`_seen_texts`."""
        if not self.pool.verifier.sees_trace:
            return []
        (rollout,), texts = records.rollouts, [records.rollouts[0].text]
        for branch in records.branches:
            assert self.asking is not None
            texts.append(self.asking.text_before_answer(b"", rollout.prefix(branch.boundary)) + branch.text)
        return [(problem, text) for text in (*texts, *(a.answer for a in records.answers))]

    def _answer_of_record(self, rollout: Rollout) -> str | None:
        text = rollout.text
        if not self.thought_end:
            _, answer = thought_and_answer(text.encode(), b"")
            text = text if answer is None else answer.decode(errors="replace")
        return self._extract_after_thought(text, rollout.finish_reason is not FinishReason.STOP)


MarkedT = TypeVar("MarkedT", Branch, AnswerProbability)


def _mark(record: MarkedT, verdict: Verdict) -> MarkedT:
    return record if verdict.judged else replace(record, judged=False)


def _with_verdict(rollout: Rollout, verdict: Verdict, estimates: Sequence[_Valued]) -> Rollout:
    judged = verdict.judged and all(estimate is not NOT_JUDGED for _, estimate, _ in estimates)
    return replace(rollout, judged=judged, reward_parts=[*verdict.parts])


def pairs_to_compare(answers: set[str], rewards: Mapping[str, float]) -> list[tuple[str, str]]:
    """Pairs of answers that the verifier has to compare: right ones are known to be equivalent."""
    return list(combinations(sorted(a for a in answers if not is_right(rewards[a])), 2))


def representatives(rewards: Mapping[str, float], equal: Collection[tuple[str, str]]) -> dict[str, str]:
    """The first equivalent of each answer. ``equal`` holds pairs of wrong answers that say the same, each in ascending
    order.
    """
    representative: dict[str, str] = {}
    for answer in sorted(rewards):
        right = is_right(rewards[answer])
        alike = (o for o in representative if (right and is_right(rewards[o])) or (o, answer) in equal)
        representative[answer] = representative[first] if (first := next(alike, None)) is not None else answer
    return representative


def _cost(trace: SampledTrace) -> GroupStatistics:
    """The seconds are the group's."""
    completion, branches = trace.completion, [b for b in trace.valuation.branches if not b.is_shared]
    scoring = sum((b.follow_up for b in branches), trace.valuation.scoring)
    prompt_tokens = sum(b.completion.prompt_tokens for b in branches) + scoring.prompt_tokens
    cached_tokens = sum(b.completion.cached_tokens or 0 for b in branches) + scoring.cached_tokens
    own = completion.prompt_tokens - (completion.cached_tokens or 0)
    return GroupStatistics(
        rollouts=1,
        branches=len(branches),
        rollout_tokens=len(completion.token_ids),
        branch_tokens=sum(len(b.completion.token_ids) for b in branches) + scoring.tokens,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        prefilled_tokens=prompt_tokens - cached_tokens + own,
        seconds={},
    )


def grader_pool(experiment: Experiment, problems: ProblemSource) -> GraderPool:
    grading = experiment.grading
    verifier, limit_gib = verifier_of(problems, grading), grading.memory_limit_gib
    return GraderPool(verifier, grading.processes, grading.time_limit_s, memory_limit_gib=limit_gib)
