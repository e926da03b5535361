"""Problems: read strictly from JSON lines, drawn for each iteration by the run's seed alone."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.recipe.ownership import limited_lines
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.run.atomic import checksum, write_text
from mrt_hpc.run.records import Gold, Problem
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.typed_file import UnreadableError, Whole, read_if_there

FIELDS = ("id", "problem", "answer")
_ADVICE = 'each line is one object such as {"id": "p-1", "problem": "What is 1+1?", "answer": "2"}'


def read_problems(path: Path, limit: int | None = None) -> list[Problem]:
    """The problems of a JSONL file (the first ``limit``)."""
    return read_lines(path, limit, _problem, lambda problem: problem.id, _ADVICE)


Item = TypeVar("Item")


def read_lines(
    path: Path,
    limit: int | None,
    parse: Callable[[dict[str, Any], str], Item],
    identity: Callable[[Item], str],
    advice: str,
) -> list[Item]:
    """The items of a file of JSON objects (the first ``limit``), no identity twice.

    ``parse`` takes object and position.
    """
    if not path.is_file():
        raise UserError("no such data file", value=str(path), expected="a file of JSON lines", advice=advice)
    items: dict[str, tuple[int, Item]] = {}
    with path.open("rb") as stream:
        filled = ((n, line) for n, line in enumerate(limited_lines(stream, path), start=1) if line.strip())
        for number, line in islice(filled, limit):
            where = f"{path}, line {number}"
            item = parse(_object(line, where, advice), where)
            if (name := identity(item)) in items:
                what = f"line {items[name][0]} has the same id"
                raise UserError(what, value=name, where=f"{where}, id", advice="give each line its own id")
            items[name] = number, item
    if not items:
        raise UserError("the data file holds nothing", where=path, advice=advice)
    return [item for _, item in items.values()]


HALF = "a text holds half of a character, which no file can hold as UTF-8"


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a repeated field, as ``object_pairs_hook``."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"field {first_repeated(name for name, _ in pairs)} stands there twice")
    return fields


def first_repeated(names: Iterable[str]) -> str | None:
    """The first repeated name, or None."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _object(line: bytes, where: str, advice: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=once)
        if b"\\u" in line or b"\xed" in line:  # only then can there be half of a character
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UserError(HALF, value=line[:80], where=where, advice=advice) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"not a line of JSON: {error}", value=line[:80], where=where, advice=advice) from error
    if not isinstance(row, dict):
        raise UserError("not a JSON object", value=row, where=where, advice=advice)
    return row


def text_field(row: dict[str, Any], field: str, where: str, advice: str, *, empty: bool = False) -> str:
    if field not in row:
        guess = nearest(field, row)
        expected = f"{field}; the nearest there is {guess}" if guess else field
        raise UserError(f"field {field} is missing", value=sorted(row), where=where, expected=expected, advice=advice)
    value = row[field]
    if not isinstance(value, str) or not (empty or value.strip()):
        expected = "a text" if empty else "a text that is not empty"
        raise UserError(f"{field}: wrong value", value=value, where=where, expected=expected, advice=advice)
    return value


def _problem(row: dict[str, Any], where: str) -> Problem:
    name, problem = (text_field(row, field, where, _ADVICE) for field in ("id", "problem"))
    return Problem(name, problem, _gold(row, where))


def _gold(row: dict[str, Any], where: str) -> Gold:
    """A text, or a list of different texts, any of which is right; a list of one is that text."""
    listed = row.get("answer")
    if not isinstance(listed, list):
        return text_field(row, "answer", where, _ADVICE)
    golds = tuple(text_field({"answer": text}, "answer", where, _ADVICE) for text in listed)
    if not golds or len({gold.strip() for gold in golds}) < len(golds):
        expected = "a text, or a list of different texts, any of which is right"
        raise UserError("answer: wrong value", value=listed, where=where, expected=expected, advice=_ADVICE)
    return golds if len(golds) > 1 else golds[0]


def problem_of_line(line: bytes, where: str) -> Problem:
    return _problem(_object(line, where, _ADVICE), where)


@dataclass(frozen=True)
class SolvedProblem:
    """An example of a few-shot prompt."""

    id: str
    problem: str
    solution: str


_EXAMPLE = 'each line is one object such as {"id": "e-1", "problem": "What is 1+1?", "solution": "It is \\\\boxed{2}."}'


def read_examples(path: Path) -> list[SolvedProblem]:
    return read_lines(path, None, _example, lambda example: example.id, _EXAMPLE)


def _example(row: dict[str, Any], where: str) -> SolvedProblem:
    return SolvedProblem(*(text_field(row, field, where, _EXAMPLE) for field in ("id", "problem", "solution")))


def examples_before(problem: str, examples: Sequence[SolvedProblem], prompt: Prompt) -> list[SolvedProblem]:
    """The first examples that are not the problem itself; refuses too few."""
    others = [example for example in examples if example.problem.strip() != problem.strip()]
    if len(others) < prompt.shots:
        raise UserError(
            "there are fewer examples than prompt.shots, those with the asked problem left out",
            value=len(others),
            where=prompt.examples,
            expected=f"at least {prompt.shots}",
            advice=Advice("add examples to that file, or submit with --set prompt.shots={count}", count=len(others)),
        )
    return others[: prompt.shots]


def write_problems(path: Path, problems: Sequence[Problem]) -> None:
    """Write problems as JSON lines, whole."""
    write_text(path, problem_lines(problems))


def problem_lines(problems: Sequence[Problem]) -> str:
    """The content of a data file."""
    lines = [json.dumps({f: getattr(p, f) for f in FIELDS}, ensure_ascii=False) for p in problems]
    return "\n".join(lines) + "\n"


def omitted_file(path: Path) -> Path:
    """Names problems left out of the run's data, as their prompts are too long."""
    return path.with_name(f"{path.stem}.left_out.json")


def data_checksum(path: Path) -> str:
    """SHA-256 of a run's file of problems."""
    if not path.is_file():
        raise UnreadableError(
            "the run's copy of its problems is not there",
            where=path,
            expected="a file of JSON lines",
            advice="mrt-hpc submit RUN, which writes it",
        )
    return checksum(path)


@dataclass(frozen=True)
class LeftOut:
    """Problems left out of a file."""

    tokens: dict[str, Whole]
    """Of their prompts, by problem id."""


def omitted_problems(path: Path) -> dict[str, int]:
    """Prompt tokens of left out problems, by id."""
    file, what = omitted_file(path), "the list of problems left out"
    advice = Advice("rm -r {file}: nothing but reports name these problems", file=file)
    return read_if_there(file, LeftOut, what, LeftOut({}), advice=advice).tokens


def draw_places(items: Sequence[Item], recipe: Recipe, iteration: int) -> list[list[Item]]:
    """The problems that each place of an iteration may take, in order: those of :func:`draw_indices`, then others of
    one more shuffle, each for one place alone.
    """
    size, count, most = len(items), recipe.sampling.problems_per_iteration or 0, recipe.sampling.problems_per_place
    first = draw_indices(size, recipe.seed, iteration, count)
    if most == 1:
        return [[items[index]] for index in first]
    drawn = set(first)
    others = [index for index in _shuffle_order(size, recipe.seed, iteration, "replacement") if index not in drawn]
    others = others[: (most - 1) * count]
    return [[items[index], *(items[other] for other in others[place::count])] for place, index in enumerate(first)]


def draw_indices(size: int, run_seed: int, iteration: int, count: int) -> list[int]:
    """One iteration's indices out of ``size``: a window over shuffled passes, each with every item once. No item comes
    twice in an iteration, unless there are fewer than ``count``.
    """
    places = [divmod(position, size) for position in range(iteration * count, (iteration + 1) * count)]
    orders = {epoch: _order(size, run_seed, epoch, count) for epoch in {epoch for epoch, _ in places}}
    return [orders[epoch][index] for epoch, index in places]


def _order(size: int, run_seed: int, epoch: int, count: int) -> list[int]:
    """The order of a pass. If it begins inside a window, its first items avoid those that the window has already."""
    if count > size:
        return _shuffle_order(size, run_seed, epoch)
    # The end of a pass of two windows does not depend on its beginning; else every so many passes begin with a window.
    first = epoch - 1 if size >= 2 * count else epoch - epoch % (count // math.gcd(size, count))
    order: list[int] = []
    for number in range(max(0, first), epoch + 1):
        before = {*order[size - number * size % count :]} if order else set[int]()
        shuffled = _shuffle_order(size, run_seed, number)
        first_items = dict.fromkeys(islice((item for item in shuffled if item not in before), count - len(before)))
        order = [*first_items, *(item for item in shuffled if item not in first_items)] if before else shuffled
    return order


def _shuffle_order(size: int, run_seed: int, number: int, what: str = "epoch") -> list[int]:
    order = list(range(size))
    random.Random(derive_seed(run_seed, what, number)).shuffle(order)
    return order


def share(items: Sequence[Item], shard: int, shards: int) -> list[Item]:
    """Every ``shards``-th item: parts differ by one at most."""
    return list(items[shard::shards])
