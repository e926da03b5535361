"""The brake: the size of each room, names that stand for two things, files that are too short or too long or hold two
concepts, and circles of imports. ``python tests/unit/test_size.py`` prints the tables of ``tests/cases/size.yaml``
as the package is now.

A room is a folder or a module at the top of ``mrt_hpc``. Lines of code are lines without blanks, comments and
docstrings. A commit that raises a number, or adds to a list, writes the reason beside it.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

PACKAGE = Path(__file__).parents[2] / "mrt_hpc"


TABLES = YAML(typ="safe", pure=True).load(Path(__file__).parents[1] / "cases" / "size.yaml")
ROOMS: dict[str, int] = TABLES["rooms"]
SHORT: dict[str, str] = TABLES["short"]
STARTED: dict[str, str] = TABLES["started"]
ONE_CONCEPT: dict[str, str] = TABLES["one_concept"]

LEAST, MOST, STEP = 40, 450, 20
ONE_FILE_EACH = {"algorithms", "modes", "mrt", "provers"}
"""Rooms with one file for each algorithm, prover and so on, which may be short: a reader looks for it by its name."""
SAME_PART = {"__init__", "base", "backend", "site"}
"""Files that siblings have, each for its own folder."""
MOST_WORDS = 90_000
"""The words of all docstrings: those below attributes too."""
MOST_ODD_NAMES = 0.03
"""The share of functions that are named by a participle alone, or begin with a preposition: a reader cannot tell
whether such a function acts or returns something.
"""
SUBJECTLESS = re.compile(
    r"^\s*(What|How|Why|Those)\b|\b[Tt]hat which\b|\bwhat (is|a|they)\b|\bwhere (it|they|none)\b|\bthose (of|that)\b"
)
"""Relative clauses and pronouns in the place of the thing that they stand for."""
MOST_SUBJECTLESS = 0.09
"""The share of docstrings with one of them; they were a third."""
LITERARY = re.compile(r"\b([Nn]obody|[Ww]hoever|[Aa]new|under way|[Ss]omebody)\b")
PREPOSITIONS = re.compile(
    "(with|without|in|on|at|by|for|from|of|to|as|beside|below|behind|between|after|before|during)$"
)
PARTICIPLES = re.compile(
    "(?!(seed|speed|need|embed|token|even|string|setting|meaning|warning)$)[a-z]{2,}(ed|en|ing)$"
    "|(made|kept|sent|known|shown|begun|found|left|lost|held|told|done|built|bound|understood)$"
)
QUESTION = (
    "Ask before you go on: which concept is this, where does it live, and what can go? If it has to grow, put the line "
    "below into tests/cases/size.yaml, with the reason beside it:"
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
def code_of(path: Path) -> frozenset[int]:
    """The numbers of the lines of code."""
    texts: set[int] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in blank:
            code.update(range(token.start[0], token.end[0] + 1))
    return frozenset(code - texts)


def code_lines(path: Path) -> int:
    return len(code_of(path))


def rooms() -> dict[str, int]:
    lines: dict[str, int] = defaultdict(int)
    for path in paths():
        if (room := Path(name_of(path)).parts[0].removesuffix(".py")) not in ("__init__", "__main__"):
            lines[room] += code_lines(path)
    return dict(sorted(lines.items()))


def row(room: str, lines: int) -> str:
    """The line of a room in the table."""
    return f"  {room}: {-(-lines // STEP) * STEP}"


class Part(NamedTuple):
    """Functions, classes and constants of a file that are joined by the names that they use."""

    lines: int
    names: list[str]
    linked: set[str]

    @property
    def in_words(self) -> str:
        return f"{self.lines} lines: {', '.join(self.names[:4])}"


def parts(path: Path) -> list[Part]:
    """The parts of a file that share no name."""
    defined = [(node, names) for node in tree_of(path).body if (names := names_defined(node))]
    own = {name for _, names in defined for name in names}
    found: list[Part] = []
    for node, names in defined:
        linked = own & {*names, *names_used(node)}
        first = min(n.lineno for n in (node, *getattr(node, "decorator_list", [])))
        lines = len(code_of(path) & {*range(first, (node.end_lineno or first) + 1)})
        joining = [part for part in found if part.linked & linked]
        found = [part for part in found if not part.linked & linked]
        whole = [name for part in joining for name in part.names]
        linked |= {name for part in joining for name in part.linked}
        found.append(Part(lines + sum(part.lines for part in joining), [*whole, *names], linked))
    return found


def names_defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def names_used(node: ast.stmt) -> set[str]:
    """Annotations may be texts."""
    nodes = list(ast.walk(node))
    texts = {each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {each.id for each in nodes if isinstance(each, ast.Name)} | texts


def several_concepts() -> dict[str, list[str]]:
    """Files with two or more parts that are each long enough for a file."""
    large = {name_of(path): [part.in_words for part in parts(path) if part.lines >= LEAST] for path in paths()}
    return {name: found for name, found in large.items() if len(found) > 1}


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


def unused_modules() -> set[str]:
    """The modules that no other imports, and whose whole name stands in no text of the package."""
    graph = imports(types=True)
    texts = "\n".join(path.read_text() for path in paths())
    alone = graph.keys() - set().union(*graph.values(), {name.rpartition(".")[0] for name in graph})
    return {name for name in alone if not re.search(rf"{re.escape(name)}\b(?![.])", texts)}


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
        f"{row(room, lines)}  # has {lines} lines of code; it was {ROOMS.get(room)}"
        for room, lines in rooms().items()
        if lines > ROOMS.get(room, 0)
    ]
    assert grown == [], f"{QUESTION}\n" + "\n".join(grown)
    assert ROOMS.keys() - rooms().keys() == set(), "take these out of `rooms`"


def functions() -> list[str]:
    nodes = [node for path in paths() for node in ast.walk(tree_of(path))]
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def is_odd(name: str) -> bool:
    first, *more = name.strip("_").split("_")
    return bool(PREPOSITIONS.match(first) or (not more and PARTICIPLES.match(first)))


def test_a_function_is_named_by_what_it_does_or_returns() -> None:
    odd = sorted(name for name in functions() if is_odd(name))
    advice = "a verb for what acts, a noun for what returns something"
    assert len(odd) <= MOST_ODD_NAMES * len(functions()), f"{advice}: {', '.join(odd)}"


def docstrings(path: Path) -> list[str]:
    bodies = [getattr(node, "body", ()) for node in ast.walk(tree_of(path))]
    lines = [line.value for body in bodies if isinstance(body, list) for line in body if isinstance(line, ast.Expr)]
    return [x.value for x in lines if isinstance(x, ast.Constant) and isinstance(x.value, str)]


def test_docstrings_say_what_names_cannot_and_no_more() -> None:
    assert sum(len(text.split()) for path in paths() for text in docstrings(path)) <= MOST_WORDS


def test_sentences_have_a_subject_and_no_literary_turn() -> None:
    texts = [text for path in paths() for text in docstrings(path)]
    without = sum(SUBJECTLESS.search(text) is not None for text in texts) / len(texts)
    assert without <= MOST_SUBJECTLESS, "name the thing and what acts: see sentences that begin with What, How, Those"
    pages = [page.read_text() for page in (PACKAGE.parent / "README.md", *(PACKAGE.parent / "docs").glob("*.md"))]
    assert [found[0] for text in (*texts, *pages) if (found := LITERARY.search(text))] == []


def test_no_class_name_stands_in_two_files() -> None:
    advice = "one thing, one name: if both are the same thing keep one class, otherwise give the new one a name"
    assert classes_twice() == {}, advice


def test_no_file_name_stands_for_two_things() -> None:
    assert files_twice() == {}, "a reader looks for a concept by its name: give one of these files another"


def test_no_file_is_too_short() -> None:
    short = short_files()
    new = {name: lines for name, lines in short.items() if name not in SHORT}
    assert new == {}, f"fewer than {LEAST} lines are no concept: where would a reader look for this?"
    assert SHORT.keys() - short.keys() == set(), "these are long enough now, or gone: take them out of `short`"


def test_no_file_is_too_long() -> None:
    long = {name_of(path): code_lines(path) for path in paths() if code_lines(path) > MOST}
    assert long == {}, f"more than {MOST} lines hold two concepts: which?"


def test_no_file_holds_two_concepts() -> None:
    several = several_concepts()
    new = {file: found for file, found in several.items() if file not in ONE_CONCEPT}
    assert new == {}, "these share no name: which concept is each? Give one of them a file, named by its concept"
    assert ONE_CONCEPT.keys() - several.keys() == set(), "these have one part now, or are gone: take them out"
    assert len(ONE_CONCEPT) <= 3, "cut a file instead"


def test_two_concepts_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text("LEFT = 1\n\n\ndef left() -> int:\n    return LEFT\n\n\ndef right() -> int:\n    return 2\n")
    assert [(part.lines, part.names) for part in parts(file)] == [(3, ["LEFT", "left"]), (2, ["right"])]


def test_every_module_is_used() -> None:
    assert {name.removeprefix("mrt_hpc.") for name in unused_modules()} == STARTED.keys()


def test_imports_make_no_circle() -> None:
    assert circle(imports(types=False)) == []
    assert circle(joined(imports(types=True), "mrt_hpc.recipe")) == [], "in annotations, outside mrt_hpc/recipe"


def test_a_circle_would_be_found() -> None:
    graph = {"a.x": {"a.y"}, "a.y": {"a.x", "b"}, "b": set()}
    assert circle(graph) and circle(joined(graph, "a")) == []
    assert circle(joined({**graph, "b": {"a.x"}}, "a"))


def tables() -> str:
    """The tables at the top as the package is now. A reason that is not there yet is empty."""
    printed = [
        *("rooms:", *(row(room, lines) for room, lines in rooms().items())),
        *("short:", *(f"  {name}: {SHORT.get(name, '')}" for name in short_files())),
    ]
    sizes = sorted(code_lines(path) for path in paths() if path.stem != "__init__")
    median, longest = sizes[len(sizes) // 2], sizes[-1]
    printed += [
        f"# {sum(sizes)} lines of code in {len(sizes)} files and {len(paths()) - len(sizes)} __init__; of a file",
        f"# {median} lines in the median, {longest} at most",
    ]
    return "\n".join(printed)


if __name__ == "__main__":
    print(tables())
