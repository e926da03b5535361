"""The places of the package at which files or names change, found in its text."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "mrt_hpc"
METHODS = frozenset({
    "write_text", "write_bytes", "rename", "unlink", "mkdir", "rmdir", "touch", "symlink_to", "hardlink_to", "link",
    "fsync", "rmtree", "copyfile", "copy2", "copytree", "move", "truncate", "makedirs", "save_pretrained", "ZipFile",
    "save_file", "ParquetWriter", "write_table",
})  # fmt: skip
WRITERS = frozenset({
    "write_json", "write_text", "replace_file", "create_file", "create_text", "commit_directory", "commit_whole",
    "make_folder", "remove_whole", "move_path", "write_manifest",
})  # fmt: skip
"""Functions of the package that change files for others."""
WRITING, LONGEST_MODE = frozenset("wax+"), 3
WRITING_FLAGS = frozenset({"O_CREAT", "O_WRONLY", "O_RDWR"})
COMMANDS = "what a command writes for its user, outside of runs: the user types it again"
NODE = "files of one node, which end with the process that uses them"
INSIDE = "writes into a folder that is committed as a whole afterwards: the crash is in the commit"
FAILED = "tidies up after a failure, and changes nothing after a success"
WANDB = "files of W&B, which are made again"
AGAIN = "written again from the results, or by the next attempt or submission"
ATTEMPT = "files of one attempt, of which the next one has its own"
EXCEPTIONS = {
    "analysis/findings.py": AGAIN, "analysis/figures.py": AGAIN, "analysis/report/": AGAIN,
    "run/evaluation_settings.py pass_over": AGAIN, "run/prompt_files.py": AGAIN,
    "algorithms/samples.py write_samples": AGAIN, "submit/software.py _image": AGAIN,
    "roles/sampling/ray_cluster.py": ATTEMPT, "training/rendezvous.py": ATTEMPT, "training/folder_store.py": ATTEMPT,
    "roles/training/artifacts.py keep_skipped": "one file for a person to read, written whole",
    "attempt/ledger.py record_cancellation": "one file, with which explain names who ended the run",
    "run/events.py _append": "events are for people: a run goes on without them",
    "roles/stored_parts.py of": "a folder, in which the samples of the protocol lie",
    "submit/cleaning.py remove": "the protocol removes the same way, without a queue to ask",
    "cli/": COMMANDS, "cluster/": COMMANDS, "datasets/": COMMANDS, "hub.py": COMMANDS, "images.py": COMMANDS,
    "backends/user_settings.py": COMMANDS, "domains/": COMMANDS,
    "inference/": NODE, "roles/sampling/verified_weights.py": NODE, "run/turns.py": NODE, "run/access.py _mkdir": NODE,
    "training/small_model.py make_small": NODE,
    "backends/slurm/after_srun.py _scratch_fault": NODE,
    "recipe/user_code.py keep": INSIDE, "training/export.py write": INSIDE, "run/parquet.py write_table": INSIDE,
    "run/weights.py take_over": INSIDE,
    "run/atomic.py _remove_rest": FAILED,
    "run/manifest.py commit_whole": FAILED, "submit/create.py create_or_open": FAILED,
    "training/checkpoint.py save": FAILED, "run/quarantine.py set_aside": FAILED,
    "backends/slurm/arrays.py": "submitit's files of one submission: a job without them ends, and is sent again",
    "evaluate/regrade.py _regrade": "removes what the shards hold by then",
    "roles/evaluation.py summarise_if_complete": "removes what the shards hold by then",
    "roles/tracking.py _settle": WANDB, "run/process.py start_process": "output of processes",
    "roles/tracking.py of": WANDB,
    "roles/tracking.py run_id": WANDB,
    "roles/tracking.py log": WANDB,
    "submit/upload.py": WANDB,
    "roles/tracking.py _stage_run": WANDB,
    "roles/tracking.py __init__": "event files, which are made again from the metrics",
}  # fmt: skip
"""Places at which nothing crashes, by the beginning of a file's name or by file and function, each with the reason."""


def excused(place: str, function: str) -> bool:
    """Whether a place stands among the exceptions."""
    file = place.partition(":")[0]
    return any(file.startswith(name) if " " not in name else name == f"{file} {function}" for name in EXCEPTIONS)


def change_sites() -> dict[str, str]:
    """Each such call as ``run/atomic.py:93``, with the name of its function."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for function, call in _calls(ast.parse(file.read_text()), ""):
            if _changes_files(call) or getattr(call.func, "id", getattr(call.func, "attr", "")) in WRITERS:
                found[f"{file.relative_to(PACKAGE)}:{call.lineno}"] = function
    return found


def _calls(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else function
        if isinstance(child, ast.Call):
            yield function, child
        yield from _calls(child, inner)


def _changes_files(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "open":
        modes = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        flags = {n.attr for a in call.args for n in ast.walk(a) if isinstance(n, ast.Attribute)}
        return any({*mode} & WRITING for mode in modes if len(mode) <= LONGEST_MODE) or bool(flags & WRITING_FLAGS)
    if not isinstance(call.func, ast.Attribute):
        return False
    if name == "ZipFile":
        return len(call.args) > 1
    if name == "replace":  # that of a text has two arguments
        return len(call.args) == 1 and not call.keywords
    if name == "copy":
        return getattr(call.func.value, "id", "") == "shutil"
    return name in METHODS
