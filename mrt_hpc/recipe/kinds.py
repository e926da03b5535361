"""The kinds of sections whose ``type`` names a class: algorithm, prover, loss, way of evaluating and verifier. Lower
layers need their fields, what they sample and what they cost.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from mrt_hpc.recipe.base import Count, PathText, Section, Temperature, Tokens
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.registry import Registry, import_name

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.recipe.sections import BenchmarkSampling

BOX = "\\boxed{"
DEFAULT_FORCED_TEXT = (
    "Time is up. I should stop thinking and give my best answer now.\n</think>\n\n"
    "**Final Answer**\n\nThe final answer is"
)
"""Closes the thought at a boundary and starts mu's answer. It begins without a newline, as every prefix ends with one:
an inner prefix with the blank line before the next marker, the prompt with that after ``<think>``, a whole thought with
that before ``</think>``.
"""


@dataclass(frozen=True)
class ExpectedTokens:
    """What one iteration or collection is expected to cost."""

    traces: float
    """Sampled for one problem, without branches."""
    branches: float
    """Of the prover, sampled for one problem."""
    trained: float
    """Of an update, prompts and prefixes included."""
    longest: int
    """The most that a sequence of an update may have."""

    @property
    def sampled(self) -> float:
        return self.traces + self.branches


class AlgorithmSettings(Section):
    samples_rollouts: ClassVar[bool]
    """False for algorithms that learn given or selected sequences."""
    collects: ClassVar[bool] = False
    """Whether training starts from traces that a weights version sampled before."""
    data_form: ClassVar[str] = "problems"
    """What ``data`` holds: problems, conversations or suffixes."""
    needs_prover: ClassVar[bool] = False
    """Whether it asks for values of prefixes."""
    compares_rewards_alone: ClassVar[bool] = False
    """Whether rewards may be normalised before their sum: no value is compared with them."""
    usual_prover: ClassVar[str] = "forced_answer"

    if TYPE_CHECKING:
        type: str

    @property
    def refresh_period(self) -> int | None:
        """Iterations between two collections of traces; None where the first traces stay."""
        return None

    def traces_version(self, iteration: int) -> int:
        """The weights version whose traces an iteration starts from."""
        return 0 if self.refresh_period is None else iteration - iteration % self.refresh_period

    def traces_versions(self, iterations: int) -> range:
        return range(0, iterations, self.refresh_period or iterations) if self.collects else range(0)

    def group_size(self, recipe: "Recipe", iteration: int) -> int:  # noqa: ARG002 - some differ
        """n, the rollouts of a problem in an iteration or a collection."""
        return recipe.sampling.rollouts_per_problem

    def check(self, recipe: "Recipe") -> None:
        """Refuse contradictory fields: raise :func:`mrt_hpc.recipe.base.misfit`, which names the field to
        change first.
        """

    def cost(self, recipe: "Recipe", iteration: int) -> ExpectedTokens:
        """Of an iteration, or of a collection."""
        raise NotImplementedError


class Refreshed(AlgorithmSettings):
    """Starts from traces that may be sampled again by later weights."""

    collects: ClassVar[bool] = True
    refresh_every: Count | None = None
    """Iterations after which all traces that training starts from are sampled again, by the weights of that iteration;
    null samples them once, by weights version 0. It is a multiple of
    schedule.iterations_per_job. Training continues from the weights and the optimiser state that it has, and the
    reference of training.kl_coefficient stays weights version 0.
    """

    @property
    def refresh_period(self) -> int | None:
        return self.refresh_every


ALGORITHMS: Registry[AlgorithmSettings] = Registry(
    "algorithm",
    "mrt_hpc.algorithms.base:Algorithm",
    {
        "grpo": "mrt_hpc.algorithms.grpo:Grpo",
        "length_penalty": "mrt_hpc.algorithms.length_penalty:LengthPenalty",
        "mrt": "mrt_hpc.algorithms.mrt:Mrt",
        "mrt_online": "mrt_hpc.algorithms.mrt_online:MrtOnline",
        "star": "mrt_hpc.algorithms.star:Star",
        "mrt_star": "mrt_hpc.algorithms.star:MrtStar",
        "backtracking": "mrt_hpc.algorithms.backtracking:Backtracking",
        "sft_conversations": "mrt_hpc.algorithms.sft:SftConversations",
        "sft_suffix": "mrt_hpc.algorithms.sft:SftSuffix",
    },
)


class ProverSettings(Section):
    """The fields of every prover."""

    samples_answers: ClassVar[bool] = True
    """Whether it samples answers (branches), so that a right one can be learnt or shown."""
    thinks_on: ClassVar[bool] = False
    """Whether branches continue the thought, and answer after it has ended."""
    answers_freely: ClassVar[bool] = False
    """Whether a branch is a rollout that was forced to answer and continues freely."""
    rewards_each_branch: ClassVar[bool] = False
    """Whether each branch is an answer whose reward can be learnt."""
    values_stopping: ClassVar[bool] = True
    """Whether V is the probability that stopping at the boundary answers right, as regret needs."""
    judges_answers_alone: ClassVar[bool] = False
    """Whether it has answers judged that stand in no trace."""

    if TYPE_CHECKING:
        type: str
        max_tokens: int

    forced_text: str = DEFAULT_FORCED_TEXT
    """The text that is written after the prefix: it closes the thought and starts the answer. Where prompt.thought_end
    is empty, the default is a text of the same meaning without a tag.
    """
    temperature: Temperature = 0.9
    """The temperature of mu, for sampled branches and for exact probabilities alike."""
    model: PathText | None = None
    """The Hugging Face directory of another model that serves as mu, on a server of its own, or its name
    ``hub:OWNER/NAME@REVISION``; null takes the policy itself.
    """
    memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The share of the memory for serving, and of the cores without a GPU, that the server of another model takes."""
    model_max_tokens: Tokens | None = None
    """Tokens of the longest sequence that the server of another model holds; null takes what the policy's server holds.
    A tokenizer that cuts the same text into more tokens needs more.
    """

    @property
    def question(self) -> str:
        return self.forced_text

    @property
    def opens_box(self) -> bool:
        return self.question.endswith(BOX)

    @property
    def shares_seeds(self) -> bool:
        """Whether the branches of all boundaries of a trace share their random numbers."""
        return False

    @property
    def branches_per_boundary(self) -> int:
        """G; 1 where the prover samples no branch, as one request a boundary costs about as much."""
        return 1

    def check(self, recipe: "Recipe") -> None:
        """Refuse contradictions, as :meth:`AlgorithmSettings.check` does."""


PROVERS: Registry[ProverSettings] = Registry(
    "prover",
    "mrt_hpc.provers.base:Prover",
    {
        "forced_answer": "mrt_hpc.provers.sampled_answers:ForcedAnswer",
        "boxed_answer": "mrt_hpc.provers.sampled_answers:BoxedAnswer",
        "look_ahead": "mrt_hpc.provers.look_ahead:LookAhead",
        "gold_likelihood": "mrt_hpc.provers.gold_likelihood:GoldLikelihood",
        "confident_likelihood": "mrt_hpc.provers.gold_likelihood:ConfidentLikelihood",
        "rao_blackwell": "mrt_hpc.provers.rao_blackwell:RaoBlackwell",
        "majority": "mrt_hpc.provers.sampled_answers:Majority",
        "continuation": "mrt_hpc.provers.sampled_answers:Continuation",
    },
)


class LossSettings(Section):
    whole_sequences: ClassVar[bool] = False
    """Whether a token's part depends on the other tokens of its sequence, which then lie on one rank."""

    if TYPE_CHECKING:
        type: str


LOSSES: Registry[LossSettings] = Registry(
    "loss",
    "mrt_hpc.training.loss_kinds:Loss",
    {
        "clipped": "mrt_hpc.training.loss_kinds:Clipped",
        "cispo": "mrt_hpc.training.loss_kinds:Cispo",
        "dppo": "mrt_hpc.training.loss_kinds:Dppo",
        "gspo_token": "mrt_hpc.training.loss_kinds:GspoToken",
        "masked": "mrt_hpc.training.loss_kinds:Masked",
    },
)


def clipped_loss() -> LossSettings:
    """The usual loss."""
    loss: LossSettings = import_name(LOSSES.built_in["clipped"])()
    return loss


class ModeSettings(Section):
    """The fields of every way of evaluating."""

    if TYPE_CHECKING:
        type: str

    boundaries: ClassVar[Boundaries] = Boundaries.EPISODES
    """The boundaries of a trace."""

    @property
    def adds_stages(self) -> bool:
        """Whether each rollout of a sample is an attempt of its own, so that tokens add up. Otherwise the last rollout
        holds all tokens.
        """
        return self.boundaries is Boundaries.LAST_ATTEMPT

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the rollouts of one sample, in order; the last one is its result."""
        return ("answer",)

    def expected_tokens(self, trace: float) -> float:
        """Expected tokens of one sample, from those of a trace that is sampled in one request."""
        return trace

    def tokens_held(self, sampling: "BenchmarkSampling") -> int:
        """Tokens that a server must hold for one trace after its prompt, without inserted texts."""
        return sampling.max_tokens

    def boundary_budgets(self, base: int) -> tuple[int, ...]:  # noqa: ARG002 - some count from there
        """The tokens that each boundary after the first stands for, from the limit of a completion (``base``); empty
        where boundaries are ends of episodes.
        """
        return ()

    def check(self, sampling: "BenchmarkSampling") -> None:
        """Also refuse contradictions with prompt and limits of the benchmark."""


MODES: Registry[ModeSettings] = Registry(
    "way of evaluating",
    "mrt_hpc.modes.base:Mode",
    {
        "direct": "mrt_hpc.modes.base:Direct",
        "history_conditioned": "mrt_hpc.modes.revision:HistoryConditioned",
        "linearised": "mrt_hpc.modes.revision:Linearised",
        "budget_forcing": "mrt_hpc.modes.budget_forcing:BudgetForcing",
        "extrapolation": "mrt_hpc.modes.extrapolation:Extrapolation",
    },
)


class VerifierSettings(Section):
    reads_boxes: ClassVar[bool] = True
    r"""Whether the answer is in ``\boxed{}``; provers that open a box need this."""

    if TYPE_CHECKING:
        type: str

    @property
    def finds_boxes(self) -> bool:
        return self.reads_boxes

    @property
    def sees_trace(self) -> bool:
        """Whether a verdict depends on more than answer and gold answer."""
        return False

    @property
    def normalised_weights(self) -> tuple[float, ...]:
        """Of rewards that are normalised before their sum; else empty."""
        return ()


_SINGLE = {
    "math": "mrt_hpc.domains.verifiers:MathVerifier",
    "exact": "mrt_hpc.domains.verifiers:ExactVerifier",
    "choice": "mrt_hpc.domains.verifiers:ChoiceVerifier",
}
_VERIFIER, _FUNCTION = "mrt_hpc.domains.base:Verifier", "mrt_hpc.domains.verifiers:FunctionVerifier"
VERIFIERS: Registry[VerifierSettings] = Registry(
    "verifier", _VERIFIER, {**_SINGLE, "weighted": "mrt_hpc.domains.weighted:WeightedVerifier"}, of_functions=_FUNCTION
)
SINGLE_VERIFIERS: Registry[VerifierSettings] = Registry("single verifier", _VERIFIER, _SINGLE, of_functions=_FUNCTION)
"""Parts of a weighted sum."""
