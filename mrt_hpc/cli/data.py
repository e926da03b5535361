"""``mrt-hpc data`` fetches, prepares and checks data files; ``mrt-hpc model`` fetches models."""

import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.terminal import Terminal, echo, echo_json, table_of
from mrt_hpc.errors import Advice, ExitCode, UserError

if TYPE_CHECKING:
    from mrt_hpc.datasets.check import CheckReport, Finding
    from mrt_hpc.datasets.conversion import Prepared


SHOWN = 10
"""Findings of one kind that are listed for a file, or for two files; rows that were left out of a data set."""
SHOWN_CHARS = 100


@click.group(short_help="Prepare and check data files.")
def data() -> None:
    """Make data files from data sets of other columns, and check them before a run reads them.

    \b
    Examples:
      mrt-hpc data prepare rows.jsonl data/mine.jsonl
      mrt-hpc data check data/mine.jsonl --against data/math500.jsonl
    """


@data.command(short_help="Make a data file from a data set.")
@click.argument("source")
@click.argument("output", metavar="OUT", type=options.FILE)
@click.option(
    "--problem",
    metavar="COLUMN",
    help="Column of the problem, or several as in Body+Question. Default: problem, question, prompt or query.",
)
@click.option("--answer", metavar="COLUMN", help="Column of the answer. Default: answer, final_answer, solution, ...")
@click.option("--id", metavar="COLUMN", help="Column of the id. Default: id, unique_id, or none: made.")
@click.option("--new-ids", is_flag=True, help="Make ids also where there is a column of them.")
@click.option("--choices", metavar="COLUMN", help="Column with the choices; the answer becomes the letter of one.")
@click.option("--any-answer", is_flag=True, help="Of a list of several answers in a row, take each one as right.")
@click.option("--ignore", "ignored", metavar="COLUMN", multiple=True, help="A column to leave out. Repeatable.")
@click.option("--split", help="The split of a data set that has several, as in test.")
@click.option("--config", help="The configuration of a data set that has several.")
@click.option("--revision", help="Branch, tag or commit of a data set of the hub. Default: its main branch.")
@click.option("--delimiter", metavar="SIGN", help="What separates the cells of a CSV file, as ';' or tab.")
@click.option("--encoding", help="Of a text, as latin-1 or utf-16. Default: UTF-8.")
@click.option("--drop-bad", is_flag=True, help="Leave out rows that make no problem, and list them.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def prepare(source: str, output: Path, drop_bad: bool, force: bool, **asked: Any) -> None:
    """Write the problems of SOURCE to OUT, one JSON object a line with id, problem and answer.

    SOURCE is a file (.jsonl, .json, .parquet, .csv or .tsv, texts also .gz or .zst), a folder with the files of a data
    set, or a data set of the Hugging Face hub: hub:OWNER/NAME[@REVISION][/SPLIT]. Of a column with whole solutions the
    answer is the content of the last \\boxed{}, or what follows #### in the last line; a column of chat messages is the
    problem with its one message of the user, and the solution with that of the assistant. A column that looks like a
    part of the question and is not read is an error. OUT.source.json says where OUT is from, with checksums.

    \b
    Examples:
      mrt-hpc data prepare rows.jsonl data/mine.jsonl
      mrt-hpc data prepare rows.parquet data/mine.jsonl --problem text --answer label
      mrt-hpc data prepare sheet.csv data/mine.jsonl --delimiter tab --encoding latin-1
      mrt-hpc data prepare quiz.json data/quiz.jsonl --choices options --ignore table
      mrt-hpc data prepare hub:openai/gsm8k/test data/gsm8k.jsonl
    """

    from mrt_hpc.datasets.columns import Asked
    from mrt_hpc.datasets.conversion import Order
    from mrt_hpc.datasets.conversion import prepare as prepare_file
    from mrt_hpc.datasets.sources import Selection

    selection = Selection(**{field.name: asked.pop(field.name) for field in fields(Selection)})
    _print_prepared(prepare_file(Order(source, output, selection, Asked(**asked), drop_bad, force)))


@data.command(short_help="Check data files.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=options.FILE)
@click.option(
    "--against",
    metavar="FILE",
    multiple=True,
    type=options.FILE,
    help="A file whose problems may not stand in FILE, such as a benchmark. Repeatable.",
)
@click.option(
    "--verifier",
    metavar="TYPE",
    default="math",
    show_default=True,
    help="The verifier that must read the answers, as in a recipe: math, exact, '{type: choice, choices: 5}', "
    "or module:function of your own in this directory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, for programs.")
def check(files: tuple[Path, ...], against: tuple[Path, ...], verifier: str, as_json: bool) -> None:
    """Check each FILE by itself, and each two of them for problems that they share.

    Lists lines that are no problems, ids and problems that repeat, problems that stand in two files (also in nearly the
    same words: 5-grams of words with a Jaccard similarity of at least 0.8), answers that the verifier cannot read or
    no ordinary spelling reaches, pictures that problems lack, and files that have changed since they were prepared. The
    exit status is 0 if nothing was found, and 2 otherwise.

    \b
    Examples:
      mrt-hpc data check data/*.jsonl
      mrt-hpc data check data/train.jsonl --against data/aime24.jsonl --against data/math500.jsonl
      mrt-hpc data check data/quiz.jsonl --verifier choice --json
    """

    from mrt_hpc.datasets.check import check as check_files

    report = check_files(files, against, verifier)
    if as_json:
        echo_json({"clean": report.clean, **asdict(report)})
    else:
        _print_checked(report)
    if not report.clean:
        click.get_current_context().exit(int(ExitCode.FATAL))


@data.command(short_help="Fetch a data set of the paper.")
@click.argument("name", required=False)
@click.argument("output", metavar="[OUT]", required=False, type=options.FILE)
@click.option("--list", "listing", is_flag=True, help="List the names that are known, and what each of them means.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def fetch(name: str | None, output: Path | None, listing: bool, force: bool) -> None:
    """Fetch a data set of the paper from the Hugging Face hub and write it to OUT, one JSON object a line with id,
    problem and answer.

    The commits are fixed. Without OUT the file is NAME.jsonl in your data folder, where recipes find it: MRT_HPC_DATA,
    or ~/.local/share/mrt-hpc/data. OUT.source.json keeps the commit and the checksums. Type it on a node with network
    access; a file that is there already is not fetched again. `data prepare` fetches other data sets of the hub.

    \b
    Examples:
      mrt-hpc data fetch --list
      mrt-hpc data fetch math500
      mrt-hpc data fetch numina_math_4000 /shared/me/data/numina_math_4000.jsonl
    """
    from mrt_hpc.datasets.named import fetch_data

    if listing:
        _print_list()
        return
    if name is None:
        raise UserError("the name of a data set is missing", advice="mrt-hpc data fetch --list")
    _print_prepared(fetch_data(name, output, force=force))


def _print_list() -> None:
    from mrt_hpc.datasets.named import ORDERS
    from mrt_hpc.datasets.sources import Selection, hub_name

    table = table_of("data sets of the paper", "name", "problems", "meaning", "on the hub", right=("problems",))
    for order in ORDERS:
        repository, part = hub_name(order.source, Selection())
        place = f"{repository}@{(part.revision or '')[:8]}/{part.split}"
        table.add_row(order.output.stem, f"{order.problems:,}", order.about, place)
    Terminal(sys.stdout).print(table)
    echo("next: mrt-hpc data fetch NAME")


def _print_prepared(prepared: "Prepared") -> None:
    from mrt_hpc.datasets.conversion import record_file

    record, output = prepared.record, prepared.output
    drawn = f", a sample of {record.sampled_of:,} with seed {record.sample_seed}" if record.sampled_of else ""
    kept = f", {record.kept}" if record.kept else ""
    echo(f"{'wrote' if prepared.new else 'there already:'} {output}: {record.problems:,} problems{kept}{drawn}")
    part = f" ({record.config}, {record.split})" if record.split else ""
    commit = "" if record.revision is None or record.revision in record.source else f", commit {record.revision}"
    echo(
        f"  from {record.source}{part}{commit}: {record.rows:,} rows of {', '.join(file.name for file in record.files)}"
    )
    columns = record.columns
    made = f"id from {columns.id}" if columns.id else "ids made"
    echo(f"  problem from column {columns.problem}, answer from {columns.answer}, {made}")
    if columns.choices:
        echo(f"  choices from {columns.choices}: the answers are letters, for the verifier choice")
    if prepared.unread:
        echo(f"  not read: {', '.join(prepared.unread)}")
    if prepared.doubtful:
        shown = ", ".join(prepared.doubtful[:SHOWN])
        echo(
            f"  {len(prepared.doubtful)} solutions box different answers, of which the last is the gold answer: {shown}"
        )
    if record.dropped:
        echo(f"  {record.dropped:,} rows made no problem and were left out")
    for row in prepared.dropped if drawn == "" else ():
        echo(f"left out {row}", err=True)
    echo(f"  source and checksums: {record_file(output)}")
    checked = [output, "--verifier", "choice"] if columns.choices else [output]
    echo(Advice("next: mrt-hpc data check {checked}", checked=checked))


def _print_checked(report: "CheckReport") -> None:
    from mrt_hpc.datasets.check import FindingKind

    kinds = [kind for kind in FindingKind if any(finding.kind is kind for finding in report.findings)]
    counted = ("problems", *(kind.heading for kind in kinds))
    sharing = [files for files in report.compared if any(report.count(kind, *files) for kind in kinds)]
    pairs = f", and {len(sharing)} of {len(report.compared)} pairs that share problems" if report.compared else ""
    table = table_of(f"each file{pairs}", "files", *counted, right=counted)
    problems: dict[tuple[str, ...], str] = {(file.file,): str(file.problems) for file in report.files}
    for files in (*problems, *sharing):
        counts = (report.count(kind, *files) for kind in kinds)
        table.add_row(" and ".join(files), problems.get(files, ""), *(str(count or "") for count in counts))
    Terminal(sys.stdout).print(table)
    for kind in kinds:
        found = [finding for finding in report.findings if finding.kind is kind]
        for files in dict.fromkeys(finding.files for finding in found):
            _print_kind(kind.heading, files, [finding for finding in found if finding.files == files], report)
    echo("nothing was found" if report.clean else f"{len(report.findings)} findings")


def _print_kind(title: str, files: tuple[str, ...], findings: "list[Finding]", report: "CheckReport") -> None:
    """The first of each file or pair of files, and the share of the problems of a file that they are about."""
    named = {place for finding in findings for place in finding.places if place.line}
    problems = sum(file.problems for file in report.files if (file.file,) == files)
    share = f": {len(named)} of {problems} problems, {len(named) / problems:.1%}" if named and problems else ""
    echo(f"{title}: ", "bold", end="")
    echo(f"{' and '.join(files)}{share}")
    for finding in findings[:SHOWN]:
        echo(f"  {_line(finding)}")
    if len(findings) > SHOWN:
        echo(f"  and {len(findings) - SHOWN} more; --json shows all")


def _line(finding: "Finding") -> str:
    named = (f"line {place.line}" + (f" ({place.id})" if place.id else "") for place in finding.places if place.line)
    overlap = f"overlap {finding.overlap:.2f}" if finding.overlap is not None else ""
    detail = finding.detail if len(finding.detail) <= SHOWN_CHARS else finding.detail[: SHOWN_CHARS - 3] + "..."
    return "; ".join(filter(None, (", ".join(named), overlap, detail.replace("\n", " "))))


@click.group(short_help="Fetch models from the Hugging Face hub.")
def model() -> None:
    """Fetch models from the Hugging Face hub, as compute nodes have no network.

    \b
    Examples:
      mrt-hpc model fetch deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
    """


@model.command("fetch", short_help="Fetch a model into the hub's cache.")
@click.argument("name", metavar="OWNER/NAME[@REVISION]")
@click.option(
    "--cache",
    type=options.FOLDER,
    help="The hub's cache. Default: that of HF_HUB_CACHE or HF_HOME, else ~/.cache/huggingface/hub.",
)
def fetch_from_hub(name: str, cache: Path | None) -> None:
    """Fetch the model OWNER/NAME into the hub's cache, where recipes find it as hub:OWNER/NAME.

    Only configuration, tokenizer and safetensors are fetched. Each file is compared with the hub's checksum. REVISION
    is a branch, a tag or a commit; the commit that it means now is kept. After an interruption the same command
    fetches the files that are missing. Type it on a node with network access, and put the cache on a filesystem that
    the compute nodes share.

    \b
    Examples:
      mrt-hpc model fetch deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
      mrt-hpc model fetch agentica-org/DeepScaleR-1.5B-Preview --cache /shared/me/hub
    """
    from mrt_hpc.hub import fetch_model
    from mrt_hpc.recipe.hub_models import HubModel, cache_directory

    place, asked = None if cache is None else cache.expanduser().absolute(), HubModel.of(name)
    directory = fetch_model(asked, place)
    pinned = HubModel(asked.repository, directory.name).text
    sizes = [path.stat().st_size for path in directory.iterdir()]
    echo(f"fetched {pinned}: {len(sizes)} files, {sum(sizes) / 1e9:,.2f} GB, all checksums hold")
    echo(f"  directory: {directory}")
    echo(f'  in a recipe: model: {{type: hugging_face, path: "hub:{pinned}"}}')
    if place is not None and place != cache_directory():
        echo(f"  before plan, submit and eval, type: export HF_HUB_CACHE={place}")
    echo(Advice("next: mrt-hpc plan RECIPE --set model.path=hub:{text}", text=asked.text))
