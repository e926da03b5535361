"""The small world's problems, how its supervised traces think, and the inspection of traces."""

import random
from dataclasses import replace
from statistics import mean

import pytest

from mrt_hpc.domains.domain import domain_of
from mrt_hpc.domains.small_world import equations
from mrt_hpc.domains.small_world.equations import MARKER, Equation, Habits, Split, TraceQuality, example, problems
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.episodes import episode_starts
from mrt_hpc.mrt.sft import Conversation, Suffix
from mrt_hpc.recipe.sections import Episodes, JsonlProblems, SmallWorldProblems, SmallWorldSamples

EQUATION = Equation(3, 14, 35)
GOOD = (
    "First, x=10: 3*10=30, 30+14=44 vs 35 high\n\n"
    "Wait, x=4: 3*4=12, 12+14=26 vs 35 low\n\n"
    "Wait, x=7: 3*7=21, 21+14=35 vs 35 yes\n\n"
    "</think>\n\n\\boxed{7}"
)


def inspected(text: str) -> TraceQuality:
    return equations.inspect_trace(EQUATION.statement, text)


def test_splits_share_no_problem_and_every_gold_answer_solves_its_own():
    train, held_out = problems(Split.TRAIN), problems(Split.HELD_OUT)
    assert len(held_out) == 500 and len(train) > 800
    both = [*train, *held_out]
    assert len({p.problem for p in both}) == len({p.id for p in both}) == len(both)
    for problem in both:
        equation = Equation.parse(problem.problem)
        assert equation.factor * int(problem.answer) + equation.offset == equation.target
    first, again, other = (problems(Split.TRAIN, seed=s) for s in (1, 1, 2))
    assert first == again != other, "the seed changes the order but not the split"
    assert sorted(p.id for p in first) == sorted(p.id for p in other)
    with pytest.raises(UserError, match="held_out"):
        problems(Split.HELD_OUT, 501)
    with pytest.raises(UserError, match="six times seven"):
        Equation.parse("What is six times seven?")


def test_a_check_writes_its_arithmetic_out_and_closes_the_bounds_in():
    assert EQUATION.check(4, MARKER) == "Wait, x=4: 3*4=12, 12+14=26 vs 35 low"
    assert [EQUATION.verdict(x) for x in (6, 7, 8)] == ["low", "yes", "high"]
    known, bounds = equations.Knowledge(), []
    for guess, verdict in ((10, "high"), (4, "low"), (2, "low"), (7, "yes")):
        known.learn(guess, verdict)
        bounds.append((known.least, known.most))
    assert bounds[1:] == [(5, 9), (5, 9), (7, 7)]


def many_traces(habits: Habits, count: int = 1000) -> list[tuple[Equation, list[str], int]]:
    rng = random.Random(7)
    every = [Equation.parse(p.problem) for p in problems(Split.TRAIN)]
    chosen = [rng.choice(every) for _ in range(count)]
    return [(e, *equations.think(e, habits, rng)) for e in chosen]


def test_traces_leave_room_to_learn_yet_some_are_long_and_patience_alone_solves_nearly_everything():
    traces = many_traces(Habits())
    assert 0.4 < mean(answer == e.solution for e, _, answer in traces) < 0.6
    assert 6 < max(len(checks) for _, checks, _ in traces) <= Habits().most_checks
    assert mean(answer == e.solution for e, _, answer in many_traces(replace(Habits(), give_up=0.0))) > 0.98


def test_natural_examples_are_right_and_forced_ones_answer_with_what_the_checks_leave_open():
    rng = random.Random(5)
    for problem in problems(Split.TRAIN, 200):
        equation = Equation.parse(problem.problem)
        [span] = example(equation, replace(Habits(), forced=0.0), rng)
        quality = equations.inspect_trace(problem.problem, span.text)
        assert (span.trained, quality.well_formed) == (True, True)
        assert quality.checks == quality.right_checks == quality.episodes
        thought, forced, answer = example(equation, replace(Habits(), forced=1.0, forced_inside=0.0), rng)
        assert (thought.trained, forced.trained, answer.trained) == (True, False, True)
        assert (forced.text, answer.text[-1]) == (equations.FORCED_TEXT, "}")
        number = int(answer.text.removesuffix("}"))
        for check in filter(None, thought.text.split("\n\n")):
            guess = int(check.split("x=")[1].split(":")[0])
            verdict = check.rsplit(" ", 1)[1]
            assert {"low": number > guess, "high": number < guess, "yes": number == guess}[verdict]
    habits = replace(Habits(), forced=1.0, forced_inside=1.0)  # a cut inside a check ends before a number
    assert {example(EQUATION, habits, rng)[0].text[-2:] for _ in range(200)} == {"\n\n", ": ", ", "}


def test_the_quality_of_traces_is_known_of_this_domain_alone():
    traces = [(EQUATION.statement, GOOD), (EQUATION.statement, GOOD.replace("12+14=26", "12+14=27"))]
    assert domain_of(SmallWorldProblems()).quality(traces) == {"well_formed": 1.0, "right_checks": 5 / 6}
    assert domain_of(JsonlProblems(path="problems.jsonl")).quality(traces) == {}


def test_samples_are_made_only_where_the_recipe_asks_for_samples():
    for form, kind in (("conversations", Conversation), ("suffixes", Suffix)):
        asked = SmallWorldSamples(form=form, samples=3)
        assert [type(sample) for sample in domain_of(asked).samples(asked, 0)] == [kind] * 3
    for problems_alone in (SmallWorldProblems(), JsonlProblems(path="problems.jsonl")):
        assert domain_of(problems_alone).samples(problems_alone, 0) == ()


def test_the_quality_of_a_trace():
    good = TraceQuality(well_formed=True, checks=3, right_checks=3, episodes=3)
    for text in (GOOD, f"<think>\n{GOOD}", GOOD.replace("{7}", "{9}")):
        assert inspected(text) == good
    assert inspected(GOOD.replace("12+14=26", "12+=26")) == TraceQuality(False, checks=2, right_checks=2, episodes=3)
    for right, wrong in (
        ("3*4=12, 12+", "3*4=15, 15+"), ("12+14=26", "12+14=27"), ("26 vs 35 low", "26 vs 35 high"),
        ("26 vs 35 low", "26 vs 36 low"), ("3*4=12", "4*3=12"), ("x=4:", "x=5:"),
    ):  # fmt: skip
        found = inspected(GOOD.replace(right, wrong))
        assert found == TraceQuality(True, checks=3, right_checks=2, episodes=3), wrong
    rule, thought = Episodes(markers=(MARKER,), min_paragraphs=1), GOOD.partition(equations.END_THINK)[0]
    assert [thought[s : s + 9] for s in episode_starts(thought.encode(), rule)] == ["Wait, x=4", "Wait, x=7"]
    malformed = [
        "", GOOD[:60], GOOD.replace("</think>", ""), GOOD.partition("</think>")[0], GOOD.replace("First", "Wait"),
        GOOD.replace("Wait, x=4", "First, x=4"), GOOD.replace("\\boxed{7}", "7"), GOOD.replace("{7}", "{}"),
        GOOD + "\n\n\\boxed{8}", "</think>\n\n\\boxed{7}",
    ]  # fmt: skip
    assert [text for text in malformed if inspected(text).well_formed] == []
