"""The figures and tables of the paper (Qu et al., arXiv 2503.07572, first version) and its appendices: the command for
each, and how its definition differs. ``mrt-hpc analyze --list`` prints them, and ``docs/paper.md`` has the same rows.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperResult:
    name: str
    """As ``Figure 3``."""
    shows: str
    command: str | None
    """With words in capital letters for runs and evaluations, which ``docs/paper.md`` explains; None where it is not
    here.
    """
    definition: str
    """Whether the definition is the same, or how it differs."""


_SCALING = "mrt-hpc analyze scaling RUN DIRECT --by-episodes --weighted"
_BY_EPISODES = (
    "the same branches and bins; a branch at every prefix, where the authors have one at every fifth episode; maj@8 "
    "needs 8 branches (evaluation.prover.branches), as paper_regret has; the tokens of the prompt do not count; the "
    "paper's problems of Omni-MATH have no suite"
)
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
        "mrt-hpc analyze regret RUN --against-voting --weighted",
        "the same; needs 8 branches at a boundary (evaluation.prover.branches), as paper_regret has",
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
