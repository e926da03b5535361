"""The report as a page: what a model wrote stays text, its size is bounded, and the same run gives the same bytes."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from synthetic_run import BEGIN, HOSTILE, Shape, SyntheticEvaluation, SyntheticRun

from mrt_hpc.analysis.episode_progress import EpisodeProgress, progress_by_episode
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.figures import inlined
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase, RunCost, RunSummary
from mrt_hpc.analysis.number_formats import decimal_text, share_text
from mrt_hpc.analysis.report.content import (
    LEAST,
    Boundary,
    Happening,
    PrefixCurves,
    RoleUse,
    RunRecord,
    SampleProblem,
    SampleTrace,
    ShownAnswer,
    choose,
    excerpt,
    excerpts,
    fair_share,
    progress_of,
    script_json,
    visible,
)
from mrt_hpc.analysis.report.render import render_page, script_hash
from mrt_hpc.analysis.report.sections import MOST_HAPPENINGS, sections
from mrt_hpc.analysis.rows import (
    accuracy_of,
    majority_estimates,
    mean_of,
    pass_estimates,
    stage_estimates,
    summarise_evaluation,
)
from mrt_hpc.analysis.scaling import ScalingCurve, ScalingPoint, prefix_curve
from mrt_hpc.cli.main import main
from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.inference.tokens import StoredTokens
from mrt_hpc.recipe.lock import read_lock, read_recipe_lock
from mrt_hpc.roles.report import measurements, run_names, write_report
from mrt_hpc.roles.run_samples import prefix_curves
from mrt_hpc.run.groups import part_file
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mrt_hpc.analysis.report.content import Plot, ReportSection, Table

SUMMARY = RunSummary(recipe="r", algorithm="mrt_online", model="m", iterations_planned=3)
TINY = Shape(iterations=3, evaluated_every=3, benchmarks=("aime24",), problems=3, paragraphs=1)


def trace(problem: str = "p", sample: int = 0, text: str = "First.", right: bool = True) -> SampleTrace:
    return SampleTrace(
        source="rollouts of iteration 0", problem=problem, sample=sample, right=right, answer="7", tokens=9, cut=False,
        before="", episodes=(text, "Wait."), rest="7",
        boundaries=(Boundary(0.25), Boundary(0.75, (ShownAnswer("7", True, 3),)), Boundary(0.5)),
    )  # fmt: skip


def record(*traces: SampleTrace, name: str = "r") -> RunRecord:
    return RunRecord(name, SUMMARY, traces=traces, problems={"p": SampleProblem("What is it?", "7")})


def data_of(page: str) -> dict[str, list[dict[str, object]]]:
    """What the script of the page reads."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)["runs"][0]


def table_of(found: ReportSection, caption: str) -> Table:
    (table,) = [table for table in found.tables if table.caption == caption]
    return table


# -- texts


def test_what_cannot_be_seen_is_shown() -> None:
    assert visible("a\x00b\x1bc\x7f\td\n") == "a␀b␛c␡\td\n"
    assert visible("a\ud800b\u202ec\u200bd") == "a\ufffdb⟨U+202E⟩c⟨U+200B⟩d"
    assert visible("a\r\nb\rc") == "a\nb␍c"


@pytest.mark.parametrize("code", [0xAD, 0x61C, 0x115F, 0x180E, 0x2028, 0x2060, 0x3164, 0xE0000, 0xE0041, 0xE007F])
def test_no_character_hides_or_turns_others(code: int) -> None:
    assert visible(f"a{chr(code)}b") == f"a⟨U+{code:04X}⟩b"


def test_signs_with_a_colour_stay() -> None:
    assert visible("é 数学 🙂 ✔\ufe0f ᠮ ظ") == "é 数学 🙂 ✔\ufe0f ᠮ ظ"


def test_json_in_a_script_cannot_end_it() -> None:
    text = script_json({"a": "</script><!-- <img onerror=x> & \u2028\u2029 é"})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"a": "</script><!-- <img onerror=x> & \u2028\u2029 é"}


@pytest.mark.parametrize(
    "hostile", [HOSTILE, "</script>", "<img src=x onerror=alert(1)>", "\ud800", "]]>", "{{ 1 + 1 }}"]
)
def test_hostile_texts_stay_texts(hostile: str) -> None:
    evil = replace(
        record(trace(text=hostile), name=hostile),
        summary=SUMMARY.model_copy(update={"recipe": visible(hostile), "missing": (visible(hostile),)}),
        recipe=hostile,
        happenings=(Happening(0.0, hostile, hostile, hostile),),
        problems={"p": SampleProblem(hostile, hostile)},
    )
    page = render_page([evil])
    page.encode()  # no lone surrogate is left
    assert data_of(page)["traces"][0]["episodes"][0] == visible(hostile)  # type: ignore[index]
    shell = re.sub(r"<script.*?</script>|<style>.*?</style>", "", page, flags=re.DOTALL)
    assert page.count("<script") == 2
    assert "<img" not in shell
    assert "<b>" not in shell
    assert html.escape(visible(hostile), quote=True).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in shell
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)


def test_the_policy_allows_the_script_of_the_page_and_no_other() -> None:
    page = render_page([record(trace())])
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert f"script-src '{script_hash(script)}';" in policy
    assert policy.startswith("default-src 'none';")
    assert script_hash("alert(1)") == "sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI="
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page), "nothing is loaded"


def test_problems_of_one_id_are_told_apart_by_their_benchmark() -> None:
    problems = {f"{where}: 1": SampleProblem(where, "7") for where in ("aime24", "math500")}
    run = replace(record(trace("aime24: 1"), trace("math500: 1"), trace("gone: \u202e1")), problems=problems)
    found = json.loads(choose([run]).data)["runs"][0]
    assert [t["problem"] for t in found["traces"]] == ["aime24: 1", "math500: 1", "gone: \u202e1"]
    assert {key: problem["name"] for key, problem in found["problems"].items()} == {
        "aime24: 1": "aime24: 1", "math500: 1": "math500: 1", "gone: \u202e1": "gone: ⟨U+202E⟩1",
    }  # fmt: skip


# -- how much of the traces


def test_short_texts_stay_whole_and_long_ones_share_the_rest() -> None:
    assert fair_share([10, 400, 1000], 1010) == 600  # 10 and 400 fit, 600 are left for the third
    assert fair_share([10, 900, 1000], 1010) == 500
    assert fair_share([10, 20], 1010) == 160
    assert fair_share([1000] * 100, 1010) == LEAST
    assert excerpts(["a" * 10, "b" * 900], 510) == ["a" * 10, ["b" * 250, 400, "b" * 250]]
    assert excerpt("abcdefg", 5) == ["abc", 2, "fg"]
    assert excerpt("abcde", 5) == "abcde"


def test_every_boundary_of_a_long_trace_is_kept() -> None:
    long = replace(trace(), episodes=("x" * 40_000, "y" * 5, "z" * 40_000), boundaries=(Boundary(0.0),) * 4)
    (shown,) = json.loads(choose([record(long)]).data)["runs"][0]["traces"]
    assert [len(episode) if isinstance(episode, str) else episode[1] for episode in shown["episodes"]] == [
        36_003, 5, 36_003,
    ]  # fmt: skip
    assert shown["values"] == [0.0] * 4


def test_traces_are_taken_until_the_budget_is_used() -> None:
    traces = [trace(sample=n, text="x" * 1000) for n in range(50)]
    all_bytes = len(choose([record(*traces)], 10**6).data.encode())
    chosen = choose([record(*traces)], all_bytes // 2)
    assert chosen.shown[0] in (23, 24, 25)
    assert len(chosen.data.encode()) <= all_bytes // 2 + 100
    assert [t["sample"] for t in json.loads(chosen.data)["runs"][0]["traces"]] == list(range(chosen.shown[0]))
    both = choose([record(*traces, name="a"), record(*traces, name="b")], all_bytes)
    assert both.shown[0] == both.shown[1] == chosen.shown[0]
    page = render_page([record(*traces)], all_bytes // 2)
    assert f"The first {chosen.shown[0]} of these 50 traces fit" in page


def test_progress_is_known_between_values() -> None:
    assert progress_of([Boundary(0.25), Boundary(0.75), Boundary(), Boundary(1.0)]) == [0.5, None, None]
    assert progress_of([Boundary(0.1), Boundary(0.3)]) == [0.2]


# -- where episodes are in a text


def test_episodes_are_cut_at_their_tokens(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    stored = StoredTokens.read(tmp_path / "tokenizer.json")
    parts = ["First, x=3: é 数\n\n", "Wait, 🙂 \x00\n\n", "</think>7"]
    ids = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
    ends = [0, len(ids[0]), len(ids[0]) + len(ids[1])]
    found = stored.cut([token for part in ids for token in part], ends, "given" + "".join(parts))
    assert found is not None
    assert (found.before, found.episodes, found.rest) == ("given", (parts[0], parts[1]), parts[2])
    assert stored.cut(ids[0], [0, 1], "another text") is None


def test_a_sentencepiece_vocabulary_is_read_too(tmp_path: Path) -> None:
    """A list of pairs, a mark for the space, and a byte as a token."""
    stored = {"model": {"vocab": [["▁So", -1.0], ["<0xC3>", -2.0], ["<0xA9>", -2.0]]}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    found = StoredTokens.read(tmp_path / "tokenizer.json").cut([0, 1, 2], [0, 1, 3], " Soé")
    assert found is not None
    assert found.episodes == (" So", "é")


# -- sections


def test_gpu_hours_are_shared_out_by_the_time_of_the_phases() -> None:
    seconds = {Phase.GENERATION: 30.0, Phase.OPTIMISATION: 10.0}
    done = tuple(IterationMetrics(iteration=n, tokens_per_rollout=1.0, seconds=seconds) for n in range(2))
    run = replace(
        record(),
        summary=SUMMARY.model_copy(update={"iterations": done, "cost": RunCost(gpu_hours=5.0)}),
        roles=tuple(RoleUse(role, 2, 2.0, 2.0, 8.0) for role in ("inference", "trainer", "evaluation")),
    )
    cost = sections([run])[3]
    assert table_of(cost, "Training by phase").rows == (
        ("generation", "1 min 0 s", "75.0 %", "3"),
        ("optimisation", "20.0 s", "25.0 %", "1"),
    )
    assert table_of(cost, "Jobs by role").rows[0] == ("inference", "2", "2", "2", "8")


def test_runs_stand_side_by_side() -> None:
    one, other = record(name="one"), record(name="other")
    settings = table_of(sections([one, other])[5], "Settings")
    assert [column.name for column in settings.columns] == ["", "one", "other"]
    assert ("algorithm", "mrt_online", "mrt_online") in settings.rows


def evaluated(name: str, version: int = 0, **benchmarks: dict[str, float]) -> RunRecord:
    """A record with the mean rewards of the problems of some benchmarks; regret is what is left to 1."""
    summaries = tuple(
        EvaluationSummary(
            version=version, benchmark=benchmark, problems=len(of), samples=4, accuracy=sum(of.values()) / len(of),
            low=0.0, high=1.0, per_problem=of, regret={64: {problem: 1 - share for problem, share in of.items()}},
            stages={"round 1": 0.125, "round 2": sum(of.values()) / len(of)},
            stages_by_problem={problem: (0.125, share) for problem, share in of.items()},
        )
        for benchmark, of in benchmarks.items()
    )  # fmt: skip
    return RunRecord(name, SUMMARY.model_copy(update={"evaluations": summaries}), evaluation="e")


def test_models_are_compared_with_the_first_one_by_problem() -> None:
    """Gains of +0.5 and 0 on x, mean 25 points; of +0.25 and +0.25 on y; no common problems on z."""
    first = evaluated("first", x={"a": 0.0, "b": 1.0}, y={"c": 0.5, "d": 0.25}, z={"e": 1.0})
    second = evaluated("second", x={"a": 0.5, "b": 1.0}, y={"c": 0.75, "d": 0.5}, z={"f": 1.0})
    found = sections([first, second])[0]
    rows = table_of(found, "Difference of pass@1 to first, points").rows
    assert [(name, told.partition(" ")[0]) for name, told in rows] == [("x", "+25.0"), ("y", "+25.0")]
    regrets = table_of(found, "Difference of normalised regret to first, points").rows
    assert [told.partition(" ")[0] for _, told in regrets] == ["−25.0", "−25.0"]
    assert regrets[0][0] == "x, 64 sampled tokens"
    (told,) = found.paragraphs
    assert told.startswith("second: +25.0 (")
    assert "against first on the mean over 2 benchmarks; the 95 % interval includes zero" in told
    assert table_of(found, "pass@1, with 95 % intervals").rows[0] == (
        "x", "50.0 % (0.0 % to 100.0 %)", "75.0 % (0.0 % to 100.0 %)",
    )  # fmt: skip


def test_the_tables_of_models_name_them_and_have_no_versions() -> None:
    found = sections([evaluated("first", x={"a": 0.0}), evaluated("second", 1, x={"a": 0.5})])
    assert [section.anchor for section in found] == ["results", "cost", "faults", "setup"]
    each = table_of(found[0], "Each benchmark")
    assert [column.name for column in each.columns][:3] == ["benchmark", "model", "problems × samples"]
    assert "gain over the first, points" not in [column.name for column in each.columns]
    assert [plot.title for plot in found[0].plots] == ["Regret"]
    stages = [(*row[:3], row[3].partition(" (")[0]) for row in table_of(found[0], "Accuracy by stage").rows]
    assert stages == [
        ("x", "first", "round 1", "12.5 %"), ("x", "first", "round 2", "0.0 %"),
        ("x", "second", "round 1", "12.5 %"), ("x", "second", "round 2", "50.0 %"),
    ]  # fmt: skip
    assert table_of(found[3], "Models").rows == (("first", "e", "m"), ("second", "e", "m"))


def test_stages_of_a_run_are_those_of_its_last_version() -> None:
    last = replace(evaluated("r", 7, x={"a": 0.5}), evaluation=None)
    first = evaluated("r", 0, x={"a": 0.0}).summary.evaluations
    both = last.summary.model_copy(update={"evaluations": (*first, *last.summary.evaluations)})
    found = sections([replace(last, summary=both)])[0]
    stages = table_of(found, "Accuracy by stage of the last evaluated version").rows
    every = table_of(found, "Accuracy by stage of all evaluated versions").rows
    assert [(*row[:3], row[3].partition(" (")[0]) for row in stages] == [
        ("x", "7", "round 1", "12.5 %"), ("x", "7", "round 2", "50.0 %"),
    ]  # fmt: skip
    assert every[2:] == stages
    assert [row[1] for row in every] == ["0", "0", "7", "7"]


def test_runs_and_models_may_share_a_page() -> None:
    run = replace(evaluated("run", 7, x={"a": 0.5}), evaluation=None)
    found = sections([run, evaluated("model", x={"a": 0.25})])
    last = table_of(found[0], "First and last evaluated version")
    assert [row[:3] for row in last.rows] == [("x", "run", "7"), ("x", "model", "–")]
    assert [row[0] for row in table_of(found[5], "Settings").rows] == ["recipe", "algorithm", "model", "prover"]
    assert table_of(found[5], "Settings").rows[1] == ("algorithm", "mrt_online", "–")


def test_regret_has_an_interval_of_shares() -> None:
    """Two problems of regret 1: Wilson's lower end is 2 / (2 + 1.96²), a third, and no end is beyond 1."""
    alone = mean_of({"a": 1.0, "b": 1.0})
    assert (alone.mean, round(alone.low, 2), alone.high) == (1.0, 0.34, pytest.approx(1.0))
    several = mean_of({"a": 0.0, "b": 0.125}, {"c": 0.0, "d": 0.0}, {"e": 0.25, "f": 0.0})
    assert several.mean == pytest.approx(0.0625)
    assert several.low == 0.0


def plots_of(found: Sequence[ReportSection], anchor: str) -> dict[str, Plot]:
    (section,) = [section for section in found if section.anchor == anchor]
    return {plot.title: plot for plot in section.plots}


def with_samples(name: str = "r", version: int = 0, tokens: float | None = 100.0) -> RunRecord:
    """A run with one evaluation of two problems, whose votes of two tie where one of two samples is right."""
    one = summarise_evaluation(
        version,
        "x",
        {"a": [1.0, 0.0], "b": [1.0, 1.0]},
        answers={"a": ["7", "8"], "b": ["7", "7"]},
        tokens_per_rollout=tokens,
        stages={"round 1": {"a": 0.0, "b": 0.5}, "round 2": {"a": 0.5, "b": 1.0}},
    )
    return RunRecord(name, SUMMARY.model_copy(update={"evaluations": (one,)}))


def test_pass_and_majority_of_each_k_have_intervals() -> None:
    found = sections([with_samples()])
    (one,) = with_samples().summary.evaluations
    rows = table_of(found[0], "pass@k and maj@k of the last evaluated version").rows
    first, second = share_text(accuracy_of(one)), share_text(mean_of({"a": 1.0, "b": 1.0}))
    votes = share_text(mean_of({"a": 0.5, "b": 1.0}))
    assert rows == (("x", "0", "1", first, votes), ("x", "0", "2", second, votes))
    drawn = plots_of(found, "results")
    assert drawn["Scaling with samples"].table.rows[1][1] == "1 (0.342 to 1)"
    assert drawn["Votes of samples"].table.rows[1][1].startswith("0.75 (")
    stages = table_of(found[0], "Accuracy by stage of the last evaluated version").rows
    assert stages == (
        ("x", "0", "round 1", share_text(mean_of({"a": 0.0, "b": 0.5}))),
        ("x", "0", "round 2", share_text(accuracy_of(one))),
    )


def test_the_mean_over_benchmarks_has_its_interval() -> None:
    run = replace(evaluated("r", x={"a": 0.5, "b": 1.0}, y={"c": 0.25, "d": 0.0}), evaluation=None)
    expected = share_text(mean_of({"a": 0.5, "b": 1.0}, {"c": 0.25, "d": 0.0}))
    assert expected.startswith("43.8 % (")
    assert table_of(sections([run])[0], "Mean over benchmarks").rows == (("0", expected, "–"),)


def test_progress_in_training_has_intervals_over_iterations() -> None:
    done = tuple(
        IterationMetrics(iteration=n, tokens_per_rollout=1.0, progress_by_episode=(0.1 + 0.1 * (n % 2),))
        for n in range(20)
    )
    run = replace(record(), summary=SUMMARY.model_copy(update={"iterations": done}))
    drawn = plots_of(sections([run]), "progress")["Progress by episode in training"]
    assert drawn.table.rows[0][1:] == ("0.15 (0.0581 to 0.242)",) * 5


def curve(voters: int, *accuracies: float) -> ScalingCurve:
    """One problem, and ten tokens an episode."""
    points = tuple(ScalingPoint(j, 10.0 * j + voters, {"a": share, "b": share}) for j, share in enumerate(accuracies))
    return ScalingCurve("m", f"maj@{voters} at prefix", points, voters)


def prefixes(version: int, *votes: int) -> PrefixCurves:
    mean = IntervalEstimate(0.25, 0.125, 0.375)
    progress = (EpisodeProgress(0, mean, 8, 2), EpisodeProgress(1, mean, 4, 1))
    return PrefixCurves("x", version, 2, progress, tuple(curve(p, 0.25, 0.5) for p in votes))


def test_votes_at_prefixes_stand_beside_those_of_complete_samples_of_the_same_tokens() -> None:
    run = replace(with_samples(version=7), prefixes=(prefixes(0, 1, 2), prefixes(7, 1, 2)))
    drawn = plots_of(sections([run]), "results")["Scaling with tokens: x"]
    told = {row[0]: row[1:] for row in drawn.table.rows}
    assert [*told] == [
        "maj@2 at prefix, version 0", "maj@1 at prefix, version 7", "maj@2 at prefix, version 7",
        "maj@k of complete samples, version 7",
    ]  # fmt: skip
    assert told["maj@2 at prefix, version 7"] == ("1", "12", share_text(mean_of({"a": 0.5, "b": 0.5})))
    assert told["maj@k of complete samples, version 7"] == ("2", "200", share_text(mean_of({"a": 0.5, "b": 1.0})))


def test_of_several_runs_the_largest_vote_that_all_have_is_drawn() -> None:
    one = replace(with_samples("one", 7), prefixes=(prefixes(0, 1, 2), prefixes(7, 1, 2)))
    other = replace(with_samples("other", 9), prefixes=(prefixes(9, 1, 2, 4),))
    without = with_samples("without", 3)
    drawn = plots_of(sections([one, other, without]), "results")["Scaling with tokens: x"]
    assert list(dict.fromkeys(row[0] for row in drawn.table.rows)) == [
        "one: maj@2 at prefix, version 7", "other: maj@2 at prefix, version 9",
        "one: maj@k of complete samples, version 7", "other: maj@k of complete samples, version 9",
        "without: maj@k of complete samples, version 3",
    ]  # fmt: skip


def test_no_figure_of_votes_without_answers_at_prefixes() -> None:
    run = replace(with_samples(version=7), prefixes=(prefixes(0, 1, 2), prefixes(7)))
    assert "Scaling with tokens: x" in plots_of(sections([run]), "results")
    assert not any("tokens" in title for title in plots_of(sections([with_samples()]), "results"))
    both = [run, replace(with_samples("b", 7), prefixes=(prefixes(7),))]
    assert "Scaling with tokens: x" in plots_of(sections(both), "results")


def test_progress_in_evaluation_is_shown_of_runs_and_of_models() -> None:
    run = replace(with_samples(version=7), prefixes=(prefixes(0), prefixes(7)))
    drawn = plots_of(sections([run]), "progress")["Progress by episode: x"]
    assert [column.name for column in drawn.table.columns] == ["episode j", "version 0", "version 7"]
    assert drawn.table.rows == (("0", *("0.25 (0.125 to 0.375)",) * 2), ("1", *("0.25 (0.125 to 0.375)",) * 2))
    model = replace(with_samples("m"), prefixes=(prefixes(0),), evaluation="e")
    found = sections([model])
    assert [section.anchor for section in found] == ["results", "progress", "cost", "faults", "setup"]
    assert [column.name for column in plots_of(found, "progress")["Progress by episode: x"].table.columns] == [
        "episode j", "m",
    ]  # fmt: skip


def test_of_many_events_the_newest_are_listed() -> None:
    many = tuple(Happening(float(n), "resumed from a checkpoint", "t", str(n)) for n in range(MOST_HAPPENINGS + 5))
    found = sections([replace(record(), happenings=many)])[4]
    listed = table_of(found, "Events of r")
    assert (listed.rows[0][3], listed.rows[-1][3]) == ("5", str(MOST_HAPPENINGS + 4))
    assert table_of(found, "Faults and resumes").rows == (("resumed from a checkpoint", str(MOST_HAPPENINGS + 5)),)


def test_an_inlined_figure_keeps_its_references_and_drops_the_names_of_groups() -> None:
    drawn = '<g id="figure_1"><path id="m1a2b"/><use xlink:href="#m1a2b"/></g>'
    svg = f'<?xml?><svg viewBox="0 0 4 3" width="4">{drawn}</svg>'
    assert inlined(svg) == ("0 0 4 3", drawn.replace(' id="figure_1"', ""))


# -- of a run directory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    layout = SyntheticRun(tmp_path_factory.mktemp("page") / "run", TINY).write()
    write_report(layout)
    return layout


def test_the_page_has_the_traces_of_the_run(run: RunLayout) -> None:
    found = data_of(run.page.read_text())
    sources = list(dict.fromkeys(t["source"] for t in found["traces"]))
    assert sources == [
        "evaluation of version 0 on aime24", "evaluation of version 3 on aime24", "rollouts of iteration 0",
        "rollouts of iteration 1", "rollouts of iteration 2",
    ]  # fmt: skip
    first = found["traces"][0]
    assert first["episodes"][0].startswith("Wait, x=0: First, x=3: 2*x+4")
    assert visible(HOSTILE) in first["episodes"][1]
    assert first["rest"].startswith("\n</think>\n\n\\boxed{")
    assert first["values"][0] == 0.25  # one of four branches is right there
    assert sum(count for _, right, count, _ in first["answers"][0] if right) == 1
    assert sum(count for _, right, count, _ in first["answers"][0] if not right) == 3
    per_problem = [(t["source"], t["problem"]) for t in found["traces"]]
    assert max(map(per_problem.count, per_problem)) == 4
    assert found["problems"][first["problem"]]["gold"]


def test_the_page_tells_faults_and_resumes(run: RunLayout) -> None:
    page = run.page.read_text()
    for told in (
        "attempt ended: stopped", "attempt lost: it recorded no end", "resumed from a checkpoint",
        "reason: newer than that",
    ):  # fmt: skip
        assert told in page
    assert BEGIN == 1_750_000_000, "15:06:40 on 2025-06-15 in UTC"
    assert "2025-06-15 17:06:40" in page


def test_the_same_run_gives_the_same_bytes(run: RunLayout) -> None:
    before = run.page.read_bytes()
    write_report(run)
    assert run.page.read_bytes() == before


def test_the_page_has_votes_and_progress_at_the_prefixes_of_evaluated_traces(run: RunLayout) -> None:
    page = run.page.read_text()
    assert "Scaling with tokens: aime24" in page
    assert "Progress by episode: aime24" in page
    for told in ("maj@4 at prefix, version 0", "maj@1 at prefix, version 3", "maj@k of complete samples, version 3"):
        assert told in page
    assert "maj@2 at prefix, version 0" not in page, "of the first version the largest vote is shown for comparison"


def test_the_curves_of_the_page_are_those_of_the_analyses(run: RunLayout) -> None:
    recipe = read_recipe_lock(run.recipe_lock)
    evaluations = measurements(run, recipe).evaluations
    found, troubles = prefix_curves(run, recipe, SUMMARY.model_copy(update={"evaluations": evaluations}))
    assert troubles == ()
    assert [(one.benchmark, one.version) for one in found] == [("aime24", 0), ("aime24", 3)]
    samples = EvaluatedRun(run, recipe, str(run.root)).samples(3, "aime24", "m")
    assert found[1].progress == progress_by_episode(samples.problems)
    assert [one.voters for one in found[1].votes] == [1, 2, 4]
    assert found[1].votes[2].points == prefix_curve(samples, 4).points


def test_an_evaluation_that_cannot_be_read_is_told_and_the_others_shown(run: RunLayout, tmp_path: Path) -> None:
    values = part_file(run.evaluation_shard(0, "aime24", 0), "values")
    whole = values.read_bytes()
    values.write_bytes(b"no parquet")
    try:
        write_report(run, tmp_path / "page.html")
    finally:
        values.write_bytes(whole)
    page = (tmp_path / "page.html").read_text()
    assert "Not shown, as it cannot be read: the evaluation of version 0 on aime24" in page
    assert "maj@4 at prefix, version 3" in page


def test_damaged_groups_are_told_and_the_others_shown(run: RunLayout, tmp_path: Path) -> None:
    archive = run.group_archive(1)
    whole = archive.read_bytes()
    archive.write_bytes(b"no archive")
    try:
        write_report(run, tmp_path / "page.html")
    finally:
        archive.write_bytes(whole)
    page = (tmp_path / "page.html").read_text()
    assert "Not shown, as they cannot be read: rollouts of iteration 1" in page
    assert "rollouts of iteration 2" in page


def test_the_report_of_a_run_that_one_may_only_read_names_the_page(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, to whom nothing is closed."""
    monkeypatch.setattr(os, "access", lambda path, _: path != run.root)
    assert f"report {run.root} --page" in CliRunner().invoke(main, ["report", str(run.root)]).stderr


def test_a_page_that_cannot_be_written_loses_no_report(run: RunLayout) -> None:
    run.report.unlink()
    run.page.unlink(missing_ok=True)
    run.page.mkdir()
    with pytest.raises(OSError, match=run.page.name):
        write_report(run)
    run.page.rmdir()
    assert "3 of 3 iterations done" in run.report.read_text()


def test_a_page_elsewhere_is_all_that_is_written(run: RunLayout, tmp_path: Path) -> None:
    """So that the page of a run that another user owns can be made."""
    shutil.rmtree(run.plots)
    run.report.unlink()
    done = CliRunner().invoke(main, ["report", str(run.root), "--page", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert str(run.report) not in done.output
    assert (tmp_path / "page.html").is_file()
    assert not run.plots.exists()
    assert not run.report.exists()
    write_report(run)


def test_several_runs_need_a_place_and_share_a_page(run: RunLayout, tmp_path: Path) -> None:
    other = SyntheticRun(tmp_path / "other", replace(TINY, name="grpo-run", seed=1)).write()
    refused = CliRunner().invoke(main, ["report", str(run.root), str(other.root)])
    assert refused.exit_code == 2
    assert "--page compared.html" in refused.stderr
    page = tmp_path / "both.html"
    told = CliRunner().invoke(main, ["report", str(run.root), str(other.root), "--page", str(page)])
    assert told.output == f"page: {page}\n"
    text = page.read_text()
    assert "<title>long-run, grpo-run · mrt-hpc</title>" in text
    assert "grpo-run: aime24" in text
    assert not other.report.exists(), "their own reports stay as they are"


def test_runs_of_one_recipe_are_told_apart_by_their_directories(run: RunLayout) -> None:
    recipe = read_recipe_lock(run.recipe_lock)
    elsewhere = RunLayout(run.root.parent / "b" / "run")
    assert run_names([run], [recipe]) == ["long-run"]
    assert run_names([run, RunLayout(run.root.parent / "second")], [recipe] * 2) == ["run", "second"]
    assert run_names([run, elsewhere], [recipe] * 2) == [str(run.root), str(elsewhere.root)]


# -- of an evaluation on its own


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    layout = SyntheticEvaluation(tmp_path_factory.mktemp("alone") / "evaluation").write()
    assert write_report(layout) == ()
    return layout


def test_the_page_of_an_evaluation_has_its_models_and_what_they_share(evaluation: RunLayout) -> None:
    page = evaluation.page.read_text()
    name = re.findall("<title>(.*) · mrt-hpc</title>", page)[0]
    assert name.startswith("eval-small_world-run-")
    assert f"evaluated by {name}" in page
    assert "Difference of pass@1 to first, points" in page
    assert ">first attempt<" in page
    assert "Model <select" in page
    assert "Learning curves" not in page
    assert "Progress by episode: math500" in page
    assert "first: maj@4 at prefix" in page
    assert "2 h 0 min" in page, "the wall time of its one attempt"
    assert "history_conditioned" in page
    assert str(evaluation.root.parent / "second") in page


def test_the_report_of_an_evaluation_has_intervals_and_votes(evaluation: RunLayout) -> None:
    report = evaluation.report.read_text()
    (one, *_) = measurements(evaluation, read_lock(evaluation.recipe_lock)).evaluations
    assert f"| {one.benchmark} | first | 4,096 | {decimal_text(mean_of(one.regret[4096]))} |" in report
    assert (
        f"| {one.benchmark} | first | first attempt | {share_text(stage_estimates(one)['first attempt'])} |" in report
    )
    assert f"| 4 | {share_text(pass_estimates(one)[4])} | {share_text(majority_estimates(one)[4])} |" in report
    assert "second: " in report
    assert "Difference of pass@1 to first, points" in report


def test_traces_of_an_evaluation_are_results_and_not_first_attempts(evaluation: RunLayout) -> None:
    found = data_of(evaluation.page.read_text())
    assert found["name"] == "first"
    assert {t["source"] for t in found["traces"]} == {"evaluation on aime24", "evaluation on math500"}
    assert sorted({t["sample"] for t in found["traces"]}) == [0, 1, 2, 3]
    assert len(found["traces"]) == 2 * 4 * 4
    assert all(t["marked"] and t["values"][0] == 0.25 for t in found["traces"])


def test_each_model_has_its_own_tokenizer(tmp_path: Path) -> None:
    layout = SyntheticEvaluation(tmp_path / "evaluation").write()
    path = layout.weights_version(1) / "tokenizer.json"
    stored = json.loads(path.read_text())
    stored["model"]["vocab"] = {token: -number for token, number in stored["model"]["vocab"].items()}
    path.write_text(json.dumps(stored))
    write_report(layout)
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', layout.page.read_text())
    first, second = json.loads(text)["runs"]
    assert {t["marked"] for t in first["traces"]} == {True}
    assert {t["marked"] for t in second["traces"]} == {False}
    assert "second: The episodes of 32 traces cannot be marked" in layout.page.read_text()


def test_several_evaluations_share_a_page_and_models_of_one_name_are_told_apart(
    evaluation: RunLayout, tmp_path: Path
) -> None:
    other = SyntheticEvaluation(evaluation.root.parent / "other", seed=1).write()
    page = tmp_path / "both.html"
    told = CliRunner().invoke(main, ["report", str(evaluation.root), str(other.root), "--page", str(page)])
    assert told.output == f"page: {page}\n"
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    names = [run["name"] for run in json.loads(text)["runs"]]
    assert len(set(names)) == 4
    assert [name.partition(" ")[0] for name in names] == ["first", "second"] * 2
    assert all(name in page.read_text() for name in names)
