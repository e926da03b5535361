"""Creates or opens a run directory: identity, data and plan. It is made under a temporary name and renamed, so a
refused recipe leaves no files.
"""

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from mrt_hpc.algorithms.samples import read_conversations, read_suffixes, write_samples
from mrt_hpc.domains.base import NoVerdictError, Solution
from mrt_hpc.domains.domain import domain_of
from mrt_hpc.domains.extraction import THOUGHT_END
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.mrt.sft import Conversation, Suffix
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.recipe import sections
from mrt_hpc.recipe.find import absolute
from mrt_hpc.recipe.hub_models import refuse_unfetched
from mrt_hpc.recipe.lock import lock_text
from mrt_hpc.recipe.model_files import ModelFiles
from mrt_hpc.recipe.ownership import refuse_to_write
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.user_code import keep
from mrt_hpc.run.access import follow_access, open_to_group
from mrt_hpc.run.atomic import commit_directory, make_durable, temporary_sibling, write_json, write_text
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import examples_before, read_examples, write_problems
from mrt_hpc.run.prompt_files import keep_prompt_files, prompt_files
from mrt_hpc.run.records import Problem, golds_of
from mrt_hpc.submit.changes import refuse_other_recipe
from mrt_hpc.submit.origin import Origin

GOLDS_TRIED = 16
"""Gold answers that a user's own verifier judges before submission."""
Samples = Sequence[Conversation | Suffix]
IN_RUN = RunLayout(Path())
"""Paths relative to a run directory not made yet."""


def create_or_open(
    root: Path, recipe: Experiment, plan: Plan, *, group_access: bool = False, origin: Origin | None = None
) -> RunLayout:
    """Create a recipe's run directory, or open it if it belongs to this experiment.

    Args:
        group_access: a new directory can be read by the user's group.
        origin: another run's weights to begin with, or None.
    """
    layout = RunLayout(absolute(root))
    # This is asked before the lock file is looked for: another submission may make the run in between.
    is_taken = root.exists() and (not root.is_dir() or any(root.iterdir()))
    if layout.recipe_lock.is_file():
        if origin is not None:
            origin.refuse_another(layout)
        refuse_to_write(layout.root)
        try:
            refuse_other_recipe(layout, recipe)
        except UserError:
            _check_inputs(recipe, origin)  # what is not there has to be mended first
            raise
        make_durable(layout.root.parent)  # an interrupted submission may have made the run, and not synced its name
        follow_access(layout.root)
        make_results_folder(recipe)
        return layout
    if is_taken:
        raise UserError(
            "the run directory exists and is not a run", value=str(root), advice="choose another with --run DIR"
        )
    problems, samples = _check_inputs(recipe, origin)
    make_results_folder(recipe)
    make_durable(layout.root.parent)
    temporary = temporary_sibling(layout.root)
    try:
        temporary.mkdir(mode=0o700)
        if group_access:
            open_to_group(temporary)
        refuse_to_write(temporary)
        follow_access(temporary)
        write_text(RunLayout(temporary).identity, f"{secrets.token_hex(16)}\n")
        if origin is not None:
            origin.take(RunLayout(temporary))
        _fill(RunLayout(temporary), recipe, plan, problems, samples)
        mine = commit_directory(temporary, layout.root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if mine:
        return layout
    return create_or_open(root, recipe, plan, group_access=group_access, origin=origin)  # another submission was faster


def _check_inputs(recipe: Experiment, origin: Origin | None) -> tuple[dict[Path, list[Problem]], Samples]:
    """Read a recipe's problems and samples, and check its model; see :func:`create_or_open`."""
    data = read_all_problems(recipe), given_samples(recipe)
    check_model(recipe if origin is None else origin.use_weights(recipe))
    return data


def make_results_folder(recipe: Experiment) -> None:
    """Make the recipe's results folder: a task's container can only bind existing folders."""
    if (results := recipe.evaluation.results) is None:
        return
    try:
        make_durable(absolute(Path(results)))
    except FileExistsError as error:
        what = "the results folder is a file"
        advice = "name another folder: --results DIR, or evaluation.results in the recipe"
        raise UserError(what, value=results, where="evaluation.results", advice=advice) from error


def refuse_repeated_problems(recipe: Recipe, training: Sequence[Problem]) -> None:
    wanted, each = recipe.sampling.problems_per_iteration, recipe.sampling.problems_per_place
    if wanted is not None and wanted * each > len(training):
        raise UserError(
            "an iteration draws more problems than there are",
            value=wanted,
            where="sampling.problems_per_iteration",
            expected=f"at most {len(training) // each}: {len(training)} training problems, {each} for each place",
            advice="lower it, or raise data.limit",
        )


def problem_sources(layout: RunLayout, recipe: Experiment) -> dict[Path, sections.Problems]:
    training = {layout.train_data: recipe.data} if isinstance(recipe.data, sections.ProblemSource) else {}
    return {**training, **{layout.benchmark_data(b.name): b.problems for b in recipe.evaluation.benchmarks}}


def read_all_problems(recipe: Experiment) -> dict[Path, list[Problem]]:
    sources = problem_sources(IN_RUN, recipe)
    benchmarks_first = sorted(sources, key=lambda path: path == IN_RUN.train_data)
    problems = {path: problems_of(sources[path]) for path in benchmarks_first}
    if isinstance(recipe, Recipe) and IN_RUN.train_data in problems:
        refuse_repeated_problems(recipe, problems[IN_RUN.train_data])
    return problems


def given_samples(recipe: Experiment) -> Samples:
    """None where a recipe names problems."""
    source = recipe.data
    if isinstance(source, sections.Conversations):
        return read_conversations(Path(source.path), source.limit)
    if isinstance(source, sections.Suffixes):
        return read_suffixes(Path(source.path), source.limit)
    return () if source is None else domain_of(source).samples(source, recipe.seed)


def problems_of(source: sections.ProblemSource) -> list[Problem]:
    if isinstance(source, sections.JsonlProblems):
        refuse_unfetched_data(Path(source.path).resolve())
    return domain_of(source).problems(source)


def refuse_unfetched_data(path: Path) -> None:
    if not path.is_file():
        raise UserError(
            "no such data file",
            value=str(path),
            expected="a file of JSON lines",
            advice=Advice(
                "correct the path; or, for a known data set, on a node with network access: mrt-hpc data "
                "fetch {stem} {path}",
                stem=path.stem,
                path=path,
            ),
        )


def try_own_verifiers(recipe: Experiment, *, here: bool, warn: Callable[[str], None]) -> None:
    """Let a user's own verifiers judge samples before anything is made; refuses errors, and what is no verdict.

    Args:
        recipe: of a new run.
        here: tasks run on this machine; elsewhere environments differ, so an error is only a doubt.
        warn: receives a sentence on each doubt.
    """
    sources = problem_sources(IN_RUN, recipe).items()
    verifiers = {path: verifier_of(source, recipe.grading) for path, source in sources}
    own = {path: v for path, v in verifiers.items() if any(":" in member.type for member in v.members)}
    if not own:
        return
    try:
        from mrt_hpc.domains.grader_queue import GraderPool
    except ModuleNotFoundError:  # a light installation has no graders: there the first job finds it
        return
    problems, grading = read_all_problems(recipe), recipe.grading
    for path, verifier in own.items():
        golds = list(dict.fromkeys(g for problem in problems[path] for g in golds_of(problem.answer)))[:GOLDS_TRIED]
        try:
            with GraderPool(verifier, 1, grading.time_limit_s, memory_limit_gib=grading.memory_limit_gib) as pool:
                pool.readable_all(golds)
                pool.try_on(sample_solutions(problems[path][:GOLDS_TRIED], sees_trace=verifier.sees_trace))
        except UserError as error:
            if here or NoVerdictError.__name__ in str(error.where):
                raise
            warn(f"{error.what}, on this machine: {error.where}; the first job tries it with the environment of tasks")


def sample_solutions(problems: Sequence[Problem], *, sees_trace: bool) -> list[Solution]:
    """Of each problem a right trace, one with another answer, and one without where the verifier sees traces."""
    solutions: list[Solution] = []
    for number, one in enumerate(problems):
        gold, other = (golds_of(p.answer)[0] for p in (one, problems[number - 1]))
        for answer in (gold, other, *([None] if sees_trace else [])):
            said = "I do not know." if answer is None else f"The answer is \\boxed{{{answer}}}."
            solutions.append(Solution(answer, gold, one.problem, f"Let me think.{THOUGHT_END}\n\n{said}"))
    return solutions


def check_model(recipe: Experiment) -> None:
    """Refuse models and prompt files that are missing or evidently cannot work, before submission."""
    for field, path in prompt_files(recipe).items():
        if not path.is_file():
            what = "a chat template" if field.endswith("chat_template") else "JSON lines with solved problems"
            advice = Advice("correct {field}, or put the file there", field=field)
            raise UserError("no such file", value=str(path), where=field, expected=what, advice=advice)
    for prompt in _prompts(recipe):
        if prompt.examples is not None and prompt.shots:
            examples_before("", read_examples(Path(prompt.examples)), prompt)
    for number, model in enumerate(recipe.models):
        if model.run is None or Path(model.path).is_dir():  # the first job checks what a run still has to publish
            refuse_unfetched(model.path, f"models.{number}.path")
            files = ModelFiles(Path(model.path), f"models.{number}.path", _prompts(recipe))
            files.check(recipe.longest_sequence, trained=False)
            _check_division(files, recipe, "evaluation")
    if isinstance(recipe, Recipe) and isinstance(recipe.model, sections.HuggingFaceModel):
        refuse_unfetched(recipe.model.path, "model.path")
        files = ModelFiles(Path(recipe.model.path), "model.path", _prompts(recipe))
        files.check(recipe.longest_sequence)
        _check_division(files, recipe, "inference", "evaluation")
        files.check_sharing(recipe.training.sequence_parallel)
    if isinstance(recipe, Recipe) and recipe.prover is not None and recipe.prover.model is not None:
        refuse_unfetched(recipe.prover.model, "prover.model")
        files = ModelFiles(Path(recipe.prover.model), "prover.model", (recipe.prompt,), takes_variables=False)
        files.check(recipe.prover.model_max_tokens or recipe.longest_in_training, trained=False)
        _check_division(files, recipe, "inference")


def _prompts(recipe: Experiment) -> tuple[sections.Prompt, ...]:
    """Different prompts for the policy, in training and each benchmark."""
    own = [recipe.prompt] if recipe.trains else []
    prompts = [*own, *(recipe.sampling_of(benchmark).prompt for benchmark in recipe.evaluation.benchmarks)]
    return tuple(prompt for number, prompt in enumerate(prompts) if prompt not in prompts[:number])


def _check_division(files: ModelFiles, recipe: Experiment, *roles: str) -> None:
    """Refuse a model that its servers cannot divide over their GPUs."""
    for role in roles:
        resources = getattr(recipe.resources, role)
        layout = sections.ServerLayout.of(recipe.serving, resources.gpus, sections.nodes_of(resources))
        files.check_division(layout.tensor_parallel)


def check_length(layout: RunLayout, locked: Experiment, recipe: Experiment) -> None:
    """Refuse longer sequences than before if the model cannot hold them."""
    if isinstance(recipe.model, sections.HuggingFaceModel) and recipe.longest_sequence > locked.longest_sequence:
        first = layout.weights_version(0)  # the directory that it was copied from may be gone
        directory = first if first.exists() else Path(recipe.model.path)
        ModelFiles(directory, "model.path").check(recipe.longest_sequence)


def _fill(
    layout: RunLayout, recipe: Experiment, plan: Plan, problems: dict[Path, list[Problem]], samples: Samples
) -> None:
    for path, rows in problems.items():
        write_problems(layout.root / path, rows)
    if samples:
        write_samples(layout.train_data, samples)
    keep_prompt_files(layout, recipe)
    keep(recipe, layout.code)
    write_json(layout.plan, plan.as_json())
    layout.secrets.mkdir(mode=0o700)
    key = layout.secrets / "server_key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_urlsafe(32))
    for directory in (layout.logs, layout.events, layout.jobs):
        directory.mkdir()
    write_text(layout.recipe_lock, lock_text(recipe))
