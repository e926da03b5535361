"""Checks data files: ids and problems that repeat, problems of training that stand in a benchmark, gold answers that
the verifier cannot read, and special tokens in problems.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML

from mrt_hpc.datasets.findings import CheckReport, Finding, FindingKind
from mrt_hpc.datasets.loaded import load
from mrt_hpc.datasets.repeats import ProblemIndex, repeated_ids
from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.verifiers import unreadable_answers
from mrt_hpc.errors import UserError
from mrt_hpc.inference.token_pieces import StoredTokens
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.registry import VERIFIERS
from mrt_hpc.recipe.sections.grading import Grading
from mrt_hpc.recipe.source import UNREADABLE
from mrt_hpc.recipe.user_code import import_from
from mrt_hpc.recipe.verifier import VerifierSettings
from mrt_hpc.run.records import golds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mrt_hpc.datasets.loaded import LoadedSet
    from mrt_hpc.domains.pool import GraderPool

_VERIFIER: TypeAdapter[VerifierSettings] = TypeAdapter(Annotated[VerifierSettings, VERIFIERS])
PROCESSES = min(4, len(os.sched_getaffinity(0)))
"""The number of grader processes; it changes no finding."""
USUAL_SPECIAL = re.compile(
    r"<[|｜][^|｜<>\s]{1,40}[|｜]>|</?(?:s|think)>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]"
)
"""Texts that are special tokens of many models; a hint where no model is named."""
TAGS = ("<think>", "</think>")
"""Tags of thoughts, which no problem should hold, whether or not they are special."""


@dataclass(frozen=True)
class Check:
    """What to check."""

    files: tuple[Path, ...]
    against: tuple[Path, ...] = ()
    """Files whose problems may not stand in ``files``; of their own faults only lines that cannot be read are told."""
    verifier: str = "math"
    """A verifier as in a recipe: its type alone, or its fields in braces. Classes and functions of the user's own may
    lie in the working directory.
    """
    model: Path | None = None
    """The model directory whose special tokens no problem may hold; None looks for those of many models."""
    grading: Grading = field(default_factory=lambda: Grading(processes=PROCESSES))


def check(asked: Check) -> CheckReport:
    """Check data files each by itself, and each pair of them for problems that they share.

    Raises:
        UserError: a file is missing, the verifier is unknown, or the grader is not installed or cannot be started.
    """
    verifier = _verifier(asked.verifier, asked.grading)
    files, against = _loaded(asked)
    index = ProblemIndex([*files, *against])
    pairs = [*combinations(files, 2), *product(files, against)]
    findings = [finding for loaded in (*files, *against) for finding in loaded.findings]
    for loaded in files:
        findings += [*repeated_ids(loaded), *index.within(loaded.file)]
    for one, other in pairs:
        findings += index.between(one.file, other.file)
    findings += _unreadable(files, verifier, asked.grading)
    findings += _special(files, asked.model)
    return CheckReport(
        files=tuple(loaded.about for loaded in files),
        against=tuple(loaded.about for loaded in against),
        compared=tuple((one.file, other.file) for one, other in pairs),
        findings=tuple(findings),
    )


def _loaded(asked: Check) -> tuple[list[LoadedSet], list[LoadedSet]]:
    """The files, and those to compare with that are not among them; a file that is named twice is read once."""
    files = {path.resolve(): path for path in asked.files}
    against = {path.resolve(): path for path in asked.against if path.resolve() not in files}
    return [load(path) for path in files.values()], [load(path) for path in against.values()]


def _verifier(text: str, grading: Grading) -> Verifier:
    try:
        content = YAML(typ="safe", pure=True).load(text)
        import_from(Path.cwd(), {"verifier": content})
        settings = _VERIFIER.validate_json(json.dumps(content), strict=True)
    except (*UNREADABLE, ValidationError) as error:
        reason = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise UserError(
            f"there is no such verifier: {reason}",
            value=text,
            where="--verifier",
            expected=f"{', '.join(VERIFIERS.built_in)}, or module:Class or module:function of your own; with fields as "
            "in '{type: choice, choices: 5}'",
            advice="--verifier math, or mrt-hpc fields data",
        ) from error
    return as_kind(settings, Verifier).with_defaults(grading)


def _unreadable(files: Sequence[LoadedSet], verifier: Verifier, grading: Grading) -> Iterator[Finding]:
    entries = [entry for loaded in files for entry in loaded.entries]
    answers = list(dict.fromkeys(gold for entry in entries for gold in golds_of(entry.problem.answer)))
    unreadable = unreadable_answers(answers, verifier, _pool_of(verifier, grading))
    for entry in entries:
        for gold in golds_of(entry.problem.answer):
            if gold in unreadable:
                yield Finding(FindingKind.UNREADABLE_ANSWER, (entry.place,), gold)


def _special(files: Sequence[LoadedSet], model: Path | None) -> Iterator[Finding]:
    """Problems whose text a tokenizer reads as special tokens."""
    pattern = USUAL_SPECIAL if model is None else _special_of(model)
    for entry in (entry for loaded in files for entry in loaded.entries):
        if found := dict.fromkeys(pattern.findall(entry.problem.problem)):
            hint = "" if model else ", special in many models; --model DIR asks yours"
            yield Finding(FindingKind.SPECIAL_TOKEN, (entry.place,), f"{', '.join(found)}{hint}")


def _special_of(model: Path) -> re.Pattern[str]:
    """The special tokens of a model, longer ones first.

    Raises:
        UserError: it has no tokenizer.json that can be read.
    """
    try:
        tokens = {*StoredTokens.read(model / "tokenizer.json").special.values(), *TAGS}
    except (OSError, ValueError) as error:
        raise UserError(
            f"the special tokens of the model cannot be read: {error}",
            value=str(model),
            where="--model",
            expected="a model directory with tokenizer.json",
            advice="fetch the model again, or check without --model",
        ) from error
    return re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True) if token))


def _pool_of(verifier: Verifier, grading: Grading) -> Callable[[], GraderPool]:
    def open_pool() -> GraderPool:
        pool = _installed_pool()
        return pool(verifier, grading.processes, grading.time_limit_s, memory_limit_gib=grading.memory_limit_gib)

    return open_pool


def _installed_pool() -> type[GraderPool]:
    """The pool, where what it needs is installed: on a login node it may be missing.

    Raises:
        UserError: it is not installed.
    """
    try:
        from mrt_hpc.domains.pool import GraderPool
    except ModuleNotFoundError as error:
        raise UserError(
            "the grader is not installed, and some answers are no plain numbers",
            value=error.name,
            expected="the packages that env/setup installs",
            advice="type the command with the .venv of env/setup; or check all but the answers: --verifier exact",
        ) from error
    return GraderPool
