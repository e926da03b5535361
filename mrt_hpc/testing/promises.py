"""What a run takes for granted of an algorithm, a prover, a loss, a verifier and a way of evaluating, as checks on
stored rollouts: without server or GPU, in seconds.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, product
from math import isfinite, isnan
from typing import TYPE_CHECKING

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Batch, Learnt
from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.grader_queue import GraderPool, Verdict, VerdictStatus
from mrt_hpc.errors import error_line
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.protocol import Request
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace
from mrt_hpc.modes.base import Mode
from mrt_hpc.modes.writer import Writer
from mrt_hpc.mrt.values import Estimate
from mrt_hpc.provers.base import GradedBoundary
from mrt_hpc.provers.prover_session import ProverFactory
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import BenchmarkSampling, Training
from mrt_hpc.run.records import FinishReason, Rollout
from mrt_hpc.training.loss_kinds import Loss, LossTokens

if TYPE_CHECKING:
    from torch import Tensor

QUICK_S = 1.0
"""The maximum time of a method that runs in the task, seconds."""
ODD_TEXTS = (
    "", " ", "\0", "</think>", "\\boxed{", "\\boxed{}", "\\boxed{\\boxed{", "-", "None", "\\frac{1}{", "\u202e7\ufffd",
    "9" * 5000, "{" * 20_000, "\\boxed{" * 2000, "a b " * 10_000,
)  # fmt: skip
"""Texts that a model may write, and no problem has for an answer."""


@dataclass(frozen=True)
class Promise:
    """Something that a run takes for granted of a class, and whether the class keeps it."""

    text: str
    broken: str = ""
    """How it is broken; empty where it is kept."""
    stops: bool = True
    """Whether a run could not work, or would learn something wrong; otherwise it is a doubt."""


def check_promise(text: str, check: Callable[[], str | None], *, stops: bool = True) -> Promise:
    """A promise and the result of its check.

    Args:
        text: the promise.
    check: returns how the promise is broken, or None. Any exception breaks the promise too.
    """
    try:
        return Promise(text, check() or "", stops)
    except (Exception, SystemExit) as error:
        return Promise(text, error_line(error), stops)


# -- algorithm ---------------------------------------------------------------------------------------------------------


def algorithm_contract(algorithm: RolloutAlgorithm, recipe: Recipe, batch: Batch) -> Iterator[Promise]:
    """Replay an iteration; ``batch`` has all its rollouts."""
    before, learnt = _content(batch), list[Learnt]()

    def learns() -> str | None:
        learnt.append(found := algorithm.learnt(batch))
        if not isinstance(found, Learnt):
            return f"it returned {type(found).__name__}, and not Learnt(sequences)"
        return None if found.sequences else "it returned no sequence"

    text = f"`learnt` of {len(batch.rollouts)} rollouts: a finite advantage for each trained token"
    yield (first := check_promise(text, learns))
    if not first.broken:
        sequences = [*learnt[0].sequences, *learnt[0].branches]
        same = "`learnt` gives the same sequences again"
        yield check_promise(same, lambda: _differs(_advantages(learnt[0]), _advantages(algorithm.learnt(batch))))
        yield check_promise("the batch stays as it was", lambda: _differs(before, _content(batch)))
        nothing = "every advantage is 0: an update with these rollouts would change no weight"
        signal = any(sequence.has_signal for sequence in sequences)
        yield check_promise("some advantage is not 0", lambda: None if signal else nothing, stops=False)
    yield check_promise("the tokens of `cost` are numbers of at least 0", partial(_wrong_estimate, algorithm, recipe))


def _content(batch: Batch) -> str:
    variances = batch.progress_variances.tolist()
    return repr((batch.rollouts, batch.values, batch.branches, batch.costs, variances))


def _advantages(learnt: Learnt) -> str:
    sequences = [*learnt.sequences, *learnt.branches]
    arrays = [(s.advantages.tolist(), s.behaviour_logprobs.tolist(), s.mask.tolist()) for s in sequences]
    return repr([(list(s.prompt_ids), list(s.token_ids), s.group, *a) for s, a in zip(sequences, arrays, strict=True)])


def _differs(first: str, second: str) -> str | None:
    if first == second:
        return None
    place = next((n for n, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
    around = slice(max(0, place - 20), place + 40)
    return f"first ... {first[around]} ..., then ... {second[around]} ..."


def _wrong_estimate(algorithm: RolloutAlgorithm, recipe: Recipe) -> str | None:
    expected = asdict(algorithm.cost(recipe, 0))
    return "; ".join(f"{name} is {value}" for name, value in expected.items() if not isfinite(value) or value < 0)


# -- what a server would answer ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """Answers each request with a stored rollout's tokens, up to the limit or the first stop token."""

    rollouts: Sequence[Rollout]

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        """Yield one completion for each seed of each request."""
        for number, request in enumerate(requests):
            for sample, seed in enumerate(request.seeds):
                yield self._completion(request, number, sample, seed)

    def _completion(self, request: Request, number: int, sample: int, seed: int) -> Completion:
        rollout, settings = self.rollouts[seed % len(self.rollouts)], request.settings
        ids = rollout.token_ids[: settings.max_tokens]
        stops = [place for place, token in enumerate(ids) if token in settings.stop_token_ids]
        ids = ids[: stops[0] + 1] if stops else ids
        logprobs, count = rollout.logprobs[: len(ids)], len(request.prompt_ids)
        reason = FinishReason.STOP if stops else FinishReason.LENGTH
        tops = [{token: logprob} for token, logprob in zip(ids, logprobs, strict=True)] if request.top else []
        scores = [-1.0] * len(request.score_ids)
        return Completion(number, sample, seed, ids, logprobs, reason, 0, count, count, scores, 0.0, 0.0, tops)


# -- prover ------------------------------------------------------------------------------------------------------------


def prover_contract(factory: ProverFactory, traces: Sequence[SampledTrace], server: Replay) -> Iterator[Promise]:
    """Ask about the boundaries of stored traces, and estimate values of the answers, half of them right."""
    found: list[list[tuple[int, Estimate]]] = []

    def values() -> str | None:
        found.append([value for trace in traces for value in asyncio.run(_values(factory, trace, server))])
        if not found[0]:
            return "it asked about no boundary of any trace"
        wrong = [(boundary, e) for boundary, e in found[0] if not _is_estimate(e)]
        return f"boundary {wrong[0][0]}: {wrong[0][1]}" if wrong else None

    text = f"values of the boundaries of {len(traces)} traces are finite, and no variance is negative"
    yield (first := check_promise(text, values))
    if not first.broken:
        same = "the same answers give the same values again"
        yield check_promise(same, lambda: values() or _differs(*map(repr, found)))
    wrong = None if isinstance(factory.prover.question, str) else "it is none"
    yield check_promise("`question` is a text", lambda: wrong)


def _is_estimate(estimate: object) -> bool:
    """A variance may be NaN, which says that nothing is known of it."""
    if not isinstance(estimate, Estimate):
        return False
    return isfinite(estimate.value) and (isnan(estimate.variance) or estimate.variance >= 0)


async def _values(factory: ProverFactory, trace: SampledTrace, server: Replay) -> list[tuple[int, Estimate]]:
    """The value of each boundary that a session asks about."""
    session = factory.session(server)
    valuation = await session.estimator.value(trace)
    branches = [trace.branch(b, None, float(b.branch % 2)) for b in valuation.branches]
    answers = [trace.known_answer(answer, 1.0) for answer in valuation.answers]
    values = []
    for plan in valuation.plans:
        here, known = ([r for r in records if r.boundary == plan.boundary] for records in (branches, answers))
        values.append((plan.boundary, session.estimator.estimate(GradedBoundary(plan, here, known))))  # type: ignore[arg-type]
    return values


# -- loss --------------------------------------------------------------------------------------------------------------

LOG_RATIOS = (0.0, 0.05, -0.05, 1.0, -1.0, 30.0, -30.0)
"""Of pi / pi_old and of pi_old / mu."""


def loss_contract(loss: Loss, training: Training) -> Iterator[Promise]:
    """Compute the loss of made-up tokens of four sequences, the first of which has advantages of 0."""
    import torch  # a light installation has none

    ratios, weights = torch.tensor([*product(LOG_RATIOS, LOG_RATIOS)]).T
    count, sequences = len(ratios), torch.arange(len(ratios)) % 4
    advantages = torch.tensor([0.0, 1.0, -1.0, 0.5])[sequences]
    policy = torch.minimum(torch.minimum(ratios, ratios + weights), torch.zeros(count)) - 0.1  # none is above 1
    others = (policy - ratios, policy - ratios - weights, advantages, sequences.bincount()[sequences].float())

    def compute(chosen: "Tensor") -> "Tensor":
        """[2, count] objective and gradient of a micro-batch of some tokens, elsewhere 0."""
        logprobs, found = policy[chosen].requires_grad_(), torch.zeros(2, count)
        numbers = sequences[chosen].unique(return_inverse=True)[1]
        old, behaviour, advantage, length = (values[chosen] for values in others)
        tokens = LossTokens(logprobs, old, behaviour, advantage, numbers, length, training)
        if (objective := loss.objective(tokens)).shape != logprobs.shape:
            raise ValueError(f"the shape is {[*objective.shape]}, and not [{len(logprobs)}], a number a token")
        found[:, chosen] = torch.stack([objective.detach(), *torch.autograd.grad(objective.sum(), logprobs)])
        return found

    whole: list[Tensor] = []

    def finite() -> str | None:
        whole.append(compute(torch.arange(count) >= 0))
        wrong = (~whole[0].isfinite()).any(0).nonzero().flatten().tolist()
        at = wrong and f"pi / pi_old = e^{ratios[wrong[0]]:g} and pi_old / mu = e^{weights[wrong[0]]:g}"
        return f"of {len(wrong)} tokens it is not, the first with {at}" if wrong else None

    def parts() -> str | None:
        of_first = sequences < 2 if loss.whole_sequences else torch.arange(count) < count // 2
        same = torch.allclose(compute(of_first) + compute(~of_first), whole[0], rtol=1e-4)
        return None if same else "they differ; one with sums over a sequence says `whole_sequences = True`"

    text = f"`objective` of {count} tokens with ratios from e^-30 to e^30: finite, with a finite gradient"
    yield (first := check_promise(text, finite))
    if not first.broken:
        yield check_promise("a token has the same numbers whatever others share its micro-batch", parts)
        moved = "they have one, though such sequences are not computed" if whole[0][1][advantages == 0].any() else None
        yield check_promise("sequences whose advantages are 0 have no gradient", lambda: moved)


# -- verifier ----------------------------------------------------------------------------------------------------------


def verifier_contract(
    verifier: Verifier, pool: Callable[[], GraderPool], texts: Sequence[str], golds: Sequence[str]
) -> Iterator[Promise]:
    """Find answers in stored and in odd texts, and judge them."""
    shapes = ("{}", "</think>\\boxed{{{}}}", "</think>\\boxed{{{}}} is it.\nAnswer: {}")
    every = list(dict.fromkeys([*texts, *(shape.format(odd, odd) for shape in shapes for odd in ODD_TEXTS)]))
    text = f"`extract` of {len(every)} texts, odd ones too: a text or None, quickly"
    yield (first := check_promise(text, lambda: _extracts(verifier, every)))
    if first.broken:
        return
    found = {verifier.extract(text, thinking=True): text for text in every}
    odd = [(answer, gold) for answer in found if answer is not None and answer.strip() for gold in golds[:2]]
    own = [(boxed, gold) for gold in golds if (boxed := verifier.extract(f"\\boxed{{{gold}}}")) is not None]
    known = any(verifier.extract(text, thinking=thinking) for text in texts for thinking in (False, True))
    nothing = f"none of {len(texts)} has one"
    yield check_promise("some stored text has an answer", lambda: None if known else nothing, stops=False)
    yield check_promise("`certain` and `reads`: true, false or None", lambda: _knows(verifier, odd))
    verdicts: list[list[Verdict]] = []

    def judges() -> str | None:
        with pool() as opened:
            opened.readable_all(golds)
            seen = [("A problem.", found.get(answer, answer)) for answer, _ in (*own, *odd)]
            verdicts.append(asyncio.run(opened.grade([*own, *odd], seen, log_failures=False)))
        return None

    yield (judged := check_promise(f"`judge` of {len(golds)} gold answers: a verdict, without an error", judges))
    if judged.broken:
        return
    same = "the same answers get the same verdicts again"
    yield check_promise(same, lambda: judges() or _differs(*(repr([v.reward for v in each]) for each in verdicts)))
    text = f"`judge` of {len(odd)} answers that were found: no error"
    yield check_promise(text, lambda: _errors(odd, verdicts[0][len(own) :]), stops=False)
    yield check_promise("a gold answer in a box is right", lambda: _not_right(own, verdicts[0]), stops=False)


def _extracts(verifier: Verifier, texts: Sequence[str]) -> str | None:
    for text, thinking, cut in product(texts, (False, True), (False, True)):
        began = time.perf_counter()
        found, again = (verifier.extract(text, thinking=thinking, cut=cut) for _ in range(2))
        said = f"of {text[:40]!r} with thinking={thinking}, cut={cut}"
        if not (found is None or isinstance(found, str)):
            return f"it returned {found!r:.60} {said}"
        if found != again:
            return f"it returned {found!r:.60}, then {again!r:.60} {said}"
        if (seconds := (time.perf_counter() - began) / 2) > QUICK_S:
            return f"it took {seconds:.1f} s {said}"
    return None


def _knows(verifier: Verifier, pairs: Sequence[tuple[str, str]]) -> str | None:
    for answer, gold in pairs:
        for name, said in (("certain", verifier.certain(answer, gold)), ("reads", verifier.reads(gold))):
            if not (said is None or isinstance(said, bool)):
                return f"{name} returned {said!r:.60} of {answer[:40]!r} and {gold[:40]!r}"
    return None


def _errors(pairs: Sequence[tuple[str, str]], verdicts: Sequence[Verdict]) -> str | None:
    said = [
        f"{answer[:40]!r}: {verdict.error or 'it did not end in time'}"
        for (answer, _), verdict in zip(pairs, verdicts, strict=True)
        if verdict.error is not None or verdict.status is VerdictStatus.TIMED_OUT
    ]
    return f"{len(said)} of {len(pairs)}, the first {said[0]}" if said else None


def _not_right(pairs: Sequence[tuple[str, str]], verdicts: Sequence[Verdict]) -> str | None:
    wrong = [gold for (_, gold), verdict in zip(pairs, verdicts, strict=False) if not verdict.reward]
    return f"{len(wrong)} of {len(pairs)} are not, the first {wrong[0][:40]!r}" if wrong else None


# -- way of evaluating -------------------------------------------------------------------------------------------------


def mode_contract(
    mode: Mode, writer: Writer, sampling: BenchmarkSampling, groups: Sequence[PromptedGroup]
) -> Iterator[Promise]:
    """Sample traces from a server that replays stored ones."""
    longest = mode.longest(writer.prompter, sampling)

    def traces() -> list[SampledTrace]:
        return [trace for group in groups for trace in asyncio.run(_traces(mode, writer, group))]

    def lengths() -> str | None:
        held = mode.tokens_held(sampling)
        return None if 1 <= held <= longest else f"tokens_held is {held}, longest {longest}"

    yield check_promise("`longest` is at least `tokens_held`, and that at least 1", lengths)
    wrong = f"they are {mode.stages}" if len(set(mode.stages)) < len(mode.stages) or not mode.stages else None
    yield check_promise("`stages` has each name once", lambda: wrong)
    found: list[SampledTrace] = []

    def whole() -> str | None:
        found.extend(traces())
        wanted = [*range(len(mode.stages))] * len(groups)
        if found and [trace.stage for trace in found] != wanted:
            return f"stages {[trace.stage for trace in found]} were yielded, and not {wanted}"
        return next(filter(None, (_wrong_trace(trace, longest) for trace in found)), None)

    first = check_promise(f"traces of {len(groups)} problems: one for each stage, whole, within `longest`", whole)
    yield first
    if not first.broken:
        yield check_promise("the same traces again", lambda: _differs(repr(found), repr(traces())))


async def _traces(mode: Mode, writer: Writer, group: PromptedGroup) -> list[SampledTrace]:
    sampler = mode.sampler(writer)
    return [] if sampler is None else [trace async for trace in sampler.traces(group, 0)]


def _wrong_trace(trace: SampledTrace, longest: int) -> str | None:
    count, bounds = len(trace.completion.token_ids), trace.boundaries
    if count > longest:
        return f"a trace has {count} tokens, and `longest` says {longest}"
    if len(trace.completion.logprobs) != count:
        return f"a trace has {count} tokens and {len(trace.completion.logprobs)} log-probabilities"
    if bounds[:1] != [0] or bounds[-1] > count or any(a > b for a, b in pairwise(bounds)):
        return f"the boundaries {bounds} do not ascend from 0 to at most {count}"
    beyond = [span for span in trace.inserted if sum(span) > count]
    return f"the inserted tokens {beyond} lie beyond the {count} tokens" if beyond else None
