"""The brake: the size of each room, names that stand for two things, files that are too short or too long, the share of
imports, and their circles. ``python tests/unit/test_size.py`` prints the tables below as the package is now.

A room is a folder or a module at the top of ``mrt_hpc``. Lines of code are lines without blanks, comments and
docstrings. A commit that raises a number, or adds to a list, writes the reason beside it.
"""

import ast
import io
import tokenize
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "mrt_hpc"


class Size(NamedTuple):
    """How large a room may be."""

    lines: int
    """Lines of code, rounded up to the next 20: a mended fault needs no new number."""
    files: int


# -- the tables: paste here what a failure or ``python tests/unit/test_size.py`` prints -------------------------------

ROOMS: dict[str, Size] = {
    "algorithms": Size(700, 11),  # samples and starts are those of algorithms
    "analysis": Size(4780, 27),  # arms over seeds, also in reports; the figures of the paper; equivalence
    "attempt": Size(1380, 12),  # a job that takes a task over looks once more whether its heart has beaten
    "backends": Size(2680, 22),  # what nvidia-smi and CUDA_VISIBLE_DEVICES say counts only where it names GPUs
    "cli": Size(3360, 21),  # submit RUN, sweeps, judge, traces, check, names of other trainers
    "cluster": Size(2200, 15),
    "datasets": Size(1220, 6),  # what is damaged, cut or leads outside is refused, and numbers keep their digits
    "domains": Size(2120, 18),
    "errors": Size(60, 1),
    "evaluate": Size(840, 7),  # what a run takes for granted of own classes, for `check`
    "hub": Size(100, 1),
    "images": Size(200, 1),
    "inference": Size(2440, 19),  # a sample of a pause is one of the new weights, whatever a model calls its embedding
    "modes": Size(400, 6),
    "mrt": Size(560, 14),
    "plan": Size(1240, 6),  # the numbers of a shape are checked
    "provers": Size(660, 11),
    "recipe": Size(2900, 19),  # headers of weights, and the tokens that end a sequence, are checked
    "roles": Size(4380, 28),  # stored samples and groups are checked for what they hold; what a report may compare
    "run": Size(2960, 27),  # a group is checked for the numbers of its rollouts; a field that stands twice
    "submit": Size(1160, 9),  # files of examples and own verifiers are tried before the queue
    "training": Size(2360, 16),  # copies between a GPU and the host, fast, have a file
    "view": Size(1200, 8),  # explain knows of `cancel`
}
SHORT: dict[str, str] = {
    "__main__.py": "python -m mrt_hpc",
    "attempt/placement.py": "which rank of which attempt a process is",
    "backends/local/site.py": "each back end has a site",
    "inference/ray_node_main.py": "the main module of a process",
    "recipe/choices.py": "imported without the classes of the registry",
    "run/seeds.py": "where every seed comes from",
    "run/wandb_runs.py": "status reads it without the libraries of the upload",
    "training/accelerator.py": "the one place that imports DeepSpeed",
}
"""Files with fewer than 40 lines of code, each with the reason why it is a file."""

# ---------------------------------------------------------------------------------------------------------------------

LEAST, MOST, STEP = 40, 450, 20
MOST_IMPORTS = 0.105
"""The share of the lines of code that may be imports."""
ONE_FILE_EACH = {"algorithms", "modes", "mrt", "provers"}
"""Rooms with one file for each algorithm, prover and so on, which may be short: a reader looks for it by its name."""
SAME_PART = {"__init__", "base", "backend", "site"}
"""Files that siblings have, each for its own folder."""
QUESTION = (
    "Ask before you go on: which concept is this, where does it live, and what can go? If it has to grow, put the line "
    "below into tests/unit/test_size.py, with the reason beside it:"
)


def paths() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The path within the package."""
    return str(path.relative_to(PACKAGE))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def code_lines(path: Path) -> int:
    texts: set[int] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in blank:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def rooms() -> dict[str, Size]:
    files: dict[str, list[int]] = defaultdict(list)
    for path in paths():
        if (room := Path(name_of(path)).parts[0].removesuffix(".py")) not in ("__init__", "__main__"):
            files[room].append(code_lines(path))
    return {room: Size(sum(lines), len(lines)) for room, lines in sorted(files.items())}


def row(room: str, size: Size) -> str:
    """The line of a room in the table."""
    return f'    "{room}": Size({-(-size.lines // STEP) * STEP}, {size.files}),'


def classes_twice() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for path in paths():
        for name in {node.name for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)}:
            places[name].append(name_of(path))
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def files_twice() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for path in paths():
        places[path.stem].append(name_of(path))
    return {name: files for name, files in sorted(places.items()) if len(files) > 1 and not same_part(name, files)}


def same_part(name: str, files: list[str]) -> bool:
    """Whether files of one name play the same part: siblings, a command and what it shows, or an algorithm and its
    formulas.
    """
    folders = {file.partition("/")[0] for file in files}
    return name in SAME_PART or folders == {"algorithms", "mrt"} or (len(files) == 2 and folders == {"cli", "view"})


def short_files() -> dict[str, int]:
    files = [path for path in paths() if path.stem != "__init__" and path.parent.name not in ONE_FILE_EACH]
    sizes = {name_of(path): code_lines(path) for path in files}
    return {name: lines for name, lines in sizes.items() if lines < LEAST}


def imports(*, types: bool) -> dict[str, set[str]]:
    """The modules that each module imports, within functions too, and with ``types`` also those that it imports for
    its annotations alone.
    """
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in paths()}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        named: set[str] = set()
        nodes: list[ast.AST] = [tree_of(path)]
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not types:
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    named.add(whole if whole in modules else node.module)
            elif isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
            nodes += ast.iter_child_nodes(node)
        graph[module] = (named & modules.keys()) - {module}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of imports, empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def joined(graph: dict[str, set[str]], room: str) -> dict[str, set[str]]:
    """The graph with all modules of a room as one."""
    whole: dict[str, set[str]] = defaultdict(set)
    for module, others in graph.items():
        name = room if module.startswith(f"{room}.") else module
        whole[name] |= {room if other.startswith(f"{room}.") else other for other in others} - {name}
    return whole


def test_no_room_grows_unnoticed() -> None:
    grown = [
        f"{row(room, size)}  # has {size.lines} lines of code in {size.files} files; it was {ROOMS.get(room)}"
        for room, size in rooms().items()
        if room not in ROOMS or size.lines > ROOMS[room].lines or size.files > ROOMS[room].files
    ]
    assert grown == [], f"{QUESTION}\n" + "\n".join(grown)
    assert ROOMS.keys() - rooms().keys() == set(), "take these out of ROOMS"


def test_no_class_name_stands_in_two_files() -> None:
    advice = "one thing, one name: if both are the same thing keep one class, otherwise give the new one a name"
    assert classes_twice() == {}, advice


def test_no_file_name_stands_for_two_things() -> None:
    assert files_twice() == {}, "a reader looks for a concept by its name: give one of these files another"


def test_no_file_is_too_short() -> None:
    short = short_files()
    new = {name: lines for name, lines in short.items() if name not in SHORT}
    assert new == {}, f"fewer than {LEAST} lines are no concept: where would a reader look for this?"
    assert SHORT.keys() - short.keys() == set(), "these are long enough now, or gone: take them out of SHORT"


def test_no_file_is_too_long() -> None:
    long = {name_of(path): code_lines(path) for path in paths() if code_lines(path) > MOST}
    assert long == {}, f"more than {MOST} lines hold two concepts: which?"


def imports_share() -> float:
    """The share of the lines of code that import names."""
    nodes = [node for path in paths() for node in ast.walk(tree_of(path))]
    lines = sum((n.end_lineno or 0) - n.lineno + 1 for n in nodes if isinstance(n, ast.Import | ast.ImportFrom))
    return lines / sum(map(code_lines, paths()))


def test_few_lines_are_imports() -> None:
    assert imports_share() <= MOST_IMPORTS, "join files that import nearly the same modules"


def test_imports_make_no_circle() -> None:
    assert circle(imports(types=False)) == []
    assert circle(joined(imports(types=True), "mrt_hpc.recipe")) == [], "in annotations, outside mrt_hpc/recipe"


def test_a_circle_would_be_found() -> None:
    graph = {"a.x": {"a.y"}, "a.y": {"a.x", "b"}, "b": set()}
    assert circle(graph)
    assert circle(joined(graph, "a")) == []
    assert circle(joined({**graph, "b": {"a.x"}}, "a"))


def tables() -> str:
    """The tables at the top as the package is now. A reason that is not there yet is empty."""
    printed = [
        *("ROOMS: dict[str, Size] = {", *(row(room, size) for room, size in rooms().items()), "}"),
        *("SHORT: dict[str, str] = {", *(f'    "{name}": "{SHORT.get(name, "")}",' for name in short_files()), "}"),
    ]
    sizes = sorted(code_lines(path) for path in paths() if path.stem != "__init__")
    median, longest = sizes[len(sizes) // 2], sizes[-1]
    printed += [
        f"# {sum(sizes)} lines of code in {len(sizes)} files and {len(paths()) - len(sizes)} __init__; of a file",
        f"# {median} lines in the median, {longest} at most; {imports_share():.1%} are imports",
    ]
    return "\n".join(printed)


if __name__ == "__main__":
    print(tables())
