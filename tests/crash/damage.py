"""What a disk or a person may do to a finished directory that no code of the package did: content that is altered, cut
or lost, a directory of another place, and the work of another attempt under the same number.

Damage happens at one call of a protocol, which goes on or is killed at that moment. Then either the damaged directory
was made again, or its readers refuse it; and all else is as if nothing had happened.
"""

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from file_calls import FileCall, call_sites

from mrt_hpc.roles.training.artifacts import TrainingArtifacts
from mrt_hpc.run.archive import UNREADABLE
from mrt_hpc.run.atomic import is_temporary
from mrt_hpc.run.layout import GROUPS, RunLayout
from mrt_hpc.run.manifest import MANIFEST, PLACE, json_digest

Content = dict[str, bytes]
"""The files of a directory by relative path; of a single file its bytes under no name."""


class Killed(BaseException):
    """The process was killed."""


def units(layout: RunLayout) -> list[Path]:
    """What was finished: directories with a manifest, and archives of groups."""
    sealed = [path.parent for path in layout.root.rglob(MANIFEST)]
    archives = layout.root.rglob(layout.group_archive(0).name)
    found = (unit for unit in (*sealed, *archives) if not any(map(is_temporary, (unit, *unit.parents))))
    return sorted(unit for unit in found if layout.set_aside.name not in unit.parts)


def content_of(unit: Path) -> Content:
    if not unit.is_dir():
        return {"": unit.read_bytes()} if unit.exists() else {}
    return {str(path.relative_to(unit)): path.read_bytes() for path in unit.rglob("*") if path.is_file()}


def put(unit: Path, content: Content) -> None:
    """Make a unit hold this instead of what it holds."""
    if unit.is_dir():
        shutil.rmtree(unit)
    unit.unlink(missing_ok=True)
    for name, data in content.items():
        path = unit / name if name else unit
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def groups_in(archive: Content) -> Content:
    """The files of the groups of an archive; the archive itself where they cannot be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive[""])) as files:
            return {name: files.read(name) for name in files.namelist()}
    except UNREADABLE:
        return archive


# -- the kinds of damage: each alters what a unit holds, or returns None where it does not fit -------------------------


def flipped(unit: Path, content: Content, random: Random) -> Content:
    """One bit of one file."""
    name = random.choice(sorted(name for name, data in content.items() if data))
    data = bytearray(content[name])
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return {**content, name: bytes(data)}


def cut(unit: Path, content: Content, random: Random) -> Content:
    """The second half of a file is missing."""
    name = random.choice(sorted(content))
    return {**content, name: content[name][: len(content[name]) // 2]}


def lost(unit: Path, content: Content, random: Random) -> Content:
    """A file is missing, or all of them."""
    gone = {random.choice(sorted(content))} if random.random() < 1 / 2 else {*content}
    return {name: data for name, data in content.items() if name not in gone}


def gone(unit: Path, content: Content, random: Random) -> Content:
    """All of it is missing."""
    return {}


def misstated(unit: Path, content: Content, random: Random) -> Content | None:
    """The manifest says something else of where the directory came from."""
    if MANIFEST not in content:
        return None
    said = json.loads(content[MANIFEST])
    name = random.choice(sorted(said["about"]))
    value = said["about"][name]
    said["about"][name] = value + 1 if isinstance(value, int | float) else f"other {value}"
    return {**content, MANIFEST: json.dumps(said).encode()}


def of_another_place(unit: Path, content: Content, random: Random) -> Content | None:
    """A copy of the directory beside it, or the directory of another run."""
    if MANIFEST not in content:
        return None
    beside = [path for path in unit.parent.iterdir() if path != unit and (path / MANIFEST).is_file()]
    if beside and random.random() < 1 / 2:
        return content_of(random.choice(sorted(beside)))
    return resealed(content, **{PLACE: ["other", *json.loads(content[MANIFEST])["about"][PLACE][1:]]})


def of_another_attempt(unit: Path, content: Content, random: Random) -> Content | None:
    """A weights version of the same number that another attempt has computed; a group of another problem."""
    if unit.parent.name == "weights" and unit.name != "v000000":  # that one is no attempt's work
        model = bytearray(content.get("model.safetensors", b""))
        if not model:
            return None
        model[-1 - random.randrange(16)] ^= 1
        return resealed({**content, "model.safetensors": bytes(model)}, state="other:0")
    beside = [path for path in unit.parent.iterdir() if path != unit and path.name.isdecimal()]
    if unit.parent.name != GROUPS or not beside:
        return None
    return resealed(content_of(random.choice(sorted(beside))), **{PLACE: json.loads(content[MANIFEST])["about"][PLACE]})


def resealed(content: Content, **about: Any) -> Content:
    """With a right manifest of what is there."""
    said = json.loads(content[MANIFEST])
    files = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in content.items() if name != MANIFEST}
    inside = {"about": {**said["about"], **about}, "files": files}
    return {**content, MANIFEST: json.dumps({**inside, "seal": json_digest(inside)}).encode()}


KINDS = (flipped, cut, lost, misstated, of_another_place, of_another_attempt)
"""The last one is there only after an attempt that has been lost."""


@dataclass
class Damaging:
    """An observer that does damage at the call with this number, if something is finished by then."""

    layout: RunLayout
    random: Random
    at: int
    kills: bool
    calls: int = 0
    published: list[int] = field(default_factory=list)
    """The calls that published a weights version."""
    unit: Path | None = None
    """What was damaged."""
    what: str = "nothing"
    _there: frozenset[str] = frozenset()
    _publishes: bool = False
    _before: Content = field(default_factory=dict)
    _after: Content = field(default_factory=dict)

    def call(self, call: FileCall, make: Callable[[], Any]) -> Any:
        self.calls += 1
        if call.name == "rename" and self.layout.version_of(Path(call.paths[-1])) is not None:
            self.published.append(self.calls)
        if self.calls == self.at:
            self._damage()
            if self.kills:
                raise Killed
        return make()

    def _damage(self) -> None:
        self._publishes = any(site.endswith(f" {TrainingArtifacts.publish.__name__}") for site in call_sites())
        self._there = frozenset("-".join(unit.relative_to(self.layout.root).parts) for unit in units(self.layout))
        for unit, kind in self._choices():
            before = content_of(unit)
            if before and (after := kind(unit, before, self.random)) not in (None, before):
                self.unit, self._before, self._after = unit, before, after
                self.what = f"{kind.__name__}: {unit.relative_to(self.layout.root)}"
                put(unit, after)
                return

    def _choices(self) -> Iterator[tuple[Path, Callable[..., Content | None]]]:
        there = units(self.layout)
        for _ in range(4 if there else 0):
            yield self.random.choice(there), self.random.choice(KINDS if self.kills else KINDS[:-1])

    @property
    def set_aside_later(self) -> list[str]:
        """Finished directories that were set aside and were not begun yet when the damage was done."""
        found = {path.parent.name for path in self.layout.set_aside.rglob(MANIFEST)}
        return sorted(found - self._there) if self._there and not self._publishes else []

    @property
    def is_still_there(self) -> bool:
        """Whether readers find the damaged content, and a manifest can tell it from what was there."""
        if not self._after or self._archive.exists() or self.what.startswith(of_another_attempt.__name__):
            return False
        return self.unit is not None and content_of(self.unit) == self._after and self._says_otherwise

    @property
    def _says_otherwise(self) -> bool:
        """Whether readers see the damage: what no reader of an archive asks for is no part of its groups."""
        return self.unit is None or self.unit.suffix != ".zip" or groups_in(self._after) != groups_in(self._before)

    def undo(self) -> None:
        """Put back what was there before; groups that were archived meanwhile get their directories back."""
        assert self.unit is not None
        if self._archive.exists():
            with zipfile.ZipFile(self._archive) as groups:
                groups.extractall(self.unit.parent)
            self._archive.unlink()
        put(self.unit, self._before)

    @property
    def _archive(self) -> Path:
        """The archive of the iteration of a group; a path that does not exist for all else."""
        place = self.unit or self.layout.root
        name = self.layout.group_archive(0).name
        return place.parent.parent / name if place.parent.name == GROUPS else self.layout.root / name


class Losing(Damaging):
    """Loses the newest weights version as a whole."""

    def _choices(self) -> Iterator[tuple[Path, Callable[..., Content | None]]]:
        yield [unit for unit in units(self.layout) if unit.parent == self.layout.weights][-1], gone
