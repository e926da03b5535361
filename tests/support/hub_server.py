"""A server on this machine that answers as the Hugging Face hub does for data sets, from folders of files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Repository:
    """A data set: its files by name, and the revisions that name its only commit."""

    name: str
    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main", COMMIT)


def serving(repository: Repository) -> Iterator[str]:
    """The address of a server that has one data set, while the caller needs it."""
    handler = type("Handler", (_Handler,), {"repository": repository})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class _Handler(BaseHTTPRequestHandler):
    repository: Repository

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Say nothing: the output is that of the tests."""

    def _answer(self, *, with_body: bool) -> None:
        body, headers, status = self._found()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _found(self) -> tuple[bytes, dict[str, str], int]:
        path = self.path.partition("?")[0]
        information = f"/api/datasets/{self.repository.name}"
        if path == information or path.startswith(f"{information}/revision/"):
            return self._information(path.partition("/revision/")[2] or "main")
        _, _, place = path.partition(f"/datasets/{self.repository.name}/resolve/")
        revision, _, file = place.partition("/")
        if revision not in self.repository.revisions or file not in self.repository.files:
            return b"", {"X-Error-Code": "RepoNotFound" if not place else "EntryNotFound"}, 404
        body = self.repository.files[file]
        etag = hashlib.sha256(body).hexdigest()
        return body, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, 200

    def _information(self, revision: str) -> tuple[bytes, dict[str, str], int]:
        if revision not in self.repository.revisions:
            return b"", {"X-Error-Code": "RevisionNotFound"}, 404
        files = [{"rfilename": name} for name in self.repository.files]
        told = {"id": self.repository.name, "sha": COMMIT, "siblings": files, "private": False, "tags": []}
        return json.dumps(told).encode(), {"Content-Type": "application/json"}, 200
