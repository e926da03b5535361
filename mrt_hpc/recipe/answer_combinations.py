"""Checks which ways of asking for an answer and of judging it fit together. Every refusal names the field to change
first, and the reason.
"""

from typing import TYPE_CHECKING

from mrt_hpc.recipe.base import misfit

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Experiment


def prompt_fits(recipe: "Experiment") -> None:
    """Refuse a thought that is opened and never closed, and shots without examples."""
    prompts = {"prompt": recipe.prompt, "evaluation.prompt": recipe.evaluation.prompt}
    prompts |= {f"evaluation.benchmarks.{n}.prompt": b.prompt for n, b in enumerate(recipe.evaluation.benchmarks)}
    for field, prompt in prompts.items():
        if prompt is not None and prompt.shots and prompt.examples is None:
            raise misfit(f"{field}.examples", f"a file of examples where {field}.shots is {prompt.shots}")
        if prompt is not None and prompt.thought_start and not prompt.thought_end:
            why = "a model that writes no closing tag gets no opening one"
            raise misfit(f"{field}.thought_start", f'an empty text ("") where prompt.thought_end is empty: {why}')


def verifiers_fit(recipe: "Experiment") -> None:
    """Refuse a prover that opens a box where the verifier of the problems reads none."""
    benchmarks = [benchmark.problems for benchmark in recipe.evaluation.benchmarks]
    sections = (("prover", recipe.prover, [recipe.data]), ("evaluation.prover", recipe.evaluation.prover, benchmarks))
    for field, prover, problems in sections:
        verifiers = [v for source in problems if (v := getattr(source, "verifier", None)) is not None]
        unboxed = [v.type for v in verifiers if not v.finds_boxes]
        if prover is not None and prover.opens_box and unboxed:
            why = f"verifier {unboxed[0]} looks for no box"
            fits = "one that opens no box, such as forced_answer with a text of your own"
            raise misfit(f"{field}.type", f"{fits}: {why}")
        seeing = [v.type for v in verifiers if v.sees_trace]
        if prover is not None and prover.judges_answers_alone and seeing:
            why = f"verifier {seeing[0]} looks at traces, and {prover.type} has answers without a trace judged"
            raise misfit(f"{field}.type", f"forced_answer, boxed_answer or continuation: {why}")


def rewards_fit(recipe: "Experiment") -> None:
    """Refuse rewards that are normalised before they are summed where more than a comparison of rewards follows."""
    algorithm, verifier = getattr(recipe, "algorithm", None), getattr(recipe.data, "verifier", None)
    if verifier is not None and verifier.normalised_weights and not getattr(algorithm, "compares_rewards_alone", False):
        name = getattr(algorithm, "type", "none")
        why = f"algorithm {name} needs rewards in [0, 1], and not what is left of them after a division"
        raise misfit("data.verifier.combine", f"sum_then_normalise: {why}", "sum_then_normalise")


def extraction_fits(recipe: "Experiment") -> None:
    """Refuse a rule of extraction beside a verifier with its own."""
    benchmarks = {f"evaluation.benchmarks.{n}.problems": b.problems for n, b in enumerate(recipe.evaluation.benchmarks)}
    for field, source in {"data": recipe.data, **benchmarks}.items():
        rule, verifier = getattr(source, "extraction", None), getattr(source, "verifier", None)
        if rule is not None and verifier is not None and not verifier.finds_boxes:
            why = f"null: verifier {verifier.type} reads no boxes, and finds answers by its own rule"
            raise misfit(f"{field}.extraction", why)


def evaluation_fits(recipe: "Experiment") -> None:
    evaluation, prover = recipe.evaluation, recipe.evaluation.prover
    for benchmark in evaluation.benchmarks:
        if benchmark.mode is not None:
            benchmark.mode.check(recipe.sampling_of(benchmark))
    if prover is None:
        return
    if prover.model is not None:
        why = "null: regret is measured with the evaluated policy as its own prover"
        raise misfit("evaluation.prover.model", why, "null")
    if not prover.values_stopping:
        why = f"one that estimates how often stopping at once answers right, not {prover.type}: regret is made of that"
        raise misfit("evaluation.prover.type", why)
    if evaluation.regret_tokens == "all" and not prover.samples_answers:
        why = f"sampled with prover {prover.type}, which samples no answers to be counted"
        raise misfit("evaluation.regret_tokens", why)
    if max(evaluation.budgets, default=0) > evaluation.max_tokens:
        why = "no more than evaluation.max_tokens: nothing is known of longer traces"
        raise misfit("evaluation.regret_budgets", why)


OF_ALL = (prompt_fits, verifiers_fit, rewards_fit, extraction_fits, evaluation_fits)
