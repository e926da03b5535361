"""Finds recipes, suites and site profiles by a path or a name. A shell's completion reads this module, so it imports
nothing that takes time.
"""

import os
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mrt_hpc
from mrt_hpc.errors import Advice, UserError, nearest

SUFFIXES = (".yaml", ".yml")
LIST = "mrt-hpc recipes list"
OTHER_KINDS = frozenset({"bases", "shapes", "suites"})
"""Folders below the recipes that hold none."""


@dataclass(frozen=True)
class Kind:
    word: str
    checkout: Path
    folder: str
    """Its name in the user's configuration, and beside an installed package."""
    command: str
    """The command that takes a name."""


RECIPES = Kind("recipe", Path("recipes"), "recipes", "mrt-hpc plan {name}")
SUITES = Kind("suite", Path("recipes") / "suites", "recipes/suites", "mrt-hpc eval MODEL --suite {name}")
SHAPES = Kind("shape", Path("recipes") / "shapes", "recipes/shapes", "mrt-hpc plan RECIPE --shape {name}")
SITES = Kind("site profile", Path("slurm") / "sites", "sites", "mrt-hpc plan RECIPE --site {name}")
EXAMPLES = Kind("example", Path("recipes") / "examples", "recipes/examples", "mrt-hpc recipes copy example:{name}")
"""The user's copies of these classes lie beside a recipe."""

KINDS = (RECIPES, SHAPES, SUITES, SITES)


@dataclass(frozen=True)
class CatalogueEntry:
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


def expand_home(text: str) -> Path:
    """Refuses the ``~`` of an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        what = "no home directory is known for this path"
        raise UserError(what, value=text, advice="write the path in full") from error


def here() -> Path:
    """The working directory as the shell says: other machines may lack the kernel's path behind a link or an
    automounter.
    """
    named = os.environ.get("PWD", "")
    with suppress(OSError):
        if Path(named).is_absolute() and ".." not in Path(named).parts and Path(named).samefile(""):
            return Path(named)
    return Path.cwd()


def absolute(path: Path) -> Path:
    return here() / path


def is_same_place(one: object, other: object) -> bool:
    """Whether two absolute paths lead to one file or folder, perhaps through a link."""
    if not (isinstance(one, str) and isinstance(other, str) and one.startswith("/") and other.startswith("/")):
        return False
    with suppress(OSError, ValueError):
        return Path(one).samefile(other)
    return False


def find(kind: Kind, name: str, *, typed: bool = True) -> Path:
    """The file of a path or a name; ``name`` may lack its suffix. Only a path that the user has just ``typed`` may
    begin at the working directory.
    """
    path = expand_home(name)
    if (typed or path.is_absolute()) and path.is_file():
        return path
    within = path.relative_to(kind.checkout) if path.is_relative_to(kind.checkout) else path
    for folder in folders(kind):
        for candidate in spellings(folder / within):
            if candidate.is_file():
                return candidate
    raise _not_found(kind, name, path, within)


def folders(kind: Kind) -> list[Path]:
    """The folders, existing or not, in the order of search: the user's own, below the working directory, of the
    checkout, installed with the package.
    """
    package = Path(mrt_hpc.__file__).resolve().parents[1]
    of_checkout = [package / kind.checkout] if (package / "pyproject.toml").is_file() else []
    own, installed = configuration() / kind.folder, (folder / kind.folder for folder in installed_folders())
    return list(dict.fromkeys([own, here() / kind.checkout, *of_checkout, *installed]))


def configuration() -> Path:
    """The folder of the user's settings, recipes and site profiles, existing or not. A relative ``XDG_CONFIG_HOME``
    would mean another folder in each working directory, and is passed over.
    """
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".config") / "mrt-hpc"


DATA = "MRT_HPC_DATA"


def data_folder() -> Path:
    """Existing or not: ``mrt-hpc data fetch`` writes there, and recipes find there what is not where they say."""
    if named := os.environ.get(DATA):
        return absolute(expand_home(named))
    shared = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".local" / "share") / "mrt-hpc" / "data"


def data_file(folder: Path, named: str) -> Path:
    """A data file, existing or not. A relative path starts at the recipe's folder, or else at the user's data folder;
    an installed package's folder is no place for data.
    """
    path, own = expand_home(named), data_folder() / Path(named).name
    if path.is_absolute() or (folder / path).is_file():
        return folder / path
    installed = any(folder.is_relative_to(place) for place in installed_folders())
    return own if installed or own.is_file() else folder / path


def entries(kind: Kind) -> list[CatalogueEntry]:
    """Sorted by name, those of subfolders last. Of equal names only the first, which commands take."""
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
    """Modules that ``recipes copy`` copies, by name."""
    paths = [path for folder in reversed(folders(EXAMPLES)) for path in sorted(folder.glob("*.py"))]
    return {path.stem: CatalogueEntry(EXAMPLES, path.stem, path) for path in paths}


def known_names(kind: Kind) -> list[str]:
    """All names, each once, without bases."""
    return sorted(entry.name for entry in entries(kind))


def installed_folders() -> list[Path]:
    """The package's folders, existing or not: for all users of this Python, and for one."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    return [Path(sysconfig.get_path("data", scheme)) / "share" / "mrt-hpc" for scheme in schemes]


def is_of_the_package(path: Path) -> bool:
    folders_of_it = (Path(mrt_hpc.__file__).resolve().parents[1], *installed_folders())
    return any(path.resolve().is_relative_to(folder) for folder in folders_of_it)


def spellings(path: Path) -> list[Path]:
    if path.suffix in SUFFIXES or not path.name:
        return [path]
    return [path.with_name(path.name + suffix) for suffix in SUFFIXES]


def _not_found(kind: Kind, name: str, path: Path, within: Path) -> UserError:
    beside = absolute(path.parent)
    places = {beside: [str(path.parent / file.name) for file in _files(beside.glob("*"))]}
    places |= {folder: names_in(folder) for folder in folders(kind)}
    known = {str(Path(known).with_suffix("")): known for names in reversed(places.values()) for known in names}
    stems = (str(tried.with_suffix("") if tried.suffix in SUFFIXES else tried) for tried in (path, within))
    near = (known[stem] for typed in stems if (stem := nearest(typed, known)) is not None)
    guess = None if path.is_dir() else next(near, None)
    shape, _, shaped = name.rpartition("/")
    if kind is RECIPES and shape in known_names(SHAPES):
        advice = Advice("mrt-hpc plan {shaped} --shape {shape}", shaped=shaped, shape=shape)
        return UserError("there is no such recipe: this is a shape of one", value=name, advice=advice)
    command = Advice(kind.command, name=guess) if guess else LIST
    return UserError(
        f"this is a directory, and no {kind.word}" if path.is_dir() else f"there is no such {kind.word}",
        value=name,
        expected=f"{guess} is the nearest" if guess else f"a name that {LIST} shows, or a path",
        where=", ".join(str(place) for place in places if place.is_dir()),
        advice=Advice("{command}; mrt-hpc recipes list shows all", command=command) if guess else LIST,
    )


def names_in(folder: Path) -> list[str]:
    """Files in a folder and below it, without bases."""
    files = (file.relative_to(folder) for file in _files(folder.rglob("*")))
    return [str(file.with_suffix("")) for file in files if not OTHER_KINDS & set(file.parts)]


def _files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix in SUFFIXES and path.is_file())
