"""Problems: read strictly from JSON lines, and drawn for each iteration by the run's seed alone."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from mrt_hpc.recipe.errors import UserError, nearest
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.records import Problem
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FIELDS = ("id", "problem", "answer")
_ADVICE = 'each line is one object such as {"id": "p-1", "problem": "What is 1+1?", "answer": "2"}'


def read_problems(path: Path, limit: int | None = None) -> list[Problem]:
    """All problems of a JSONL file (the first ``limit``).

    Raises:
        UserError: naming the line and field of the first thing wrong.
    """
    if not path.is_file():
        raise UserError("no such data file", value=str(path), expected="a file of JSON lines", advice=_ADVICE)
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if limit is not None and len(problems) == limit:
                break
            if not line.strip():
                continue
            problem = _parse(line, f"{path}, line {number}")
            if problem.id in seen:
                raise UserError(
                    f"id stands on line {seen[problem.id]} as well",
                    value=problem.id,
                    where=f"{path}, line {number}, id",
                )
            seen[problem.id] = number
            problems.append(problem)
    if not problems:
        raise UserError("the data file holds no problem", where=path, advice=_ADVICE)
    return problems


def _parse(line: bytes, where: str) -> Problem:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not a line of JSON: {error}", value=line[:80], where=where, advice=_ADVICE) from error
    if not isinstance(row, dict):
        raise UserError("not a JSON object", value=row, where=where, advice=_ADVICE)
    for field in FIELDS:
        if field not in row:
            guess = nearest(field, row)
            expected = f"{field}; the nearest there is {guess}" if guess else field
            raise UserError(
                f"field {field} is missing", value=sorted(row), where=where, expected=expected, advice=_ADVICE
            )
        if not isinstance(row[field], str) or not row[field].strip():
            raise UserError(f"{field}: wrong value", value=row[field], where=where, expected="a text that is not empty")
    return Problem(id=row["id"], problem=row["problem"], answer=row["answer"])


def write_problems(path: Path, problems: Sequence[Problem]) -> None:
    """Write problems as JSON lines, whole."""
    lines = [json.dumps({f: getattr(p, f) for f in FIELDS}, ensure_ascii=False) for p in problems]
    write_text(path, "\n".join(lines) + "\n")


def draw_problems(problems: Sequence[Problem], run_seed: int, iteration: int, count: int) -> list[Problem]:
    """The problems of one iteration: a window over shuffled passes through the data.

    Every pass holds each problem once, in an order of its own; a window that reaches past the end goes on in the next
    pass. Within one iteration no problem comes twice, unless there are fewer than ``count``.
    """
    places = [divmod(position, len(problems)) for position in range(iteration * count, (iteration + 1) * count)]
    orders = {epoch: _order(len(problems), run_seed, epoch) for epoch in {epoch for epoch, _ in places}}
    chosen = [problems[orders[epoch][index]] for epoch, index in places]
    return _without_repeats(chosen, problems) if count <= len(problems) else chosen


def _order(size: int, run_seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(derive_seed(run_seed, "epoch", epoch)).shuffle(order)
    return order


def _without_repeats(chosen: list[Problem], problems: Sequence[Problem]) -> list[Problem]:
    """Replace what a window over two passes drew twice by what it has not drawn, in the order of the data."""
    taken = {p.id for p in chosen}
    spare = (p for p in problems if p.id not in taken)
    seen: set[str] = set()
    result = []
    for problem in chosen:
        unique = problem if problem.id not in seen else next(spare)
        seen.add(unique.id)
        result.append(unique)
    return result


def share(problems: Sequence[Problem], shard: int, shards: int) -> list[Problem]:
    """The part of one shard: every ``shards``-th problem, so that parts differ by one at most."""
    return list(problems[shard::shards])
