"""Conversion of a problem to prompt token ids, by the model's own chat template."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.inference.token_pieces import SPACE_MARK
from mrt_hpc.inference.tokens import BYTE_LEVEL_SPACE, load_tokenizer
from mrt_hpc.run.data import read_examples

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from mrt_hpc.recipe.sections.prompt import Prompt
    from mrt_hpc.run.data import SolvedProblem
    from mrt_hpc.run.records import Problem

BEFORE = ("\n", "7", ".")
"""Texts that are put before a text to get its tokens without the tokenizer's leading space, if the tokens do not merge.
"""

ROLES = ("user", "assistant")
"""The roles of a question and of its answer in a conversation."""
COMPLETION = "COMPLETION-OF-THE-MODEL"
"""Stands for a completion in a conversation whose other texts are looked for."""


@dataclass(frozen=True)
class Prompter:
    """Builds prompts with the tokenizer of one model directory."""

    tokenizer: PreTrainedTokenizerFast
    prompt: Prompt
    stop_token_ids: tuple[int, ...]
    """The tokens at which the model ends a completion."""
    examples: tuple[SolvedProblem, ...] = ()
    """The examples of few-shot prompts, in order; more of them than are shown."""

    @staticmethod
    def of(directory: Path, prompt: Prompt) -> Prompter:
        """Return the prompter of a model directory; nothing is downloaded.

        Raises:
            UserError: the tokenizer cannot be loaded, the model names no token that ends a completion, or a text that
                the recipe names as such is no single token.
        """
        tokenizer = load_tokenizer(directory)
        if prompt.chat_template is not None:
            tokenizer.chat_template = Path(prompt.chat_template).read_text()
        stops = (*stop_tokens(directory, tokenizer), *_further_stops(tokenizer, prompt))
        if not stops:
            raise UserError(
                "the model names no end-of-sequence token",
                where=directory,
                expected="eos_token in its tokenizer_config.json",
                advice="add eos_token to that file, or fetch all files of the model again",
            )
        examples = read_examples(Path(prompt.examples)) if prompt.examples is not None and prompt.shots else []
        return Prompter(tokenizer, prompt, tuple(dict.fromkeys(stops)), tuple(examples))

    def text(self, problem: str) -> str:
        """Return the prompt of a problem, up to the opening of the thought."""
        question = problem + self.prompt.instruction
        shots = [(shot.problem + self.prompt.instruction, shot.solution) for shot in self._shots(problem)]
        if self.tokenizer.chat_template is None:
            text = "".join(f"{asked}\n{solution}\n\n" for asked, solution in shots) + question + "\n"
        else:
            turns = [(role, content) for shot in shots for role, content in zip(ROLES, shot, strict=True)]
            messages = [{"role": role, "content": content} for role, content in [*turns, ("user", question)]]
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self._opened(text)

    def _shots(self, problem: str) -> list[SolvedProblem]:
        """The examples that are shown before a problem.

        Raises:
            UserError: there are too few.
        """
        others = [example for example in self.examples if example.problem.strip() != problem.strip()]
        if len(others) < self.prompt.shots:
            raise UserError(
                "there are fewer examples than prompt.shots, those with the asked problem left out",
                value=len(others),
                where=self.prompt.examples,
                expected=f"at least {self.prompt.shots}",
                advice=f"add examples to that file, or submit with --set prompt.shots={len(others)}",
            )
        return others[: self.prompt.shots]

    def next_turn(self, question: str) -> str:
        """Return the text between a completion of the model and its next one: the end of its turn, the question, and
        the opening of the next thought.

        Raises:
            UserError: the chat template leaves out earlier turns of the model.
        """
        if self.tokenizer.chat_template is None:
            return self._opened(f"\n\n{question}\n\n")
        turns = [("user", "1"), ("assistant", COMPLETION), ("user", question)]
        messages = [{"role": role, "content": content} for role, content in turns]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        _, found, between = text.partition(COMPLETION)
        if not found:
            raise UserError(
                "the chat template leaves out what the model wrote in an earlier turn, so a prompt cannot hold it",
                where=self.prompt.chat_template or self.tokenizer.name_or_path or None,
                expected="a template that repeats the messages of the assistant",
                advice="name another template in prompt.chat_template",
            )
        return self._opened(between)

    def _opened(self, text: str) -> str:
        opened = text.endswith(self.prompt.thought_start) or text.endswith(self.prompt.thought_start.rstrip("\n"))
        return text if opened else text + self.prompt.thought_start

    def prompt_ids(self, problem: Problem, max_tokens: int) -> list[int]:
        """Return the token ids of a problem's prompt.

        Raises:
            UserError: the prompt has more than ``max_tokens`` tokens.
        """
        ids = self.encoded(problem.problem)
        if len(ids) > max_tokens:
            raise UserError(
                f"the prompt of problem {problem.id} has {len(ids)} tokens, more than the {max_tokens} of "
                "sampling.max_prompt_tokens",
                expected=f"at most {max_tokens} tokens",
                advice="raise sampling.max_prompt_tokens, or take the problem out of the data",
            )
        return ids

    def encoded(self, problem: str) -> list[int]:
        """Return the token ids of the prompt of a problem, whatever its length."""
        # A chat template writes the start-of-sequence token itself.
        special = self.tokenizer.chat_template is None
        return list(self.tokenizer.encode(self.text(problem), add_special_tokens=special))

    @property
    def end_token_id(self) -> int:
        """The token that ends a learnt completion: the tokenizer's own end token, or the model's first one."""
        own = self.tokenizer.eos_token_id
        return int(own) if own is not None else self.stop_token_ids[0]

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text that continues a sequence."""
        if not self._begins_with_a_space:
            return self._plain_ids(text)
        added = self._added_tokens
        stretches = re.split(f"({'|'.join(map(re.escape, added))})", text) if added else [text]
        return [i for s in stretches if s for i in ([added[s]] if s in added else self._ids_behind_a_text(s))]

    def _ids_behind_a_text(self, text: str) -> list[int]:
        """Return the token ids of a text without added tokens, without the space that the tokenizer puts first."""
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
        """The ids of the tokens added to the vocabulary, by text, longer texts first. SentencePiece puts a space before
        the text after an added token, as before the first text.
        """
        added = {token.content: i for i, token in self.tokenizer.added_tokens_decoder.items()}
        return dict(sorted(added.items(), key=lambda item: -len(item[0])))

    @cached_property
    def _begins_with_a_space(self) -> bool:
        """Whether the tokenizer puts a space before each text, as SentencePiece does; a continued text has none."""
        first = self.tokenizer.convert_ids_to_tokens(self._plain_ids("7")[:1])
        return "".join(first).startswith((SPACE_MARK, BYTE_LEVEL_SPACE))

    def _plain_ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def stop_tokens(directory: Path, tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of the tokenizer and of the model's generation configuration."""
    stops: set[int] = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    path = directory / "generation_config.json"
    if path.is_file():
        named = json.loads(path.read_text()).get("eos_token_id")
        stops.update(named if isinstance(named, list) else [] if named is None else [named])
    return tuple(sorted(stops))


def _further_stops(tokenizer: PreTrainedTokenizerFast, prompt: Prompt) -> list[int]:
    """The ids of ``prompt.stop_tokens``.

    Raises:
        UserError: a text is no single token.
    """
    found = []
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
        found += ids
    return found
