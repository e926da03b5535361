"""Runs a prover: the model that serves as mu, the run's history, and one server to ask."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.protocol import SamplingSettings
from mrt_hpc.inference.sampler import Generator
from mrt_hpc.inference.tokens import TokenBytes, answer_start
from mrt_hpc.inference.traces import SampledTrace
from mrt_hpc.provers.base import Estimator, Prover, ProverTools, every_boundary
from mrt_hpc.provers.box_tokens import Closing, Writing
from mrt_hpc.provers.branches import Fork
from mrt_hpc.provers.history import AnswerHistory
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.kinds import ProverSettings


@dataclass(frozen=True)
class ProverModel:
    """Tokenizer and texts of the prover's model."""

    prompter: Prompter
    tokens: TokenBytes
    policy_tokens: TokenBytes | None = None
    """The policy's tokens where mu is another model that reads its traces as text; else None."""

    @staticmethod
    def of(prompter: Prompter) -> "ProverModel":
        return ProverModel(prompter, TokenBytes(prompter.tokenizer))

    def model_for(self, prover: ProverSettings) -> "ProverModel":
        """The model that a prover names, else the policy itself."""
        if prover.model is None:
            return self
        prompter = Prompter.of(Path(prover.model), self.prompter.prompt)
        return ProverModel(prompter, TokenBytes(prompter.tokenizer), self.tokens)

    def context(self, trace: SampledTrace, boundary: int) -> list[int]:
        """Prompt and prefix before a boundary, in mu's tokens."""
        if self.policy_tokens is None:
            return trace.context(boundary)
        sampled = self.policy_tokens.pieces(trace.completion.token_ids[: trace.boundaries[boundary]])
        text = (trace.start.prefix + b"".join(sampled)).decode(errors="replace")
        return [*self.prompter.encode_problem(trace.group.problem.problem), *self.prompter.ids(text)]


@dataclass(frozen=True)
class ProverSession:
    """Asks one server about traces' prefixes, and adds answers to the history."""

    estimator: Estimator
    history: AnswerHistory
    branches_think: bool
    """Branches continue the thought, and answer only after its end."""
    text_before_answer: Callable[[bytes, Sequence[int]], str]
    """Of a stale prefix and the sampled tokens, with the prover's text up to the answer."""


@dataclass(frozen=True)
class ProverFactory:
    """Makes sessions for servers, with one history."""

    prover: Prover
    model: ProverModel
    run_seed: int
    closing: Closing
    history: AnswerHistory

    @staticmethod
    def of(section: ProverSettings, policy: ProverModel, run_seed: int) -> "ProverFactory":
        """A factory with an empty history.

        Args:
            policy: as prover, unless that names another model.
            run_seed: of all branches.
        """
        prover, model = require_kind(section, Prover), policy.model_for(section)
        return ProverFactory(prover, model, run_seed, Closing(model.tokens), AnswerHistory(prover.known_answer_limit))

    @property
    def longest_question(self) -> int:
        """Most tokens that asking adds to a trace: forced text and answer."""
        return len(self.model.prompter.ids(self.prover.question)) + self.prover.max_tokens

    def session(
        self, generator: Generator, boundaries: Callable[[SampledTrace], Sequence[int]] = every_boundary
    ) -> ProverSession:
        """The session asks about these boundaries of each trace."""
        tools = ProverTools(self._fork(generator, boundaries), self.closing, self.history, self.writings)
        before = self._text_before_answer
        return ProverSession(self.prover.estimator(tools), self.history, self.prover.thinks_on, before)

    def _text_before_answer(self, prefix: bytes, sampled: Sequence[int]) -> str:
        question, written = self.prover.question, self.model.policy_tokens or self.model.tokens
        forced = question.removesuffix(answer_start(question, self.model.prompter.prompt.thought_end))
        return (prefix + b"".join(written.pieces([*sampled]))).decode(errors="replace") + forced

    def writings(self, trace: SampledTrace) -> list[Writing]:
        """Writings of a problem's known answers, gold first, that a branch is long enough for."""
        problem = trace.group.problem
        writings = [
            self.closing.ways_to_write(answer, self.model.prompter.ids(answer))
            for answer in self.history.answers(problem.id, problem.answer)
        ]
        return [w for w in writings if 0 < w.longest <= self.prover.max_tokens]

    def _fork(self, generator: Generator, boundaries: Callable[[SampledTrace], Sequence[int]]) -> Fork:
        prover, prompter, text = self.prover, self.model.prompter, self.prover.question
        return Fork(
            generator=generator,
            tokens=self.model.tokens,
            context=self.model.context,
            forced_ids=prompter.ids(text),
            answer_start=answer_start(text, prompter.prompt.thought_end),
            settings=SamplingSettings(prover.max_tokens, prover.temperature, stop_token_ids=prompter.stop_token_ids),
            run_seed=self.run_seed,
            boundaries=boundaries,
            common_seeds=prover.shares_seeds,
        )
