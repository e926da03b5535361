"""The figures and tables of the paper: each command makes its own, and small ones are worked out by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from basics import ROOT
from commands import refusal, typed
from evaluated import PROBLEMS, benchmark_of, boundary, commit_traces, evaluation_of, model, run_directory, trace
from synthetic_run import Shape, SyntheticRun

from mrt_hpc.analysis import vote_curves
from mrt_hpc.analysis.attempts import analyse_attempts, attempts_of_model
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.model_samples import EvaluatedTrace, SampleAttempt
from mrt_hpc.analysis.regret_curves import analyse_regret_beyond, voting_regret
from mrt_hpc.analysis.scaling import prefix_curve, require_few_draws
from mrt_hpc.cli.analyze import paper_results
from mrt_hpc.mrt.regret import TraceCurve, area_under_values, join_curves, regret_against_voting
from mrt_hpc.mrt.values import Vote
from mrt_hpc.mrt.votes import weighted_majority_at_k
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.run.problems import read_problems

ENDS = (40, 60)
"""The tokens of the two thoughts of each problem."""
EPISODES = {
    problem: tuple(
        trace("R", end + 5, boundary(0, "RRXXXYYY"), boundary(20, "RRRRXXYY"), boundary(end, last)) for end in ENDS
    )
    for problem, last in (("a", "RRRRRRXX"), ("b", "XXXXXXXR"))
}
EXTENDED = {
    problem: tuple(
        trace("R", 200, *(boundary(at, "RR" if at == 120 else "RX") for at in (0, end, 120, 150))) for end in ENDS
    )
    for problem in EPISODES
}
BUDGETS = (64, 128, 192)
EXTRAPOLATION = "{type: extrapolation, extensions: 4, tokens: 32, value_every: 2}"


def attempted(*answers: str) -> EvaluatedTrace:
    """A sample of attempts of 10 tokens each, R being right."""
    attempts = tuple(SampleAttempt(float(answer == "R"), answer, 10) for answer in answers)
    return replace(trace(answers[-1], 10 * len(answers), boundary(10 * len(answers) - 10, "R")), attempts=attempts)


REVISED = {"a": (attempted("X", "R"), attempted("R", "R")), "b": (attempted("R", "X"), attempted("X", "X"))}
ATTEMPTED = replace(model(REVISED), boundaries=Boundaries.LAST_ATTEMPT)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the words of the commands stand for: weights versions of a run, and other evaluations of these."""
    place = tmp_path_factory.mktemp("paper")
    run = run_directory(place / "run")
    extended = benchmark_of(2, 2, EXTRAPOLATION)[0]
    beyond = evaluation_of(place / "beyond", run, (0, 2), extended, "evaluation.max_tokens=64")
    back = run_directory(place / "back", benchmark_of(2, 2, "{type: history_conditioned}")[0])
    rounds = run_directory(place / "rounds", benchmark_of(2, 2, "{type: linearised, rounds: 2}")[0])
    for layout, versions, samples in (
        (run, (0, 2, 3), EPISODES), (beyond, (0, 1), EXTENDED), (back, (0,), REVISED), (rounds, (0,), REVISED),
    ):  # fmt: skip
        for version in versions:
            for shard, problem in enumerate(read_problems(layout.benchmark_data("held-out"))):
                commit_traces(layout, version, shard, {problem.id: samples["ab"[shard]]}, valued=version != 3)
    trained = SyntheticRun(place / "trained", Shape(2, 1, ("aime24",), problems=2, paragraphs=1)).write()
    return {
        "BASE": f"{run.root}@0", "RUN": f"{run.root}@2", "DIRECT": f"{run.root}@3", "EXTRAPOLATED": str(beyond.root),
        "ATTEMPTS": f"{back.root}@0", "LINEARISED": f"{rounds.root}@0", "TRAINED": str(trained.root),
    }  # fmt: skip


RESULTS = paper_results()
MADE = {result["name"]: result["command"] for result in RESULTS if result["command"]}


@pytest.mark.parametrize("command", sorted(set(MADE.values())))
def test_every_command(places: dict[str, str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [places.get(word, word) for word in command.removeprefix("mrt-hpc ").split()]
    out = ["--out", tmp_path] if words[0] == "analyze" else []
    assert typed(*words, *out).output
    assert all(len(table.read_text().splitlines()) > 1 for table in tmp_path.glob("*.csv"))
    assert not out or list(tmp_path.glob("*.png"))


def test_the_list_and_the_page_have_every_figure_and_table() -> None:
    assert len(RESULTS) == 21 and len(MADE) >= 16
    page, shown = (ROOT / "docs" / "paper.md").read_text().splitlines(), typed("analyze", "--list").output
    for name, shows, command, definition in (row.values() for row in RESULTS):
        assert f"| {name} | {shows} | {f'`{command}`' if command else 'not here'} | {definition} |" in page
        assert name in shown


def beyond_of(problems: dict[str, tuple[EvaluatedTrace, ...]], name: str = "model") -> object:
    return replace(model(problems, name), weights="w", boundaries=Boundaries.EXTENSIONS, budgets=BUDGETS)


def test_regret_goes_on_through_the_extensions_up_to_each_budget_alone() -> None:
    """One thought of value 1/2 up to its end at 40; 1 after the extension at 120, and 1/2 after that at 150. To 128
    tokens: 20 to the end, 80 * .75 to 120, and 8 * 1: the last extension is past this budget.
    """
    short = {"a": (trace("R", 40, boundary(0, "RX"), boundary(40, "RX")),)}
    found = analyse_regret_beyond([replace(model(short), weights="w")], [beyond_of({"a": EXTENDED["a"][:1]})], [40])
    areas = (0.5, (20 + 60 + 8) / 128, (20 + 60 + 30 * 0.75 + 42 * 0.5) / 192)
    assert [row[1] for row in found.tables[0].rows] == [40, 128, 192]
    assert [row[2] for row in found.tables[0].rows] == pytest.approx([1 - area for area in areas])
    assert not found.remarks
    first, second = TraceCurve(np.array([0.0, 9.0]), np.array([0.0, 1.0])), TraceCurve(np.array([7.0]), np.array([0.5]))
    curve = join_curves(first, second)
    assert curve.tokens.tolist() == [0, 9, 9], "answers there are shorter, and the area has a base all the same"
    assert area_under_values(curve.tokens, curve.values, 18) == pytest.approx((4.5 + 4.5) / 18)


def test_thoughts_that_are_not_the_same_are_told_or_refused() -> None:
    samples = replace(model(EPISODES), weights="w")
    assert not analyse_regret_beyond([samples], [beyond_of(EXTENDED)], []).remarks
    swapped = {problem: (traces[1], traces[1]) for problem, traces in EXTENDED.items()}
    (remark,) = analyse_regret_beyond([samples], [beyond_of(swapped)], []).remarks
    assert "2 of 4 thoughts" in remark
    others = {problem: traces[::-1] for problem, traces in EXTENDED.items()}
    assert "none of the thoughts" in refusal(analyse_regret_beyond, [samples], [beyond_of(others)], []).what
    elsewhere = replace(beyond_of(EXTENDED), weights="v")  # type: ignore[type-var]
    assert refusal(analyse_regret_beyond, [samples], [elsewhere], []).where == "--beyond"
    assert refusal(analyse_regret_beyond, [samples], [beyond_of(EXTENDED)], [65]).where == "--budgets"


def test_what_is_typed_on_samples_of_another_kind_is_refused_with_a_command_that_works(places: dict[str, str]) -> None:
    for analysis, what, advised in (
        ("regret", "EXTRAPOLATED", "paper_regret"), ("progress", "LINEARISED", "paper_regret"),
        ("extrapolate", "RUN", "paper_extrapolation"), ("attempts", "RUN", "paper_20_own_attempt"),
    ):  # fmt: skip
        assert f"--suite {advised}\n" in typed("analyze", analysis, places[what], exits=2).stderr, analysis
    assert "another quantity" in typed("compare", places["EXTRAPOLATED"], "--measure", "regret@64", exits=2).stderr


def test_regret_against_voting() -> None:
    """Boundary 0: votes of .2, .4, .6 and .8, which is .7 at 6 answers; thinking on leads to .6, so .2, .28, .44, .6.
    The vote is better everywhere: .3, 1.0 and 1.3 less .24, .72 and 1.04. From boundary 1 thinking on is better.
    """
    votes = np.array([[0.2, 0.4, 0.6, 0.8], [0.6, 0.6, 0.6, 0.6], [1.0, 1.0, 1.0, 1.0]])
    assert regret_against_voting(votes, 1) == pytest.approx((2.6 - 2.0) / 2.6)
    assert regret_against_voting(votes, 2) == pytest.approx((2.6 - 2.0) / (2.6 + 4.0))
    assert regret_against_voting(votes, 9) == regret_against_voting(votes, 2)
    assert regret_against_voting(np.zeros((2, 4)), 1) is regret_against_voting(votes[:1], 1) is None


def test_regret_against_voting_leaves_out_traces_that_are_never_right() -> None:
    never = trace("X", 9, boundary(0, "XXXXXXXX"), boundary(9, "YYYYYYYY"))
    rises = trace("R", 9, boundary(0, "RXXXXXXX"), boundary(9, "RRRRRRRR"))
    (found,) = voting_regret(model({"a": (never, rises), "b": (never,)})).points
    assert (found.x, found.more, found.estimate.mean) == (1, (1,), 0.0)
    assert "8 answers" in refusal(voting_regret, model(PROBLEMS)).what


def test_weighted_votes_are_the_mean_over_all_draws() -> None:
    """Right has the weight 1, and two answers that are wrong in the same way 3/4 and 1/2: a draw of right and wrong is
    right, and all three together are wrong. With equal weights a draw of two that differ is a tie.
    """
    votes = [Vote("right", 1.0, 1.0), Vote("wrong: 3", 0.0, 0.75), Vote("wrong: 3", 0.0, 0.5)]
    assert [weighted_majority_at_k(votes, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 0.0])
    assert weighted_majority_at_k([replace(vote, weight=1.0) for vote in votes], 2) == pytest.approx(1 / 3)
    for k in (0, 4):
        with pytest.raises(ValueError, match="weighted vote"):
            weighted_majority_at_k(votes, k)


def test_weights_are_read_from_the_likelihoods_of_the_answers(places: dict[str, str]) -> None:
    """Each token of a stored branch has the log-probability -0.5."""
    run = EvaluatedRun.open(places["RUN"].partition("@")[0])
    for likelihoods, weight in ((False, None), (True, 2**-0.5)):
        samples = replace(run, likelihoods=likelihoods).samples(2, "held-out", "model")
        forced = [f for traces in samples.problems.values() for t in traces for b in t.boundaries for f in b.forced]
        assert len(forced) == 96 and {f.weight for f in forced} == {weight}
    heavy = tuple(replace(f, weight=1.0) for f in boundary(0, "R" * 13).forced)
    many = model({"a": (trace("R", 9, replace(boundary(0, "R"), forced=heavy)),)})
    assert refusal(require_few_draws, many).where == "--weighted"


def test_traces_of_five_numbers_of_episodes_share_their_curves() -> None:
    """Three traces of one episode and one of two: 1 to 5 together, in which the short ones keep their last answers."""
    (one,) = vote_curves.curves_by_episodes(model(PROBLEMS), [])
    assert (one.name, one.traces, one.problems) == ("1 - 5", 4, 2)
    a = [trace(of, 9, *(boundary(i, f"{of}X") for i in range(count))) for of, count in (("R", 7), ("X", 2))]
    found = list(vote_curves.curves_by_episodes(model({"a": tuple(a), "b": (trace("R", 9, boundary(0, "RR")),)}), []))
    assert [(b.name, b.traces, b.problems) for b in found] == [("0", 1, 1), ("1 - 5", 1, 1), ("6 - 10", 1, 1)]
    assert [p.estimate.mean for p in found[2].prefixes[0].points] == [0.5] * 7
    complete = found[2].complete[-1]
    assert (complete.way, [p.estimate.mean for p in complete.points]) == ("pass@k", [0.5, 1.0]), "all samples of a"


def test_branches_start_on_the_line_of_one_answer() -> None:
    """At the prefix of j episodes: one answer at j, two at j + 1, four at j + 3, and eight at j + 7."""
    eight = model({"a": (trace("R", 9, *(boundary(10 * i, "RX" * 4) for i in range(3))),)})
    direct = replace(model({"a": tuple(trace("R" if i else "X", 4) for i in range(4))}), name="direct")
    by_count, by_tokens = vote_curves.analyse_scaling_by_episodes([eight, direct]).figures
    (panel,) = by_count.panels
    *branches, blue = [line for line in panel.lines if "direct" not in line.label]
    assert (blue.dash, blue.x, blue.means) == ("solid", (0.0, 1.0, 2.0), pytest.approx([0.5] * 3))
    assert [(line.dash, line.x) for line in branches] == [
        ("dashed", (j, j + 1.0, j + 3.0, j + 7.0)) for j in (0.0, 1.0, 2.0)
    ]
    assert all(line.means[0] == pytest.approx(blue.means[j]) for j, line in enumerate(branches)), "from the blue line"
    ways = {line.label: line for line in panel.lines if "direct" in line.label}
    assert {label: line.x for label, line in ways.items()} == dict.fromkeys(
        ("maj@k of direct", "pass@k of direct"), (1, 2, 4)
    )
    assert ways["pass@k of direct"].means == [0.75, 1.0, 1.0]
    (panel,) = by_tokens.panels
    assert panel.doubling and panel.lines[3].x == tuple(point.x for point in prefix_curve(eight, 1).points)
    assert all(line.x[0] == panel.lines[3].x[j] for j, line in enumerate(panel.lines[:3]))


def test_votes_of_samples_and_of_attempts() -> None:
    """The first attempts to a are right in half of the samples. Both together tie in one sample, and win in one."""
    points = vote_curves.votes_of_attempts(ATTEMPTED).points
    assert [(p.index, p.x) for p in points] == [(1, 10), (2, 20)]
    assert [p.by_problem for p in points] == [{"a": 0.5, "b": 0.5}, {"a": 0.75, "b": 0.25}]
    assert [(p.index, p.x) for p in vote_curves.votes_of_samples(model(PROBLEMS)).points] == [(1, 40), (2, 80)]


def test_the_last_attempt_less_the_first_one() -> None:
    found = attempts_of_model(ATTEMPTED)
    assert (found.first, found.last) == ({"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 0.0})
    assert set(found.changes.values()) == {0.25}
    counted = {middle: count for middle, count in found.histogram.items() if count}
    assert counted == dict.fromkeys((-0.6, -0.4, 0.4, 0.6), 0.5)
    assert sum(row[2] for row in analyse_attempts([ATTEMPTED]).tables[1].rows) == 2
