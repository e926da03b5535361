"""Runs a prover: the model that serves as mu, the history of the run, and one server to ask."""

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
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.kinds import ProverSettings


@dataclass(frozen=True)
class ProverModel:
    """The tokenizer and texts of the model that serves as prover."""

    prompter: Prompter
    tokens: TokenBytes
    policy_tokens: TokenBytes | None = None
    """The tokens of the policy, where mu is another model and reads its traces as text; None where mu is the policy
    itself.
    """

    @staticmethod
    def of(prompter: Prompter) -> "ProverModel":
        """The policy itself."""
        return ProverModel(prompter, TokenBytes(prompter.tokenizer))

    def replaced(self, prover: ProverSettings) -> "ProverModel":
        """The model that a prover names in the policy's place; the policy itself where it names none."""
        if prover.model is None:
            return self
        prompter = Prompter.of(Path(prover.model), self.prompter.prompt)
        return ProverModel(prompter, TokenBytes(prompter.tokenizer), self.tokens)

    def context(self, trace: SampledTrace, boundary: int) -> list[int]:
        """The prompt and the prefix before a boundary, in mu's tokens."""
        if self.policy_tokens is None:
            return trace.context(boundary)
        sampled = self.policy_tokens.pieces(trace.completion.token_ids[: trace.boundaries[boundary]])
        text = (trace.start.prefix + b"".join(sampled)).decode(errors="replace")
        return [*self.prompter.encoded(trace.group.problem.problem), *self.prompter.ids(text)]


@dataclass(frozen=True)
class ProverSession:
    """Asks one server about the prefixes of traces, and adds the answers to the history."""

    estimator: Estimator
    history: AnswerHistory
    branches_think: bool
    """Whether branches continue the thought, so that they answer only after it has ended."""


@dataclass(frozen=True)
class ProverFactory:
    """Makes a session for one server after the other; their history is one."""

    prover: Prover
    model: ProverModel
    run_seed: int
    closing: Closing
    history: AnswerHistory

    @staticmethod
    def of(section: ProverSettings, policy: ProverModel, run_seed: int) -> "ProverFactory":
        """Make a factory with an empty history.

        Args:
            section: the recipe's.
            policy: the policy as prover; replaced where the prover names another model.
            run_seed: of all branches.
        """
        prover, model = as_kind(section, Prover), policy.replaced(section)
        return ProverFactory(prover, model, run_seed, Closing(model.tokens), AnswerHistory(prover.known_answer_limit))

    @property
    def longest_question(self) -> int:
        """The maximum number of tokens that asking adds to a trace: the forced text and the answer."""
        return len(self.model.prompter.ids(self.prover.question)) + self.prover.max_tokens

    def session(
        self, generator: Generator, boundaries: Callable[[SampledTrace], Sequence[int]] = every_boundary
    ) -> ProverSession:
        """Asks ``generator`` about these boundaries of each trace."""
        tools = ProverTools(self._fork(generator, boundaries), self.closing, self.history, self.writings)
        return ProverSession(self.prover.estimator(tools), self.history, self.prover.thinks_on)

    def writings(self, trace: SampledTrace) -> list[Writing]:
        """The tokens that can write the answers known for a trace's problem, gold first; without answers that no branch
        is long enough for.
        """
        problem = trace.group.problem
        writings = [
            self.closing.writing(answer, self.model.prompter.ids(answer))
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
