"""What a disk may hold after a crash: the steps that code took are recorded, and states are built that a POSIX
filesystem may leave of them.

Only what was synced is certain. Content that was not synced may be lost, or half there; names that were not synced may
be lost, each for itself and in any order. A rename is one step: both of its names change, or neither does, and it is
certain when one of its directories is synced. Otherwise this is the model of strict POSIX, weaker than what ext4 or XFS
promise.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from file_calls import OPEN, FileCall, call_sites

ROOT = 0
TORN = 2  # a file that is half written has one part in so many of its bytes


class Named(NamedTuple):
    """A name in a directory stands for a node from now on, or for none."""

    directory: int
    name: str
    node: int | None


class Content(NamedTuple):
    """A file holds these bytes from now on."""

    node: int
    data: bytes


class Synced(NamedTuple):
    """The content of a file, or the names in a directory, are on the disk."""

    node: int


class Step(NamedTuple):
    """What happens at once, and the lines of the package that did it."""

    changes: tuple[Named | Content | Synced, ...]
    site: str


@dataclass
class Tree:
    """Directories by number, with the numbers of what they hold; and the content of files."""

    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytes] = field(default_factory=dict)
    links: dict[int, str] = field(default_factory=dict)

    def copy(self) -> Tree:
        return Tree({n: dict(names) for n, names in self.directories.items()}, dict(self.files), dict(self.links))

    def take(self, change: Named | Content | Synced) -> None:
        if isinstance(change, Named):
            names = self.directories.setdefault(change.directory, {})
            if change.node is None:
                names.pop(change.name, None)
            else:
                names[change.name] = change.node
        elif isinstance(change, Content):
            self.files[change.node] = change.data

    def node(self, parts: tuple[str, ...]) -> int | None:
        found: int | None = ROOT
        for part in parts:
            found = self.directories.get(found, {}).get(part) if found is not None else None
        return found

    def entries(self) -> Iterator[tuple[str, int]]:
        """All paths that can be reached, with their nodes, folders before what they hold."""

        def below(node: int, path: str) -> Iterator[tuple[str, int]]:
            for name, child in sorted(self.directories[node].items()):
                yield (here := f"{path}{name}"), child
                if child in self.directories:
                    yield from below(child, f"{here}/")

        return below(ROOT, "")

    def digest(self) -> bytes:
        """The identity of what a reader finds."""
        found = hashlib.blake2b(digest_size=12)
        for path, node in self.entries():
            kind = "d" if node in self.directories else "l" if node in self.links else "f"
            content = self.files.get(node, b"")
            found.update(f"{path}\0{kind}{len(content)}\0".encode() + content)
        return found.digest()

    def build(self, root: Path) -> None:
        """Make it at a path that is free."""
        root.mkdir(mode=0o700)
        made: dict[int, str] = {}
        for path, node in self.entries():
            place = f"{root}/{path}"
            if node in self.directories:
                os.mkdir(place)
            elif node in self.links:
                os.symlink(self.links[node], place)
            elif node in made:
                os.link(made[node], place)
            else:
                made[node] = place
                with open(os.open(place, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
                    stream.write(self.files.get(node, b""))


class Promise(NamedTuple):
    """What was said to be done when so many steps were taken: from then on it stays, whatever happens."""

    after: int
    what: Any


class Recording:
    """Records the steps of code that works below a folder; an observer of its calls."""

    def __init__(self, root: Path, earlier: Recording | None = None, after: int = 0) -> None:
        """Begin with what lies below the folder, which is on the disk; or go on after so many steps of an earlier
        process that was killed, of which nothing more was synced than what it had synced.
        """
        self.root = root
        self.steps: list[Step] = []
        self.promises: list[Promise] = []
        self.sites: set[str] = set()
        self.now, self._last = Tree(), ROOT
        self._writers: dict[int, str] = {}  # the files that were opened to write, and the lines that opened them
        self._lock = threading.RLock()
        self._kinds: dict[str, Callable[..., None]] = {
            OPEN: self._opened, "truncate": self._opened, "mkdir": self._folder_made, "unlink": self._removed,
            "remove": self._removed, "rmdir": self._removed, "rename": self._renamed, "replace": self._renamed,
            "link": self._linked, "fsync": self._synced, "fdatasync": self._synced,
        }  # fmt: skip
        if earlier is None:
            self._adopt("", "")
            self.before, self.steps = self.now.copy(), []
        else:
            self.before, self.steps, self._last = earlier.before, earlier.steps[:after], earlier._last
            self.now = tree_after(earlier, Crash(after))
        self.first = len(self.steps)
        """The number of steps when this process began."""

    def promise(self, what: Any) -> None:
        """Something counts as done."""
        self._look_at_content()
        self.promises.append(Promise(len(self.steps), what))

    def call(self, call: FileCall, make: Callable[[], Any]) -> Any:
        """Make a call, and record what it changes; times and modes are no part of a state."""
        if not call.changes:
            return make()
        with self._lock:
            self._look_at_content()
            sites, places = call_sites(), [self._relative(path) for path in call.paths]
            site = next(iter(sites), "")
            if call.name in {"rename", "replace", "link", "fsync", "fdatasync"}:
                self._adopt(places[0], site)
            self.sites |= {*sites}
            result = make()
            if (record := self._kinds.get(call.name)) is not None:
                record(site, *places)
            return result

    def end(self) -> None:
        """All steps are taken.

        Raises:
            AssertionError: the disk holds something else than the steps say.
        """
        self._look_at_content()
        self._adopt("", "")
        there = {str(path.relative_to(self.root)) for path in self.root.rglob("*")}
        assert there == {path for path, _ in self.now.entries()}, there ^ {path for path, _ in self.now.entries()}

    def _relative(self, path: str) -> str:
        path = re.sub(r"^/proc/self/fd/\d+", lambda found: os.readlink(found[0]), path)  # it names a descriptor's file
        return "" if path == str(self.root) else os.path.relpath(path, self.root)

    def _take(self, site: str, *changes: Named | Content | Synced) -> None:
        for change in changes:
            self.now.take(change)
        self.steps.append(Step(changes, site))

    def _where(self, place: str) -> tuple[int, str]:
        *above, name = Path(place).parts
        directory = self.now.node(tuple(above))
        assert directory is not None, f"{place}: its folder was not seen"
        return directory, name

    def _node(self, place: str) -> int | None:
        return self.now.node(Path(place).parts)

    def _made(self, place: str, site: str, *, directory: bool = False) -> int:
        self._last += 1
        if directory:
            self.now.directories[self._last] = {}
        self._take(site, Named(*self._where(place), self._last))
        return self._last

    def _opened(self, site: str, place: str) -> None:
        node = self._node(place)
        if node is None and os.path.lexists(self.root / place):
            node = self._made(place, site)
        if node is not None and node not in self.now.directories:
            self._writers[node] = site

    def _folder_made(self, site: str, place: str) -> None:
        self._made(place, site, directory=True)

    def _removed(self, site: str, place: str) -> None:
        self._take(site, Named(*self._where(place), None))

    def _renamed(self, site: str, place: str, to: str) -> None:
        self._take(site, Named(*self._where(place), None), Named(*self._where(to), self._node(place)))

    def _linked(self, site: str, place: str, to: str) -> None:
        self._take(site, Named(*self._where(to), self._node(place)))

    def _synced(self, site: str, place: str) -> None:
        if (node := self._node(place)) is not None:
            self._take(site, Synced(node))

    def _look_at_content(self) -> None:
        """Take up what files that were opened to write hold by now."""
        with self._lock:
            if not self._writers:
                return
            paths = {node: path for path, node in self.now.entries() if node in self._writers}
            self._writers = {node: site for node, site in self._writers.items() if node in paths}
            for node, site in self._writers.items():
                self._read(node, paths[node], site)

    def _read(self, node: int, place: str, site: str) -> None:
        data = (self.root / place).read_bytes()
        if data != self.now.files.get(node, b""):
            self._take(site, Content(node, data))

    def _adopt(self, place: str, site: str) -> None:
        """Take up what a library has made."""
        path, node = self.root / place, self._node(place)
        mode = path.lstat().st_mode
        if node is None:
            node = self._made(place, site, directory=stat.S_ISDIR(mode))
        if stat.S_ISLNK(mode):
            self.now.links[node] = os.readlink(path)
        elif stat.S_ISREG(mode):
            self._read(node, place, self._writers.get(node, site))
        else:
            for name in sorted(os.listdir(path)):
                self._adopt(f"{place}/{name}" if place else name, site)


# -- the states -------------------------------------------------------------------------------------------------------


class Crash(NamedTuple):
    """A crash after so many steps, and the steps whose changes did not reach the disk."""

    after: int
    lost: frozenset[int] = frozenset()
    torn: frozenset[int] = frozenset()
    """The steps of which half of the content reached it."""


def tree_after(recording: Recording, crash: Crash) -> Tree:
    """What the disk holds."""
    tree = recording.before.copy()
    for number, step in enumerate(recording.steps[: crash.after]):
        for change in step.changes:
            if isinstance(change, Named) and change.node is not None and change.node in recording.now.directories:
                tree.directories.setdefault(change.node, {})
            if number in crash.torn and isinstance(change, Content):
                tree.take(change._replace(data=change.data[: len(change.data) // TORN]))
            elif number not in crash.lost:
                tree.take(change)
    tree.links = recording.now.links
    return tree


def uncertain(steps: Sequence[Step], after: int) -> list[int]:
    """The steps before a crash that a sync has not made certain."""
    synced: set[int] = set()
    found: list[int] = []
    for number in range(after - 1, -1, -1):
        changes = steps[number].changes
        synced |= {change.node for change in changes if isinstance(change, Synced)}
        on = {change.directory if isinstance(change, Named) else change.node for change in changes}
        if not on & synced:
            found.append(number)
    return found[::-1]


KILLED, LOST = -2, -1  # kinds of crashes; those from 0 on lose single steps, or some


def crashes(recording: Recording, random: Random, subsets: int, most: int | None = None) -> Iterator[Crash]:
    """The crashes after every step, in random order. First a killed process, which loses nothing, and a lost machine,
    which loses all that is uncertain. Then each uncertain step lost alone, all but each, all after each, content half
    written, and so many random choices. With ``most`` so many of all of them, drawn at random.
    """
    points = range(recording.first, len(recording.steps) + 1)
    after_each = [(after, uncertain(recording.steps, after)) for after in points]
    kinds = [range(KILLED, 4 * len(steps) + subsets if steps else 0) for _, steps in after_each]
    if most is None:
        every = [(*point, kind) for point, each in zip(after_each, kinds, strict=True) for kind in each]
        random.shuffle(every)
        every.sort(key=lambda drawn: drawn[2] >= 0)
    else:
        places = random.choices(range(len(kinds)), weights=list(map(len, kinds)), k=most)
        every = [(*after_each[place], random.choice(kinds[place])) for place in places]
    for after, steps, kind in every:
        yield _crash(recording, after, steps, kind, random)


def _crash(recording: Recording, after: int, steps: list[int], kind: int, random: Random) -> Crash:
    place, every = kind // 4, frozenset(steps)
    if kind in (KILLED, LOST):
        return Crash(after, every if kind == LOST else frozenset())
    if place >= len(steps):
        return Crash(after, frozenset(n for n in steps if random.random() < 1 / 2))
    number = steps[place]
    if kind % 4 == 0:
        return Crash(after, frozenset({number}))
    if kind % 4 == 1:
        return Crash(after, every - {number})
    if kind % 4 == 2:
        return Crash(after, frozenset(steps[place:]))
    has_content = isinstance(recording.steps[number].changes[0], Content)
    lost = every - {number} if random.random() < 1 / 2 else frozenset()
    return Crash(after, lost, frozenset({number} if has_content else ()))
