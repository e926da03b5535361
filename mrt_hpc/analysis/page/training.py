"""The sections of the training: progress by episode, and the curves of its iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.analysis.number_formats import DASH, number, percent, points
from mrt_hpc.analysis.page.columns import name_before
from mrt_hpc.analysis.page.content import Column, Section, Table
from mrt_hpc.analysis.page.figures import learning_plots, progress_plots
from mrt_hpc.analysis.page.prefix_figures import prefix_progress_plots
from mrt_hpc.analysis.plots import MARKED_POINTS
from mrt_hpc.analysis.render import MOST_ROWS
from mrt_hpc.analysis.result_rows import sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mrt_hpc.analysis.measures import IterationMetrics
    from mrt_hpc.analysis.page.content import RunRecord

SMOOTHED = (
    "In the figures, a light line has the value of each iteration, and the strong line is the mean over a twentieth of "
    "the run around it."
)


def progress(records: Sequence[RunRecord], trained: Sequence[RunRecord]) -> tuple[Section, ...]:
    """Progress by episode in training and in evaluation; nothing where neither could have any."""
    found = (*(progress_plots(trained) if trained else ()), *prefix_progress_plots(records))
    told = tuple(name_before(records, record) + sentence for record in records for sentence in record.unread)
    return (Section("progress", "Progress by episode", told, plots=found),) if trained or found or told else ()


def learning(records: Sequence[RunRecord]) -> Section:
    """The curves of the training, and some of its iterations as a table a run."""
    most = max(record.summary.iterations_done for record in records)
    told = (SMOOTHED,) if most > MARKED_POINTS else ()
    return Section("training", "Learning curves", told, tuple(map(_iterations, records)), learning_plots(records))


_MEASURES: Mapping[str, Callable[[IterationMetrics], str]] = {
    "reward": lambda m: number(m.reward_mean),
    "tokens per rollout": lambda m: number(m.tokens_per_rollout),
    "cut off": lambda m: percent(m.truncated_share),
    "answered": lambda m: percent(m.answered_share),
    "loss": lambda m: number(m.loss),
    "gradient norm": lambda m: number(m.grad_norm),
    "learning rate": lambda m: number(m.learning_rate),
    "KL to reference": lambda m: number(m.kl_reference),
    "mismatch": lambda m: number(m.mismatch_mean),
    "error of progress": lambda m: percent(m.progress_error),
    "progress by episode, points": lambda m: ", ".join(map(points, m.progress_by_episode)) or DASH,
}


def _iterations(record: RunRecord) -> Table:
    done = record.summary.iterations
    shown = sample(done, MOST_ROWS)
    rows = tuple((str(m.iteration), *(told(m) for told in _MEASURES.values())) for m in shown)
    note = (
        f"{len(shown)} of {len(done)} iterations; the tables of the figures have all. Mismatch is the mean ratio of "
        "the sampled tokens' probabilities, the trainer's over the server's: 1 when they agree."
    )
    return Table(f"Iterations of {record.name}", _columns("iteration", *_MEASURES), rows, note)


def _columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)
