"""``mrt-hpc fields``: the fields of recipes and site profiles, in a terminal and as the pages of docs/reference."""

import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from mrt_hpc.cli.terminal import echo, echo_json
from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.recipe.field_docs import DocumentedField, documented_fields, sections_with_own_classes, tag_of
from mrt_hpc.recipe.load import EXTENDS
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.site import SITES, SiteSettings
from mrt_hpc.recipe.user_code import own_class
from mrt_hpc.run.atomic import write_text

EXTENDS_MEANS = """The path or the name of another recipe, of which this one says only what differs. Sections are merged
field by field, lists and single values replace, and a section of another type replaces the whole section."""
INDENT = "    "
WIDEST = 110
"""Longer lines are hard to read."""


OTHER_NAMES: dict[str, str] = {
    "sampling.problems_per_iteration": "batch_size train_batch_size generation_batch_size",
    "sampling.resample": "dynamic_sampling filter_groups",
    "sampling.rollouts_per_problem": "n num_generations rollouts_per_example group_size batch_size",
    "sampling.max_tokens": "max_completion_length max_response_length",
    "sampling.max_prompt_tokens": "max_prompt_length",
    "training.optimizer_steps_per_iteration": "mini_batch_size ppo_mini_batch_size steps_per_generation num_iterations "
    "ppo_epochs",
    "training.max_tokens_per_micro_batch": "per_device_train_batch_size gradient_accumulation_steps seq_len "
    "ppo_max_token_len_per_gpu",
    "training.learning_rate": "lr",
    "training.schedule": "lr_scheduler_type warmup_style",
    "training.warmup_steps": "lr_warmup_steps",
    "training.warmup_ratio": "lr_warmup_steps_ratio",
    "training.gradient_clip": "max_grad_norm grad_clip",
    "training.loss": "loss_type loss_mode policy_loss entropy_coeff",
    "training.aggregation": "loss_type loss_agg_mode",
    "training.overlong": "mask_truncated_completions overlong_filter overlong_buffer",
    "training.clip_low": "epsilon cliprange clip_ratio clip_ratio_low",
    "training.clip_high": "epsilon epsilon_high cliprange clip_higher clip_ratio clip_ratio_high",
    "training.kl_coefficient": "beta kl_coef kl_loss_coef use_kl_loss",
    "training.importance_cap": "vllm_importance_sampling_cap vllm_importance_sampling_clip_max",
    "training.zero_stage": "fsdp_config lora lora_rank peft_config",
    "training.offload_optimizer": "fsdp_config lora lora_rank peft_config",
    "training.sequence_parallel": "ulysses_sequence_parallel_size",
    "training.gradient_checkpointing": "enable_gradient_checkpointing",
    "training.checkpoint_every": "save_steps save_freq interval",
    "training.precision": "dtype",
    "algorithm[grpo].normalise": "scale_rewards divide_by_std",
    "algorithm[grpo].baseline": "rloo",
    "schedule.iterations": "max_steps total_epochs",
    "schedule.coupling": "vllm_mode hybrid_engine",
    "schedule.max_staleness": "max_async_level max_off_policy_steps",
    "serving.tensor_parallel": "tensor_parallel_size vllm_tensor_parallel_size tensor_model_parallel_size",
    "serving.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "serving.dtype": "dtype",
    "data[jsonl].verifier": "reward_funcs custom_reward_function",
    "data[jsonl].path": "train_files",
    "prompt.instruction": "system_prompt",
    "prompt.chat_template": "system_prompt",
    "prompt.template_variables": "chat_template_kwargs",
    "evaluation.every": "eval_steps test_freq interval",
    "evaluation.top_p": "top_k",
    "tracking.wandb": "report_to logger",
    "tracking.tensorboard": "report_to logger",
}
"""The names of TRL, verl and prime-rl for each field, or the nearest one; docs/coming-from.md has them, too."""


NOT_HERE = frozenset({"lora", "lora_rank", "peft_config"})
"""Names that fit no field."""


def recipe_fields() -> list[DocumentedField]:
    """``extends`` is left out: it is resolved before the rest is checked."""
    return [DocumentedField(EXTENDS, "text", "null", EXTENDS_MEANS.replace("\n", " ")), *documented_fields(Recipe)]


def site_fields() -> list[DocumentedField]:
    """Of all kinds of sites, and of each kind, which say so."""
    kinds_in_words = f"{', '.join(SITES.built_in)}, or module:Class"
    fields = documented_fields(SiteSettings)
    common = [replace(field, values=kinds_in_words) if field.name == "type" else field for field in fields]
    names = {field.name for field in common}
    kinds = {str(tag_of(site)): documented_fields(site) for site in SITES.classes}
    own = [(kind, field) for kind, fields in kinds.items() for field in fields if field.name not in names]
    return [*common, *(replace(field, text=f"{field.text} Only with type: {kind}.") for kind, field in own)]


KINDS: dict[str, Callable[[], list[DocumentedField]]] = {"recipe": recipe_fields, "site": site_fields}


def print_fields(words: tuple[str, ...], *, as_json: bool = False) -> None:
    """``words``: the kind of file, or none for a recipe; then the field below which to look, or none for all."""
    kind, *asked = words if words[:1] and words[0] in KINDS else ("recipe", *words)
    fields = KINDS[kind]()
    for name in asked:
        fields = fields_of_own_class(kind, name) if ":" in name else _find_fields(kind, fields, name)
    if as_json:
        echo_json([asdict(field) for field in fields])
        return
    width = min(shutil.get_terminal_size().columns, WIDEST)
    for field in fields:
        echo(field.name, "bold")
        for line in _lines(field, width):
            echo(line)


def fields_of_own_class(kind: str, asked: str) -> list[DocumentedField]:
    """``kind`` is recipe or site; ``asked`` as ``my_method:LastEpisode``, also with its section before it, as
    ``algorithm.my_method:LastEpisode``, and one of its fields behind it.
    """
    module, _, behind = re.sub(r"[\[\]]", ".", asked).replace("..", ".").strip(".").partition(":")
    called, _, field = behind.partition(".")
    registries = {"": SITES} if kind == "site" else dict(sections_with_own_classes(Recipe))
    registries = dict(sorted(registries.items(), key=lambda item: item[0].count(".")))  # a prover is first `prover`
    within = [section for section in registries if section and module.startswith(f"{section}.")]
    section = max(within, key=len, default="")
    name = f"{module.removeprefix(section).strip('.')}:{called}"
    found, own = own_class(name, {section: registries[section]} if section in registries else registries)
    whole = f"{found}[{name}]" if found else name
    return _find_fields(kind, documented_fields(own, f"{whole}."), f"{whole}.{field}".rstrip("."))


def _find_fields(kind: str, fields: list[DocumentedField], asked: str) -> list[DocumentedField]:
    """This name and below it; else the names of other trainers, and names that hold it."""
    if below := [field for field in fields if field.is_within(asked)]:
        return below
    word = asked.lower().replace("-", "_").rpartition(".")[2]
    other = [ours for ours, theirs in OTHER_NAMES.items() if kind == "recipe" and word in theirs.split()]
    if found := [field for name in other for field in fields if field.name == name]:
        ours = ", ".join(other)
        there = f"not here, and nearest to it is {ours}" if word in NOT_HERE else f"{ours} here, or nearest to it"
        echo(f"{asked} of other trainers is {there}:", err=True)
    found += [field for field in fields if asked in field.name and field not in found]
    if found:
        return found
    names = [field.name for field in fields]
    guess = nearest(asked, [*names, *{name.split(".")[0] for name in names}, *{name.split(".")[-1] for name in names}])
    near = "mrt-hpc fields {kind} {guess} (all: mrt-hpc fields {kind})"
    raise UserError(
        f"a {kind} has no such field",
        value=asked,
        expected=f"{guess} is the nearest" if guess else "a field, a part of its name, or its name in another trainer",
        advice=Advice(near if guess else "mrt-hpc fields {kind}", kind=kind, guess=guess),
    )


def _lines(field: DocumentedField, width: int) -> Iterator[str]:
    default = "required" if field.default is None else f"default {field.default}"
    takes = default if field.values == field.default else f"{field.values}; {default}"
    choices = ((f"{choice.value}: {choice.text}", INDENT * 2) for choice in field.choices)
    for text, indent in ((takes, INDENT), (field.text, INDENT), *choices):
        plain = text.replace("`", "")  # the marks of code in docstrings
        yield from textwrap.wrap(plain, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


# -- the pages of docs/reference ---------------------------------------------------------------------------------------


MADE_BY = "mrt-hpc fields --markdown docs/reference"
TOP = "Fields without a section"
INTRODUCTIONS = {
    "recipe": "A recipe is one YAML file with these fields. A section that has a `type` takes the fields of that type, "
    "which stands in brackets: `prover[majority].branches` is written `prover: {type: majority, branches: 4}`. "
    "[Recipes](../recipes.md) explains how to write one; `mrt-hpc fields training` prints one section in a terminal.",
    "site": "A site profile is one YAML file with these fields. It says where jobs run, and never changes a result. "
    "[First day on a cluster](../first-day.md) explains how to write one; `mrt-hpc fields site` prints this list in a "
    "terminal.",
}
_CODE = re.compile(r"(``?[^`]+``?)")


def write_reference(folder: Path) -> list[Path]:
    """Returns the paths of both pages."""
    if not folder.is_dir():
        raise UserError("there is no such folder", value=str(folder), advice=Advice("mkdir -p {folder}", folder=folder))
    for name, text in (pages := reference_pages()).items():
        write_text(folder / name, text)
    return [folder / name for name in pages]


def reference_pages() -> dict[str, str]:
    made_by, pages = f"This page was made by `{MADE_BY}`.", {}
    for kind, title in (("recipe", "Fields of a recipe"), ("site", "Fields of a site profile")):
        lines = [f"# {title}", "", INTRODUCTIONS[kind], "", made_by, "", *_sections(KINDS[kind]())]
        pages[f"{kind}.md"] = "\n".join(lines).rstrip("\n") + "\n"
    return pages


def _sections(fields: list[DocumentedField]) -> Iterator[str]:
    """First fields without fields below them, then the sections."""
    by_section: dict[str, list[DocumentedField]] = {}
    for field in fields:
        by_section.setdefault(re.split(r"[.\[]", field.name)[0], []).append(field)
    alone = [group[0] for group in by_section.values() if len(group) == 1]
    yield from (f"## {TOP}", "", *_list(alone), "")
    for name, (whole, *below) in by_section.items():
        if below:
            takes = "" if whole.values == "a section" else f" It is {_escape_cell(whole.values)}."
            yield from (f"## {name}", "", f"{_escape_cell(whole.text)}{takes}", "", *_list(below), "")


def _list(fields: Iterable[DocumentedField]) -> Iterator[str]:
    """Each field with its values and default, and below them its meaning and that of each of its choices."""
    for field in fields:
        if field.text:  # the type of a section, which its name shows, has no words of its own
            yield f"- **{_code(field.name)}**: {_escape_cell(field.values)}; {_default(field)}<br>"
            yield f"  {_escape_cell(field.text)}"
            yield from (f"    - {_code(choice.value)}: {_escape_cell(choice.text)}" for choice in field.choices)


def _default(field: DocumentedField) -> str:
    if field.default is None:
        return "required"
    return "default: those of its fields" if field.default == "see below" else f"default {_code(field.default)}"


def _code(text: str) -> str:
    return f"`{text}`"


def _escape_cell(text: str) -> str:
    """A text of a page: code spans with single backticks, and everything else as it stands."""

    def escape(part: str) -> str:
        return re.sub(r"([\\|*\[\]])", r"\\\1", part).replace("<", "&lt;")

    return "".join(_code(part.strip("`")) if part.startswith("`") else escape(part) for part in _CODE.split(text))
