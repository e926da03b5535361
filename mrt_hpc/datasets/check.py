"""Checks data files: repeated ids and problems, training problems in a benchmark, gold answers that the verifier cannot
read or no answer reaches, and missing pictures.
"""

import json
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain, combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import TypeAdapter, ValidationError
from scipy.sparse import csr_array, triu

from mrt_hpc.datasets.conversion import SourceRecord, record_file
from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.verifiers import GoldFault, MathVerifier, gold_faults
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.kinds import VERIFIERS, VerifierSettings
from mrt_hpc.recipe.ownership import limited_lines
from mrt_hpc.recipe.sections import Grading
from mrt_hpc.recipe.source import UNREADABLE, parse_yaml
from mrt_hpc.recipe.user_code import import_from
from mrt_hpc.run.atomic import checksum
from mrt_hpc.run.problems import problem_of_line
from mrt_hpc.run.records import Problem, gold_text, golds_of

if TYPE_CHECKING:
    from mrt_hpc.domains.grader_queue import GraderPool


# -- findings ----------------------------------------------------------------------------------------------------------
# The findings of a check of data files.


class FindingKind(StrEnum):
    CHANGED_FILE = "changed_file"
    """The file is not the one that its record of the source describes."""
    BAD_LINE = "bad_line"
    """A line is no problem: a run refuses the file."""
    REPEATED_ID = "repeated_id"
    """Several lines of a file have one id: a run refuses the file."""
    REPEATED_PROBLEM = "repeated_problem"
    SIMILAR_PROBLEM = "similar_problem"
    """Nearly the same problem twice in a file."""
    SHARED_PROBLEM = "shared_problem"
    SHARED_SIMILAR_PROBLEM = "shared_similar_problem"
    """Nearly the same problem in two files."""
    UNREADABLE_ANSWER = "unreadable_answer"
    """The verifier cannot read a gold answer, so that an answer in another spelling is wrong."""
    DOUBTFUL_ANSWER = "doubtful_answer"
    """An ordinary spelling of a gold answer is wrong, or almost any answer right, or it may be a decimal with a
    comma.
    """
    MISSING_PICTURE = "missing_picture"
    """A problem names a picture, which no problem can hold."""

    @property
    def heading(self) -> str:
        return f"{self.replace('_', ' ')}s"


@dataclass(frozen=True)
class Place:
    file: str
    line: int
    """Counted from 1; 0 for the whole file."""
    id: str
    """Of the problem; empty where the line has none."""


@dataclass(frozen=True)
class Finding:
    kind: FindingKind
    places: tuple[Place, ...]
    detail: str = ""
    """What stands there, or why it is refused."""
    overlap: float | None = None
    """Of similar problems: the Jaccard similarity of their 5-grams of words."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.file for place in self.places))


@dataclass(frozen=True)
class CheckedFile:
    file: str
    problems: int
    """Lines that hold a problem."""
    sha256: str
    recorded: bool
    """Whether a record of its source stands beside it."""


@dataclass(frozen=True)
class CheckReport:
    files: tuple[CheckedFile, ...]
    against: tuple[CheckedFile, ...]
    """Files that were only compared with."""
    compared: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        return not self.findings

    def count(self, kind: FindingKind, *files: str) -> int:
        return sum(finding.kind is kind and set(finding.files) == set(files) for finding in self.findings)


# -- loaded ------------------------------------------------------------------------------------------------------------
# Reads data files that may be wrong: each line that is no problem becomes a finding, and the rest is read.


@dataclass(frozen=True)
class Entry:
    place: Place
    problem: Problem


@dataclass(frozen=True)
class LoadedSet:
    about: CheckedFile
    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...]
    """Bad lines, and a file that has changed since it was prepared."""

    @property
    def file(self) -> str:
        """As it was typed."""
        return self.about.file


def load(path: Path) -> LoadedSet:
    """Read a data file as far as it can be read."""
    if not path.is_file():
        raise UserError(
            "no such data file",
            value=str(path),
            expected="a file of JSON lines",
            advice=Advice("ls {parent}, or mrt-hpc data prepare SOURCE {path}", parent=path.parent, path=path),
        )
    entries: list[Entry] = []
    findings: list[Finding] = []
    with path.open("rb") as stream:
        for number, line in enumerate(limited_lines(stream, path), start=1):
            if not line.strip():
                continue
            try:
                problem = problem_of_line(line, f"{path}, line {number}")
            except UserError as error:
                refused = f"{error.what}: {error.value!r}"
                findings.append(_finding_of_line(FindingKind.BAD_LINE, path, number, refused))
            else:
                entries.append(Entry(Place(str(path), number, problem.id), problem))
    if not entries and not findings:
        findings.append(_finding_of_line(FindingKind.BAD_LINE, path, 0, "the file holds nothing"))
    digest, record = checksum(path), record_file(path)
    if changed := _difference(record, digest):
        findings.append(_finding_of_line(FindingKind.CHANGED_FILE, path, 0, changed))
    return LoadedSet(CheckedFile(str(path), len(entries), digest, record.is_file()), tuple(entries), tuple(findings))


def _finding_of_line(kind: FindingKind, path: Path, line: int, detail: str) -> Finding:
    return Finding(kind, (Place(str(path), line, ""),), detail)


def _difference(record: Path, digest: str) -> str:
    """What a record of the source says of another content, or why it cannot be read; empty without a record."""
    if not record.is_file():
        return ""
    try:
        expected = SourceRecord.read(record).sha256
    except UserError as error:
        return f"{record.name}: {error.what}: {error.value}"
    return "" if expected == digest else f"SHA-256 is {digest[:12]}..., {record.name} says {expected[:12]}..."


# -- overlap -----------------------------------------------------------------------------------------------------------
# Finds near duplicates among many texts: all pairs whose 5-grams of words overlap enough, without comparing each pair.
#
# Two sets whose Jaccard similarity is at least t share an element among their first ``n - ceil(t n) + 1`` ones, if both
# are sorted by one order. Sorted by rarity these first elements are seldom in other texts, so few pairs are compared,
# and none is missed.


GRAM_WORDS = 5
"""Consecutive words that make one element."""
LEAST_OVERLAP = 0.8
_ROUNDING = 1e-9


def similar_pairs(texts: Sequence[tuple[str, ...]], least: float = LEAST_OVERLAP) -> list[tuple[int, int, float]]:
    """All pairs of texts whose overlap is at least ``least`` (above 0), by their indices, and the overlap. Texts of
    fewer than five words have none.
    """
    grams = _matrix_of_grams(texts)
    sizes = np.diff(grams.indptr)
    places = np.arange(grams.nnz) - np.repeat(grams.indptr[:-1], sizes)
    first = places <= np.repeat(sizes - np.ceil(least * sizes - _ROUNDING), sizes)
    prefixes = csr_array((first.astype(np.int32), grams.indices.copy(), grams.indptr.copy()), grams.shape)
    prefixes.eliminate_zeros()
    one, other = triu(prefixes @ prefixes.T, k=1).nonzero()
    common = grams[one].multiply(grams[other]).sum(axis=1)
    overlaps = common / (sizes[one] + sizes[other] - common)
    pairs = zip(one.tolist(), other.tolist(), overlaps.tolist(), strict=True)
    return sorted(pair for pair in pairs if pair[2] >= least - _ROUNDING)


def _matrix_of_grams(texts: Sequence[tuple[str, ...]]) -> csr_array:
    """A row for each text, with ones in the columns of its words in a row; the rarest of all texts come first."""
    own = [{hash(text[at : at + GRAM_WORDS]) for at in range(len(text) - GRAM_WORDS + 1)} for text in texts]
    every = np.fromiter(chain.from_iterable(own), np.int64)
    _, inverse, counts = np.unique(every, return_inverse=True, return_counts=True)
    rank = np.argsort(np.argsort(counts, kind="stable"))
    ends = np.cumsum([0, *map(len, own)])
    grams = csr_array((np.ones(len(every), np.int32), rank[inverse], ends), shape=(len(own), len(counts)))
    grams.sort_indices()
    return grams


# -- wording -----------------------------------------------------------------------------------------------------------
# Compares problems by their words: without blank space, LaTeX spacing, case and punctuation.


_SPACING = re.compile(
    r"\\[,;:!> ]|\\(?:quad|qquad|enspace|thinspace|medspace|thickspace|displaystyle|left|right)(?![a-zA-Z])"
    r"|\\[hv]space\*?\{[^{}]*\}|~|\\\\|\$|\\[()\[\]]"
)
"""Commands of LaTeX that only set space or size, line breaks, and marks where mathematics begins and ends."""
_PUNCTUATION = re.compile(r"(?<!\d)\.|\.(?!\d)|[,;:?\"'`´‘’“”„…{}]")
"""Signs of sentences, and braces that only group. The point of a decimal number stays, and so do the signs of
mathematics.
"""
_DASHES = re.compile(r"[‐‑‒–—−]")
_WORD = re.compile(r"\\[a-z]+|[^\W\d_]+|\d+(?:\.\d+)?|[^\s\w]|_")


def words(text: str) -> tuple[str, ...]:
    """In order. Problems that differ only in blank space, LaTeX spacing, case and punctuation have the same words."""
    plain = unicodedata.normalize("NFKC", text)
    plain = _SPACING.sub(" ", _DASHES.sub("-", plain))
    plain = re.sub(r"\\[dt]frac(?![a-zA-Z])", r"\\frac", plain)
    return tuple(_WORD.findall(_PUNCTUATION.sub(" ", plain.casefold())))


# -- repeats -----------------------------------------------------------------------------------------------------------
# Finds ids and problems that repeat within a data file, and problems that stand in two of them.


def repeated_ids(loaded: LoadedSet) -> Iterator[Finding]:
    places: dict[str, list[Place]] = defaultdict(list)
    for entry in loaded.entries:
        places[entry.problem.id].append(entry.place)
    yield from (Finding(FindingKind.REPEATED_ID, tuple(several)) for several in places.values() if len(several) > 1)


def repeated_problems(files: Sequence[LoadedSet], against: Sequence[LoadedSet]) -> Iterator[Finding]:
    """Problems that a file holds twice or shares with another one, then those in nearly the same words."""
    checked, order = {loaded.file for loaded in files}, [loaded.file for loaded in (*files, *against)]
    by_words: dict[tuple[str, ...], dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for loaded in (*files, *against):
        for entry in loaded.entries:
            by_words[words(entry.problem.problem)][loaded.file].append(entry)
    for lines in by_words.values():
        for file, entries in lines.items():
            if file in checked and len(entries) > 1:
                yield _finding(FindingKind.REPEATED_PROBLEM, entries)
        for file, other in combinations(lines, 2):
            if file in checked:
                yield _finding(FindingKind.SHARED_PROBLEM, [*lines[file], *lines[other]])
    texts = list(by_words)
    for number, later, overlap in similar_pairs(texts):
        first, second = by_words[texts[number]], by_words[texts[later]]
        for file, other in product(first, second):
            if {file, other} & checked:
                kind = FindingKind.SIMILAR_PROBLEM if file == other else FindingKind.SHARED_SIMILAR_PROBLEM
                entries = sorted([first[file][0], second[other][0]], key=lambda entry: order.index(entry.place.file))
                yield _finding(kind, entries, overlap)


def _finding(kind: FindingKind, entries: list[Entry], overlap: float | None = None) -> Finding:
    """Says where the gold answers differ, since one of them may be wrong."""
    golds = [golds_of(entry.problem.answer) for entry in reversed(entries)]
    answers = {frozenset(map(words, several)): gold_text(several) for several in golds}
    listed = ", ".join(repr(answer) for answer in reversed(answers.values()))
    detail = f"the answers differ: {listed}" if len(answers) > 1 else ""
    return Finding(kind, tuple(entry.place for entry in entries), detail, overlap)


_VERIFIER: TypeAdapter[VerifierSettings] = TypeAdapter(Annotated[VerifierSettings, VERIFIERS])
GRADING = Grading(processes=min(4, len(os.sched_getaffinity(0))))
"""The number of processes changes no finding."""
_DECIMAL_COMMA = re.compile("[+-]?[0-9]+,[0-9]{1,2}")
_PICTURE = re.compile(r"<image[^<>]*>|<img\b[^<>]*>|!\[[^\[\]]*\]\([^()]*\)|\\includegraphics(?![A-Za-z])")


def check(files: Sequence[Path], against: Sequence[Path] = (), verifier: str = "math") -> CheckReport:
    """Check files by themselves and with each other.

    Args:
        against: files whose problems may not stand in ``files``; of these, only unreadable lines are reported.
        verifier: as in a recipe, its type alone, or its fields in braces. Classes and functions of the user's own may
            lie in the working directory.
    """
    judge = _verifier(verifier)
    own = {path.resolve(): path for path in files}
    others = {path.resolve(): path for path in against if path.resolve() not in own}
    loaded, compared = [load(path) for path in own.values()], [load(path) for path in others.values()]
    entries = [entry for one in loaded for entry in one.entries]
    findings = [finding for one in (*loaded, *compared) for finding in one.findings]
    for one in loaded:
        findings += repeated_ids(one)
    findings += [*repeated_problems(loaded, compared), *_faulty_golds(entries, judge), *_missing_pictures(entries)]
    return CheckReport(
        files=tuple(one.about for one in loaded),
        against=tuple(one.about for one in compared),
        compared=tuple((a.file, b.file) for a, b in [*combinations(loaded, 2), *product(loaded, compared)]),
        findings=tuple(findings),
    )


def _verifier(text: str) -> Verifier:
    try:
        content, _ = parse_yaml(text)
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
    return require_kind(settings, Verifier).with_defaults(GRADING)


def _faulty_golds(entries: Sequence[Entry], verifier: Verifier) -> Iterator[Finding]:
    """Gold answers of no use, and those that are probably misread."""
    golds = [(entry, gold) for entry in entries for gold in golds_of(entry.problem.answer)]
    faults = gold_faults(list(dict.fromkeys(gold for _, gold in golds)), verifier, partial(_opened_pool, verifier))
    for entry, gold in golds:
        if (fault := faults.get(gold)) is GoldFault.UNREADABLE:
            yield Finding(FindingKind.UNREADABLE_ANSWER, (entry.place,), gold)
        elif fault is not None:
            yield Finding(FindingKind.DOUBTFUL_ANSWER, (entry.place,), f"{gold}: {fault}")
        elif isinstance(verifier, MathVerifier) and _DECIMAL_COMMA.fullmatch(gold):
            told = f"read as a list of two numbers; a decimal is {gold.replace(',', '.')}"
            yield Finding(FindingKind.DOUBTFUL_ANSWER, (entry.place,), f"{gold}: {told}")


def _missing_pictures(entries: Sequence[Entry]) -> Iterator[Finding]:
    for entry in entries:
        if picture := _PICTURE.search(entry.problem.problem):
            yield Finding(FindingKind.MISSING_PICTURE, (entry.place,), picture[0])


def _opened_pool(verifier: Verifier) -> "GraderPool":
    """On a login node the grader may not be installed."""
    try:
        from mrt_hpc.domains.grader_queue import GraderPool
    except ModuleNotFoundError as error:
        raise UserError(
            "the grader is not installed, and some answers are no plain numbers",
            value=error.name,
            expected="the packages that env/setup installs",
            advice="type the command with the .venv of env/setup; or check all but the answers: --verifier exact",
        ) from error
    return GraderPool(verifier, GRADING.processes, GRADING.time_limit_s, memory_limit_gib=GRADING.memory_limit_gib)
