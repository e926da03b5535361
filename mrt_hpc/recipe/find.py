"""The recipes, suites and site profiles that a command finds by a path, or by a name in the folders that hold them.

Completion in a shell reads this module, so it imports nothing that takes time.
"""

import os
import shlex
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mrt_hpc
from mrt_hpc.errors import UserError, nearest

SUFFIXES = (".yaml", ".yml")
LIST = "mrt-hpc recipes list"
"""The command that shows all files of these kinds."""
OTHER_KINDS = frozenset({"bases", "suites"})
"""The folders below the recipes whose files are no recipes: what recipes extend, and suites."""


@dataclass(frozen=True)
class Kind:
    """A kind of file that a command takes by its name."""

    word: str
    """The kind in words, for messages."""
    checkout: Path
    """Its folder in a checkout."""
    folder: str
    """Name of its folder in the user's configuration, and beside an installed package."""
    command: str
    """The command that takes the name of one."""


RECIPES = Kind("recipe", Path("recipes"), "recipes", "mrt-hpc plan {name}")
SUITES = Kind("suite", Path("recipes") / "suites", "recipes/suites", "mrt-hpc eval MODEL --suite {name}")
SITES = Kind("site profile", Path("slurm") / "sites", "sites", "mrt-hpc plan RECIPE --site {name}")
EXAMPLES = Kind("example", Path("tests") / "examples", "examples", "mrt-hpc recipes copy example:{name}")
"""Modules with classes of a user's own, which are copied beside a recipe."""

KINDS = (RECIPES, SUITES, SITES)


@dataclass(frozen=True)
class CatalogueEntry:
    """A file that a command finds by its name."""

    kind: Kind
    name: str
    path: Path

    @property
    def about(self) -> str:
        """The first sentence of its first line, where that is a comment."""
        with self.path.open(encoding="utf-8", errors="replace") as stream:
            first = stream.readline().strip()
        sentence, more, _ = first.lstrip("# ").partition(". ")
        return sentence + more.strip() if first.startswith("#") else ""


def expanded(text: str) -> Path:
    """A path as it was typed, with the home directory for ``~``.

    Raises:
        UserError: it begins with the name of a user whose home directory is not known.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UserError(
            "no home directory is known for this path", value=text, advice="write the path in full"
        ) from error


def find(kind: Kind, name: str, *, typed: bool = True) -> Path:
    """The file of this path or name.

    Args:
        kind: of file.
        name: a path; or a path within one of the folders, with or without its suffix.
        typed: whether the user has just typed it, so that a path may begin at the working directory.

    Raises:
        UserError: there is none; the error names the folders that were searched.
    """
    path = expanded(name)
    if (typed or path.is_absolute()) and path.is_file():
        return path
    within = path.relative_to(kind.checkout) if path.is_relative_to(kind.checkout) else path
    for folder in folders(kind):
        for candidate in spellings(folder / within):
            if candidate.is_file():
                return candidate
    raise _not_found(kind, name, path, within)


def folders(kind: Kind) -> list[Path]:
    """The folders in which a name is looked up, whether they exist or not; the first folder that has the file is used.

    The user's own, the one below the working directory, the one of the checkout that the package runs from, and those
    installed with the package.
    """
    package = Path(mrt_hpc.__file__).resolve().parents[1]
    of_checkout = [package / kind.checkout] if (package / "pyproject.toml").is_file() else []
    candidates = [
        configuration() / kind.folder,
        Path.cwd() / kind.checkout,
        *of_checkout,
        *(folder / kind.folder for folder in installed_folders()),
    ]
    return list(dict.fromkeys(candidates))


def configuration() -> Path:
    """The folder of the user's own settings, recipes and site profiles, whether it exists or not. A relative
    ``XDG_CONFIG_HOME``, which would mean another folder in each working directory, is passed over.
    """
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".config") / "mrt-hpc"


DATA = "MRT_HPC_DATA"
"""The variable with the folder of the user's data files."""


def data_folder() -> Path:
    """The folder of the user's data files, whether it exists or not: ``mrt-hpc data fetch`` writes there, and recipes
    find there what is not where they say.
    """
    if named := os.environ.get(DATA):
        return expanded(named).absolute()
    shared = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".local" / "share") / "mrt-hpc" / "data"


def data_file(folder: Path, named: str) -> Path:
    """A data file that a recipe names, whether it exists or not. A relative path starts at the folder of the recipe; if
    no file is there, it is the file of that name in the user's data folder. A recipe of an installed package, whose
    folder is no place for data, has it there in any case.

    Args:
        folder: of the recipe.
        named: the path in the recipe.
    """
    path, own = expanded(named), data_folder() / Path(named).name
    if path.is_absolute() or (folder / path).is_file():
        return folder / path
    installed = any(folder.is_relative_to(place) for place in installed_folders())
    return own if installed or own.is_file() else folder / path


def entries(kind: Kind) -> list[CatalogueEntry]:
    """All files of a kind by their names, sorted, and those of subfolders last. Of several with one name only the first
    is there, as it is the one that commands take.
    """
    named: dict[str, CatalogueEntry] = {}
    for folder in folders(kind):
        for entry in _entries_in(kind, folder):
            named.setdefault(entry.name, entry)
    return list(named.values())


def _entries_in(kind: Kind, folder: Path) -> Iterator[CatalogueEntry]:
    for path in sorted(_files(folder.rglob("*")), key=lambda path: (path.parent != folder, path)):
        within = path.relative_to(folder)
        if not OTHER_KINDS & set(within.parts):
            yield CatalogueEntry(kind, str(within.with_suffix("")), path)


def examples() -> dict[str, CatalogueEntry]:
    """The modules with classes of a user's own that can be copied, by their names."""
    paths = [path for folder in reversed(folders(EXAMPLES)) for path in sorted(folder.glob("*.py"))]
    return {path.stem: CatalogueEntry(EXAMPLES, path.stem, path) for path in paths}


def known_names(kind: Kind) -> list[str]:
    """The names of all files of a kind in its folders, each once, in alphabetical order; without those of bases."""
    return sorted(entry.name for entry in entries(kind))


def installed_folders() -> list[Path]:
    """The folders of the files that come with an installed package, whether they exist or not: for all users of this
    Python, and for one.
    """
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    return [Path(sysconfig.get_path("data", scheme)) / "share" / "mrt-hpc" for scheme in schemes]


def is_of_the_package(path: Path) -> bool:
    """Whether a file came with the package, in a checkout or installed."""
    folders_of_it = (Path(mrt_hpc.__file__).resolve().parents[1], *installed_folders())
    return any(path.resolve().is_relative_to(folder) for folder in folders_of_it)


def spellings(path: Path) -> list[Path]:
    """The files that a path without its suffix may mean."""
    if path.suffix in SUFFIXES or not path.name:
        return [path]
    return [path.with_name(path.name + suffix) for suffix in SUFFIXES]


def _not_found(kind: Kind, name: str, path: Path, within: Path) -> UserError:
    """The error with the name, the nearest one that is there, and each place that was searched."""
    beside = path.parent.absolute()
    places = {beside: [str(path.parent / file.name) for file in _files(beside.glob("*"))]}
    places |= {folder: names_in(folder) for folder in folders(kind)}
    known = sorted({known for names in places.values() for known in names})
    guess = next((file for file in places[beside] if Path(file).with_suffix("") == path), None)
    guess = guess or nearest(str(path), known) or nearest(str(within.parent / within.stem), known)
    return UserError(
        f"there is no such {kind.word}",
        value=name,
        expected=f"{guess} is the nearest" if guess else f"a name that {LIST} shows, or a path",
        where=", ".join(str(place) for place in places if place.is_dir()),
        advice=f"{kind.command.format(name=shlex.quote(guess))}; {LIST} shows all" if guess else LIST,
    )


def names_in(folder: Path) -> list[str]:
    """The names of the files in a folder and below it, without the bases that other files extend."""
    files = (file.relative_to(folder) for file in _files(folder.rglob("*")))
    return [str(file.with_suffix("")) for file in files if not OTHER_KINDS & set(file.parts)]


def _files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix in SUFFIXES and path.is_file())
