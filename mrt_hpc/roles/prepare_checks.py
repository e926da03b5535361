"""Checks every prompt of a run, of training and benchmarks, before sampling: it holds its problem whole and as plain
text, and fits.
"""

import json
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mrt_hpc.domains.verifiers import gold_faults, verifier_of
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import PROBES, TokenBytes
from mrt_hpc.recipe.kinds import BOX
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import LongPrompts, ProblemSource, Prompt
from mrt_hpc.roles.sampling.grading import grader_pool
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.problems import SolvedProblem, omitted_file, read_problems, write_problems
from mrt_hpc.run.records import Problem, golds_of

PROMPTS_NAMED = 8
"""Problem ids in a message."""

log = logging.getLogger(__name__)


def check_prompts(task: Task, tokenizer: Path) -> None:
    """Tokenise all prompts; refuse those that are too long, or leave them out where the recipe says so."""
    for source in problem_files(task):
        _check(task, source, tokenizer)


def check_benchmark(task: Task, name: str, tokenizer: Path) -> None:
    """Check one benchmark's prompts; it may have been added after the first job. Several tasks may do this at once:
    each writes the same.
    """
    _check(task, benchmark_file(task, name), tokenizer)


def _check(task: Task, source: "ProblemFile", tokenizer: Path) -> None:
    prompter, problems = Prompter.of(tokenizer, source.prompt), read_problems(source.path)
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


def _refuse_special(source: "ProblemFile", prompter: Prompter, problems: list[Problem]) -> None:
    """Problems with text that the tokenizer takes for special tokens would end turns or thoughts."""
    specials = {problem.id: special for problem in problems if (special := prompter.special_in(problem.problem))}
    if specials:
        tokens = dict.fromkeys(token for special in specials.values() for token in special)
        raise UserError(
            f"{len(specials)} of {len(problems)} problems hold text that is a special token of the model: "
            f"{', '.join(tokens)}",
            value=", ".join(list(specials)[:PROMPTS_NAMED]),
            where=f"{source.field}, {source.path}",
            expected="problems whose text becomes plain tokens",
            advice="write these texts in another way, or leave the problems out",
        )


def _refuse_altered(source: "ProblemFile", prompter: Prompter, problems: list[Problem]) -> None:
    """Refuse problems that the chat template changes, but for white space at the ends."""
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


def _name_normalised(source: "ProblemFile", prompter: Prompter, problems: list[Problem]) -> None:
    """Warn of problems whose characters the tokenizer's normalizer replaces."""
    if prompter.tokenizer.backend_tokenizer.normalizer is None:
        return
    tokens, encode = TokenBytes(prompter.tokenizer), partial(prompter.tokenizer.encode, add_special_tokens=False)
    # The first space may be the tokenizer's own.
    read = {p.id: tokens.text(encode(p.problem)).removeprefix(" ") for p in problems}
    changed = [p.id for p in problems if read[p.id] != p.problem.removeprefix(" ")]
    if changed:
        names = _first_of(changed, PROMPTS_NAMED)
        log.warning(
            "%s: the tokenizer replaces characters of %d of %d problems by others that look alike (Unicode "
            "normalisation), and the model reads those: %s", source.field, len(changed), len(problems), names,
        )  # fmt: skip


def _first_of(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (" ..." if names[most:] else "")


@dataclass(frozen=True)
class ProblemFile:
    field: str
    """The recipe's field that says where the problems come from; ``section`` is in it."""
    section: ProblemSource
    path: Path
    prompt: Prompt
    least: int
    max_prompt_tokens: int
    long_prompts: LongPrompts
    limits_at: str
    """The section of these two fields."""


def problem_files(task: Task) -> list[ProblemFile]:
    """Files that prompts are made of, without given samples."""
    files = [benchmark_file(task, benchmark.name) for benchmark in task.experiment.evaluation.benchmarks]
    if not task.experiment.samples_traces:
        return files
    recipe, how = task.recipe, task.recipe.sampling
    limits = how.problems_per_iteration or 1, how.max_prompt_tokens, how.long_prompts, "sampling"
    return [ProblemFile("data", recipe.problems, task.layout.train_data, recipe.prompt, *limits), *files]


def benchmark_file(task: Task, name: str) -> ProblemFile:
    benchmark = task.experiment.benchmark(name)
    how = task.experiment.sampling_of(benchmark)
    own = task.experiment.evaluation.max_prompt_tokens is not None
    limits = how.max_prompt_tokens, how.long_prompts, "evaluation" if own else "sampling"
    path = task.layout.benchmark_data(name)
    return ProblemFile(f"benchmark {name}", benchmark.problems, path, how.prompt, 1, *limits)


def long_prompts(prompter: Prompter, problems: list[Problem], limit: int) -> dict[str, int]:
    """Prompt tokens above a limit, by problem id."""
    lengths = {problem.id: len(prompter.encode_problem(problem.problem)) for problem in problems}
    return {name: tokens for name, tokens in lengths.items() if tokens > limit}


def _too_long(source: ProblemFile, long: dict[str, int], count: int) -> UserError:
    (name, tokens), at = max(long.items(), key=lambda item: item[1]), source.limits_at
    return UserError(
        f"{len(long)} of {count} prompts are longer than {at}.max_prompt_tokens ({source.max_prompt_tokens}); the "
        f"longest is that of problem {name} with {tokens} tokens",
        value=", ".join(list(long)[:8]),
        where=f"{source.field}, {source.path}",
        expected=f"at most {source.max_prompt_tokens} tokens, instruction and chat template included",
        advice=Advice(
            "mrt-hpc submit RUN --set {at}.max_prompt_tokens={tokens}, or with --set {at}.long_prompts=drop",
            at=at,
            tokens=tokens,
        ),
    )


def _leave_out(task: Task, source: ProblemFile, problems: list[Problem], long: dict[str, int]) -> None:
    kept = [problem for problem in problems if problem.id not in long]
    if len(kept) < source.least:
        raise UserError(
            f"{len(long)} of {len(problems)} problems have prompts that are too long, and too few are left",
            value=len(kept),
            where=f"{source.field}, {source.path}",
            expected=f"at least {source.least}",
            advice=Advice("raise {limits_at}.max_prompt_tokens, or give more problems", limits_at=source.limits_at),
        )
    record, limit = omitted_file(source.path), source.max_prompt_tokens
    # The record goes first: what is no longer in the data must be written somewhere.
    text = json.dumps({f"{source.limits_at}.max_prompt_tokens": limit, "tokens": long}, indent=1)
    task.retry(partial(write_text, record, text + "\n"), "the list of problems left out")
    task.retry(partial(write_problems, source.path, kept), "the problems of the run")
    log.warning(
        "%s: %d of %d problems are left out, as their prompts have more than %d tokens; see %s",
        source.field, len(long), len(problems), limit, record,
    )  # fmt: skip


# The check whether a tokenizer restores all texts that a run writes with it and looks for in traces.
#
# Episodes are cut at the bytes of tokens, so a tokenizer that loses spaces or blank lines leaves every trace in one
# piece without an error. It is refused before anything is sampled.


def check_tokenizer(recipe: Experiment, model: Path, field: str) -> None:
    """Refuse a tokenizer that loses text, or whose chat template makes no usable prompt; the error names text and
    outcome. ``field`` of the recipe names the model.
    """
    prompter = Prompter.of(model, recipe.prompt)
    if prompter.template is not None:
        prompter.template.check(variables=False)  # those of the policy's template
    refuse_lossy(prompter, written_texts(recipe), field)


def written_texts(recipe: Experiment) -> list[str]:
    """Texts that a run writes into sequences or looks for, as in a trace."""
    rules = [recipe.episodes, *([recipe.evaluation.episodes] if recipe.evaluation.episodes else [])]
    markers = {marker for rule in rules for marker in rule.markers}
    prompts = [recipe.prompt, *(recipe.sampling_of(b).prompt for b in recipe.evaluation.benchmarks)]
    provers = (recipe.prover, recipe.evaluation.prover)
    tags = {tag: None for prompt in prompts for tag in (prompt.thought_start, prompt.thought_end) if tag}
    return [
        *PROBES,
        *(f"x = 3.\n\n{marker}, let me check.\n\n" for marker in sorted(markers)),
        *(f"x = 3.\n{tag}\n\nThe answer is {BOX}3}}." for tag in tags),
        *(prover.question for prover in provers if prover is not None and prover.question),
    ]


def refuse_lossy(prompter: Prompter, texts: list[str], field: str) -> None:
    """Refuse a tokenizer that does not restore a text, by its decoder or its tokens' bytes."""
    tokens = TokenBytes(prompter.tokenizer)
    for text in texts:
        ids = prompter.ids(text)
        if (joined := b"".join(tokens.pieces(ids))) != text.encode():
            raise _lossy(prompter, text, joined.decode(errors="replace"), "the bytes of its tokens make", field)
        # Some decoders take the first space for the tokenizer's own.
        decoded = str(prompter.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        if decoded.removeprefix(" ") != text.removeprefix(" "):
            raise _lossy(prompter, text, decoded, "its decoder makes", field)


def _lossy(prompter: Prompter, text: str, decoded: str, by: str, field: str) -> UserError:
    return UserError(
        f"the tokenizer does not bring back a text whole: {by} of it {decoded!r}",
        value=text,
        where=f"{field}, {prompter.tokenizer.name_or_path}",
        expected="the same text after encoding and decoding, since episodes are cut where its words stand",
        advice="compare tokenizer.json with the model's own, or change the text in the recipe",
    )


# A warning about gold answers that no answer can reach but their own text, or almost any, before anything is sampled.


ANSWERS_NAMED = 20
"""Problem ids in a line of the log."""


def name_faulty_golds(task: Task) -> None:
    """Warn of problem files with gold answers that no other spelling reaches, or almost any. Gold answers that can be
    read at once, such as numbers, start no grader.
    """
    for source in problem_files(task):
        problems = read_problems(source.path)
        verifier = verifier_of(source.section, task.experiment.grading)
        golds = [gold for problem in problems for gold in golds_of(problem.answer)]
        faults = gold_faults(golds, verifier, partial(grader_pool, task.experiment, source.section))
        for fault in dict.fromkeys(faults.values()):
            found = [p.id for p in problems if any(faults.get(gold) is fault for gold in golds_of(p.answer))]
            log.warning(
                "%s: the gold answer of %d of %d problems of %s: %s; correct them in the data, or leave these problems "
                "out: %s", source.field, len(found), len(problems), source.path, fault, _first_of(found, ANSWERS_NAMED),
            )  # fmt: skip
