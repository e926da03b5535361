"""Prompts: chat templates by jinja2 alone and by transformers, the tokens of a prompt, and solved examples."""

import json
from contextlib import nullcontext
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import recipe, refusal
from run_of import run_of
from tables import tables
from tokenizers import AddedToken, processors
from warm_start import build_tokenizer

from mrt_hpc import Prompter, SampleSource, UserError
from mrt_hpc.cli.plan import missing_inputs
from mrt_hpc.mrt.sft import Conversation, Message, Suffix
from mrt_hpc.recipe.chat_template import StoredTemplate, check_stored, user
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text, read_lock
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.problems import read_examples
from mrt_hpc.run.prompt_files import changed_prompt_files, copy_of, read_experiment

TURN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}"
CHAT = TURN + "{% if add_generation_prompt %}[assistant]{% endif %}"


def opening(text: str) -> str:
    return CHAT.replace("[assistant]", f"[assistant]{text}")


def answering(text: str, start: str = "") -> str:
    """A chat whose answers stand behind this text, and whose next turn begins with ``start``."""
    return opening(start).replace("{{ m.content", "{{ '" + text + "' if m.role == 'assistant' else '' }}{{ m.content")


SWITCHED = "<think>\n{% if not enable_thinking is defined or not enable_thinking %}\n</think>\n\n{% endif %}"
OPEN = "[assistant]<think>\n"
GOOD: dict[str, str] = {
    CHAT: OPEN,
    opening("<think>{{ '\n' }}"): OPEN,
    opening("<think>"): "[assistant]<think>",
    answering("<think></think>", "<think>"): "[assistant]<think>",
    answering("</think>"): OPEN,
    "[user]{{ messages[0].content }}": "<think>\n",
    CHAT.replace("<|end|>", "{% generation %}<|end|>{% endgeneration %}"): OPEN,
}
"""Templates that open one thought or none, and how a prompt of each ends."""
BAD: dict[str, str] = {
    opening(SWITCHED): "closes the thought",
    opening("<think><think>"): "opens the thought 2 times",
    opening("<|begin_of_thought|><|end_of_thought|>"): r"its own, '<\|begin_of_thought\|>'",
    opening("<|channel>inner\n<channel|>"): r"a way of its own, '<\|channel>inner",
    answering("<|channel|>final<|message|>"): r"its own, '<\|channel\|>final",
    "{{ raise_exception('Only with a system prompt!') }}": "TemplateError: Only with a system prompt!",
    "{% for m in messages %}": "TemplateSyntaxError",
    CHAT.replace("m.content", "m.content[0].text"): "writes the question 0 times",
}
"""Templates that are refused, and with which words."""


def model(directory: Path, template: str | None, *special: str) -> Path:
    """A model whose tokenizer has further special tokens."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory


def source(prompter: Prompter) -> SampleSource:
    """What makes samples of texts."""
    return SampleSource(None, Path(), prompter, None, lambda: iter(()), lambda _: None)  # type: ignore[arg-type]


def checked(directory: Path, prompt: Prompt, words: str = "") -> list[UserError]:
    """Check a template as ``submit`` and as the first task do; the errors, where both refuse it with these words."""
    template = Prompter.of(directory, prompt).template
    assert template is not None
    found = []
    for check in (partial(check_stored, directory, prompt, "model.path"), template.check):
        with pytest.raises(UserError, match=words) if words else nullcontext() as refused:
            check()
        found += [refused.value] if refused else []
    return found


@pytest.mark.parametrize("template", [*GOOD, *BAD])
def test_templates_by_what_they_make_of_a_question(template: str, tmp_path: Path) -> None:
    """One that leaves one thought open is accepted; jinja2 alone renders each as transformers does."""
    model(tmp_path, template)
    found = []
    stored = StoredTemplate(tmp_path, Prompt(), template)
    for render in (Prompter.of(tmp_path, Prompt()).render_messages, stored.render):
        try:
            found.append(render([user("a"), {"role": "assistant", "content": "b"}], True))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    assert found[0] == found[1]
    if template in BAD:
        assert "model.path" in str(checked(tmp_path, Prompt(), BAD[template])[0].where)
    else:
        checked(tmp_path, Prompt())
        text = Prompter.of(tmp_path, Prompt(instruction="?")).text("1+1")
        assert text.endswith(GOOD[template])
        assert (text.count("<think>"), text.count("1+1?")) == (1, 1)


def test_tags_may_be_named_by_an_instruction_of_the_template_and_the_models_own_in_the_recipe(tmp_path: Path) -> None:
    asked = "User: {{ messages[0].content }} Work in <think> </think> tags."
    checked(model(tmp_path, asked + "\nAssistant: Let me solve this.\n<think>"), Prompt())
    checked(model(tmp_path, asked + "\nAssistant: <think></think><think>"), Prompt(), "thought")
    model(tmp_path, answering("<|channel|>final<|message|>") + "{# <|channel|>analysis<|message|> #}")
    checked(tmp_path, Prompt(thought_start="<|channel|>analysis<|message|>", thought_end="<|end|>"))
    model(tmp_path, opening("<|begin_of_thought|>"))
    checked(tmp_path, Prompt(thought_start="<|begin_of_thought|>", thought_end="<|end_of_thought|>"))


def test_a_variable_opens_the_thought_that_the_template_closes(tmp_path: Path) -> None:
    refused, _ = checked(model(tmp_path, opening(SWITCHED)), Prompt(), "closes")
    assert "--set 'prompt.template_variables={enable_thinking: true}'" in str(refused.advice)
    prompt = Prompt(template_variables={"enable_thinking": True})
    checked(tmp_path, prompt)
    assert Prompter.of(tmp_path, prompt).text("1").endswith("[assistant]<think>\n")
    checked(tmp_path, Prompt(thought_start="", thought_end=""))  # no thought is wanted
    for name in ("thinking", "tools", "tokenize", "bos_token"):
        prompt = Prompt(thought_start="", thought_end="", template_variables={name: True})
        unread = refusal(check_stored, tmp_path, prompt, "model.path")
        assert (unread.value, unread.expected) == (name, "one of enable_thinking")


OWN = "[own]" + CHAT
NAMED = [{"name": "tool_use", "template": ""}, {"name": "default", "template": OWN}]
JSON = "tokenizer_config.json"


@pytest.mark.parametrize(("file", "stored"), [
    ("chat_template.jinja", OWN), ("chat_template.json", OWN), (JSON, OWN), (JSON, NAMED)
])  # fmt: skip
def test_the_template_is_found_in_each_file_that_may_hold_it(file: str, stored: Any, tmp_path: Path) -> None:
    path = model(tmp_path, None) / file
    told = {**(json.loads(path.read_text()) if path.exists() else {}), "chat_template": stored}
    path.write_text(stored if path.suffix == ".jinja" else json.dumps(told))
    check_stored(tmp_path, Prompt(), "model.path")
    assert Prompter.of(tmp_path, Prompt()).text("1").startswith("[own][user]1")
    if stored is NAMED:
        path.write_text(path.read_text().replace('"default"', '"rag"'))
        assert refusal(check_stored, tmp_path, Prompt(), "model.path").value == "tool_use, rag", "none is guessed"


def test_the_day_that_a_template_writes_is_the_recipes(tmp_path: Path) -> None:
    template = "{{ strftime_now('%d %b %Y') }}{{ date_string }}" + CHAT
    model(tmp_path, template)
    for prompt, day in (
        (Prompt(), "01 Jan 2025["), (Prompt(date=date(2024, 7, 26)), "26 Jul 2024["),
        (Prompt(template_variables={"date_string": "!"}), "01 Jan 2025!["),
    ):  # fmt: skip
        assert Prompter.of(tmp_path, prompt).text("1").startswith(day)
        assert StoredTemplate(tmp_path, prompt, template).render([user("1")], True).startswith(day)


def test_variables_and_the_day_are_kept_by_the_lock_and_decide_which_samples_are_the_same(tmp_path: Path) -> None:
    changes = ("prompt.template_variables={a: true, b: 1, c: 0.5, d: x, e: null}", "prompt.date=2024-07-26")
    asked = recipe("quickstart", *changes)
    assert asked.prompt.template_variables == {"a": True, "b": 1, "c": 0.5, "d": "x", "e": None}
    assert asked.prompt.date == date(2024, 7, 26)
    (tmp_path / "recipe.lock.yaml").write_text(lock_text(asked))
    assert read_lock(tmp_path / "recipe.lock.yaml") == asked
    digests = set[str]()
    for change in ("", "template_variables={a: false}", "template_variables={a: 0.5}", "date=2024-07-26"):
        asked = recipe("quickstart", *([f"evaluation.prompt.{change}"] if change else []))
        layout = run_of(tmp_path / str(len(digests)), recipe=asked)
        digests.add(evaluation_settings(layout, asked)[asked.evaluation.benchmarks[0].name].sampled)
    assert len(digests) == 4


def beginning(directory: Path, template: str | None) -> Prompter:
    """A model whose tokenizer writes a start-of-sequence token."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    first = [("<s>", tokenizer.convert_tokens_to_ids("<s>"))]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=first)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return Prompter.of(directory, Prompt())


def test_prompts_and_conversations_begin_once_with_the_tokens_that_the_tokenizer_writes(tmp_path: Path) -> None:
    for template in (None, "{{ messages[0]['content'] }}\n", "{{ bos_token }}" + CHAT, CHAT):
        begun = beginning(tmp_path, template)
        first, ids = begun.tokenizer.convert_tokens_to_ids("<s>"), begun.encode_problem("1+1")
        assert [i for i in ids if i == first] == ids[:1]
        assert begun.tokenizer.decode(ids).endswith(begun.text("1+1")[-20:])
    masked = source(begun).conversation(Conversation("a", (Message("user", "1+1"), Message("assistant", "2"))))
    assert masked.token_ids[0] == first
    assert begun.tokenizer.decode(np.array(masked.token_ids)[masked.learnt]) == "2<|end|>"
    twice = beginning(tmp_path, "{{ bos_token }}{{ bos_token }}" + CHAT)
    assert "twice" in refusal(twice.encode_problem, "1+1").message()


def test_the_end_of_a_turn_stops_a_completion(tmp_path: Path) -> None:
    for between, at_end, added in tables("prompts")["ends_of_turns"]:
        ended = f"{{{{ '{at_end}' if loop.last else '{between}' }}}}".replace("\n", "\\n")
        template = "{% for m in messages %}{{ m.content }}" + ended + "{% endfor %}"
        found = Prompter.of(model(tmp_path, template, "<|turn|>", "<|next|>"), Prompt())
        assert found.tokenizer.convert_ids_to_tokens(found.stop_token_ids) == ["<|end|>", *added]


LIKE_GEMMA = (
    "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
LIKE_PHI = LIKE_GEMMA.replace("{% endif %}", "{% else %}{{ eos_token }}{% endif %}")


@pytest.mark.parametrize("template", [LIKE_GEMMA, LIKE_PHI])
def test_a_supervised_sample_ends_where_a_sampled_one_does(tmp_path: Path, template: str) -> None:
    prompter = Prompter.of(model(tmp_path, template, "<turn>", "<end>"), Prompt())
    turns = (Message("user", "1+1"), Message("assistant", "2"), Message("user", "2+1"), Message("assistant", "3"))
    conversation = source(prompter).conversation(Conversation("a", turns))
    suffix = source(prompter).suffix(Suffix("s", "1+1", "", "2"))
    for masked, written in ((conversation, "2<end>3<end>"), (suffix, "2<end>")):
        assert prompter.tokenizer.decode(np.array(masked.token_ids)[masked.learnt]) == written
    two, end = prompter.ids("2"), prompter.tokenizer.convert_tokens_to_ids("<end>")
    for answer in (two, [*two, end]):  # branches, and STaR
        assert source(prompter).append_end_token(answer) == [*two, end]


def test_special_tokens_are_found_in_a_text_and_so_is_a_tag_that_is_no_token(tmp_path: Path) -> None:
    found = Prompter.of(model(tmp_path, CHAT), Prompt())
    assert found.special_in("1 < 2 and <|end|></think>") == ["<|end|>", "</think>"]
    assert found.special_in("|end| <end> think") == []
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken("<table>")])
    tokenizer.save_pretrained(tmp_path)
    found = Prompter.of(tmp_path, Prompt(thought_start="<a>", thought_end="</a>"))
    assert found.special_in("<table></a>") == ["</a>"]
    own = Prompter.of(tmp_path, Prompt()).stop_token_ids
    more = Prompter.of(tmp_path, Prompt(stop_tokens=("=", "<|end|>")))
    assert more.stop_token_ids == (*own, *more.ids("=")), "further tokens may end a completion"
    assert refusal(Prompter.of, tmp_path, Prompt(stop_tokens=("1+1",))).value == "1+1"


ONE, TWO, THREE = "1+1?\nIt is 2<|end|>\n", "1+2?\nIt is 3<|end|>\n", "1+3?\nIt is 4<|end|>\n"


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    solved = [{"id": str(n), "problem": f"1+{n}", "solution": f"It is {n + 1}"} for n in (1, 2, 3)]
    path = tmp_path / "examples.jsonl"
    path.write_text("\n".join(map(json.dumps, solved)))
    return path


def few_shot(examples: Path, shots: int, template: bool = True) -> Prompter:
    prompt = Prompt(instruction="?", examples=str(examples), shots=shots)
    return Prompter.of(model(examples.parent / "model", build_tokenizer().chat_template if template else None), prompt)


@pytest.mark.parametrize(("problem", "shots", "template", "before"), [
    ("5+5", 2, True, ONE + TWO), ("1+1", 2, True, TWO + THREE), ("5+5", 1, False, "1+1?\nIt is 2\n\n")
])  # fmt: skip
def test_examples_stand_before_problems(examples: Path, problem: str, shots: int, template: bool, before: str) -> None:
    assert few_shot(examples, shots, template).text(problem) == f"{before}{problem}?\n<think>\n"


def test_examples_stand_beside_the_recipe_and_too_few_are_refused(examples: Path) -> None:
    path = examples.with_name("mine.yaml")
    path.write_text("extends: quickstart\nprompt: {examples: examples.jsonl, shots: 2}\n")
    assert load_recipe(path).prompt.examples == str(examples)
    path.write_text("extends: quickstart\nprompt: {shots: 1}\n")
    assert "prompt.examples" in refusal(load_recipe, path).what
    assert few_shot(examples, 3).text("5+5")
    assert "--set prompt.shots=2" in str(refusal(few_shot(examples, 3).text, "1+1").advice)


def test_a_run_keeps_its_own_copies_of_the_files_of_its_prompts(tmp_path: Path, examples: Path) -> None:
    """A file that changes afterwards changes nothing in the run, and the settings of its evaluations stay."""
    template = tmp_path / "template.jinja"
    template.write_bytes("{{ messages[0].content }}é\r\n".encode())
    changes = (f"prompt={{examples: {examples}, shots: 2}}", f"evaluation.prompt={{chat_template: {template}}}")
    asked = recipe("quickstart", *changes)
    layout = run_of(tmp_path / "run", recipe=asked)
    before = evaluation_settings(layout, asked)
    assert list(changed_prompt_files(layout, asked)) == []
    template.write_text("another")
    examples.unlink()
    kept = read_experiment(layout)
    assert len(read_examples(Path(str(kept.prompt.examples)))) == 3
    assert kept.evaluation.prompt and kept.evaluation.prompt.chat_template == str(copy_of(layout, template))
    assert copy_of(layout, template).read_bytes() == "{{ messages[0].content }}é\r\n".encode()
    assert evaluation_settings(layout, asked) == evaluation_settings(layout, kept) == before
    assert list(changed_prompt_files(layout, asked)) == [template]
    assert read_lock(layout.recipe_lock) == asked, "the lock names the files that were given"


def test_a_wrong_or_missing_file_of_a_prompt_is_refused_before_a_run_is_made(tmp_path: Path) -> None:
    for field in ("examples", "chat_template"):
        change = f"evaluation.prompt={{{field}: {tmp_path}/nowhere}}"
        assert refusal(run_of, tmp_path / "run", change).where == f"evaluation.prompt.{field}"
        assert any("nowhere" in missing for missing in missing_inputs(recipe("quickstart", change)))
    few = tmp_path / "few.jsonl"
    few.write_text('{"id": "e", "problem": "What is 1+1?", "solution": "2"}\n')
    refused = refusal(run_of, tmp_path / "run", f"prompt.examples={few}", "prompt.shots=2")
    assert "fewer examples than prompt.shots" in refused.message()
    assert not (tmp_path / "run").exists()
