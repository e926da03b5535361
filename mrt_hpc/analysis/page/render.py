"""From the content of the page to its text: one HTML file that loads nothing and runs one script of its own.

What a model wrote reaches the page in two ways: tables are escaped, and traces are JSON whose texts the script puts
into the page as texts. A content security policy refuses every other script, and every request.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from mrt_hpc.analysis.page.content import by_directory
from mrt_hpc.analysis.page.sections import sections
from mrt_hpc.analysis.page.text import visible
from mrt_hpc.analysis.page.traces import TEXT_LIMIT, TRACE_BYTES, choose
from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mrt_hpc.analysis.page.content import RunRecord
    from mrt_hpc.analysis.page.traces import Chosen


def write_page(path: Path, records: Sequence[RunRecord]) -> None:
    """Write the page of some runs, whole.

    Args:
        path: of the HTML file.
        records: one or more runs; those of several stand side by side.
    """
    write_text(path, render_page(records))


def render_page(records: Sequence[RunRecord], budget: int = TRACE_BYTES) -> str:
    """The page as HTML; the same records give the same text.

    Args:
        records: one or more runs.
        budget: bytes of the sample traces.
    """
    script = _file("reader.js")
    chosen = choose(records, budget)
    return _environment().get_template("page.html.j2").render(
        title=", ".join(record.name for record in by_directory(records)),
        records=records,
        trained=any(record.trained for record in records),
        sections=sections(records),
        choice=_choice(records, chosen),
        traces=Markup(chosen.data),
        has_traces=any(chosen.shown),
        style=Markup(_file("page.css")),
        script=Markup(script),
        script_hash=script_hash(script),
    )  # fmt: skip


def script_hash(script: str) -> str:
    """The source expression by which a content security policy allows a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mrt_hpc.analysis", "page"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["drawing"] = Markup  # matplotlib escapes the texts of its figures
    return environment


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _file(name: str) -> str:
    return resources.files("mrt_hpc.analysis.page").joinpath(name).read_text(encoding="utf-8")


def _choice(records: Sequence[RunRecord], chosen: Chosen) -> list[str]:
    """What the reader of the page is told about the choice of the traces."""
    common = _common([record.choice for record in records])
    told = [*common]
    for record, shown in zip(records, chosen.shown, strict=True):
        prefix = "" if len(records) == 1 else f"{record.name}: "
        told += [f"{prefix}{sentence}" for sentence in record.choice if sentence not in common]
        if shown < len(record.traces):
            told.append(
                f"{prefix}The first {shown} of these {len(record.traces)} traces fit into the space that the page has "
                "for them; they are taken in turns from all sources and problems."
            )
    cut = (
        f"Of a trace with more than {TEXT_LIMIT:,} characters the middle of long episodes is left out; no boundary is."
    )
    return [*told, cut] if any(chosen.shown) else told


def _common(choices: Sequence[Sequence[str]]) -> list[str]:
    """The sentences that are the same for all runs or models that have traces."""
    having = [choice for choice in choices if choice]
    return [sentence for sentence in having[0] if all(sentence in other for other in having)] if having else []
