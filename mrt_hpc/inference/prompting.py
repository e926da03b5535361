"""Problems to prompt token ids, by the model's own chat template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.inference.tokens import BYTE_LEVEL_SPACE, SPACE_MARK, load_tokenizer
from mrt_hpc.recipe import chat_template as chat
from mrt_hpc.recipe.chat_template import COMPLETION, QUESTION, CheckedTemplate, open_thought
from mrt_hpc.recipe.model_files import named_stops
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.run.problems import SolvedProblem, examples_before, read_examples
from mrt_hpc.run.records import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


BEFORE = ("\n", "7", ".")
"""Put before a text, these give its tokens without the tokenizer's leading space, if the tokens do not merge."""

ROLES = ("user", "assistant")


@dataclass(frozen=True)
class Prompter:
    tokenizer: "PreTrainedTokenizerFast"
    prompt: Prompt
    stop_token_ids: tuple[int, ...]
    """The model ends a completion with one of them."""
    examples: tuple[SolvedProblem, ...] = ()
    """Few-shot examples, in order; more than are shown."""

    @staticmethod
    def of(directory: Path, prompt: Prompt) -> "Prompter":
        """Downloads nothing. Refuses a model without a token that ends a completion, or a named stop that is no single
        token.
        """
        tokenizer = load_tokenizer(directory)
        tokenizer.chat_template = chat.template_text(directory, prompt)
        stops = (*stop_tokens(directory, tokenizer), *_further_stops(tokenizer, prompt))
        if not stops:
            what = "the model names no end-of-sequence token"
            advice = "add eos_token to that file, or fetch all files of the model again"
            raise UserError(what, where=directory, expected="eos_token in its tokenizer_config.json", advice=advice)
        examples = read_examples(Path(prompt.examples)) if prompt.examples is not None and prompt.shots else []
        prompter = Prompter(tokenizer, prompt, tuple(dict.fromkeys(stops)), tuple(examples))
        between, at_end = prompter._tokens_after_answer
        if not {*stops}.isdisjoint((*between, *at_end[:1])):
            return prompter
        # No stop token follows an answer, behind which the model would write on.
        return replace(prompter, stop_token_ids=(*prompter.stop_token_ids, *between[:1]))

    def text(self, problem: str) -> str:
        return self._question_prompt(problem + self.prompt.instruction, self.shots(problem))

    def _question_prompt(self, question: str, examples: Sequence[SolvedProblem]) -> str:
        shots = [(shot.problem + self.prompt.instruction, shot.solution) for shot in examples]
        if self.template is None:
            text = "".join(f"{asked}\n{solution}\n\n" for asked, solution in shots) + question + "\n"
        else:
            turns = [(role, content) for shot in shots for role, content in zip(ROLES, shot, strict=True)]
            messages = [{"role": role, "content": content} for role, content in [*turns, ("user", question)]]
            text = self.template.render(messages, True)
        return open_thought(text, self.prompt.thought_start)

    def frame(self, examples: Sequence[SolvedProblem]) -> tuple[str, str]:
        """The prompt before a question and behind it."""
        before, _, behind = self._question_prompt(QUESTION, examples).rpartition(QUESTION)
        return before, behind

    @cached_property
    def template(self) -> CheckedTemplate | None:
        """The template as transformers renders it; None for a model without one."""
        text = self.tokenizer.chat_template
        where = self.prompt.chat_template or str(self.tokenizer.name_or_path)
        return None if text is None else CheckedTemplate(self.render_messages, self.prompt, text, where)

    def render_messages(self, messages: Sequence[Mapping[str, str]], open_next: bool) -> str:
        """The chat template may fail in any way."""
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=open_next, **chat.render_context(self.prompt)
            )
        )

    def shots(self, problem: str) -> list[SolvedProblem]:
        """The examples before a problem; refuses too few."""
        return examples_before(problem, self.examples, self.prompt)

    def next_turn(self, question: str) -> str:
        """The text between two completions of the model, up to the opening of the next thought. Refuses a chat template
        that leaves out earlier turns.
        """
        if self.template is None:
            return open_thought(f"\n\n{question}\n\n", self.prompt.thought_start)
        text = self.template.render([chat.user("1"), chat.assistant(COMPLETION), chat.user(question)], True)
        _, marker, between = text.partition(COMPLETION)
        if not marker:
            raise UserError(
                "the chat template leaves out what the model wrote in an earlier turn, so a prompt cannot hold it",
                where=self.prompt.chat_template or self.tokenizer.name_or_path or None,
                expected="a template that repeats the messages of the assistant",
                advice="name another template in prompt.chat_template",
            )
        return open_thought(between, self.prompt.thought_start)

    def prompt_ids(self, problem: Problem, max_tokens: int) -> list[int]:
        """Refuses more than ``max_tokens``."""
        ids = self.encode_problem(problem.problem)
        if len(ids) > max_tokens:
            raise UserError(
                f"the prompt of problem {problem.id} has {len(ids)} tokens, more than the {max_tokens} of "
                "sampling.max_prompt_tokens",
                expected=f"at most {max_tokens} tokens",
                advice="raise sampling.max_prompt_tokens, or take the problem out of the data",
            )
        return ids

    def encode_problem(self, problem: str) -> list[int]:
        return self.add_beginning(self._plain_ids(self.text(problem)))

    def add_beginning(self, ids: list[int]) -> list[int]:
        """Adds the tokenizer's start of sequence, unless the chat template has written it; refuses both."""
        first = self._first_ids
        if first and ids[: 2 * len(first)] == first * 2:
            raise UserError(
                "the prompt begins with the start-of-sequence token twice",
                value=self.tokenizer.decode(ids[: 2 * len(first)]),
                where=self.prompt.chat_template or self.tokenizer.name_or_path or None,
                expected="a chat template that writes it once, or not at all",
                advice="set prompt.chat_template to a file with such a template",
            )
        return ids if ids[: len(first)] == first else [*first, *ids]

    @cached_property
    def _first_ids(self) -> list[int]:
        whole, own = list(self.tokenizer.encode("7", add_special_tokens=True)), self._plain_ids("7")
        return next((whole[:n] for n in range(len(whole)) if whole[n : n + len(own)] == own), [])

    @cached_property
    def _tokens_after_answer(self) -> tuple[list[int], list[int]]:
        """The template's added tokens between an answer and the next question, and behind a last answer."""
        turns = None if self.template is None else self.template.turns()
        if self.template is None or turns is None:
            return [], []
        return self._added_token_ids(turns[1]), self._added_token_ids(self.template.ending())

    def special_in(self, text: str) -> list[str]:
        """Special tokens and tags of the thought that the tokenizer reads in a text."""
        tags = {tag.strip() for tag in (self.prompt.thought_start, self.prompt.thought_end)}
        special = self._special_ids
        present = [token for token in special if token in text]
        read = set(self._plain_ids(text)) if present else set()
        return [*(token for token in present if special[token] in read), *(tag for tag in tags if tag and tag in text)]

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        """The tokenizer makes its table of thousands of added tokens again at each look."""
        return {token.content: i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    def _added_token_ids(self, text: str) -> list[int]:
        """Ids of added tokens in a text, without those of spaces."""
        added = self.tokenizer.added_tokens_decoder
        return [i for i in self._plain_ids(text) if i in added and added[i].content.strip(f" \n\t{SPACE_MARK}")]

    @property
    def end_token_id(self) -> int:
        """The end of a learnt completion, as of a sampled one: the template's end of an answer; else the tokenizer's
        own end token, or the model's first one.
        """
        between, at_end = self._tokens_after_answer
        own = self.tokenizer.eos_token_id
        ends = [i for i in (*between, *at_end[:1]) if i in self.stop_token_ids]
        return ends[0] if ends else int(own) if own is not None else self.stop_token_ids[0]

    def ids(self, text: str) -> list[int]:
        if not self._begins_with_a_space:
            return self._plain_ids(text)
        added = self._added_tokens
        stretches = re.split(f"({'|'.join(map(re.escape, added))})", text) if added else [text]
        return [i for s in stretches if s for i in ([added[s]] if s in added else self._ids_behind_a_text(s))]

    def _ids_behind_a_text(self, text: str) -> list[int]:
        """Ids of a text without added tokens; without the tokenizer's first space."""
        for anchor in BEFORE:
            before, whole = self._plain_ids(anchor), self._plain_ids(anchor + text)
            if before and whole[: len(before)] == before:
                return whole[len(before) :]
        raise UserError(
            "the token ids of a text cannot be separated from those of the text before it",
            value=text,
            where=self.tokenizer.name_or_path or None,
            expected=f"a tokenizer in which one of {BEFORE} keeps its tokens, whatever text follows",
            advice="choose a model with another tokenizer, or another text in prompt or prover.forced_text",
        )

    @cached_property
    def _added_tokens(self) -> dict[str, int]:
        """Ids by text, longer texts first. SentencePiece puts a space after an added token."""
        added = {token.content: i for i, token in self.tokenizer.added_tokens_decoder.items()}
        return dict(sorted(added.items(), key=lambda item: -len(item[0])))

    @cached_property
    def _begins_with_a_space(self) -> bool:
        """SentencePiece puts a space first; a continued text has none."""
        first = self.tokenizer.convert_ids_to_tokens(self._plain_ids("7")[:1])
        return "".join(first).startswith((SPACE_MARK, BYTE_LEVEL_SPACE))

    def _plain_ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def stop_tokens(directory: Path, tokenizer: "PreTrainedTokenizerFast") -> tuple[int, ...]:
    """The end-of-sequence tokens of the tokenizer and of the generation configuration."""
    own = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    return tuple(sorted(own.union(named_stops(directory, "the model"))))


def _further_stops(tokenizer: "PreTrainedTokenizerFast", prompt: Prompt) -> list[int]:
    """Each text of ``prompt.stop_tokens`` must be a single token."""
    stops = []
    for text in prompt.stop_tokens:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) != 1:
            raise UserError(
                "a text of prompt.stop_tokens is no single token of the model's tokenizer",
                value=text,
                where=tokenizer.name_or_path or None,
                expected=f"one token; it is {len(ids)}: {tokenizer.convert_ids_to_tokens(ids)}",
                advice="name a token of the tokenizer's vocabulary in prompt.stop_tokens, or leave it out",
            )
        stops += ids
    return stops
