"""A Hugging Face Hub on loopback, written for these tests, with faults that can be switched on.

It speaks what the real Hub's client needs: the listing with blobs, the paginated tree, and `resolve` by HEAD
and GET with `ETag`, `X-Repo-Commit`, `X-Linked-*` and ranges. Files may be sent from a second port, which
stands for the storage host. Everything that was asked is in `log`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.waiting import TIMEOUT_S

TOKEN = "hf_" + "good" * 8
REPO = "maker/tiny-GGUF"
TROUBLE = b"trouble"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def git_id(content: bytes) -> str:
    """The id git gives to a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Stored:
    """A file of a repository: `content` as bytes or as a file on disk; `large` ones have a SHA-256 listed."""

    content: bytes | Path
    large: bool = True
    size: int = 0
    sha256: str = ""
    oid: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.content, bytes):
            self.size, self.oid = len(self.content), git_id(self.content)
            self.sha256 = hashlib.sha256(self.content).hexdigest()
        else:
            self.size = self.content.stat().st_size
            with self.content.open("rb") as handle:
                self.sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
            self.oid = hashlib.sha1(self.sha256.encode()).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid


@dataclass
class Faults:
    """What goes wrong. Counters (`*_times`) count down; 0 is harmless.

    `cut_after`: the line breaks after so many bytes of a body, `cut_times` times, by RST if `rst`.
    `stall_after`: it falls silent instead, until the client hangs up. `hold`: whatever reaches the end of a
    file stops half-way until this is set. `flips`: one byte of so many bodies is wrong. `announce` adds to
    each announced length. `statuses`: answers to give first, as (path fragment, status, headers).
    `swap`: contents to put in place once so many bodies of that path were begun.
    """

    cut_after: int = 0
    cut_times: int = 0
    rst: bool = False
    stall_after: int = 0
    stall_times: int = 0
    hold: threading.Event | None = None
    no_range: bool = False
    flip_times: int = 0
    announce: int = 0
    statuses: list[tuple[str, int, Mapping[str, str]]] = field(default_factory=list)
    swap: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    expired_times: int = 0


@dataclass
class Request:
    """One request and the bytes of body that were put on the line for it."""

    method: str
    host: str
    path: str
    headers: dict[str, str]
    sent: int = 0

    @property
    def first_byte(self) -> int | None:
        found = _RANGE.fullmatch(self.headers.get("range", ""))
        return int(found[1]) if found else None


class LoopbackHub:
    """Repositories, faults, and the log of what was asked. `endpoint` and `storage` are its two origins."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Stored]] = {}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.let_in = True
        self.redirect = False
        self.page = 1000
        self.extra_siblings: list[object] = []
        self.faults = Faults()
        self.log: list[Request] = []
        self.lock = threading.Lock()
        self._servers = [_serve(self), _serve(self)]
        self._kept: list[socket.socket] = []
        self.endpoint, self.storage = (f"http://127.0.0.1:{s.server_port}" for s in self._servers)

    def add(self, path: str, content: bytes | Path, *, repo: str = REPO, large: bool = True) -> Stored:
        """Put a file into a repository."""
        stored = Stored(content, large)
        self.repos.setdefault(repo, {})[path] = stored
        return stored

    def commit(self, repo: str = REPO) -> str:
        """The commit id, which changes with the contents."""
        files = self.repos[repo]
        return hashlib.sha1("\n".join(f"{p} {s.etag}" for p, s in sorted(files.items())).encode()).hexdigest()

    def bodies(self, path: str = "") -> list[Request]:
        """GET requests for contents of files whose address contains `path`."""
        with self.lock:
            return [r for r in self.log if r.method == "GET" and "/api/" not in r.path and path in r.path]

    def sent(self, path: str = "") -> int:
        """Bytes of files that were put on the line."""
        return sum(request.sent for request in self.bodies(path))

    def with_tls(self, certificate: Path, key: Path) -> str:
        """A third origin, the same Hub over TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self._servers.append(server)
        return f"https://127.0.0.1:{server.server_port}"

    def fall_silent(self) -> None:
        """Nobody answers any more; the ports stay taken, for another test's Hub would answer there."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
            kept = socket.socket()
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(("127.0.0.1", server.server_port))
            self._kept.append(kept)
        self._servers.clear()

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for kept in self._kept:
            kept.close()


@contextmanager
def loopback_hub() -> Iterator[LoopbackHub]:
    """A Hub that is closed at the end."""
    hub = LoopbackHub()
    try:
        yield hub
    finally:
        hub.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no error here."""


def _serve(hub: LoopbackHub) -> _Server:
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0
    hub: LoopbackHub
    request_log: Request

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class names it so
        """Nothing on the terminal."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.hub
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.request_log = Request(self.command, headers.get("host", ""), self.path, headers)
        with hub.lock:
            hub.log.append(self.request_log)
            planned = next((s for s in hub.faults.statuses if s[0] in self.path), None)
            if planned is not None:
                hub.faults.statuses.remove(planned)
        if planned is not None:
            return self._plain(planned[1], TROUBLE, planned[2])
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[0] == "storage":
            return self._storage("/".join(parts[1:3]), "/".join(parts[3:]))
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self._api("/".join(parts[2:4]), parts[4:])
        if len(parts) >= 5 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self._error(404, "EntryNotFound", "no such page")

    # -- answers ------------------------------------------------------------------------------------------

    def _plain(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, document: object, headers: Mapping[str, str] | None = None) -> None:
        self._plain(
            200, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def _error(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._plain(status, json.dumps({"error": message}).encode(), headers)

    def _may_enter(self, repo: str, *, content: bool) -> bool:
        """Whether the caller may see the repository; answers the refusal where not."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        token = token if scheme == "Bearer" else ""
        if token and token != TOKEN:
            self._error(401, "", "Invalid credentials in Authorization header")
            return False
        if repo not in self.hub.repos or (repo in self.hub.private and not token):
            known = next((name for name in self.hub.repos if name.lower() == repo.lower()), None)
            if known is not None and repo not in self.hub.repos:
                self._plain(307, b"", {"Location": self.path.replace(quote(repo), quote(known), 1)})
            else:
                self._error(401 if not token else 404, "RepoNotFound", "Repository not found")
            return False
        if content and repo in self.hub.gated and not (token and self.hub.let_in):
            self._error(403 if token else 401, "GatedRepo", "Access to this model is restricted.")
            return False
        return True

    def _api(self, repo: str, rest: list[str]) -> None:
        if not self._may_enter(repo, content=False):
            return None
        hub, commit = self.hub, self.hub.commit(repo)
        if len(rest) >= 2 and rest[0] in ("revision", "tree") and rest[1] not in ("main", commit):
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
        files = sorted(hub.repos[repo].items())
        query = parse_qs(urlsplit(self.path).query)
        if rest and rest[0] == "tree":
            first = int(query.get("cursor", ["0"])[0])
            page = [_tree_entry(path, stored) for path, stored in files[first : first + hub.page]]
            more = first + hub.page < len(files)
            here = f"{hub.endpoint}/api/models/{repo}/tree/{rest[1]}?recursive=true&cursor={first + hub.page}"
            return self._json(page, {"Link": f'<{here}>; rel="next"'} if more else None)
        siblings: list[object] = [_sibling(path, stored, "blobs" in query) for path, stored in files]
        gated = "manual" if repo in hub.gated else False
        return self._json(
            {
                "_id": "0", "id": repo, "modelId": repo, "sha": commit, "private": repo in hub.private,
                "gated": gated, "disabled": False, "tags": ["gguf"], "downloads": 0, "likes": 0,
                "siblings": siblings + hub.extra_siblings,
            }
        )  # fmt: skip

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        if not self._may_enter(repo, content=True):
            return None
        hub, commit = self.hub, self.hub.commit(repo)
        if revision not in ("main", commit) and not re.fullmatch("[0-9a-f]{40}", revision):
            return self._error(404, "RevisionNotFound", "Invalid rev id")
        stored = hub.repos[repo].get(path)
        if stored is None:
            return self._error(404, "EntryNotFound", "Entry not found")
        known = {
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{stored.etag}"',
            "X-Linked-Size": str(stored.size),
        }
        if hub.redirect:
            where = f"{hub.storage}/storage/{quote(repo)}/{quote(path)}?signature={os.urandom(4).hex()}"
            return self._plain(302, b"", {"Location": where, **known})
        return self._body(path, stored, {"ETag": f'"{stored.etag}"', "Accept-Ranges": "bytes", **known})

    def _storage(self, repo: str, path: str) -> None:
        with self.hub.lock:
            expired = self.hub.faults.expired_times > 0
            self.hub.faults.expired_times -= expired
        if expired:
            return self._plain(403, b"expired")
        stored = self.hub.repos[repo][path]
        mark = urlsplit(self.path).query  # another machine may answer, and marks contents its own way
        return self._body(path, stored, {"ETag": f'"{mark}"', "Accept-Ranges": "bytes"})

    # -- bodies -------------------------------------------------------------------------------------------

    def _body(self, path: str, stored: Stored, headers: dict[str, str]) -> None:
        faults, size = self.hub.faults, stored.size
        asked = None if faults.no_range else _RANGE.fullmatch(self.headers.get("Range", ""))
        start, last = (int(asked[1]), min(int(asked[2] or size), size - 1)) if asked else (0, size - 1)
        if asked and start >= size:
            return self._plain(416, b"", {"Content-Range": f"bytes */{size}"})
        length = last - start + 1
        self.send_response(206 if asked else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{last}/{size + faults.announce}")
        self.send_header("Content-Length", str(length + (0 if asked else faults.announce)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        with suppress(OSError):
            self._send(path, stored, start, length)
        if faults.announce and not asked:
            self.close_connection = True
        return None

    def _send(self, path: str, stored: Stored, start: int, length: int) -> None:
        faults = self.hub.faults
        with self.hub.lock:
            cut = faults.cut_times > 0 and length > faults.cut_after
            faults.cut_times -= cut
            stall = not cut and faults.stall_times > 0 and length > faults.stall_after
            faults.stall_times -= stall
            flip = faults.flip_times > 0
            faults.flip_times -= flip
        whole = not (cut or stall)
        if faults.hold is not None and whole and start + length == stored.size:
            half = length // 2
            self._write(stored, start, half, flip)
            faults.hold.wait(TIMEOUT_S)
            start, length, flip = start + half, length - half, False
        self._write(stored, start, length if whole else faults.cut_after if cut else faults.stall_after, flip)
        if stall:
            with suppress(OSError):
                self.connection.recv(1)
        if not whole:
            self._hang_up(rst=cut and faults.rst)
        with self.hub.lock:
            begun = sum(r.method == "GET" and r.path == self.path for r in self.hub.log)
            if path in faults.swap and begun >= faults.swap[path][0]:
                repo = next(name for name, files in self.hub.repos.items() if path in files)
                self.hub.repos[repo][path] = Stored(faults.swap.pop(path)[1])

    def _hang_up(self, *, rst: bool) -> None:
        self.close_connection = True
        if rst:
            time.sleep(0.05)  # what was sent should be read first: RST discards it
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def _write(self, stored: Stored, start: int, length: int, flip: bool) -> None:
        if isinstance(stored.content, Path):
            with stored.content.open("rb") as handle:
                for first in range(start, start + length, 1 << 20):
                    count = min(1 << 20, start + length - first)
                    with self._counted(count):
                        self.connection.sendfile(handle, first, count)
            return
        part = bytearray(stored.content[start : start + length])
        if flip and part:
            part[len(part) // 2] ^= 1
        view = memoryview(part)
        for first in range(0, length, 1 << 16):
            with self._counted(min(1 << 16, length - first)):
                self.connection.sendall(view[first : first + (1 << 16)])

    @contextmanager
    def _counted(self, count: int) -> Iterator[None]:
        """Counts bytes before they go, so that whoever has received them finds them counted."""
        self.request_log.sent += count
        try:
            yield
        except OSError:
            self.request_log.sent -= count
            raise


def _sibling(path: str, stored: Stored, with_blobs: bool) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": path}
    if with_blobs:
        entry |= {"size": stored.size, "blobId": stored.oid}
        if stored.large:
            entry["lfs"] = {"sha256": stored.sha256, "size": stored.size, "pointerSize": 134}
    return entry


def _tree_entry(path: str, stored: Stored) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "oid": stored.oid, "size": stored.size, "path": path}
    if stored.large:
        entry["lfs"] = {"oid": stored.sha256, "size": stored.size, "pointerSize": 134}
    return entry
