"""Ways of evaluating, with a scripted server: what is asked, what is inserted, where the boundaries are."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
import samples
from commands import recipe, refusal
from run_of import run_of
from tables import tables
from warm_start import build_tokenizer

from mrt_hpc import Mode, Prompter
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.protocol import Request, SamplingSettings
from mrt_hpc.inference.sampler import RolloutPlan, TraceCutter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start
from mrt_hpc.modes.budget_forcing import BudgetForcing
from mrt_hpc.modes.extrapolation import Extrapolation
from mrt_hpc.modes.revision import HistoryConditioned, Linearised
from mrt_hpc.modes.writer import Draft, Writer, paragraph_break, whole_paragraphs
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.parquet import read_records, write_records
from mrt_hpc.run.records import FinishReason, Problem, Rollout
from mrt_hpc.run.seeds import derive_seed

TOKENIZER = build_tokenizer()
TOKENS = TokenBytes(TOKENIZER)
END = TOKENIZER.eos_token_id
PROMPT = TOKENIZER.encode("Solve 2*x+1=15\n<think>\n")
FORCED = "Time is up.\n\n</think>\n\n\\boxed{"
PROBLEM = Problem("p", "Solve 2*x+1=15", "7")


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


@dataclass
class Scripted:
    """Writes the given texts one after the other, each up to the limit or the first stop token of its request."""

    texts: list[str]
    asked: list[Request] = field(default_factory=list)

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        [request] = requests
        self.asked.append(request)
        written = [*ids(self.texts.pop(0)), END][: request.settings.max_tokens]
        stops = [n for n, token in enumerate(written) if token in request.settings.stop_token_ids]
        written = written[: stops[0] + 1] if stops else written
        reason = FinishReason.STOP if stops else FinishReason.LENGTH
        count, logprobs = len(request.prompt_ids), [-0.5] * len(written)
        yield Completion(0, 0, request.seeds[0], written, logprobs, reason, 3, count, count - 1, [], 5.0, 1.0)


def traces(mode: Mode, server: Scripted, *, max_tokens: int = 400, tag: str = "</think>") -> list[SampledTrace]:
    """The traces of sample 1 of one problem."""
    settings = SamplingSettings(max_tokens, 0.6, stop_token_ids=(END,))
    prompter = Prompter(TOKENIZER, Prompt(instruction="", thought_end=tag), (END,))
    writer = Writer(server, prompter, TraceCutter(TOKENS, RolloutPlan(7, 0, 2, thought_end=tag.encode())), settings)
    group = PromptedGroup(PROBLEM, PROMPT, (Start(PROMPT, 2, settings),))
    sampler = mode.sampler(writer)
    assert sampler is not None

    async def collect() -> list[SampledTrace]:
        return [trace async for trace in sampler.traces(group, 1)]

    return asyncio.run(collect())


def inserted(trace: SampledTrace) -> list[str]:
    return [TOKENS.text(trace.completion.token_ids[at : at + length]) for at, length in trace.inserted]


def test_an_unfinished_paragraph_is_what_follows_the_last_blank_line() -> None:
    wholes = {b"a|\n\n|b": 2, b"a|.\n\n|b|\n\n|c|d": 4, b"a|\n|\n|b": 3, b"a|\n\nb|c": 1, b"a|b": 2}
    assert {text: whole_paragraphs(text.split(b"|")) for text in wholes} == wholes
    gaps = {b"": "", b"so x=7": "\n\n", b"so x=7\n": "\n", b"so x=7\n\n": ""}
    assert {before: paragraph_break(before) for before in gaps} == gaps


def test_a_draft_distinguishes_sampled_from_inserted_tokens() -> None:
    one = Completion(0, 0, 11, [5, 6, 7], [-1.0, -2.0, -3.0], FinishReason.LENGTH, 3, 10, 8, [], 1.0, 2.0)
    two = Completion(0, 0, 12, [8], [-4.0], FinishReason.STOP, 4, 14, 13, [], 4.0, 0.5)
    draft = Draft([1, 2]).add_completion(one).keep_first(2).insert_tokens([20, 21]).add_completion(two)
    assert (draft.all_ids, draft.inserted) == ([1, 2, 5, 6, 20, 21, 8], ((2, 2),))
    whole = draft.completion()
    assert whole.logprobs == [-1.0, -2.0, 0.0, 0.0, -4.0]
    assert (whole.seed, whole.finish_reason, whole.weights_version) == (11, FinishReason.STOP, 4)
    assert (whole.prompt_tokens, whole.cached_tokens, whole.started, whole.seconds) == (24, 21, 1.0, 2.5)
    assert (draft.keep_first(3).inserted, draft.keep_first(2).inserted) == (((2, 1),), ())


ROTATION = Extrapolation(words=("Wait", "First"), extensions=4, tokens=12, value_every=2, forced_text=FORCED)


def test_words_are_inserted_in_rotation_in_place_of_the_closing_tag() -> None:
    server = Scripted(["x=3\n\n</think>", ", x=4\n</think>", ", x=5</think>", ", x=6", ", x=7\n\n</think>", "7}"])
    [trace] = traces(ROTATION, server)
    assert inserted(trace) == ["Wait", "\nFirst", "\n\nWait", "\n\nFirst"]
    assert trace.text == "x=3\n\nWait, x=4\n\nFirst, x=5\n\nWait, x=6\n\nFirst, x=7\n\n</think>7}"
    assert trace.boundaries == [0, 4, 12, 21], "a blank line of a sampled and an inserted newline is two tokens"
    assert trace.answer_text == "7}"
    direct = derive_seed(7, "rollout", 0, "p", 1)
    extensions = [derive_seed(7, "extension", 0, "p", 1, w) for w in (1, 2, 3, 4)]
    assert [request.seeds for request in server.asked[:5]] == [[seed] for seed in (direct, *extensions)]
    assert trace.completion.seed == direct, "the first seed is that of a direct evaluation"
    assert [Extrapolation().word(w) for w in (0, 3, 4, 7)] == ["Wait", "But hold on", "Wait", "But hold on"]


def test_a_paragraph_that_the_limit_cuts_is_dropped_and_the_rest_stays_in_the_prompt() -> None:
    """The first extension ends inside its second paragraph; the second one, inside its first, leaves nothing. A thought
    that the first limit cuts goes on after its last paragraph.
    """
    mode = ROTATION.model_copy(update={"extensions": 2, "value_every": 1})
    server = Scripted(["x=3\n\n</think>", ", x=4\n\n" + ", x=5" * 9, ", x=8" * 9, "7}"])
    [trace] = traces(mode, server)
    assert (trace.text, inserted(trace)) == ("x=3\n\nWait, x=4\n\n" + FORCED + "7}", ["Wait", FORCED])
    first, second = len(ids("x=3\n\n")), len(ids("x=3\n\nWait, x=4\n\n"))
    assert trace.boundaries == [0, first, second, second]
    assert server.asked[2].prompt_ids == [*PROMPT, *ids("x=3\n\nWait, x=4\n\nFirst")]
    given = {n for at, length in trace.inserted for n in range(at, at + length)}
    assert trace.completion.logprobs == [0.0 if n in given else -0.5 for n in range(len(trace.completion.token_ids))]
    server = Scripted(["x=3\n\nx=4", *[", x=5\n\n</think>"] * 4, "7}"])
    [trace] = traces(ROTATION, server, max_tokens=len(ids("x=3\n\nx")))
    assert trace.text.startswith("x=3\n\nWait, x=5\n\nFirst, x=5\n\n") and trace.boundaries[1] == first


def test_a_closing_tag_of_several_tokens_is_found_in_the_text_and_what_follows_is_dropped() -> None:
    mode = ROTATION.model_copy(update={"extensions": 2, "forced_text": "DONE 7}"})
    server = Scripted(["x=3\n\nDONE so it is", ", x=4\n\nDONE so", ", x=5\n\nDONE 8}", "7}"])
    [trace] = traces(mode, server, tag="DONE")
    assert trace.text == "x=3\n\nWait, x=4\n\nFirst, x=5\n\nDONE7}"[: len(trace.text)]
    assert server.asked[1].prompt_ids == [*PROMPT, *ids("x=3\n\nWait")]


def test_one_thought_is_cut_at_every_budget() -> None:
    thought = "x=3\n\nWait, x=4\n\n"
    budgets = (2, 4, len(ids(thought)), 100)
    server = Scripted([thought + "</think>", "1}", "2}", "\\boxed{7}"])
    found = traces(BudgetForcing(budgets=budgets, forced_text=FORCED), server)
    assert [(t.stage, t.stages, t.sample, t.counts) for t in found] == [(n, 4, 4 + n, n == 3) for n in range(4)]
    forced = [TOKENS.text(ids(thought)[:cut]) + FORCED + answer for cut, answer in ((2, "1}"), (4, "2}"))]
    assert [t.text for t in found[:2]] == forced
    assert {t.text for t in found[2:]} == {thought + "</think>\\boxed{7}"}, "both budgets lie beyond the thought"
    assert [t.boundaries for t in found] == [[0, 2], [0, 2, 4], [0, 2, 4, budgets[2]], [0, 2, 4, budgets[2]]]
    assert [inserted(t) for t in found] == [[FORCED], [FORCED], [], []]
    [unclosed] = traces(BudgetForcing(budgets=(50,), forced_text=FORCED), Scripted(["x=3", "7}"]))
    assert unclosed.text == "x=3" + FORCED + "7}"


def test_the_second_attempt_sees_the_first_which_is_closed_where_it_was_cut() -> None:
    for attempt, mode, turn in (
        ("x=3</think>3", HistoryConditioned(backtrack="Again"), "x=3</think>3<|end|>\nAgain\n<think>\n"),
        ("x=3</think>3", HistoryConditioned(backtrack=None), "x=3</think>3<|end|>\nSolve 2*x+1=15\n<think>\n"),
        ("x=3\n\nx=4", HistoryConditioned(backtrack="Again", attempt_tokens=3), "x=3</think><|end|>\nAgain\n<think>\n"),
    ):
        first, second = traces(mode, Scripted([attempt, "x=7</think>7"]))
        assert second.start.context_ids[: len(PROMPT)] == PROMPT
        assert (TOKENS.text(second.start.context_ids[len(PROMPT) :]), second.text) == (turn, "x=7</think>7")
        assert [(t.sample, t.counts) for t in (first, second)] == [(2, False), (3, True)]
        seeds = [derive_seed(7, "rollout", 0, "p", 1), derive_seed(7, "round", 0, "p", 1, 1)]
        assert [t.completion.seed for t in (first, second)] == seeds


def test_a_prompt_holds_the_last_attempts_of_the_window() -> None:
    found = traces(Linearised(rounds=4, window=2, backtrack="Again"), Scripted([f"x={n}</think>{n}" for n in range(4)]))
    shown = [[n for n in range(4) if f"x={n}" in TOKENS.text(t.start.context_ids[len(PROMPT) :])] for t in found]
    assert (shown, [t.sample for t in found]) == ([[], [0], [0, 1], [1, 2]], [4, 5, 6, 7])


def benchmark(mode: str) -> str:
    return f"evaluation.benchmarks=[{{name: b, problems: {{type: small_world, problems: 4}}, mode: {mode}}}]"


def test_what_cannot_work_is_refused() -> None:
    for mode, fact in tables("modes")["refused"]:
        assert fact in refusal(recipe, "quickstart", benchmark(mode)).message()
    tagless = 'prompt={instruction: "", thought_start: "", thought_end: ""}'
    assert "prompt.thought_end" in refusal(recipe, "quickstart", tagless, benchmark("{type: extrapolation}")).message()
    assert recipe("quickstart", tagless, benchmark("{type: linearised}")).evaluation.benchmarks[0].mode


def test_the_way_of_evaluating_decides_the_digest_and_the_default_changes_none(tmp_path: Path) -> None:
    layout = run_of(tmp_path / "run", benchmark("null"))
    modes = ("null", "{type: direct}", *(f"{{type: linearised{more}}}" for more in ("", ", rounds: 4", ", rounds: 5")))
    asked = [recipe("quickstart", benchmark(mode)) for mode in modes]
    usual, direct, linearised, four, five = [evaluation_settings(layout, one)["b"].sampled for one in asked]
    assert (direct, four) == (usual, linearised)
    assert len({usual, four, five}) == 3


def test_records_without_inserted_tokens_are_written_as_before_and_read_again(tmp_path: Path) -> None:
    usual, special = tmp_path / "usual.parquet", tmp_path / "special.parquet"
    plain = samples.rollout("p", 0)
    forced = replace(plain, sample=1, inserted=[[1, 2]], stage=1, stages=2)
    write_records(usual, [plain], Rollout)
    write_records(special, [plain, forced], Rollout)
    assert not {"inserted", "stage", "stages"} & set(pq.read_schema(usual).names)
    assert (read_records(usual, Rollout), read_records(special, Rollout)) == ([plain], [plain, forced])
