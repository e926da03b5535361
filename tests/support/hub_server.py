"""A server on this machine that answers as the Hugging Face hub does for data sets and models, from their files."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1000  # the number of bytes above which a file is stored as a large one, with a SHA-256 that the hub tells


@dataclass
class Faults:
    breaks: dict[str, int] = field(default_factory=dict)
    """The number of times that the connection breaks in the middle of a file."""
    stalls: set[str] = field(default_factory=set)
    """The files of which half is sent and then nothing more, until ``over`` is set."""
    changed: set[str] = field(default_factory=set)
    """The files that arrive with another content than the hub tells of, of the same size."""
    over: Event = field(default_factory=Event)
    tag: str | None = None
    """What the server says in place of the tag of each file."""
    header_commit: str | None = None
    """What it says with each file in place of the commit."""


@dataclass(frozen=True)
class Repository:
    """A data set or a model: its files by name, and the revisions that name its only commit."""

    name: str
    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main", COMMIT)
    kind: str = "datasets"  # ``datasets`` or ``models``
    commit: str = COMMIT
    faults: Faults = field(default_factory=Faults)
    fetched: list[tuple[str, int]] = field(default_factory=list)
    """The name of each file whose content was asked for, and the byte from which on."""


def serving(*repositories: Repository) -> Iterator[str]:
    """The address of a server that has these repositories, while the caller needs it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"repositories": repositories}))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    for repository in repositories:
        repository.faults.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


Answer = tuple[bytes, dict[str, str], int]


class _Handler(BaseHTTPRequestHandler):
    repositories: tuple[Repository, ...]

    def do_HEAD(self) -> None:
        body, headers, status = self._found()
        self._begin(len(body), headers, status)

    def do_GET(self) -> None:
        body, headers, status = self._found()
        if self._file is None or status != 200:
            self._begin(len(body), headers, status)
            self.wfile.write(body)
        else:
            self._send_file(*self._file, headers)

    def log_message(self, *_: object) -> None:
        """Say nothing: the output is that of the tests."""

    def _begin(self, length: int, headers: dict[str, str], status: int) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_file(self, repository: Repository, name: str, headers: dict[str, str]) -> None:
        faults, body = repository.faults, repository.files[name]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        repository.fetched.append((name, start))
        sent = body[start:] if name not in faults.changed else b"\0" * len(body[start:])
        part = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        self._begin(len(sent), {**headers, **part}, 206 if start else 200)
        if name in faults.stalls:
            self.wfile.write(sent[: len(sent) // 2])
            faults.over.wait(60)
        elif faults.breaks.get(name, 0):
            faults.breaks[name] -= 1
            self.wfile.write(sent[: len(sent) // 2])
            self.close_connection = True
        else:
            self.wfile.write(sent)

    def _found(self) -> Answer:
        self._file: tuple[Repository, str] | None = None
        path = unquote(self.path.partition("?")[0])
        for repository in self.repositories:
            if (answer := self._of(repository, path)) is not None:
                return answer
        return b"", {"X-Error-Code": "RepoNotFound"}, 404

    def _of(self, repository: Repository, path: str) -> Answer | None:
        information = f"/api/{repository.kind}/{repository.name}"
        if path == information or path.startswith(f"{information}/revision/"):
            return _information(repository, path.partition("/revision/")[2] or "main")
        if path.startswith(f"{information}/tree/"):
            folder = path.removeprefix(f"{information}/tree/").partition("/")[2]
            return _tree(repository, folder, recursive="recursive=true" in self.path.lower())
        prefix = "" if repository.kind == "models" else f"/{repository.kind}"
        _, found, place = path.partition(f"{prefix}/{repository.name}/resolve/")
        if not found:
            return None
        revision, _, name = place.partition("/")
        if revision not in repository.revisions or name not in repository.files:
            return b"", {"X-Error-Code": "EntryNotFound"}, 404
        self._file = repository, name
        body, faults = repository.files[name], repository.faults
        tag = faults.tag or hashlib.sha256(body).hexdigest()
        return body, {"ETag": f'"{tag}"', "X-Repo-Commit": faults.header_commit or repository.commit}, 200


def _information(repository: Repository, revision: str) -> Answer:
    if revision not in repository.revisions:
        return b"", {"X-Error-Code": "RevisionNotFound"}, 404
    files = [{**_entry(name, body), "rfilename": name} for name, body in repository.files.items()]
    told = {"id": repository.name, "sha": repository.commit, "siblings": files, "private": False, "tags": []}
    return _json({**told, "modelId": repository.name})


def _tree(repository: Repository, folder: str, *, recursive: bool) -> Answer:
    """The files below a folder, or those in it and the folders in it."""
    start = f"{folder}/" if folder else ""
    below = {name: body for name, body in repository.files.items() if name.startswith(start)}
    if not below:
        return b"", {"X-Error-Code": "EntryNotFound"}, 404
    inner = {name: name.removeprefix(start) for name in below}
    folders = {start + rest.partition("/")[0] for rest in inner.values() if "/" in rest and not recursive}
    files = [_entry(name, body) for name, body in below.items() if recursive or "/" not in inner[name]]
    return _json([*files, *({"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in folders)])


def _entry(name: str, body: bytes) -> dict[str, object]:
    """A file as the hub tells of it, in a list of files and in the information about a repository."""
    blob = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
    told: dict[str, object] = {"type": "file", "path": name, "size": len(body), "oid": blob, "blobId": blob}
    if len(body) > LARGE:
        sha = hashlib.sha256(body).hexdigest()
        told["lfs"] = {"size": len(body), "oid": sha, "sha256": sha, "pointerSize": 130}
    return told


def _json(value: object) -> Answer:
    return json.dumps(value).encode(), {"Content-Type": "application/json"}, 200
