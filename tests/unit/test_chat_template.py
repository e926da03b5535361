"""The prompt as a chat template writes it: each form of a template, accepted or refused by what it makes of a question,
by jinja2 alone on a login node and by transformers in a task.
"""

from __future__ import annotations

import json
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tokenizers import AddedToken, processors

from mrt_hpc.algorithms.samples import SampleSource
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.mrt.sft import Conversation, Message
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.chat_template import StoredTemplate, check_stored, user
from mrt_hpc.recipe.find import RECIPES, find
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import lock_text, read_lock
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.run.evaluation_settings import evaluation_settings, fingerprint_of
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast

TURN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}"
CHAT = TURN + "{% if add_generation_prompt %}[assistant]{% endif %}"


def opening(text: str) -> str:
    """A chat that begins the model's turn in this way."""
    return TURN + "{% if add_generation_prompt %}[assistant]" + text + "{% endif %}"


def answering(text: str, start: str = "") -> str:
    """A chat whose answers stand behind this text, and whose next turn begins with ``start``."""
    turn = "[{{ m.role }}]{{ '" + text + "' if m.role == 'assistant' else '' }}{{ m.content }}<|end|>"
    return (
        "{% for m in messages %}"
        + turn
        + "{% endfor %}{% if add_generation_prompt %}[assistant]"
        + start
        + "{% endif %}"
    )


SWITCHED = (
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
)
GOOD: dict[str, tuple[str, str]] = {
    "plain": (CHAT, "[assistant]<think>\n"),
    "opened by the template": (opening("<think>\\n").replace("\\n", "{{ '\n' }}"), "[assistant]<think>\n"),
    "opened without a new line": (opening("<think>"), "[assistant]<think>"),
    "opened, and closed in earlier turns": (answering("<think></think>", "<think>"), "[assistant]<think>"),
    "closed in earlier turns alone": (answering("</think>"), "[assistant]<think>\n"),
    "earlier turns not written": ("[user]{{ messages[0].content }}", "<think>\n"),
    "content trimmed": (CHAT.replace("m.content", "m.content | trim"), "[assistant]<think>\n"),
    "generation marked": (
        CHAT.replace("<|end|>", "{% generation %}<|end|>{% endgeneration %}"),
        "[assistant]<think>\n",
    ),
}
BAD: dict[str, tuple[str, str]] = {
    "closed by default": (opening(SWITCHED), "closes the thought"),
    "closed alone": (opening("</think>"), "closes the thought"),
    "opened twice": (opening("<think><think>"), "opens the thought 2 times"),
    "own tags, closed": (opening("<|begin_of_thought|><|end_of_thought|>"), r"its own, '<\|begin_of_thought\|>'"),
    "own tags of other words, closed": (opening("<|channel>inner\n<channel|>"), r"a way of its own, '<\|channel>inner"),
    "own tags, closed before too": (answering("<think:a></think:a>", "<think:a></think:a>"), "'<think:a>'"),
    "opened in words": (opening("Here are my steps:"), "a way of its own, 'Here are my steps:'"),
    "answers in a channel": (answering("<|channel|>final<|message|>"), r"its own, '<\|channel\|>final"),
    "tools needed": ("{% for t in tools %}{% endfor %}" + CHAT, "cannot write this conversation: TypeError: .*None"),
    "raises": ("{{ raise_exception('Only with a system prompt!') }}", "TemplateError: Only with a system prompt!"),
    "undefined": ("{{ functions.x }}" + CHAT, "UndefinedError: 'functions' is undefined"),
    "no template": ("{% for m in messages %}", "TemplateSyntaxError"),
    "a list of contents": (CHAT.replace("m.content", "m.content[0].text"), "writes the question 0 times"),
    "question twice": (CHAT + "{{ messages[-1].content }}", "writes the question 2 times"),
}  # fmt: skip


def model(directory: Path, template: str | None, **config: Any) -> Path:
    """A model directory with the tokenizer of the small world."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return directory


def checked(directory: Path, prompt: Prompt) -> None:
    """Check a template as ``submit`` and as the first task do."""
    check_stored(directory, prompt, "model.path")
    template = Prompter.of(directory, prompt).template
    assert template is not None
    template.check()


@pytest.mark.parametrize("form", GOOD)
def test_a_template_that_leaves_one_thought_open_is_accepted(form: str, tmp_path: Path) -> None:
    template, end = GOOD[form]
    checked(model(tmp_path, template), Prompt())
    text = Prompter.of(tmp_path, Prompt(instruction="?")).text("1+1")
    assert text.endswith(end)
    assert text.count("<think>") == 1
    assert text.count("1+1?") == 1


def test_tags_that_an_instruction_of_the_template_names_open_no_thought(tmp_path: Path) -> None:
    asked = "User: {{ messages[0].content }} Work in <think> </think> tags."
    model(tmp_path, asked + "\nAssistant: Let me solve this.\n<think>")
    checked(tmp_path, Prompt())
    model(tmp_path, asked + "\nAssistant: <think></think><think>")
    with pytest.raises(UserError, match=r"opens the thought 2 times|closes the thought"):
        checked(tmp_path, Prompt())


@pytest.mark.parametrize("form", BAD)
def test_a_template_that_makes_no_usable_prompt_is_refused(form: str, tmp_path: Path) -> None:
    template, words = BAD[form]
    model(tmp_path, template)
    with pytest.raises(UserError, match=words) as refused:
        check_stored(tmp_path, Prompt(), "model.path")
    assert "model.path" in str(refused.value.where)
    with pytest.raises(UserError, match=words):  # and by transformers
        found = Prompter.of(tmp_path, Prompt()).template
        assert found is not None
        found.check()


@pytest.mark.parametrize("form", [*GOOD, *BAD])
def test_jinja2_alone_renders_as_transformers_does(form: str, tmp_path: Path) -> None:
    template = (GOOD | BAD)[form][0]
    model(tmp_path, template)
    prompter, conversation = Prompter.of(tmp_path, Prompt()), [user("a"), {"role": "assistant", "content": "b"}]
    found = []
    for render in (StoredTemplate(tmp_path, Prompt(), template).render, prompter.rendered):
        try:
            found.append(render(conversation, True))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    assert found[0] == found[1]


def test_a_variable_opens_the_thought_that_the_template_closes(tmp_path: Path) -> None:
    model(tmp_path, opening(SWITCHED))
    with pytest.raises(UserError) as refused:
        check_stored(tmp_path, Prompt(), "model.path")
    assert "--set 'prompt.template_variables={enable_thinking: true}'" in str(refused.value.advice)
    prompt = Prompt(template_variables={"enable_thinking": True})
    checked(tmp_path, prompt)
    assert Prompter.of(tmp_path, prompt).text("1").endswith("[assistant]<think>\n")
    checked(tmp_path, Prompt(thought_start="", thought_end=""))  # no thought is wanted


@pytest.mark.parametrize("name", ["thinking", "tools", "tokenize", "bos_token"])
def test_a_variable_that_the_template_does_not_read_is_refused(name: str, tmp_path: Path) -> None:
    model(tmp_path, opening(SWITCHED))
    prompt = Prompt(thought_start="", thought_end="", template_variables={name: True})
    with pytest.raises(UserError, match="reads no variable of this name") as refused:
        check_stored(tmp_path, prompt, "model.path")
    assert refused.value.expected == "one of enable_thinking"


def test_the_models_own_tags_may_be_named_in_the_recipe(tmp_path: Path) -> None:
    model(tmp_path, answering("<|channel|>final<|message|>") + "{# <|channel|>analysis<|message|> #}")
    checked(tmp_path, Prompt(thought_start="<|channel|>analysis<|message|>", thought_end="<|end|>"))
    model(tmp_path, opening("<|begin_of_thought|>"))
    checked(tmp_path, Prompt(thought_start="<|begin_of_thought|>", thought_end="<|end_of_thought|>"))


@pytest.mark.parametrize("file", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json", "list"])
def test_the_template_is_found_in_each_file_that_may_hold_it(file: str, tmp_path: Path) -> None:
    model(tmp_path, None)
    stored: Any = "[own]" + CHAT
    if file == "list":
        stored, file = (
            [{"name": "tool_use", "template": ""}, {"name": "default", "template": stored}],
            "tokenizer_config.json",
        )
    path = tmp_path / file
    told = {**(json.loads(path.read_text()) if path.exists() else {}), "chat_template": stored}
    path.write_text(stored if path.suffix == ".jinja" else json.dumps(told))
    check_stored(tmp_path, Prompt(), "model.path")
    assert Prompter.of(tmp_path, Prompt()).text("1").startswith("[own][user]1")


def test_of_several_templates_without_a_default_none_is_guessed(tmp_path: Path) -> None:
    model(tmp_path, None, chat_template=[{"name": "rag", "template": CHAT}])
    with pytest.raises(UserError, match="several chat templates") as refused:
        check_stored(tmp_path, Prompt(), "model.path")
    assert refused.value.value == "rag"


def test_the_day_that_a_template_writes_is_the_recipes(tmp_path: Path) -> None:
    template = "{{ strftime_now('%d %b %Y') }}{{ date_string }}" + CHAT
    model(tmp_path, template)
    for prompt, told in (
        (Prompt(), "01 Jan 2025["),
        (Prompt(date=date(2024, 7, 26)), "26 Jul 2024["),
        (Prompt(template_variables={"date_string": "!"}), "01 Jan 2025!["),
    ):
        assert Prompter.of(tmp_path, prompt).text("1").startswith(told)
        assert StoredTemplate(tmp_path, prompt, template).render([user("1")], True).startswith(told)


def test_variables_and_the_day_are_kept_by_the_lock_as_they_are(tmp_path: Path) -> None:
    changes = ("prompt.template_variables={a: true, b: 1, c: 0.5, d: x, e: null}", "prompt.date=2024-07-26")
    recipe = load_recipe(find(RECIPES, "quickstart"), changes)
    assert recipe.prompt.template_variables == {"a": True, "b": 1, "c": 0.5, "d": "x", "e": None}
    assert recipe.prompt.date == date(2024, 7, 26)
    (tmp_path / "recipe.lock.yaml").write_text(lock_text(recipe))
    assert read_lock(tmp_path / "recipe.lock.yaml") == recipe
    with pytest.raises(UserError, match="template_variables"):
        load_recipe(find(RECIPES, "quickstart"), ("prompt.template_variables={a: [1]}",))


def test_variables_and_the_day_decide_which_samples_are_the_same(tmp_path: Path) -> None:
    def found(*changes: str) -> tuple[str, object]:
        recipe = load_recipe(find(RECIPES, "quickstart"), changes)
        layout = create_or_open(tmp_path / str(len(changes) and changes[0]), recipe, compile_plan(recipe, LocalSite()))
        benchmark = recipe.evaluation.benchmarks[0]
        told = evaluation_settings(layout, recipe)[benchmark.name].now.sampled
        return fingerprint_of(layout, recipe, benchmark, "w").digest, told

    changes = ("template_variables={a: false}", "template_variables={a: 0.5}", "date=2024-07-26")
    all_found = [found(), *(found(f"evaluation.prompt.{change}") for change in changes)]
    for digests in zip(*all_found, strict=True):
        assert len({*digests}) == 4


# -- the tokens of a prompt


def beginning(directory: Path, template: str | None) -> Prompter:
    """A model whose tokenizer writes a start-of-sequence token."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    first = [("<s>", tokenizer.convert_tokens_to_ids("<s>"))]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=first)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return Prompter.of(directory, Prompt())


@pytest.mark.parametrize("template", [None, "{{ messages[0]['content'] }}\n", "{{ bos_token }}" + CHAT])
def test_the_prompt_begins_with_the_tokens_that_the_tokenizer_writes(template: str | None, tmp_path: Path) -> None:
    prompter = beginning(tmp_path, template)
    first = prompter.tokenizer.convert_tokens_to_ids("<s>")
    ids = prompter.encoded("1+1")
    assert [i for i in ids if i == first] == ids[:1]
    assert prompter.tokenizer.decode(ids).endswith(prompter.text("1+1")[-20:])


def test_a_template_that_begins_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="start-of-sequence token twice"):
        beginning(tmp_path, "{{ bos_token }}{{ bos_token }}" + CHAT).encoded("1+1")


def test_a_conversation_that_is_learnt_begins_as_a_prompt_does(tmp_path: Path) -> None:
    prompter = beginning(tmp_path, CHAT)
    source = SampleSource(None, tmp_path, prompter, None, lambda: iter(()), lambda _: None)  # type: ignore[arg-type]
    masked = source.conversation(Conversation("a", (Message("user", "1+1"), Message("assistant", "2"))))
    assert masked.token_ids[0] == prompter.tokenizer.convert_tokens_to_ids("<s>")
    assert prompter.tokenizer.decode(np.array(masked.token_ids)[masked.learnt]) == "2<|end|>"


@pytest.mark.parametrize(
    ("between", "at_end", "added"),
    [
        ("<|turn|>\n", "<|turn|>\n<|end|>", ["<|turn|>"]),  # as Phi-3 without generation_config.json
        ("<|end|>", "<|end|>", []),
        ("<|turn|><|end|>", "<|turn|><|end|>", []),  # the end of the answer, and then that of the turn
        ("<|turn|>", "<|end|>", []),  # the last turn ends in another way than a channel does
        ("<|next|>", "", ["<|next|>"]),  # the next turn's token is all that shows the end
        ("\nUser: ", "\n", []),
    ],
)  # fmt: skip
def test_the_end_of_a_turn_stops_a_completion(between: str, at_end: str, added: list[str], tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>", "<|next|>"]})
    ended = f"{{{{ '{at_end}' if loop.last else '{between}' }}}}".replace("\n", "\\n")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}" + ended + "{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    prompter = Prompter.of(tmp_path, Prompt())
    names = prompter.tokenizer.convert_ids_to_tokens(prompter.stop_token_ids)
    assert names == ["<|end|>", *added]


def test_special_tokens_are_found_in_a_text(tmp_path: Path) -> None:
    prompter = Prompter.of(model(tmp_path, CHAT), Prompt())
    assert prompter.special_in("1 < 2 and <|end|></think>") == ["<|end|>", "</think>"]
    assert prompter.special_in("|end| <end> think") == []


def test_a_tag_that_is_no_token_is_found_too(tmp_path: Path) -> None:
    tokenizer: PreTrainedTokenizerFast = build_tokenizer()
    tokenizer.add_tokens([AddedToken("<table>")])
    tokenizer.save_pretrained(tmp_path)
    prompter = Prompter.of(tmp_path, Prompt(thought_start="<a>", thought_end="</a>"))
    assert prompter.special_in("<table></a>") == ["</a>"]
