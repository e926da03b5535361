"""The files that prompts name: chat templates and solved examples. A run keeps copies, so that later changes do not
affect it and containers need not bind the originals' folder.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark, Evaluation, Prompt
from mrt_hpc.run.atomic import checksum, write_bytes
from mrt_hpc.run.layout import RunLayout

SectionT = TypeVar("SectionT", Experiment, Evaluation, Benchmark)
PROMPT_FIELDS = ("chat_template", "examples")


def prompt_files(recipe: Experiment) -> dict[str, Path]:
    """The files by dotted field."""
    named = {"prompt": recipe.prompt, "evaluation.prompt": recipe.evaluation.prompt}
    named |= {f"evaluation.benchmarks.{n}.prompt": b.prompt for n, b in enumerate(recipe.evaluation.benchmarks)}
    return {
        f"{where}.{field}": path
        for where, prompt in named.items()
        if prompt is not None
        for field, path in files_of(prompt).items()
    }


def files_of(prompt: Prompt) -> dict[str, Path]:
    """The files by field."""
    return {field: Path(path) for field in PROMPT_FIELDS if (path := getattr(prompt, field)) is not None}


def copy_of(layout: RunLayout, path: Path) -> Path:
    """The place of the run's copy."""
    return layout.prompt_files / f"{hashlib.sha256(str(path).encode()).hexdigest()[:12]}-{path.name}"


def keep_prompt_files(layout: RunLayout, recipe: Experiment) -> None:
    """Copy them into the run, where there is no copy."""
    for path in prompt_files(recipe).values():
        if not (kept := copy_of(layout, path)).exists():
            write_bytes(kept, path.read_bytes())


def changed_prompt_files(layout: RunLayout, recipe: Experiment) -> Iterator[Path]:
    """Those changed since the run copied them."""
    for path in dict.fromkeys(prompt_files(recipe).values()):
        kept = copy_of(layout, path)
        if kept.exists() and path.exists() and kept.read_bytes() != path.read_bytes():
            yield path


def prompt_contents(layout: RunLayout, prompt: Prompt) -> dict[str, str]:
    """Checksums by field, of the run's copies or, before those exist, of the originals. A missing file stands with its
    path.
    """
    contents = {field: _there(layout, path) for field, path in files_of(prompt).items()}
    return {field: checksum(path) if path.is_file() else str(path) for field, path in contents.items()}


def _there(layout: RunLayout, path: Path) -> Path:
    """The run's copy; the path itself where it is the copy, or none exists."""
    kept = copy_of(layout, path)
    return kept if kept.exists() else path


def read_experiment(layout: RunLayout, *, trust: bool = False) -> Experiment:
    """A run's recipe, with the run's own copies of prompt files."""
    recipe = read_lock(layout.recipe_lock, trust=trust)

    def own(section: SectionT) -> SectionT:
        """The section with its prompt changed, if it has one."""
        if (prompt := section.prompt) is None:
            return section
        places = {field: str(_there(layout, path)) for field, path in files_of(prompt).items()}
        return section.model_copy(update={"prompt": prompt.model_copy(update=places)})

    evaluation = own(recipe.evaluation)
    benchmarks = tuple(map(own, evaluation.benchmarks))
    return own(recipe).model_copy(update={"evaluation": evaluation.model_copy(update={"benchmarks": benchmarks})})
