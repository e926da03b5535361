"""The figures and tables of the paper (Qu et al., arXiv 2503.07572, numbered as in its first version) and of its
appendices: the command that makes each, and how its definition differs. ``mrt-hpc analyze --list`` prints them, and
``docs/paper.md`` has the same rows. Below them are the published results of MRT, which ``mrt-hpc compare --published``
prints beside one's own.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperResult:
    """One figure or table, or several that one command makes in the same way."""

    name: str
    """As in ``Figure 3``."""
    shows: str
    command: str | None
    """What makes it, with words in capital letters for runs and evaluations, which ``docs/paper.md`` explains; None
    where it is not here.
    """
    definition: str
    """Whether the definition is the same, or how it differs."""


_SCALING = "mrt-hpc analyze scaling RUN DIRECT --by-episodes --weighted"
_BY_EPISODES = "the same curves; the tokens of the prompt do not count; the paper's problems of Omni-MATH have no suite"
_VOTES = "mrt-hpc analyze votes RUN LINEARISED"
_BEYOND = "mrt-hpc analyze regret BASE RUN --tokens all --beyond EXTRAPOLATED"
_NUMBERS = "recipes/README.md has each number beside the paper's"
_ATTEMPTS = "mrt-hpc analyze attempts ATTEMPTS"

RESULTS = (
    PaperResult("Figures 1, 2, 4, 5, 6, 14", "drawings of the method", None, "no data"),
    PaperResult(
        "Figure 3", "pass@k of direct answers, maj@1 and maj@p at the prefixes, by the total number of episodes of R1",
        _SCALING, _BY_EPISODES,
    ),
    PaperResult("Appendix D", "more of Figure 3", _SCALING, "as Figure 3"),
    PaperResult(
        "Table 1", "pass@1 on five benchmarks, 20 samples", "mrt-hpc compare BASE RUN --published",
        "the same; evaluate with the suite paper_20",
    ),
    PaperResult(
        "Figure 7", "maj@k against tokens, k = 1 to 10", "mrt-hpc analyze votes BASE RUN",
        "the same; ties are shared equally, and right answers are one class",
    ),
    PaperResult(
        "Figure 8, left", "maj@k against tokens, parallel and linearised, of STaR with Llama-3.1-8B", _VOTES,
        "of the linearised evaluation the first k attempts of a sample vote; the recipe is backtracking_llama",
    ),
    PaperResult(
        "Figure 8, right", "the same of RL with Llama-3.2-3B", _VOTES,
        "as on the left; there is no recipe for RL with backtracking",
    ),
    PaperResult(
        "Figure 9", "normalised regret up to 16,384 tokens and beyond", _BEYOND,
        "the same; past the budget an answer is forced, where the authors let the thought go on to 4,096 tokens; "
        "R1-Distill-Qwen-7B (left) has no recipe",
    ),
    PaperResult("Figure 12", "more of Figure 9", _BEYOND, "as Figure 9"),
    PaperResult(
        "Figure 10",
        "length over training",
        "mrt-hpc report TRAINED",
        "the same; of `mrt`, whose rollouts begin with prefixes, the tokens after them",
    ),
    PaperResult("Figure 11", "length and reward over training", "mrt-hpc report TRAINED", "as Figure 10"),
    PaperResult(
        "Figure 13", "histogram of second less first attempt", _ATTEMPTS,
        "over problems, of the model's own first attempt; there is no recipe for RL with backtracking",
    ),
    PaperResult("Figure 16", "more of Figure 13", _ATTEMPTS, "as Figure 13"),
    PaperResult(
        "Figure 15", "training loss of the variants of supervised fine-tuning", "mrt-hpc report TRAINED",
        "the same; random stitching, as in RISE, is not among the variants",
    ),
    PaperResult(
        "Appendix E", "regret against voting by the number of episodes",
        "mrt-hpc analyze regret RUN --against-voting --weighted", "the same",
    ),
    PaperResult(
        "Appendix F", "accuracy past the budget against tokens", "mrt-hpc analyze extrapolate EXTRAPOLATED",
        "also against the budget; an answer is forced, as past the budget of Figure 9",
    ),
    PaperResult("Table 2", "hyper-parameters of STaR", "mrt-hpc recipes copy mrt_star table_2.yaml", _NUMBERS),
    PaperResult("Table 3", "hyper-parameters of RL", "mrt-hpc recipes copy mrt table_3.yaml", _NUMBERS),
    PaperResult(
        "Table 4", "hyper-parameters of STaR with backtracking", "mrt-hpc recipes copy backtracking_llama table_4.yaml",
        _NUMBERS,
    ),
    PaperResult(
        "Table 5", "hyper-parameters of RL with backtracking (Llama-3.2-3B)", None, "there is no such recipe",
    ),
    PaperResult(
        "History-conditioned evaluation", "an answer after a first attempt of the base model", None,
        "the suite paper_20_own_attempt gives the model's own first attempt, as a turn of its own",
    ),
)  # fmt: skip


# -- published ---------------------------------------------------------------------------------------------------------
# Published results of MRT, to be put beside one's own: pass@1 in per cent, 16,384 tokens.
#
# Sources: Table 1 of the paper, and the authors' repository and model cards (CMU-AIRe/MRT) for their later rerun.


BENCHMARKS = ("aime24", "aime25", "amc23", "minerva", "math500")
"""Named as in the recipes and suites."""


@dataclass(frozen=True)
class PublishedResult:
    """pass@1 of one model on each of ``BENCHMARKS``, per cent."""

    model: str
    accuracy: tuple[float, float, float, float, float]
    mean: float
    """As published; it may differ from the mean of the rounded numbers in the last digit."""


@dataclass(frozen=True)
class PublishedTable:
    """Results that were measured under the same conditions."""

    conditions: str
    digits: int
    """The digits after the point that were published."""
    results: tuple[PublishedResult, ...]


PAPER_DISTILL = PublishedTable(
    "paper, Table 1, R1-Distill-Qwen-1.5B, 4,000 NuminaMath problems, pass@1 of 20 samples, 16,384 tokens",
    1,
    (
        PublishedResult("base", (28.7, 26.0, 69.9, 19.8, 80.1), 44.9),
        PublishedResult("GRPO", (29.8, 27.3, 70.5, 22.1, 80.3), 46.0),
        PublishedResult("MRT", (30.3, 29.3, 72.9, 22.5, 80.4), 47.1),
    ),
)
PAPER_DEEPSCALER = PublishedTable(
    "paper, Table 1, DeepScaleR-1.5B-Preview, 919 AIME problems, pass@1 of 20 samples, 16,384 tokens",
    1,
    (
        PublishedResult("base", (42.8, 36.7, 83.0, 24.6, 85.2), 54.5),
        PublishedResult("GRPO", (44.5, 39.3, 81.5, 24.7, 84.9), 55.0),
        PublishedResult("length penalty", (40.3, 30.3, 77.3, 23.0, 83.2), 50.8),
        PublishedResult("MRT", (47.2, 39.7, 83.1, 24.2, 85.1), 55.9),
    ),
)
RERUN = PublishedTable(
    "authors' rerun, R1-Distill-Qwen-1.5B, 248 steps, alpha 1.0, at most six episodes, four branches, pass@1 of 64 "
    "samples, 16,384 tokens",
    2,
    (
        PublishedResult("base", (27.34, 22.86, 67.89, 24.94, 81.71), 44.95),
        PublishedResult("GRPO", (28.12, 22.97, 67.77, 26.45, 81.85), 45.43),
        PublishedResult("MRT-online", (28.59, 22.24, 68.79, 25.87, 82.37), 45.57),
        PublishedResult("MRT from stale traces", (28.75, 23.59, 70.86, 24.96, 82.61), 46.16),
    ),
)
TABLES = (PAPER_DISTILL, PAPER_DEEPSCALER, RERUN)
