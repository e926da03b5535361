"""The small world's problems, how its supervised traces think, and the inspection of traces."""

from commands import refusal

from mrt_hpc.domains.domain import domain_of
from mrt_hpc.domains.small_world import equations
from mrt_hpc.domains.small_world.equations import MARKER, Equation, Split, TraceQuality, problems
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
    assert "held_out" in str(refusal(problems, Split.HELD_OUT, 501))
    assert "six times seven" in str(refusal(Equation.parse, "What is six times seven?"))


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
        assert inspected(GOOD.replace(right, wrong)) == TraceQuality(True, checks=3, right_checks=2, episodes=3), wrong
    rule, thought = Episodes(markers=(MARKER,), min_paragraphs=1), GOOD.partition(equations.END_THINK)[0]
    assert [thought[s : s + 9] for s in episode_starts(thought.encode(), rule)] == ["Wait, x=4", "Wait, x=7"]
    malformed = [
        "", GOOD[:60], GOOD.replace("</think>", ""), GOOD.partition("</think>")[0], GOOD.replace("First", "Wait"),
        GOOD.replace("Wait, x=4", "First, x=4"), GOOD.replace("\\boxed{7}", "7"), GOOD.replace("{7}", "{}"),
        GOOD + "\n\n\\boxed{8}", "</think>\n\n\\boxed{7}",
    ]  # fmt: skip
    assert [text for text in malformed if inspected(text).well_formed] == []
