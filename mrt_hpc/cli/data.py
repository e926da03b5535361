"""``mrt-hpc data``: prepare and check data files."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(path_type=Path, dir_okay=False)


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
@click.argument("output", metavar="OUT", type=FILE)
@click.option(
    "--problem",
    metavar="COLUMN",
    help="Column of the problem, or several as in Body+Question. Default: problem, question, prompt or query.",
)
@click.option("--answer", metavar="COLUMN", help="Column of the answer. Default: answer, final_answer, solution, ...")
@click.option("--id", "id_column", metavar="COLUMN", help="Column of the id. Default: id, unique_id, or none: made.")
@click.option("--new-ids", is_flag=True, help="Make ids also where there is a column of them.")
@click.option("--choices", metavar="COLUMN", help="Column with the choices; the answer becomes the letter of one.")
@click.option("--any-answer", is_flag=True, help="Of a list of several answers in a row, take each one as right.")
@click.option("--ignore", "ignored", metavar="COLUMN", multiple=True, help="A column to leave out. Repeatable.")
@click.option("--split", help="The split of a data set that has several, as in test.")
@click.option("--config", help="The configuration of a data set that has several.")
@click.option("--revision", help="Branch, tag or commit of a data set of the hub. Default: its main branch.")
@click.option("--drop-bad", is_flag=True, help="Leave out rows that make no problem, and list them.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def prepare(
    source: str,
    output: Path,
    problem: str | None,
    answer: str | None,
    id_column: str | None,
    new_ids: bool,
    choices: str | None,
    any_answer: bool,
    ignored: tuple[str, ...],
    split: str | None,
    config: str | None,
    revision: str | None,
    drop_bad: bool,
    force: bool,
) -> None:
    r"""Write the problems of SOURCE to OUT, one JSON object a line with id, problem and answer.

    SOURCE is a file (.jsonl, .json, .parquet or .csv, texts also .gz or .zst), a folder with the files of a data set,
    or a data set of the Hugging Face hub: hub:OWNER/NAME[@REVISION][/SPLIT]. Of a column with whole solutions the
    answer is the content of the last \boxed{}, or what follows #### in the last line. A column that looks like a part
    of the question and is not read is an error. OUT.source.json says where OUT is from, with checksums.

    \b
    Examples:
      mrt-hpc data prepare rows.jsonl data/mine.jsonl
      mrt-hpc data prepare rows.parquet data/mine.jsonl --problem text --answer label
      mrt-hpc data prepare quiz.json data/quiz.jsonl --choices options --ignore table
      mrt-hpc data prepare hub:HuggingFaceH4/MATH-500/test data/math500.jsonl
    """
    from mrt_hpc.cli.data_tables import print_prepared
    from mrt_hpc.datasets.columns import Asked
    from mrt_hpc.datasets.prepare import Order
    from mrt_hpc.datasets.prepare import prepare as prepare_file
    from mrt_hpc.datasets.repository import Selection

    columns = Asked(problem, answer, id_column, new_ids, choices, ignored, any_answer)
    print_prepared(prepare_file(Order(source, output, Selection(revision, config, split), columns, drop_bad, force)))


@data.command(short_help="Check data files.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option(
    "--against",
    metavar="FILE",
    multiple=True,
    type=FILE,
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
@click.option(
    "--model",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="A model directory whose special tokens no problem may hold. Default: special tokens of many models.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, for programs.")
def check(files: tuple[Path, ...], against: tuple[Path, ...], verifier: str, model: Path | None, as_json: bool) -> None:
    """Check each FILE by itself, and each two of them for problems that they share.

    Tells lines that are no problems, ids and problems that repeat, problems that stand in two files (also in nearly the
    same words: 5-grams of words with a Jaccard similarity of at least 0.8), answers that the verifier cannot read,
    texts that a tokenizer reads as special tokens, and files that have changed since they were prepared. The exit
    status is 0 if nothing was found, and 2 otherwise.

    \b
    Examples:
      mrt-hpc data check data/*.jsonl
      mrt-hpc data check data/train.jsonl --against data/aime24.jsonl --against data/math500.jsonl
      mrt-hpc data check data/quiz.jsonl --verifier choice --json
    """
    from mrt_hpc.cli.data_tables import print_checked
    from mrt_hpc.datasets.check import Check
    from mrt_hpc.datasets.check import check as check_files
    from mrt_hpc.errors import ExitCode

    report = check_files(Check(files, against, verifier, model))
    print_checked(report, as_json=as_json)
    if not report.clean:
        click.get_current_context().exit(int(ExitCode.FATAL))
