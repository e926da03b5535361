"""The two forms of a report: ``report.html``, one page that loads nothing, and ``report.md`` with its figures.

What a model wrote reaches the page escaped in tables, or as JSON that the script puts into the page as texts. A content
security policy refuses every other script, and every request.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from mrt_hpc.analysis.figures import LineFigure, draw, inline_svg
from mrt_hpc.analysis.number_formats import cell, number
from mrt_hpc.analysis.report import content
from mrt_hpc.analysis.report.result_sections import name_before
from mrt_hpc.analysis.report.run_sections import heading, sections, title
from mrt_hpc.errors import visible
from mrt_hpc.run.atomic import write_text

NOTHING = "Nothing of this has been measured."


# -- Markdown


def write_markdown(directory: Path, records: Sequence[content.RunRecord]) -> Path:
    written = sections(records)
    for section in written:
        for plot in section.plots:
            if plot.figure.name:
                draw(plot.figure, directory / "plots" / f"{plot.figure.name}.png")
    path = directory / "report.md"
    write_text(path, markdown(records, written))
    return path


def markdown(records: Sequence[content.RunRecord], written: Sequence[content.ReportSection]) -> str:
    parts = [f"# {cell(title(records))}", *(name_before(records, record) + heading(record) for record in records)]
    return "\n\n".join([*parts, *(part for section in written for part in _blocks(section))]) + "\n"


def _blocks(section: content.ReportSection) -> Iterator[str]:
    yield f"## {section.title}"
    if not section.paragraphs and not section.tables and not section.plots:
        yield NOTHING
    mark = "- " if len(section.paragraphs) > 1 else ""
    if section.paragraphs:
        yield "\n".join(f"{mark}{sentence}" for sentence in section.paragraphs)
    for table in section.tables:
        if not table.page_only:
            yield from filter(None, (f"**{cell(table.caption)}**", _table(table), table.note))
    for plot in section.plots:
        if plot.figure.name:
            yield from (f"### {plot.title}", f"![{plot.title}](plots/{plot.figure.name}.png)", plot.caption)
    for listing in section.listings:
        if not listing.page_only:
            yield f"```\n{listing.text}\n```"


def _table(table: content.Table) -> str:
    names = [column.name for column in table.columns]
    aligned = ["---:" if column.numeric and n else "---" for n, column in enumerate(table.columns)]
    rows = [names, *table.rows]
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join([lines[0], f"|{'|'.join(aligned)}|", *lines[1:]])


# -- HTML


def write_page(path: Path, records: Sequence[content.RunRecord]) -> None:
    """Several runs stand side by side; the file appears whole."""
    write_text(path, render_page(records))


def render_page(records: Sequence[content.RunRecord], budget: int = content.TRACE_BYTES) -> str:
    """The page as HTML; the same records give the same text. ``budget`` is bytes of the sample traces."""
    script = _file("reader.js")
    chosen = content.choose(records, budget)
    written = sections(records)
    return _environment().get_template("page.html.j2").render(
        title=title(records),
        records=records,
        trained=any(record.is_run for record in records),
        sections=written,
        lead=_lead(written),
        nothing=NOTHING,
        choice=_choice(records, chosen),
        traces=Markup(chosen.data),
        has_traces=any(chosen.shown),
        style=Markup(_file("page.css")),
        script=Markup(script),
        script_hash=script_hash(script),
    )  # fmt: skip


def _lead(written: Sequence[content.ReportSection]) -> content.Plot | None:
    first = sorted(written, key=lambda section: section.anchor != "training")
    return next((plot for section in first for plot in section.plots), None)


def script_hash(script: str) -> str:
    """The source expression by which a content security policy allows a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mrt_hpc.analysis", "report"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible_value,
    )
    environment.filters.update(svg=inline_svg, described=figure_description, heading=heading)
    return environment


def _visible_value(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _file(name: str) -> str:
    return resources.files("mrt_hpc.analysis.report").joinpath(name).read_text(encoding="utf-8")


def figure_description(figure: LineFigure) -> str:
    """For readers who do not see a figure it says where each line begins and ends."""
    (panel,) = figure.panels
    ends = [f"{line.label} from {number(line.means[0])} to {number(line.means[-1])}" for line in panel.lines if line.x]
    more = f"; and {len(ends) - 8} more lines" if len(ends) > 8 else ""
    return f"{panel.title}: {'; '.join(ends[:8])}{more}. The table below has all values."


def _choice(records: Sequence[content.RunRecord], chosen: content.Chosen) -> list[str]:
    common = _common([record.choice for record in records])
    sentences = [*common]
    for record, shown in zip(records, chosen.shown, strict=True):
        prefix = "" if len(records) == 1 else f"{record.name}: "
        sentences += [f"{prefix}{sentence}" for sentence in record.choice if sentence not in common]
        if shown < len(record.traces):
            sentences.append(
                f"{prefix}The first {shown} of these {len(record.traces)} traces fit into the space that the page has "
                "for them; they are taken in turns from all sources and problems."
            )
    limit = f"{content.TEXT_LIMIT:,} characters"
    cut = f"Of a trace with more than {limit} the middle of long episodes is left out; no boundary is."
    return [*sentences, cut] if any(chosen.shown) else sentences


def _common(choices: Sequence[Sequence[str]]) -> list[str]:
    having = [choice for choice in choices if choice]
    return [sentence for sentence in having[0] if all(sentence in other for other in having)] if having else []
