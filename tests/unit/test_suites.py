"""Suites: files that an evaluation section takes its fields from."""

import json
from pathlib import Path

from basics import QUICKSTART, RECIPES
from commands import refusal
from warm_start import ModelSize, build_tokenizer

from mrt_hpc.domains.extraction import last_box
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.modes.base import Direct, Mode
from mrt_hpc.modes.revision import DEFAULT_SEND_BACK
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.kinds import MODES
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text, read_recipe_lock
from mrt_hpc.recipe.schema import Recipe


def with_suite(name: str | Path, *changes: str) -> Recipe:
    return load_recipe(QUICKSTART, (*changes, f"evaluation={{suite: {name}}}"))


def test_the_suites_of_the_paper_say_what_it_does() -> None:
    for name, samples in (("paper_20", 20), ("paper_64", 64), ("paper_regret", 16)):
        how = with_suite(name).evaluation
        assert [b.name for b in how.benchmarks] == ["aime24", "aime25", "amc23", "minerva", "math500"]
        assert {b.samples for b in how.benchmarks} == {samples}
        assert (how.temperature, how.top_p, how.max_tokens, how.suite) == (0.6, 0.95, 16384, name)
        first = Path(how.benchmarks[0].problems.model_dump()["path"])
        assert first.resolve() == RECIPES.parent / "data" / "aime24.jsonl", "as from the suite's folder"
    assert how.prover is not None
    assert (how.prover.type, how.prover.branches_per_boundary, how.prover.max_tokens) == ("forced_answer", 8, 4096)
    assert (how.budgets, how.prover.temperature) == ((4096, 8192, 12288, 16384), 0.6)
    how = with_suite("paper_20_own_attempt").evaluation
    modes = {b.name: b.mode.model_dump()["backtrack"] for b in how.benchmarks if b.mode is not None}
    assert (len(modes), modes["aime24"], modes["aime24-again"]) == (10, DEFAULT_SEND_BACK, None)


def test_the_small_world_has_every_way_of_evaluating_and_its_model_has_room_for_each(tmp_path: Path) -> None:
    """The server is started for the longest trace and question, and refuses more tokens than there are positions."""
    build_tokenizer().save_pretrained(tmp_path)
    recipe = with_suite("small_world_modes")
    used = {b.mode.type for b in recipe.evaluation.benchmarks if b.mode is not None}
    assert {"direct", *used} == set(MODES.built_in)
    prover = recipe.evaluation.prover
    assert prover is not None
    for benchmark in recipe.evaluation.benchmarks:
        sampling = recipe.sampling_of(benchmark)
        prompter = Prompter.of(tmp_path, sampling.prompt)
        question = ProverFactory.of(prover, ProverModel.of(prompter), 0).longest_question
        mode = require_kind(benchmark.mode or Direct(), Mode)
        trace = mode.longest(prompter, sampling)
        assert mode.tokens_held(sampling) <= trace, f"{benchmark.name}: submit refuses no model that has room"
        assert recipe.sampling.max_prompt_tokens + trace + question <= ModelSize().longest, benchmark.name


def test_fields_beside_the_suite_replace_its_own_and_the_lock_does_not_need_it(tmp_path: Path) -> None:
    how = load_recipe(QUICKSTART, ("evaluation={suite: paper_20, max_tokens: 99}",)).evaluation
    assert (how.max_tokens, how.temperature, len(how.benchmarks)) == (99, 0.6, 5)
    how = load_recipe(QUICKSTART, ("evaluation.suite=paper_20",)).evaluation
    assert [b.name for b in how.benchmarks] == ["held-out"]
    suite, lock = tmp_path / "mine.yaml", tmp_path / "recipe.lock.yaml"
    suite.write_text("benchmarks: []\nmax_token: 77\n")
    refused = refusal(with_suite, suite)
    assert ("evaluation.max_token:" in str(refused), refused.where) == (True, f"{suite}, line 2")
    suite.write_text("benchmarks: [{name: b, problems: {type: small_world, split: held_out}}]\nmax_tokens: 77\n")
    recipe = with_suite(suite)
    assert recipe.evaluation.suite == "mine"
    lock.write_text(lock_text(recipe))
    suite.unlink()
    assert read_recipe_lock(lock) == recipe


def test_prompts_of_benchmarks_name_only_what_they_decide(tmp_path: Path) -> None:
    """Solved examples come from the suite's benchmark, the instruction from the suite, the tags from the recipe."""
    recipe = with_suite("paper_few_shot", "prompt={instruction: Think., thought_start: '', thought_end: ''}")
    prompts = {b.name: recipe.sampling_of(b).prompt for b in recipe.evaluation.benchmarks}
    assert [prompts[f"amc23-{shots}-shot"].shots for shots in (0, 1, 4)] == [0, 1, 4]
    four = prompts["amc23-4-shot"]
    assert (four.thought_start, four.thought_end) == ("", "")
    assert "put your final answer" in four.instruction
    build_tokenizer().save_pretrained(tmp_path)
    assert Prompter.of(tmp_path, four).text("What is 2 + 3?").count("The final answer is") == 4
    lines = (RECIPES / "suites" / "solved_problems.jsonl").read_text().splitlines()
    answers = ["72", "40", "30", "\\frac{7}{36}", "4"]  # worked out once in another way than in the solutions
    assert [last_box(json.loads(line)["solution"]) for line in lines] == answers
