"""``mrt-hpc analyze``: analyses of evaluated samples, or of the groups that an iteration learnt, each as CSV, PNG and
SVG; missing samples are generated before.
"""

import csv
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mrt_hpc.analysis.model_samples import Counted, ModelSamples, other_settings
from mrt_hpc.cli import options
from mrt_hpc.cli.command_group import KEEPS_NOTHING
from mrt_hpc.cli.completion import complete_suite
from mrt_hpc.cli.options import RunName, RunUse, site_of_command
from mrt_hpc.cli.terminal import Terminal, echo, echo_json, print_notes, table_of
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.evaluate.analysed_benchmark import Needs, analysed_benchmark
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.recipe.find import expand_home
from mrt_hpc.recipe.ownership import refuse_to_write
from mrt_hpc.run.layout import LAST, RunLayout, existing_run, run_path, split_at, version_named

if TYPE_CHECKING:
    from mrt_hpc.analysis.findings import Analysis
    from mrt_hpc.analysis.named_models import NamedModel

Analyse = Callable[[list[ModelSamples]], "Analysis"]


# -- generation --------------------------------------------------------------------------------------------------------
# The options of analyses that generate their samples: an evaluation on its own is queued, or run, before.


SUITE_HELP = (
    "Evaluate WHAT on a benchmark of this suite before, where samples are not there yet. RUN@first and RUN are then "
    "the first and last weights versions, EVALDIR the models of that evaluation."
)


@dataclass(frozen=True)
class AnalysisAsked:
    """The arguments and options of all analyses."""

    analysis: str
    what: tuple[str, ...]
    out: Path | None
    benchmark: str | None
    suite: str | None
    """None so that nothing is generated."""
    site: str | None
    overrides: tuple[str, ...]
    results: Path | None
    """None where the user named no folder."""
    data: Path | None
    as_json: bool

    def typed(self, suite: str | None, benchmark: str) -> str:
        """The command on a suite (None for its own) and a benchmark, as the user types it."""
        named = [
            ("--suite", suite or self.suite), ("--site", self.site), *(("--set", change) for change in self.overrides),
            ("--results", self.results), ("--data", self.data), ("--benchmark", benchmark),
        ]  # fmt: skip
        words = [str(word) for name, value in named if value is not None for word in (name, value)]
        return shlex.join(["mrt-hpc", "analyze", self.analysis, *self.what, *words])


def generate_samples(asked: AnalysisAsked, suite: str, needs: Needs) -> Path | None:
    """Evaluate models on a benchmark of a suite that has the samples, and return the finished evaluation; None while it
    is queued.
    """
    from mrt_hpc.analysis.named_models import models_to_evaluate
    from mrt_hpc.attempt.run_progress import progress
    from mrt_hpc.cli.submit import listener
    from mrt_hpc.evaluate.asked_models import models_asked
    from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe, narrow_to, submit_evaluation
    from mrt_hpc.plan.jobs import read_plan

    models = models_asked(models_to_evaluate(asked.what))
    whole = evaluation_recipe(models, suite, asked.overrides, asked.results, asked.data)
    recipe = narrow_to(whole, analysed_benchmark(whole, needs, asked.benchmark, asked.typed))
    root = run_path(recipe.name, None)
    layout = RunLayout(root)
    site = site_of_command(asked.site, layout).ensure_usable().site
    submit_evaluation(recipe, models.awaited, site, root, listener())
    now = progress(read_plan(layout.plan), layout)
    if now.evaluations_done == now.evaluations:
        return root
    echo(f"{now.evaluations_done} of {now.evaluations} evaluations are done: type the same command again then")
    return None


# -- the command of an analysis ----------------------------------------------------------------------------------------


def paper_results() -> list[dict[str, str]]:
    """The figures and tables of the paper (Qu et al., arXiv 2503.07572, first version): the command for each, and how
    its definition differs. ``docs/paper.md`` explains the words.
    """
    text = resources.files("mrt_hpc.analysis").joinpath("paper_results.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _print_paper(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return

    shown = table_of("Figures and tables of the paper (arXiv 2503.07572)", "what", "command", "definition")
    for row in paper_results():
        shown.add_row(f"{row['name']}: {row['shows']}", row["command"] or "not here", row["definition"])
    Terminal(sys.stdout).print(shown)
    context.exit()


@click.group(
    short_help="Analyse regret, scaling, votes, attempts, extrapolation, efficiency, progress or gradients.",
    epilog=options.WHAT,
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_paper,
    help="Print the figures and tables of the paper, each with the command that makes it.",
)
def analyze() -> None:
    """Analyse the evaluated samples of models, each a line, or the gradients of a run: tables as CSV, figures as PNG
    and SVG.

    \b
    Examples:
      mrt-hpc analyze regret   runs/mrt-online runs/grpo
      mrt-hpc analyze progress runs/mrt-online@0 runs/mrt-online
      mrt-hpc analyze scaling  runs/eval-paper_20
      mrt-hpc analyze gradients runs/mrt-online@last
      mrt-hpc analyze --list
      mrt-hpc analyze regret runs/grpo runs/mrt-online --suite paper_regret --benchmark aime24
    """


WEIGHTED = "votes of forced answers are weighted by their likelihoods, and a tie of them counts one half"
COMMON = (
    options.what,
    click.option(
        "--out",
        type=options.FOLDER,
        help="The directory of the results. Default: analysis/NAME in the first RUN or EVALDIR.",
    ),
    click.option(
        "--benchmark",
        metavar="NAME",
        help="Needed where the models share several, or the suite has several: it alone is evaluated.",
    ),
    click.option("--suite", shell_complete=complete_suite, help=SUITE_HELP),
    options.site, options.overrides, options.results, options.data_folder, options.as_json,
)  # fmt: skip


def add_analysis(short_help: str, *own: Callable[..., Any]) -> Callable[[Callable[..., tuple[Needs, Analyse]]], None]:
    """Make a function a command with the arguments and options of all analyses, and its ``own`` options. These are its
    arguments; it returns what samples the analysis needs, and the function that analyses them.
    """

    def add(function: Callable[..., tuple[Needs, Analyse]]) -> None:
        def run(weighted: bool = False, **typed: Any) -> None:
            if click.get_current_context().get_parameter_source("results") is ParameterSource.DEFAULT:
                typed["results"] = None
            evaluates = typed["overrides"] or any(typed[option] is not None for option in ("site", "results", "data"))
            if typed["suite"] is None and evaluates:
                raise click.UsageError(
                    "--site, --set, --results and --data belong to the evaluation on a suite: add --suite SUITE"
                )
            _, *common = (field.name for field in fields(AnalysisAsked))
            asked = AnalysisAsked(function.__name__, **{name: typed.pop(name) for name in common})
            needs, analyse = function(**typed)
            _analyse(asked, needs, analyse, weighted=weighted, tokens=typed.get("tokens"))

        command: Callable[..., Any] = run
        for option in reversed((*COMMON, *own)):
            command = option(command)
        about = {"short_help": short_help, "help": function.__doc__, "epilog": options.WHAT}
        analyze.command(function.__name__, **about)(command)

    return add


def _analyse(asked: AnalysisAsked, needs: Needs, analyse: Analyse, *, weighted: bool, tokens: Counted | None) -> None:
    """Where a suite is named, missing samples are generated or queued before."""
    from mrt_hpc.analysis.named_models import named_models

    what: Sequence[str] = asked.what
    if asked.suite is not None:
        if (evaluation := generate_samples(asked, asked.suite, needs)) is None:
            return
        what = [str(evaluation)]
    named = named_models(what)
    out = asked.out
    if out is None:
        out = refuse_to_write(named[0].run.layout.root, "the same command with --out DIR") / "analysis" / asked.analysis
    if weighted:
        named = [replace(model, run=replace(model.run, likelihoods=True)) for model in named]
    models = [replace(model, counted=tokens or model.counted) for model in _read(named, asked.benchmark)]
    analysis, benchmark = analyse(models), models[0].benchmark
    notes = (*analysis.remarks, *([WEIGHTED] if weighted else []), *other_settings(models[0], models[1:]))
    _show(replace(analysis, remarks=notes), out, f"on {benchmark}", {"benchmark": benchmark}, asked.as_json)


def _show(analysis: "Analysis", out: Path, of_what: str, about: dict[str, str], as_json: bool) -> None:
    from mrt_hpc.analysis.findings import write_analysis

    out.mkdir(parents=True, exist_ok=True)
    paths = write_analysis(analysis, out)
    if as_json:
        tables = [asdict(table) for table in (analysis.summary, *analysis.tables)]
        sentences = {"verdicts": analysis.verdicts, "notes": analysis.remarks}
        echo_json({**about, "tables": tables, **sentences, "files": [*map(str, paths)]})
        return
    shown = table_of(f"{analysis.summary.name} {of_what}", *analysis.summary.columns)
    for row in analysis.summary.rows:
        shown.add_row(*map(str, row))
    Terminal(sys.stdout).print(shown)
    for verdict in analysis.verdicts:
        echo(verdict)
    print_notes(analysis.remarks)
    for path in paths:
        echo(path)


def _read(named: "Sequence[NamedModel]", benchmark: str | None) -> list[ModelSamples]:
    """Several benchmarks, or models evaluated on different problems, are refused."""
    from mrt_hpc.analysis.named_models import chosen_benchmarks, read_models, require_same_problems

    benchmarks = chosen_benchmarks(named, () if benchmark is None else (benchmark,))
    if len(benchmarks) > 1:
        raise UserError(
            "the models share several benchmarks, and an analysis is of one",
            where="--benchmark",
            expected=f"one of {', '.join(benchmarks)}",
            advice=Advice("--benchmark {benchmarks}", benchmarks=benchmarks[0]),
        )
    models = [samples for (samples,) in read_models(named, benchmarks)]
    require_same_problems(models)
    return models


# -- analyses ----------------------------------------------------------------------------------------------------------


EPISODES = (Boundaries.EPISODES,)
weigh = click.option("--weighted", is_flag=True, help="Weigh the votes of forced answers by their likelihoods.")


def number_reader(number: type[int] | type[float], form: str, example: str) -> Callable[..., tuple[float, ...]]:
    """The callback of an option with numbers of this form between commas."""

    def read(_: click.Context, __: click.Parameter, text: str | None) -> tuple[float, ...]:
        parts = [] if text is None else [part.strip() for part in text.split(",")]
        if not all(re.fullmatch(form, part) for part in parts):
            raise click.BadParameter(f"{text!r} is not of the form {example}")
        return tuple(map(number, parts))

    return read


read_budgets = number_reader(int, r"0*[1-9]\d*", "1024,2048")
read_accuracies = number_reader(float, r"0?\.\d*[1-9]\d*|1(\.0*)?", "0.3,0.4")

count_tokens = click.option(
    "--tokens",
    type=click.Choice(["sampled", "all"]),
    help="The tokens that count before a boundary. Default: `evaluation.regret_tokens` of the first RUN or EVALDIR.",
)


@add_analysis(
    "Normalised regret against the budget of tokens.",
    click.option("--budgets", metavar="TOKENS,...", callback=read_budgets, help="Default: up to the longest trace."),
    count_tokens,
    click.option(
        "--beyond",
        multiple=True,
        metavar="WHAT",
        help="Go on past the budget of the training: an evaluation of the same models by extrapolation. Repeatable.",
    ),
    weigh,
    click.option(
        "--against-voting", is_flag=True, help="Regret against voting by the number of episodes, in its place."
    ),
)
def regret(
    budgets: tuple[int, ...], tokens: Counted | None, beyond: tuple[str, ...], against_voting: bool
) -> tuple[Needs, Analyse]:
    """Normalised regret against the budget of tokens, and how much of the area the first episodes give.

    \b
    Examples:
      mrt-hpc analyze regret runs/mrt-online@0 runs/mrt-online
      mrt-hpc analyze regret runs/mrt-online --budgets 4096,8192,12288,16384
      mrt-hpc analyze regret runs/mrt-online --beyond runs/eval-paper_extrapolation-mrt-online-1a2b3c4d
    """
    from mrt_hpc.analysis.named_models import named_models
    from mrt_hpc.analysis.regret_curves import analyse_regret, analyse_regret_beyond, analyse_voting_regret

    def analyse(models: list[ModelSamples]) -> "Analysis":
        if against_voting:
            return analyse_voting_regret(models)
        if beyond:
            return analyse_regret_beyond(models, _read(named_models(beyond), models[0].benchmark), budgets)
        return analyse_regret(models, budgets)

    if against_voting and (budgets or tokens or beyond):
        raise click.UsageError("--against-voting is by episodes: leave out --budgets, --tokens and --beyond")
    if click.get_current_context().params["weighted"] and not against_voting:
        raise click.UsageError("--weighted is for votes: add --against-voting")
    return Needs(values=True, answers=against_voting or tokens == "all", boundaries=EPISODES), analyse


@add_analysis(
    "Votes at each episode against complete samples of equal tokens.",
    click.option(
        "--margin",
        type=click.FloatRange(0, 100, min_open=True, max_open=True),
        metavar="POINTS",
        help="The loss, in percentage points, below which a vote at an earlier episode is as good as the last. "
        "Default: 2.",
    ),
    weigh,
    click.option(
        "--by-episodes", is_flag=True, help="Figure 3 of the paper in its place: votes as branches, by total episodes."
    ),
)
def scaling(margin: float | None, by_episodes: bool) -> tuple[Needs, Analyse]:
    """Whether thinking pays: votes of answers that are forced at each episode, and votes of complete samples.

    \b
    Examples:
      mrt-hpc analyze scaling runs/mrt-online
      mrt-hpc analyze scaling runs/mrt-online runs/without-thinking
    """
    from mrt_hpc.analysis.scaling import MARGIN, analyse_scaling
    from mrt_hpc.analysis.vote_curves import analyse_scaling_by_episodes

    if by_episodes and margin is not None:
        raise click.UsageError("--margin is for the sentence on earlier votes: leave out --by-episodes")
    needs = Needs(values=True, answers=True, boundaries=EPISODES)
    if by_episodes:
        return needs, analyse_scaling_by_episodes
    return needs, lambda models: analyse_scaling(models, MARGIN if margin is None else margin / 100)


@add_analysis("Votes of 1 to 10 samples, or attempts, against their tokens.")
def votes() -> tuple[Needs, Analyse]:
    """maj@k of complete samples against their tokens, k = 1 to 10; of samples in several attempts, these vote.

    \b
    Examples:
      mrt-hpc analyze votes runs/grpo runs/mrt-online
    """
    from mrt_hpc.analysis.vote_curves import analyse_votes

    return Needs(), analyse_votes


@add_analysis("How much better the last attempt is than the first one.")
def attempts() -> tuple[Needs, Analyse]:
    """The last attempt of a sample less the first one: modes history_conditioned and linearised.

    \b
    Examples:
      mrt-hpc analyze attempts runs/backtracking --suite paper_20_own_attempt --benchmark aime24
    """
    from mrt_hpc.analysis.attempts import analyse_attempts

    return Needs(boundaries=(Boundaries.LAST_ATTEMPT,)), analyse_attempts


@add_analysis("Mean progress by episode, split by outcome and difficulty.")
def progress() -> tuple[Needs, Analyse]:
    """Mean progress V(j+1) - V(j) by episode, split by outcome and by how hard the problem is.

    \b
    Examples:
      mrt-hpc analyze progress runs/mrt-online@0 runs/mrt-online
    """
    from mrt_hpc.analysis.episode_progress import analyse_progress

    return Needs(values=True, boundaries=EPISODES), analyse_progress


@add_analysis(
    "Tokens to a given accuracy, and their ratio between models.",
    click.option(
        "--accuracy",
        "accuracies",
        metavar="SHARE,...",
        callback=read_accuracies,
        help="Default: shares of the best accuracy that all models reach.",
    ),
    count_tokens,
    click.option("--seed", type=int, default=0, show_default=True, help="The seed of the bootstrap."),
)
def efficiency(accuracies: tuple[float, ...], tokens: Counted | None, seed: int) -> tuple[Needs, Analyse]:
    """Tokens to a given accuracy, those of the answer included; ratios are to the first model.

    \b
    Examples:
      mrt-hpc analyze efficiency runs/grpo runs/mrt-online --accuracy 0.3,0.4
    """
    from mrt_hpc.analysis.efficiency import analyse_efficiency

    needs = Needs(values=tokens == "all", answers=tokens == "all", boundaries=EPISODES)
    return needs, lambda models: analyse_efficiency(models, accuracies, seed)


@add_analysis("Accuracy past the budget of the training.")
def extrapolate() -> tuple[Needs, Analyse]:
    """Accuracy against the budget of thinking, past that of the training: evaluations whose mode is extrapolation.

    \b
    Examples:
      mrt-hpc analyze extrapolate runs/grpo runs/mrt-online --suite paper_extrapolation --benchmark aime24
      mrt-hpc analyze extrapolate runs/eval-paper_extrapolation-grpo-1a2b3c4d
    """
    from mrt_hpc.analysis.accuracy_by_budget import analyse_extrapolation

    return Needs(values=True, boundaries=(Boundaries.EXTENSIONS,)), analyse_extrapolation


@analyze.command(short_help="Signal and noise of the gradient by other estimators, at equal cost.")
@click.argument("run", metavar="RUN@VERSION", type=RunName(RunUse.LOOKS))
@click.option("--out", type=options.FOLDER, help="The directory of the results. Default: analysis/gradients in RUN.")
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of the bootstrap.")
@options.as_json
@options.trust
def gradients(run: str, out: Path | None, seed: int, as_json: bool, trust: bool) -> None:
    """Signal to noise, alignment and cosine of the gradients that the own algorithm, GRPO, and other credits, baselines
    and divisors make of the groups of iteration VERSION.

    \b
    Examples:
      mrt-hpc analyze gradients runs/quickstart@0
      mrt-hpc analyze gradients runs/mrt-online@last --out gradients
    """
    from mrt_hpc.attempt.entry import NO_BARS
    from mrt_hpc.attempt.ranks import THREADS_THAT_WAIT

    click.get_current_context().meta[KEEPS_NOTHING] = True
    for variable, value in (THREADS_THAT_WAIT | NO_BARS).items():  # as in a task; read when torch is imported
        os.environ.setdefault(variable, value)
    from mrt_hpc.analysis.estimator_signals import analyse_estimators
    from mrt_hpc.plan.jobs import read_plan
    from mrt_hpc.roles.gradient_referee import measure_estimators
    from mrt_hpc.run.prompt_files import read_experiment

    directory, name = split_at(run)
    layout = existing_run(expand_home(directory))
    version = version_named(name or LAST, read_plan(layout.plan).iterations, layout.root)
    if out is None:
        out = refuse_to_write(layout.root, "the same command with --out DIR") / "analysis" / "gradients"
    recipe = read_experiment(layout, trust=trust)
    measured = measure_estimators(layout, recipe, version, seed, lambda text: echo(text, err=True))
    analysis = analyse_estimators(measured)
    _show(analysis, out, f"of {measured.source}", {"source": measured.source}, as_json)
