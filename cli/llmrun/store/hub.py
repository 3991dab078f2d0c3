"""Questions to the Hugging Face Hub: what a repository holds, where a file lies, bytes of it.

Requests go through the Hub client's own session and token, so that proxies, private certificate authorities,
HF_ENDPOINT, HF_TOKEN and the stored login work as in every other tool. A file's address answers
with its digest and, for large files, redirects to a storage host; the token goes to the Hub's own origin
only. The client is imported when the first question is asked.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from llmrun.errors import NetworkFailure
from llmrun.gguf.text import printable
from llmrun.store.hf_cache import repo_folder, safe_parts
from llmrun.store.hub_errors import (
    Asked,
    TransientFailure,
    Unreachable,
    host_of,
    offline,
    refusal,
    told_plainly,
)
from llmrun.store.listing import Listing, parse_listing
from llmrun.store.repo_files import RepoFile

if TYPE_CHECKING:
    import httpx2

_T = TypeVar("_T")

_MAX_REDIRECTS = 10
_MAX_LISTING_BYTES = 64 << 20
_WAITS_S = (0.5, 1.0)
_LONGEST_WAIT_S = 5.0
_TRUE = frozenset(("1", "ON", "YES", "TRUE"))
_PORTS = {"http": 80, "https": 443}
_PUBLIC = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the bytes of a file come from, and what the Hub says of them.

    `etag` names the content (its digest), `size_bytes` is None where the Hub did not say.
    """

    url: str
    asked: Asked
    etag: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Body:
    """An answer that is being received: it begins at byte `start` of a file of `size_bytes` (None: unknown).

    `whole` where the server sends the file from its first to its last byte whatever was asked; `etag` is the
    storage host's mark of this very content.
    """

    start: int
    whole: bool
    size_bytes: int | None
    etag: str
    chunks: Iterator[bytes]


class Hub:
    """The Hub at `endpoint` (default: HF_ENDPOINT, else the public one).

    `connect_s` and `read_s` bound how long a connection and an answer are waited for; the latter defaults to
    the client's own HF_HUB_DOWNLOAD_TIMEOUT. Methods raise `ModelNotFound` for what does not exist or may not
    be seen, else `NetworkFailure`; its subclass `TransientFailure` where trying again may help.
    """

    def __init__(self, endpoint: str = "", *, connect_s: float = 5.0, read_s: float | None = None) -> None:
        _check_endpoint(endpoint or os.environ.get("HF_ENDPOINT", ""))
        try:
            from huggingface_hub import constants
        except ValueError as error:  # it reads its variables when it is imported
            raise NetworkFailure(
                f"the Hub's client cannot be used as it is set up ({printable(str(error))})",
                "check the variables whose names begin with HF_",
            ) from error
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or _PUBLIC).rstrip("/")
        self._connect_s = connect_s
        self._read_s = float(constants.HF_HUB_DOWNLOAD_TIMEOUT) if read_s is None else read_s

    def listing(self, repo: str, revision: str = "main") -> Listing:
        """Files of a repository with sizes and digests, in one request. Files kept outside are left out."""
        repo_folder(repo)
        asked = self._asked(repo, revision)
        url = f"{self.endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"

        def ask() -> object:
            with told_plainly(asked), self._answer("GET", url, asked, follow=True) as answer:
                return _json(answer, asked)

        document = _tried_again(ask)
        return parse_listing(document, asked)

    def locate(self, listing: Listing, file: RepoFile) -> Source:
        """Ask where a file's bytes lie, without fetching any."""
        safe_parts(file.path)
        asked = self._asked(listing.repo, listing.commit, file.path)
        return self._follow(listing, file, asked)

    def _follow(self, listing: Listing, file: RepoFile, asked: Asked) -> Source:
        from huggingface_hub import hf_hub_url

        known: dict[str, str] = {}
        with told_plainly(asked):
            url = hf_hub_url(listing.repo, file.path, revision=listing.commit, endpoint=self.endpoint)
            for _ in range(_MAX_REDIRECTS):
                with self._answer("HEAD", url, asked) as answer:
                    known = dict(answer.headers) | known
                    target = answer.headers.get("location", "") if answer.is_redirect else ""
                if not target:
                    break
                url = urljoin(url, target)
                known = {
                    name: value for name, value in known.items() if name not in ("content-length", "etag")
                }
                if not self._is_ours(url):
                    break
        size = known.get("x-linked-size") or known.get("content-length", "")
        etag = _bare(known.get("x-linked-etag") or known.get("etag", ""))
        return Source(url, asked, etag, _count(size))

    @contextmanager
    def open(self, source: Source, start: int = 0, stop: int | None = None) -> Iterator[Body]:
        """Receive bytes `start` to before `stop` of a file. A server may ignore that and begin at 0."""
        wanted = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        extra = {"Range": wanted, "Accept-Encoding": "identity"}
        asked = source.asked
        with ExitStack() as stack:
            with told_plainly(asked):
                answer = stack.enter_context(self._answer("GET", source.url, asked, extra, follow=True))
                begins, size = _content_range(answer, asked)
            whole = answer.status_code != 206
            yield Body(begins, whole, size, _bare(answer.headers.get("etag", "")), _chunks(answer, asked))

    def _asked(self, repo: str, revision: str, path: str = "") -> Asked:
        asked = Asked(re.sub("//[^/]*@", "//", self.endpoint), repo, revision, path)
        with told_plainly(asked):
            return replace(asked, token=_token()[1])

    @contextmanager
    def _answer(
        self,
        method: str,
        url: str,
        asked: Asked,
        extra: Mapping[str, str] | None = None,
        *,
        follow: bool = False,
    ) -> Iterator[httpx2.Response]:
        """A response whose body has not been read; raises where its status is a refusal."""
        import httpx2
        from huggingface_hub import get_session

        if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
            raise offline(asked)
        headers = _headers(_token()[0] if self._is_ours(url) else "")
        timeout = httpx2.Timeout(self._read_s, connect=self._connect_s, pool=None)
        with get_session().stream(
            method, url, headers=headers | dict(extra or {}), timeout=timeout, follow_redirects=follow
        ) as answer:
            if answer.status_code >= 400:
                raise refusal(answer.status_code, answer.headers, asked, self._is_ours(str(answer.url)))
            yield answer

    def _is_ours(self, url: str) -> bool:
        """Whether `url` has the Hub's own scheme, host and port: only there may the token go."""
        return _origin(url) == _origin(self.endpoint)


def hub_host() -> str:
    """Host and port of the Hub that is asked by default. Raises `NetworkFailure` as `Hub` does."""
    endpoint = os.environ.get("HF_ENDPOINT", "")
    _check_endpoint(endpoint)
    return host_of(endpoint or _PUBLIC)


def _tried_again(ask: Callable[[], _T]) -> _T:
    """The answer, asked for up to three times where the Hub is in trouble; not where nobody answers."""
    for wait_s in _WAITS_S:
        try:
            return ask()
        except Unreachable:
            raise
        except TransientFailure as error:
            if (error.wait_s or 0.0) > _LONGEST_WAIT_S:
                raise
            time.sleep(max(wait_s, error.wait_s or 0.0))
    return ask()


def _check_endpoint(url: str) -> None:
    """Raises `NetworkFailure` for a value of HF_ENDPOINT that cannot be a Hub's address; empty is none."""
    try:
        scheme, host, _ = _origin(url)
    except ValueError:
        scheme = host = ""
    if url and not (scheme in _PORTS and host and url.isprintable()):
        raise NetworkFailure(
            f"HF_ENDPOINT is no address: {printable(re.sub('//[^/]*@', '//', url))}",
            "set it to https://HOST, or unset it for the public Hub",
        )


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def _headers(token: str) -> dict[str, str]:
    """Who asks. The client's own function would first ask its makers' server about the user's environment."""
    from huggingface_hub import __version__ as client

    from llmrun import __version__

    names = {"User-Agent": f"llmrun/{__version__}; hf_hub/{client}"}
    return names | {"Authorization": f"Bearer {token}"} if token else names


def _token() -> tuple[str, str]:
    """The token as the client finds it, and where; both empty where there is none or it must not be sent."""
    from huggingface_hub import get_token
    from huggingface_hub.constants import HF_HUB_DISABLE_IMPLICIT_TOKEN

    token = None if HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if not token:
        return "", ""
    source = "HF_TOKEN" if os.environ.get("HF_TOKEN") else "the stored login"
    if not token.isascii() or not token.isprintable():
        raise NetworkFailure(f"the token in {source} has characters no token has", "copy it again")
    return token, source


def _bare(etag: str) -> str:
    """An ETag without quotes and weakness mark."""
    return etag.removeprefix("W/").strip('"')


def _chunks(answer: httpx2.Response, asked: Asked) -> Iterator[bytes]:
    with told_plainly(asked):
        yield from answer.iter_raw()


def _content_range(answer: httpx2.Response, asked: Asked) -> tuple[int, int | None]:
    """Where the body begins in the file, and the file's size."""
    if answer.status_code != 206:
        return 0, _count(answer.headers.get("content-length", ""))
    unit, _, rest = answer.headers.get("content-range", "").partition(" ")
    span, _, total = rest.partition("/")
    first = _count(span.partition("-")[0])
    if unit != "bytes" or first is None:
        raise TransientFailure(f"{asked.endpoint} sent a part without saying which", "try again later")
    return first, _count(total)


def _count(digits: str) -> int | None:
    """A number of bytes in a header; None where it is none."""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def _json(answer: httpx2.Response, asked: Asked) -> object:
    import json

    text = bytearray()
    for chunk in answer.iter_bytes():
        text += chunk
        if len(text) > _MAX_LISTING_BYTES:
            raise NetworkFailure(f"the listing of {asked.repo} is too long", "use a smaller repository")
    try:
        return json.loads(text)
    except ValueError:
        raise NetworkFailure(
            f"{asked.endpoint} did not answer like a Hub",
            "check HF_ENDPOINT, and whether a login page is in between",
        ) from None
