"""The checks of every prompt of a run as it is written, before anything is sampled: training problems and benchmarks
alike. Each prompt holds its problem whole and as plain text, and fits.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.recipe.benchmark_sampling import benchmark_sampling
from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.data import left_out_file, read_problems, write_problems

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.recipe.sections.data import ProblemSource
    from mrt_hpc.recipe.sections.prompt import Prompt
    from mrt_hpc.recipe.sections.sampling import LongPrompts
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.data import SolvedProblem
    from mrt_hpc.run.records import Problem

NAMED = 8
"""The number of problem ids in a message."""

log = logging.getLogger(__name__)


def check_prompts(task: Task, tokenizer: Path) -> None:
    """Tokenise the prompts of all problems; refuse those that are too long, or leave them out where the recipe says so.

    Args:
        task: whose run directory holds the problems.
        tokenizer: the model directory, or another with the same tokenizer.

    Raises:
        UserError: a prompt is too long; or too few problems are left.
    """
    for source in problem_files(task):
        _check(task, source, Prompter.of(tokenizer, source.prompt))


def check_benchmark(task: Task, name: str, tokenizer: Path) -> None:
    """Check the prompts of one benchmark, which may have been added after the first job.

    Of several tasks that do this at once each writes the same.

    Raises:
        UserError: a prompt is too long; or too few problems are left.
    """
    source = benchmark_file(task, name)
    _check(task, source, Prompter.of(tokenizer, source.prompt))


def _check(task: Task, source: ProblemFile, prompter: Prompter) -> None:
    problems = read_problems(source.path)
    if prompter.template is not None:
        prompter.template.check()
    ends = ", ".join(map(repr, prompter.tokenizer.convert_ids_to_tokens(list(prompter.stop_token_ids))))
    log.info("%s: a completion ends at each of the tokens %s", source.field, ends)
    _refuse_special(source, prompter, problems)
    _refuse_altered(source, prompter, problems)
    _name_normalised(source, prompter, problems)
    long = long_prompts(prompter, problems, source.max_prompt_tokens)
    if long and source.long_prompts == "refuse":
        raise _too_long(source, long, len(problems))
    if long:
        _leave_out(task, source, problems, long)


def _refuse_special(source: ProblemFile, prompter: Prompter, problems: list[Problem]) -> None:
    """Refuse problems whose text the tokenizer takes for special tokens: they would end turns, or close thoughts."""
    found = {problem.id: special for problem in problems if (special := prompter.special_in(problem.problem))}
    if found:
        tokens = dict.fromkeys(token for special in found.values() for token in special)
        raise UserError(
            f"{len(found)} of {len(problems)} problems hold text that is a special token of the model: "
            f"{', '.join(tokens)}",
            value=", ".join(list(found)[:NAMED]),
            where=f"{source.field}, {source.path}",
            expected="problems whose text becomes plain tokens",
            advice="write these texts in another way, or leave the problems out; mrt-hpc data check FILE --model "
            f"{prompter.tokenizer.name_or_path} names their lines",
        )


def _refuse_altered(source: ProblemFile, prompter: Prompter, problems: list[Problem]) -> None:
    """Refuse problems that the chat template writes otherwise than they are; white space at their ends may go."""
    frames: dict[tuple[SolvedProblem, ...], tuple[str, str]] = {}
    for problem in problems:
        shots = tuple(prompter.shots(problem.problem))
        before, behind = frames[shots] = frames.get(shots) or prompter.frame(shots)
        text, question = prompter.text(problem.problem), (problem.problem + prompter.prompt.instruction).strip()
        inner = text.removeprefix(before).removesuffix(behind)
        if len(inner) + len(before) + len(behind) != len(text) or inner.strip() != question:
            raise UserError(
                f"the chat template does not write problem {problem.id} as it is",
                value=text,
                where=f"{source.field}, {source.path}",
                expected="the problem and prompt.instruction once, and around it the same text as for every problem",
                advice="set prompt.chat_template to a file with another template, or leave the problem out",
            )


def _name_normalised(source: ProblemFile, prompter: Prompter, problems: list[Problem]) -> None:
    """Warn of problems whose characters the tokenizer's normalizer replaces by others."""
    if prompter.tokenizer.backend_tokenizer.normalizer is None:
        return
    tokens, encode = TokenBytes(prompter.tokenizer), partial(prompter.tokenizer.encode, add_special_tokens=False)
    # The first space may be the tokenizer's own.
    read = {p.id: tokens.text(encode(p.problem)).removeprefix(" ") for p in problems}
    changed = [p.id for p in problems if read[p.id] != p.problem.removeprefix(" ")]
    if changed:
        names = ", ".join(changed[:NAMED]) + (" ..." if changed[NAMED:] else "")
        log.warning(
            "%s: the tokenizer replaces characters of %d of %d problems by others that look alike (Unicode "
            "normalisation), and the model reads those: %s", source.field, len(changed), len(problems), names,
        )  # fmt: skip


@dataclass(frozen=True)
class ProblemFile:
    """A file of problems of the run."""

    field: str
    """The field of the recipe that names where the problems come from."""
    section: ProblemSource
    """The section of the recipe in that field."""
    path: Path
    prompt: Prompt
    """How its problems become prompts."""
    least: int
    """The number of problems that there must be."""
    max_prompt_tokens: int
    """The maximum number of tokens of a prompt."""
    long_prompts: LongPrompts
    """What is done about a longer prompt."""
    limits_at: str
    """The section of the recipe that has these two fields."""


def problem_files(task: Task) -> list[ProblemFile]:
    """The files of problems that prompts are made of; given samples are none."""
    return [*_training_files(task), *(benchmark_file(task, b.name) for b in task.experiment.evaluation.benchmarks)]


def _training_files(task: Task) -> list[ProblemFile]:
    """The file of the training problems, where rollouts are sampled from it."""
    recipe = task.experiment
    if isinstance(recipe, EvaluationRecipe) or not (recipe.algorithm.samples_rollouts or recipe.algorithm.collects):
        return []
    least = recipe.sampling.problems_per_iteration or 1
    limits = recipe.sampling.max_prompt_tokens, recipe.sampling.long_prompts, "sampling"
    return [ProblemFile("data", recipe.problems, task.layout.train_data, recipe.prompt, least, *limits)]


def benchmark_file(task: Task, name: str) -> ProblemFile:
    """The file of a benchmark's problems."""
    benchmark = next(b for b in task.experiment.evaluation.benchmarks if b.name == name)
    how = benchmark_sampling(task.experiment, benchmark)
    own = task.experiment.evaluation.max_prompt_tokens is not None
    limits = how.max_prompt_tokens, how.long_prompts, "evaluation" if own else "sampling"
    path = task.layout.benchmark_data(name)
    return ProblemFile(f"benchmark {name}", benchmark.problems, path, how.prompt, 1, *limits)


def long_prompts(prompter: Prompter, problems: list[Problem], limit: int) -> dict[str, int]:
    """Tokens of the prompts that are longer than a limit, by problem id."""
    lengths = {problem.id: len(prompter.encoded(problem.problem)) for problem in problems}
    return {name: tokens for name, tokens in lengths.items() if tokens > limit}


def _too_long(source: ProblemFile, long: dict[str, int], count: int) -> UserError:
    (name, tokens), at = max(long.items(), key=lambda item: item[1]), source.limits_at
    return UserError(
        f"{len(long)} of {count} prompts are longer than {at}.max_prompt_tokens ({source.max_prompt_tokens}); the "
        f"longest is that of problem {name} with {tokens} tokens",
        value=", ".join(list(long)[:8]),
        where=f"{source.field}, {source.path}",
        expected=f"at most {source.max_prompt_tokens} tokens, instruction and chat template included",
        advice=f"the same command with --set {at}.max_prompt_tokens={tokens}, or with --set {at}.long_prompts=drop",
    )


def _leave_out(task: Task, source: ProblemFile, problems: list[Problem], long: dict[str, int]) -> None:
    """Take the problems with long prompts out of the run's copy of the data, and record which they were."""
    kept = [problem for problem in problems if problem.id not in long]
    if len(kept) < source.least:
        raise UserError(
            f"{len(long)} of {len(problems)} problems have prompts that are too long, and too few are left",
            value=len(kept),
            where=f"{source.field}, {source.path}",
            expected=f"at least {source.least}",
            advice=f"raise {source.limits_at}.max_prompt_tokens, or give more problems",
        )
    record = left_out_file(source.path)
    # The record goes first: what is no longer in the data must be written somewhere.
    limit = source.max_prompt_tokens
    text = json.dumps({f"{source.limits_at}.max_prompt_tokens": limit, "tokens": long}, indent=1)
    task.retrying(partial(write_text, record, text + "\n"), "the list of problems left out")
    task.retrying(partial(write_problems, source.path, kept), "the problems of the run")
    log.warning(
        "%s: %d of %d problems are left out, as their prompts have more than %d tokens; see %s",
        source.field, len(long), len(problems), limit, record,
    )  # fmt: skip
