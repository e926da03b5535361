"""The report: its tables and figures, the page on which what a model wrote stays text, and both of a run directory."""

import html
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import typed
from evaluated import commit_all, run_directory
from golden import assert_golden
from run_of import bare_run
from synthetic_run import HOSTILE, Shape, SyntheticEvaluation, SyntheticRun
from warm_start import build_tokenizer

from mrt_hpc.algorithms.batch import batch_of
from mrt_hpc.analysis.episode_progress import progress_by_episode
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.figures import Kind, Line, LineFigure, Panel, draw, moving_average
from mrt_hpc.analysis.findings import Point
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase, RunCost, RunFile, RunSummary
from mrt_hpc.analysis.number_formats import cell, number
from mrt_hpc.analysis.report import content
from mrt_hpc.analysis.report.content import Boundary, Happening, RunRecord, SampleProblem, SampleTrace
from mrt_hpc.analysis.report.plots import OVER_SEEDS, average_seeds
from mrt_hpc.analysis.report.render import render_page, script_hash, write_markdown
from mrt_hpc.analysis.report.run_sections import sections
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.analysis.scaling import ScalingCurve, prefix_curve
from mrt_hpc.errors import ExitCode, visible
from mrt_hpc.inference.tokens import StoredTokens
from mrt_hpc.plan.hours import UseHours
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.roles.report import measurements, run_names, write_report
from mrt_hpc.roles.run_samples import prefix_curves
from mrt_hpc.run.archive import read_sampled, sampled_positions
from mrt_hpc.run.events import Use
from mrt_hpc.run.groups import part_file
from mrt_hpc.run.layout import RunLayout

SUMMARY = RunSummary(recipe="r", algorithm="mrt_online", model="m", iterations_planned=3)
HALVES = IntervalEstimate(0.25, 0.125, 0.375)


def trace(problem: str = "p", sample: int = 0, text: str = "First.", right: bool = True) -> SampleTrace:
    return SampleTrace(
        source="rollouts of iteration 0", problem=problem, sample=sample, right=right, answer="7", tokens=9, cut=False,
        reward=float(right), before="", episodes=(text, "Wait."), rest="7",
        boundaries=(Boundary(0.25), Boundary(0.75, (content.ShownAnswer("7", True, 3),)), Boundary(0.5)),
    )  # fmt: skip


def record(*traces: SampleTrace, name: str = "r", **summary: object) -> RunRecord:
    problems = {"p": SampleProblem("What is it?", "7")}
    found = SUMMARY.model_copy(update=summary)
    last = max((evaluation.version for evaluation in found.evaluations), default=None)
    return RunRecord(name, found, traces=traces, problems=problems, last=last)


def iteration(index: int) -> IterationMetrics:
    return IterationMetrics(
        iteration=index, reward_mean=0.3 + 0.01 * index, tokens_per_rollout=100.0, quality={"well_formed": 0.9},
        seconds={Phase.GENERATION: 3.0, Phase.OPTIMISATION: 1.0}, loss=0.0123,
        progress_by_episode=(0.1 * (index % 4 + 1),) * (1 + index % 2),
    )  # fmt: skip


def runs_of(page: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)["runs"]


def test_no_character_is_unseen_or_hides_or_turns_others() -> None:
    assert visible("a\x00b\x1bc\x7f\td\n\r\ne\rf") == "a␀b␛c␡\td\n\ne␍f"
    assert visible("a\ud800b\u202ec\u200bd") == "a\ufffdb⟨U+202E⟩c⟨U+200B⟩d"
    assert visible("é 数学 🙂 ✔\ufe0f ᠮ ظ") == "é 数学 🙂 ✔\ufe0f ᠮ ظ"
    for code in (0xAD, 0x61C, 0x115F, 0x180E, 0x2028, 0x2060, 0x3164, 0xE0000, 0xE0041, 0xE007F):
        assert visible(f"a{chr(code)}b") == f"a⟨U+{code:04X}⟩b"


@pytest.mark.parametrize("hostile", [HOSTILE, "</script><img src=x onerror=alert(1)>", "\ud800 ]]> {{ 1 + 1 }}"])
def test_hostile_texts_stay_texts(hostile: str) -> None:
    evil = replace(
        record(trace(text=hostile), name=hostile, recipe=visible(hostile), missing=(visible(hostile),)),
        recipe=hostile,
        happenings=(Happening(0.0, hostile, hostile, None, hostile),),
        problems={"p": SampleProblem(hostile, hostile)},
    )
    page = render_page([evil])
    page.encode()  # no lone surrogate is left
    assert runs_of(page)[0]["traces"][0]["episodes"][0] == visible(hostile)
    shell = re.sub(r"<script.*?</script>|<style>.*?</style>", "", page, flags=re.DOTALL)
    assert (page.count("<script"), shell.count("<img"), shell.count("<b>")) == (2, 0, 0)
    assert html.escape(visible(hostile)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in shell
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
    (found,) = json.loads(content.choose([run]).data)["runs"]
    assert [t["problem"] for t in found["traces"]] == ["aime24: 1", "math500: 1", "gone: \u202e1"]
    assert [one["name"] for one in found["problems"].values()] == ["aime24: 1", "math500: 1", "gone: ⟨U+202E⟩1"]


def test_short_texts_stay_whole_and_long_ones_share_the_rest() -> None:
    assert content.fair_share([1000] * 100, 1010) == content.LEAST
    assert content.excerpts(["a" * 10, "b" * 900], 510) == ["a" * 10, ["b" * 250, 400, "b" * 250]]
    values = (Boundary(0.25), Boundary(0.75), Boundary(), Boundary(1.0))
    long = replace(trace(), episodes=("x" * 40_000, "y" * 5, "z" * 40_000), boundaries=values)
    (shown,) = json.loads(content.choose([record(long)]).data)["runs"][0]["traces"]
    left_out = [len(episode) if isinstance(episode, str) else episode[1] for episode in shown["episodes"]]
    assert left_out == [36_003, 5, 36_003]
    assert (shown["values"], content.progress_of(values)) == ([0.25, 0.75, None, 1.0], [0.5, None, None])


def test_traces_are_taken_until_the_budget_is_used() -> None:
    traces = [trace(sample=n, text="x" * 1000) for n in range(50)]
    half = len(content.choose([record(*traces)], 10**6).data.encode()) // 2
    chosen = content.choose([record(*traces)], half)
    assert chosen.shown[0] in (23, 24, 25)
    assert len(chosen.data.encode()) <= half + 100
    assert [t["sample"] for t in json.loads(chosen.data)["runs"][0]["traces"]] == list(range(chosen.shown[0]))
    both = content.choose([record(*traces, name="a"), record(*traces, name="b")], 2 * half)
    assert both.shown[0] == both.shown[1] == chosen.shown[0]
    assert f" {chosen.shown[0]} of these 50 traces" in render_page([record(*traces)], half)


def test_episodes_are_cut_at_their_tokens(tmp_path: Path) -> None:
    """Those of a byte-pair and of a SentencePiece vocabulary, which has a mark for the space and a byte as a token."""
    (tokenizer := build_tokenizer()).save_pretrained(tmp_path)
    stored = StoredTokens.read(tmp_path / "tokenizer.json")
    parts = ["First, x=3: é 数\n\n", "Wait, 🙂 \x00\n\n", "</think>7"]
    ids = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
    ends = [0, len(ids[0]), len(ids[0]) + len(ids[1])]
    found = stored.cut([token for part in ids for token in part], ends, "given" + "".join(parts))
    assert found and (found.before, found.episodes, found.rest) == ("given", (parts[0], parts[1]), parts[2])
    assert stored.cut(ids[0], [0, 1], "another text") is None
    model = {"vocab": [["▁So", -1.0], ["<0xC3>", -2.0], ["<0xA9>", -2.0]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": []}))
    found = StoredTokens.read(tmp_path / "tokenizer.json").cut([0, 1, 2], [0, 1, 3], " Soé")
    assert found is not None and found.episodes == (" So", "é")


def evaluated(version: int, benchmark: str, right: str, names: str = "abcdefgh") -> EvaluationSummary:
    """An evaluation with so many right of four samples of each problem, a digit each; regret is what is left to 1."""
    many = dict(zip(names, map(int, right), strict=False))
    means = {problem: n / 4 for problem, n in many.items()}
    return summarise_evaluation(
        version, benchmark, {problem: [1.0] * n + [0.0] * (4 - n) for problem, n in many.items()},
        answers={problem: ["7"] * n + ["8", "9", "8", "9"][n:] for problem, n in many.items()},
        stages={"round 1": {problem: mean / 2 for problem, mean in means.items()}, "round 2": means},
        regret={64: {problem: 1 - mean for problem, mean in means.items()}},
        tokens_per_rollout=100.0, truncated_share=0.125, quality={"well_formed": 0.9},
    )  # fmt: skip


def prefixes(version: int, *votes: int) -> content.PrefixCurves:
    curves = []
    for voters in votes:
        points = (Point((j, 10.0 * j + voters), {"a": share, "b": share}) for j, share in enumerate((0.25, 0.5)))
        curves.append(ScalingCurve(("m", f"maj@{voters} at prefix"), tuple(points), voters))
    progress = (Point((0,), given=HALVES, more=(8, 2)), Point((1,), given=HALVES, more=(4, 1)))
    return content.PrefixCurves("x", version, 2, progress, tuple(curves))


LONG = RunSummary(
    recipe="tiny|recipe", algorithm="mrt_online", model="small world", prover="forced_answer", iterations_planned=40,
    iterations=tuple(map(iteration, range(14))),
    evaluations=(
        evaluated(0, "x", "04124013"), evaluated(3, "x", "04234011"), evaluated(7, "x", "14234124"),
        evaluated(0, "y", "1001"), evaluated(7, "y", "3112").model_copy(update={"regret_tokens": "all"}),
    ),
    missing=("metrics of iterations 14-39 of 40",),
    cost=RunCost(wall_seconds=4000, generated_tokens=1234567, gpu_hours=5.0),
    files=(RunFile(what="last weights", path="weights/v000030"),), settings={"group size": "8"},
    versions={"torch": "2"}, upload="1 directory", upload_command="wandb sync x",
)  # fmt: skip
HAPPENINGS = tuple(Happening(86400.0 * n, f"kind {n % 2}", "t", None, str(n)) for n in range(3))
ROLES = (Role.INFERENCE, Role.TRAINER, Role.REPORT)
HOURS = tuple(
    UseHours(role, use, n + 1.0, 2.0 * n + k, 8.0 * n + 4.0)
    for n, role in enumerate(ROLES)
    for k, use in enumerate((Use.WAITING, Use.LOST))
)
RUN = RunRecord(
    "long", LONG, HOURS, dict.fromkeys(ROLES, 2), HAPPENINGS, recipe="a: 1",
    prefixes=(prefixes(0, 1, 2), prefixes(7, 1, 2)), last=7,
)  # fmt: skip
ON_OTHERS = (evaluated(0, "x", "34144122", names="ijklmnop"), evaluated(9, "x", "34144122"))
OTHER = replace(record(name="other", evaluations=ON_OTHERS, algorithm="grpo"), prefixes=(prefixes(9, 1, 2, 4),))
FIRST = (evaluated(0, "x", "04"), evaluated(0, "y", "21"), evaluated(0, "z", "4"))
SECOND = (evaluated(1, "x", "24"), evaluated(1, "y", "32"), evaluated(1, "z", "4", names="b"))
MODELS = (
    replace(record(name="first", evaluations=FIRST), evaluation="eval", prefixes=(prefixes(0, 1, 2),)),
    replace(record(name="second", evaluations=SECOND), evaluation="eval"),
)


def in_words(*records: RunRecord) -> str:
    lines: list[str] = []
    for section in sections(records):
        lines += [f"## {section.title}", *section.paragraphs]
        for table in (*section.tables, *(plot.table for plot in section.plots)):
            marks = [mark for mark in ("folded", "page_only") if getattr(table, mark)]
            rows = (tuple(column.name for column in table.columns), *table.rows)
            lines += ["", " ".join([f"**{table.caption}**", *marks]), *map(" | ".join, rows), table.note]
        lines += [f"### {plot.title}: {plot.figure.name}" for plot in section.plots]
        lines += [f"{one.title}: {one.text}" for one in section.listings]
    return "\n".join(line.rstrip() for line in lines)


def test_the_tables_and_figures_are_the_kept_ones() -> None:
    scenes = {"a run": (RUN,), "two runs and a model": (RUN, OTHER, MODELS[0]), "two models": MODELS}
    text = "\n\n".join(f"# {name}\n\n{in_words(*records)}" for name, records in scenes.items())
    assert "None" not in text and "nan" not in text
    assert_golden("report_of_three_scenes.md", f"{text}\n")


def test_a_run_that_has_done_little_gets_a_report(tmp_path: Path) -> None:
    run = bare_run(tmp_path)
    assert "0 of 3 iterations" in write_markdown(run.root, [record()]).read_text()
    assert not run.plots.exists()
    bare = IterationMetrics(iteration=0, reward_mean=0.0, tokens_per_rollout=0.0)
    assert "| 0 | 0 | 0 | – | – |" in write_markdown(run.root, [record(iterations=(bare,))]).read_text()
    assert sorted(path.name for path in run.plots.iterdir()) == ["reward.png", "tokens.png"]


@pytest.mark.parametrize("kind", ["lines", "error bars", "trends", "stack"])
@pytest.mark.parametrize("points", [1, 250])
def test_every_kind_is_drawn_of_one_point_and_of_many(tmp_path: Path, kind: Kind, points: int) -> None:
    lines = tuple(Line(name, tuple(map(float, range(points))), (HALVES,) * points) for name in "ab")
    draw(LineFigure("f", (Panel("t", "x", "y", lines, kind),)), tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_how_numbers_are_written() -> None:
    assert [number(x) for x in (None, 0.0, math.inf)] == ["–", "0", "inf"]
    assert cell("a|b\nc") == "a\\|b c"
    assert moving_average([0.0, 3.0, 6.0, 9.0], 3) == [1.5, 3.0, 6.0, 7.5]


TINY = Shape(iterations=3, evaluated_every=3, benchmarks=("aime24",), problems=3, paragraphs=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    layout = SyntheticRun(tmp_path_factory.mktemp("page") / "run", TINY).write()
    write_report(layout)
    return layout


def another(folder: Path, name: str, seed: int = 1) -> RunLayout:
    return SyntheticRun(folder / name, replace(TINY, name=name, seed=seed)).write()


def test_the_page_has_faults_resumes_votes_and_progress_and_the_same_bytes_each_time(run: RunLayout) -> None:
    page = run.page.read_text()
    for told in (
        "attempt ended: stopped", "attempt lost", "resumed from a checkpoint", "newer than that", "2025-06-15 17:06:40",
        "Scaling with tokens: aime24", "Progress by episode: aime24", "maj@4 at prefix, version 0",
        "maj@1 at prefix, version 3", "maj@k of complete samples, version 3",
    ):  # fmt: skip
        assert told in page
    assert "maj@2 at prefix, version 0" not in page, "of the first version the largest vote is shown for comparison"
    write_report(run)
    assert run.page.read_text() == page


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


def test_what_cannot_be_read_is_named_and_an_unwritten_page_loses_no_report(run: RunLayout, tmp_path: Path) -> None:
    damaged = RunLayout(shutil.copytree(run.root, tmp_path / "damaged"))
    for path in (part_file(damaged.evaluation_shard(0, "aime24", 0), "values"), damaged.group_archive(1)):
        path.write_bytes(b"neither parquet nor archive")
    write_report(damaged, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert re.search("Not shown.* the evaluation of version 0 on aime24", page)
    assert re.search("Not shown.* rollouts of iteration 1", page)
    assert "maj@4 at prefix, version 3" in page and "rollouts of iteration 2" in page
    damaged.report.unlink()
    damaged.page.unlink()
    damaged.page.mkdir()
    with pytest.raises(OSError, match=damaged.page.name):
        write_report(damaged)
    assert "3 of 3 iterations" in damaged.report.read_text()


def test_a_page_elsewhere_is_all_that_is_written_and_several_runs_share_it(run: RunLayout, tmp_path: Path) -> None:
    shutil.rmtree(run.plots, ignore_errors=True)
    run.report.unlink(missing_ok=True)
    other = another(tmp_path, "grpo-run")
    assert "--page compared.html" in typed("report", run.root, other.root, exits=2).stderr
    page = tmp_path / "both.html"
    typed("report", run.root, "--page", page)
    assert "<title>long-run ·" in page.read_text()
    assert typed("report", run.root, other.root, "--page", page).output == f"page: {page}\n"
    assert "<title>long-run, grpo-run ·" in page.read_text() and "grpo-run: aime24" in page.read_text()
    assert not any(path.exists() for path in (run.plots, run.report, other.report))
    recipe, elsewhere = read_recipe_lock(run.recipe_lock), RunLayout(run.root.parent / "b" / "run")
    assert run_names([run, RunLayout(run.root.parent / "second")], [recipe] * 2) == ["run", "second"]
    assert run_names([run, elsewhere], [recipe] * 2) == [str(run.root), str(elsewhere.root)]


def test_lines_of_an_arm_are_their_mean_with_the_range_of_its_seeds() -> None:
    """1, 2 and 6, a mean of 3; only at 10 have all three a value."""
    point = IntervalEstimate(9.0, 8.0, 10.0)
    lines = [Line("a", (0.0, 10.0), (point, replace(point, mean=value))) for value in (1.0, 2.0)]
    late = Line("a", (10.0, 20.0), (replace(point, mean=6.0), point))
    drawn = average_seeds([*lines, Line("b", (0.0,), (point,)), late])
    assert [(line.label, line.x) for line in drawn] == [("a", (10.0,)), ("b", (0.0,))]
    assert drawn[0].y == (IntervalEstimate(3.0, 1.0, 6.0),)
    assert drawn[1].y == (point,), "a single run keeps its interval over problems"


def test_a_page_draws_an_arm_as_one_line(run: RunLayout, tmp_path: Path) -> None:
    other, third, page = another(tmp_path, "grpo-run"), another(tmp_path, "third-run", 2), tmp_path / "arms.html"
    typed("report", run.root, "--arm", f"grpo={other.root},{third.root}", "--page", page)
    text = page.read_text()
    assert OVER_SEEDS in text
    labels = {label: f">{label}: aime24<" in text for label in ("grpo", "long-run", "grpo-run", "third-run")}
    assert labels == {"grpo": True, "long-run": True, "grpo-run": False, "third-run": False}
    assert "the mean of 2 runs, version 3, and its 95 % interval over seeds" in text
    assert text.count("points of pass@1 against") == 1, "arms are compared, and not each run of one"
    again = typed("report", "--arm", f"a={other.root},{third.root},{other.root}", "--page", page, exits=ExitCode.FATAL)
    assert "have the same training seed" in again.stderr


def test_only_the_version_that_a_recipe_evaluates_last_stands_beside_others() -> None:
    """Of three seeds of an arm one has only version 0, which never stands for a trained model."""
    first, last = evaluated(0, "x", "0000"), evaluated(9, "x", "4031")
    seeds = [replace(record(name=f"b{n}", evaluations=(first, last)), arm="b") for n in range(2)]
    unfinished = replace(record(name="b2", evaluations=(first,)), arm="b", last=9)
    text = in_words(record(name="a", evaluations=(first, last)), *seeds, unfinished)
    assert "b2 is not compared on x: version 9, the last one that its recipe evaluates, has no evaluation there" in text
    assert re.search(r"x \| 50.0 %.*, version 9 \| 50.0 % .*, 2 runs, version 9\n", text)
    assert "b: +0.0 (" in text and "the mean of 2 runs, version 9, and its 95 % interval" in text
    text = in_words(*(record(name=n, evaluations=(last.model_copy(update={"graders": (n,)}),)) for n in ("c", "d")))
    assert "c, d on x: 2 versions of the grader" in text and "points of pass@1 against" not in text


def test_settings_in_which_compared_runs_differ_are_told(tmp_path: Path) -> None:
    """As ``compare`` tells them: the sampling of evaluations, and of the runs of an arm what else was trained."""
    roots, page = [tmp_path / "a", tmp_path / "b"], tmp_path / "page.html"
    for root, seed, temperature in zip(roots, (0, 1), (0.5, 1.0), strict=True):
        commit_all(run_directory(root, f"seed={seed}", f"evaluation.temperature={temperature}"), 20)
    typed("report", *roots, "--page", page)
    assert "evaluated on held-out with other settings" in page.read_text()
    assert "temperature (1.0, not 0.5)" in page.read_text()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    layout = SyntheticEvaluation(tmp_path_factory.mktemp("alone") / "evaluation").write()
    assert write_report(layout) == ()
    return layout


def test_the_page_of_an_evaluation_has_its_models_and_what_they_share(alone: RunLayout) -> None:
    page = alone.page.read_text()
    (name,) = re.findall("<title>(eval-small_world-run-.*) · mrt-hpc</title>", page)
    for told in (
        f"evaluated by {name}", "Difference of pass@1 to first, points", ">first attempt<", "Model <select",
        "2 h 0 min", str(alone.root.parent / "second"),
    ):  # fmt: skip
        assert told in page
    assert "Learning curves" not in page
    assert "Progress by episode" not in page, "of second attempts it would be another quantity"
    traces = runs_of(page)[0]["traces"]
    assert {t["source"] for t in traces} == {"evaluation on aime24", "evaluation on math500"}
    assert len(traces) == 2 * 4 * 4, "results, and not first attempts"
    assert all(t["marked"] and t["values"][0] == 0.25 for t in traces)


def test_models_of_one_name_are_told_apart_and_each_has_its_own_tokenizer(alone: RunLayout, tmp_path: Path) -> None:
    other, page = SyntheticEvaluation(tmp_path / "other", seed=1).write(), tmp_path / "both.html"
    path = other.weights_version(1) / "tokenizer.json"
    stored = json.loads(path.read_text())
    stored["model"]["vocab"] = {token: -number for token, number in stored["model"]["vocab"].items()}
    path.write_text(json.dumps(stored))
    typed("report", alone.root, other.root, "--page", page)
    found = {run["name"]: {trace["marked"] for trace in run["traces"]} for run in runs_of(page.read_text())}
    assert [name.partition(" ")[0] for name in found] == ["first", "second"] * 2
    assert [*found.values()] == [{True}, {True}, {True}, {False}]
    assert re.search("second.*: .* 32 traces cannot be marked", page.read_text())


def verdicts(text: str) -> list[str]:
    return re.findall(r"^sample \d+: (right|wrong)", text, re.MULTILINE)


def test_traces_of_an_iteration_have_the_values_and_advantages_of_the_run(run: RunLayout) -> None:
    batch = batch_of([read_sampled(run, 2, position) for position in sorted(sampled_positions(run, 2))])
    number = next(n for n, rollout in enumerate(batch.rollouts) if rollout.reward < 1)
    rollout, values = batch.rollouts[number], batch.value_arrays[number]
    learnt = read_recipe_lock(run.recipe_lock).algorithm.learnt(batch).sequences[number]
    shown = typed("traces", run.root, "--iteration", 2, "--problem", rollout.problem_id, "--wrong", "-n", 9).output
    mine = shown.split(f"sample {rollout.sample}: wrong")[1].split("\nsample ")[0]
    begin, end = rollout.boundaries[:2]
    mean, progress = learnt.advantages[begin:end].mean(), values[1] - values[0]
    assert f"[episode 0] V {values[0]:.2f}, progress {progress:+.2f}, advantage {mean:+.3f}" in mine
    assert f"[after the thought] V {values[-1]:.2f}" in mine and "Solve" in shown
    assert set(verdicts(shown)) == {"wrong"}
    assert "\x1b" not in typed("traces", run.root, "-n", 99).output, "no text of a model controls the terminal"


def test_so_many_traces_of_an_evaluation_are_shown_and_those_that_are_not_there_refused(run: RunLayout) -> None:
    shown = typed("traces", run.root, "--evaluation", 3, "-n", 3).output
    assert len(verdicts(shown)) == 3 and "evaluation of version 3 on aime24" in shown and "-n 12" in shown
    of_all = ("traces", run.root, "--evaluation", 3, "--benchmark", "aime24", "-n", 99)
    every, wrong = verdicts(typed(*of_all).output), verdicts(typed(*of_all, "--wrong").output)
    assert 0 < len(wrong) < len(every) and set(wrong) == {"wrong"}
    for words, fact in ((("--benchmark", "no"), "aime24"), (("--iteration", 2), "one of them")):
        assert fact in typed("traces", run.root, "--evaluation", 3, *words, exits=2).stderr
