"""The chat template of a model directory, rendered by jinja2 alone as transformers does it. The check looks at the
whole resulting text, so that no model family has to be known.
"""

import json
import multiprocessing
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import Template, TemplateError, meta
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.recipe.ownership import file_bytes

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from jinja2.nodes import Node
    from jinja2.parser import Parser

    from mrt_hpc.recipe.sections import Prompt

Render = Callable[[Sequence[Mapping[str, str]], bool], str]
"""Renders messages; if asked to, opens the model's next turn."""

TODAY = date(2025, 1, 1)
"""Templates' "today", unless the recipe names another day."""
OF_EVERY_TEMPLATE = {
    "messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now", "bos_token",
    "eos_token", "pad_token", "unk_token", "conversation", "chat_template", "continue_final_message", "tokenize",
    "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs",
}  # fmt: skip
"""transformers gives these to every template, or takes them for itself: recipes cannot set them."""
QUESTION, COMPLETION, NEXT = "QUESTION-OF-THE-USER", "COMPLETION-OF-THE-MODEL", "NEXT-QUESTION-OF-THE-USER"
"""These stand for texts of a conversation whose other texts are checked."""
_TAG_OF_A_THOUGHT = re.compile(r"[<\[][^<>\[\]\s]{0,40}(?:think|thought|reason)[^<>\[\]\s]{0,40}[>\]]", re.IGNORECASE)
LONGEST_TEMPLATE = 2**20
RENDERS_WITHIN_S, RENDERS_WITHIN_BYTES = 5, 2**30
"""Limits of a check: processor seconds, and bytes of memory."""
OWN_FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
"""The first one that exists counts."""


def template_text(directory: Path, prompt: "Prompt") -> str | None:
    """The recipe's template, or the model's own. Refuses several templates without a default."""
    if prompt.chat_template is not None:
        return _read(Path(prompt.chat_template))
    if (path := directory / OWN_FILES[0]).is_file():
        return _read(path)
    templates = (_json(directory / name).get("chat_template") for name in OWN_FILES[1:])
    return _default(next((template for template in templates if template), None), directory)


def _read(path: Path) -> str:
    try:
        return file_bytes(path, LONGEST_TEMPLATE).decode()
    except (OSError, ValueError) as error:
        what = f"a chat template cannot be read: {error}"
        advice = "write the file again, or set prompt.chat_template to another one"
        raise UserError(what, where=path, expected="a file of text in UTF-8", advice=advice) from error


def _default(stored: Any, directory: Path) -> str | None:
    if stored is None or isinstance(stored, str):
        return stored
    templates = [template for template in stored if isinstance(template, dict)] if isinstance(stored, list) else []
    for template in templates:
        if template.get("name") == "default" and isinstance(text := template.get("template"), str):
            return text
    raise UserError(
        "the model has several chat templates, and none of them is its default"
        if templates
        else "the chat template of the model is no text",
        value=", ".join(str(template.get("name")) for template in templates) or f"{stored!r:.80}",
        where=directory,
        advice="set prompt.chat_template to a file with one of them",
    )


def _json(path: Path) -> dict[str, Any]:
    return json_of(path, path) if path.is_file() else {}


def json_of(path: Path, where: object) -> dict[str, Any]:
    """A JSON object from a model's file; ``where`` is its place in words."""
    try:
        content = json.loads(file_bytes(path))
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
    except (ValueError, RecursionError) as error:
        what = f"{path.name} of the model cannot be read: {error}"
        raise UserError(what, where=where, expected="a JSON object", advice="fetch the model again") from error
    return content


def variables_read(template: str) -> set[str]:
    """The variables that a template reads and a recipe may set."""
    try:
        return set(meta.find_undeclared_variables(_environment().parse(template))) - OF_EVERY_TEMPLATE
    except RecursionError as error:
        raise TemplateError("it is nested too deeply") from error


def render_context(prompt: "Prompt") -> dict[str, Any]:
    """The recipe's variables, and a clock that stands still, so that a prompt does not change at midnight."""
    now = datetime.combine(prompt.date or TODAY, time())
    return {"strftime_now": now.strftime, **prompt.template_variables}


class _Generation(Extension):
    """Templates mark the model's text with this tag; only its content is written."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

    def parse(self, parser: "Parser") -> "list[Node]":
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    return environment


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """HTML's escapes are left out, which jinja2's own filter writes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@dataclass(frozen=True)
class StoredTemplate:
    directory: Path
    prompt: "Prompt"
    text: str

    @cached_property
    def _compiled_template(self) -> Template:
        return _environment().from_string(self.text)

    @cached_property
    def _special_tokens(self) -> dict[str, str]:
        names = ("special_tokens_map.json", "tokenizer_config.json")
        stored = {key: value for name in names for key, value in _json(self.directory / name).items()}
        contents = {name: token.get("content") if isinstance(token, dict) else token for name, token in stored.items()}
        return {name: text for name, text in contents.items() if name.endswith("_token") and isinstance(text, str)}

    def render(self, messages: Sequence[Mapping[str, str]], open_next: bool) -> str:
        given = {**self._special_tokens, **render_context(self.prompt)}
        return self._compiled_template.render(
            messages=messages, tools=None, documents=None, add_generation_prompt=open_next, **given
        )


def check_stored(directory: Path, prompt: "Prompt", field: str, *, variables: bool = True) -> None:
    """Refuse a model whose template makes no usable prompt, before anything is queued. ``field`` names the model;
    ``variables`` asks the template to read each of prompt.template_variables.
    """
    if (text := template_text(directory, prompt)) is None:
        raise UserError(
            "the model has no chat template, so its prompts cannot be written as it knows them",
            value=str(directory),
            where=field,
            expected="chat_template.jinja, or chat_template in tokenizer_config.json",
            advice="set prompt.chat_template to a file with one; for a base model a file that writes "
            "{{ messages[0]['content'] }} and a new line",
        )
    where = f"{field}, {prompt.chat_template or directory}"
    if len(text) > LONGEST_TEMPLATE:
        raise UserError(
            "the chat template is too long",
            value=f"{len(text):,} characters",
            where=where,
            expected=f"at most {LONGEST_TEMPLATE:,}",
            advice="set prompt.chat_template to another file",
        )
    stored = StoredTemplate(directory, prompt, text)
    _check_within_limits(CheckedTemplate(stored.render, prompt, text, where), variables=variables)


def _check_within_limits(template: "CheckedTemplate", *, variables: bool) -> None:
    """Check in a child of this process: a model's template may ask for any time and memory."""
    own = multiprocessing.get_context("fork")
    told, answers = own.Pipe(duplex=False)
    child = own.Process(target=_answer_check, args=(template, variables, answers), daemon=True)
    child.start()
    answers.close()
    try:
        refused: UserError | None = told.recv()
    except EOFError:
        refused = UserError(
            f"the chat template takes more than {RENDERS_WITHIN_S} s or {RENDERS_WITHIN_BYTES:,} bytes for a prompt",
            where=template.where,
            expected="a template that writes a conversation in milliseconds",
            advice="set prompt.chat_template to a file with another template",
        )
    child.join()
    if refused is not None:
        raise refused


def _answer_check(template: "CheckedTemplate", variables: bool, answers: "Connection") -> None:
    """Send the error of a check, or None; nothing where a limit ends this process."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CPU, (RENDERS_WITHIN_S, RENDERS_WITHIN_S))
    resource.setrlimit(resource.RLIMIT_AS, (held + RENDERS_WITHIN_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        template.check(variables=variables)
    except UserError as refused:
        answers.send(refused)
    except MemoryError:
        return
    else:
        answers.send(None)


@dataclass(frozen=True)
class CheckedTemplate:
    """A template that is checked by what it makes of conversations."""

    rendered: Render
    prompt: "Prompt"
    text: str
    where: str
    """The field of the recipe and the place, for messages."""

    def render(self, messages: Sequence[Mapping[str, str]], open_next: bool) -> str:
        """Refuses with the template's own words."""
        try:
            return self.rendered(messages, open_next)
        except MemoryError:
            raise  # of the limit of the check
        except Exception as error:  # a template may fail in any way that an expression of Python can
            raise self._template_error(error, messages) from error

    def _template_error(self, error: Exception, messages: Sequence[Mapping[str, str]]) -> UserError:
        return UserError(
            f"the chat template cannot write this conversation: {type(error).__name__}: {error}",
            value=", ".join(message["role"] for message in messages),
            where=self.where,
            expected="a template that writes messages of a user and an assistant, without tools",
            advice=Advice("set prompt.chat_template to a file with such a template{hint}", hint=self._variables_hint()),
        )

    def check(self, *, variables: bool = True) -> None:
        """Refuse a template whose prompt does not hold the question once, or does not end in one open thought."""
        if variables and self.prompt.template_variables:
            self._check_variables()
        asked = self.render([user(QUESTION)], True)
        if (times := asked.count(QUESTION)) != 1:
            what = f"the chat template writes the question {times} times"
            raise self._thought_tag_error(what, asked, "once, and whole")
        self._check_opening(asked.partition(QUESTION)[2])

    def _check_variables(self) -> None:
        try:
            known = variables_read(self.text)
        except TemplateError as error:
            raise self._template_error(error, []) from error
        for name in self.prompt.template_variables:
            if name not in known:
                guess = nearest(name, sorted(known))
                raise UserError(
                    "the chat template reads no variable of this name, so it would change nothing",
                    value=name,
                    where=f"prompt.template_variables, {self.where}",
                    expected=f"one of {', '.join(sorted(known))}" if known else "none: this template reads no variable",
                    advice=Advice("--set {variables}", variables=f"prompt.template_variables={{{guess}: ...}}")
                    if guess
                    else "leave the variable out",
                )

    def _check_opening(self, behind: str) -> None:
        """Refuse a closed thought, and one that is opened twice or in other words than the recipe's."""
        start, end = self.prompt.thought_start.strip(), self.prompt.thought_end.strip()
        behind = drop_named_tags(behind, start, end)
        whole = open_thought(behind, self.prompt.thought_start)
        # What ends every turn of the model closes no thought behind a question.
        if end and end in whole and ((turns := self.turns()) is None or end not in turns[1]):
            what = "the chat template closes the thought before the model writes anything"
            raise self._thought_tag_error(what, whole)
        if not start:
            return
        if whole.count(start) != 1:
            raise self._thought_tag_error(f"the prompt opens the thought {whole.count(start)} times", whole)
        if (own := self._own_opening(behind)) is not None:
            what = f"the chat template begins the model's turn in a way of its own, {own!r}, before {start!r}"
            raise self._thought_tag_error(what, whole)

    def _own_opening(self, behind: str) -> str | None:
        """Evidence that the model's turn does not begin with the recipe's tag. Text in the open turn alone is a thought
        that the template opens (and may close), in whatever tags; text in the written turn alone without a tag of the
        recipe is a part that the model has to begin itself.
        """
        start, end = self.prompt.thought_start.strip(), self.prompt.thought_end.strip()
        writes_it = behind.rstrip().endswith(start)
        begun = behind.rstrip().removesuffix(start) if writes_it else behind
        if tag := _TAG_OF_A_THOUGHT.search(begun):
            return tag[0]
        if (turns := self.turns()) is None:
            return None
        written = turns[0]
        shared = sum(takewhile(bool, (a == b for a, b in zip(begun, written, strict=False))))
        if own := _whole_tag(begun, shared).strip():
            return own
        rest = written[shared:].replace(start, "").replace(end, "").strip()
        return rest if rest and not writes_it and start not in self.text else None

    def turns(self) -> tuple[str, str] | None:
        """The texts around an answer before a further question; None where the template writes no such conversation."""
        try:
            text = self.render([user(QUESTION), assistant(COMPLETION), user(NEXT)], True)
        except UserError:
            return None
        before, answered, behind = text.partition(QUESTION)[2].partition(COMPLETION)
        between, asked, _ = behind.partition(NEXT)
        return (before, between) if answered and asked else None

    def ending(self) -> str:
        """The text behind the last answer."""
        try:
            text = self.render([user(QUESTION), assistant(COMPLETION)], False)
        except UserError:
            return ""
        return text.partition(COMPLETION)[2]

    def _thought_tag_error(self, what: str, text: str, expected: str | None = None) -> UserError:
        start = self.prompt.thought_start
        wanted = f"{start!r} once, at the end of the prompt, and no {self.prompt.thought_end!r} behind the question"
        return UserError(
            what,
            value=text,
            where=self.where,
            expected=expected or wanted,
            advice=Advice(
                "set prompt.chat_template to a file with a template that does so, or prompt.thought_start and "
                "prompt.thought_end to the model's own tags{hint}",
                hint=self._variables_hint(),
            ),
        )

    def _variables_hint(self) -> Advice:
        try:
            known = sorted(
                (name for name in variables_read(self.text) if re.search("think|reason", name)),
                key=lambda name: (name not in ("enable_thinking", "thinking"), name),
            )
        except TemplateError:
            known = []
        if not known:
            return Advice("")
        set_first = f"prompt.template_variables={{{known[0]}: true}}"
        return Advice("; this template reads {names}, as in --set {set_first}", names=known, set_first=set_first)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def drop_named_tags(behind: str, start: str, end: str) -> str:
    """Leaves out pairs of tags that an instruction only names, as in "write your work in <think> </think> tags": on one
    line, with words in between and a later opening of the thought.
    """
    if not start or not end:
        return behind
    s, e = re.escape(start), re.escape(end)
    return re.sub(rf"{s}[ .\u2026]*{e}(?=\s*(?!{s})\S.*{s})", "", behind, flags=re.DOTALL)


def _whole_tag(text: str, start: int) -> str:
    tag = text.rfind("<", 0, start)
    return text[tag if tag >= 0 and ">" not in text[tag:start] and text[start:] else start :]


def open_thought(text: str, thought_start: str) -> str:
    """Adds the opening of the thought, unless the template has written it."""
    start = thought_start.rstrip("\n")
    return text if start and text.rstrip("\n").endswith(start) else text + thought_start
