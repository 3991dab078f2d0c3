"""What the Hub or the network refused, in words that say what to do next.

The Hub answers with a status and an `X-Error-Code`; it does not tell a private repository from one that does
not exist (see "Hub API endpoints" in its documentation). Every exception of the client and of its transport
is turned into one of llmrun's own here, at the boundary.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from llmrun.errors import LlmrunError, ModelNotFound, NetworkFailure
from llmrun.gguf.text import printable

if TYPE_CHECKING:
    import httpx2

_BAD_TOKEN = "Invalid credentials in Authorization header"
_DISABLED = "Access to this resource is disabled."
_TOKENS = "huggingface.co/settings/tokens"
_AGAIN = "run the command again: what is here already is kept"


class TransientFailure(NetworkFailure):
    """A failure that may pass. `wait_s` is how long the server asked to wait, None where it did not say."""

    def __init__(self, message: str, hint: str = "", wait_s: float | None = None) -> None:
        super().__init__(message, hint)
        self.wait_s = wait_s


class Unreachable(TransientFailure):
    """Nobody answers: asking again at once would only take longer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: the endpoint, a repository, a revision, a file (empty: the repository as such).

    It is quoted in messages, so the endpoint comes without a user's name and password.
    `token` says where the token that was sent came from, never the token: `HF_TOKEN`, `the stored login`,
    or empty for none.
    """

    endpoint: str
    repo: str
    revision: str = ""
    path: str = ""
    token: str = ""


def refusal(status: int, headers: Mapping[str, str], asked: Asked, from_hub: bool = True) -> LlmrunError:
    """The error that an answer with `status` (400 or more) means.

    `from_hub` is false for a storage host, whose signed addresses expire: asking the Hub again may help.
    """
    if not from_hub and status < 500 and status != 429:
        return TransientFailure(f"the storage host refused the file (status {status})", "try again later")
    code, message = headers.get("x-error-code", ""), headers.get("x-error-message", "")
    if code == "GatedRepo":
        return _gated(asked)
    if status == 401 and asked.token and (message == _BAD_TOKEN or not code):
        return NetworkFailure(
            f"the Hub does not accept the token in {asked.token}: it is wrong, expired or revoked",
            f"make a new one at {_TOKENS} and set HF_TOKEN, or log in with `hf auth login`",
        )
    if message == _DISABLED:
        return NetworkFailure(f"the Hub has disabled {asked.repo}", "choose another repository")
    if code == "RevisionNotFound":
        return ModelNotFound(
            f"{asked.repo} has no revision {printable(asked.revision)}", "leave the revision out for main"
        )
    if asked.path and (code == "EntryNotFound" or (status == 404 and code != "RepoNotFound")):
        return ModelNotFound(
            f"{asked.repo} has no file {printable(asked.path)}", "see what it has: llmrun pull --list"
        )
    if code == "RepoNotFound" or status in (401, 404):
        return _private_or_absent(asked)
    if status == 403:
        return NetworkFailure(
            f"the Hub forbids access to {asked.repo}", "check what the token in use may read, or use another"
        )
    return _trouble(status, headers, asked)


def _gated(asked: Asked) -> LlmrunError:
    page = f"{asked.endpoint}/{asked.repo}"
    if asked.token:
        return NetworkFailure(
            f"{asked.repo} is gated, and the account of the token in {asked.token} has not been let in",
            f"accept the terms at {page} with that account; some makers confirm by hand",
        )
    return NetworkFailure(
        f"{asked.repo} is gated: its makers want their terms accepted first",
        f"accept them at {page}, then set HF_TOKEN or log in with `hf auth login`",
    )


def _private_or_absent(asked: Asked) -> LlmrunError:
    if asked.token:
        return ModelNotFound(
            f"the Hub has no {asked.repo} that the token in {asked.token} may see",
            "check the spelling; if it is private, use a token of an account that may read it",
        )
    where = " and HF_ENDPOINT" if os.environ.get("HF_ENDPOINT") else ""
    return ModelNotFound(
        f"the Hub has no public repository {asked.repo}",
        f"check the spelling{where}; if it is private, set HF_TOKEN or log in with `hf auth login`",
    )


def _trouble(status: int, headers: Mapping[str, str], asked: Asked) -> LlmrunError:
    wait_s = retry_after_s(headers)
    if status == 429:
        when = f"in {wait_s:.0f} s" if wait_s is not None else "in a few minutes"
        login = "" if asked.token else "; with a token (HF_TOKEN) the limit is higher"
        return TransientFailure(
            "the Hub has had too many requests from here (status 429)", f"try again {when}{login}", wait_s
        )
    if status in (408, 425) or status >= 500:
        return TransientFailure(f"the Hub is in trouble (status {status})", "try again later", wait_s)
    return NetworkFailure(
        f"the Hub refused the request for {asked.repo} with status {status}", "check HF_ENDPOINT and the name"
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait: `Retry-After` as a number or a date, else the Hub's `RateLimit`."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return min(float(value), 86400.0)
    if value:
        from email.utils import parsedate_to_datetime

        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (ValueError, OverflowError):
            return None
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


@contextmanager
def told_plainly(asked: Asked) -> Iterator[None]:
    """Turns every exception of the Hub's client and its transport into one of llmrun's.

    Raises `TransientFailure` where trying again may help, else `NetworkFailure`.
    """
    import httpx2
    from huggingface_hub import errors as hub

    try:
        yield
    except LlmrunError:
        raise
    except httpx2.TransportError as error:
        raise _transport(error, asked) from error
    except hub.OfflineModeIsEnabled as error:
        raise offline(asked) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.CookieConflict, httpx2.StreamError) as error:
        raise NetworkFailure(
            f"the answer of {asked.endpoint} cannot be used ({_words(error)})", "check HF_ENDPOINT"
        ) from error
    except _CLIENT_TROUBLE as error:
        raise NetworkFailure(
            f"the Hub's client cannot be used as it is set up ({_words(error)})",
            "check HF_TOKEN, the stored login, and the variables for proxies and certificates",
        ) from error
    except Exception as error:
        if not type(error).__module__.startswith(("huggingface_hub.", "httpx2.", "httpcore")):
            raise
        raise NetworkFailure(f"the Hub's client failed ({_words(error)})", "try again later") from error


# OSError: unreadable token or certificate files; ValueError and ImportError: proxies that cannot be used
_CLIENT_TROUBLE = (OSError, ValueError, ImportError)


def offline(asked: Asked) -> NetworkFailure:
    """HF_HUB_OFFLINE forbids the request."""
    return NetworkFailure(
        f"{asked.repo} cannot be fetched: HF_HUB_OFFLINE is set", "unset it, or use a model that is here"
    )


def _transport(error: httpx2.TransportError, asked: Asked) -> NetworkFailure:
    import httpx2

    words, where = _words(error), _where(error, asked)
    if "CERTIFICATE" in words.upper() or "SSL" in words.upper():
        return NetworkFailure(
            f"no trusted connection to {where} ({words})",
            "if your network has its own certificate authority, name its file in SSL_CERT_FILE",
        )
    if isinstance(error, httpx2.ProxyError):
        return NetworkFailure(
            f"the proxy does not let requests through ({words})", "check HTTPS_PROXY and NO_PROXY"
        )
    if isinstance(error, (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)):
        return NetworkFailure(
            f"a request to {where} cannot be made ({words})", "check HF_ENDPOINT and HF_TOKEN"
        )
    if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        if proxy := _proxy(where):
            return Unreachable(
                f"the proxy {proxy} cannot be reached ({words})", "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
            )
        return Unreachable(
            f"{where} cannot be reached ({words})",
            "check the network; models that are here already work without it",
        )
    if isinstance(error, httpx2.TimeoutException):
        later = "try again later; HF_HUB_DOWNLOAD_TIMEOUT is how many seconds an answer is waited for"
        return Unreachable(f"{where} stopped answering", _AGAIN if asked.path else later)
    return TransientFailure(f"the connection to {where} broke", _AGAIN)


def _where(error: httpx2.TransportError, asked: Asked) -> str:
    """The origin that failed: files come from another host than the Hub's own."""
    try:
        url = error.request.url
    except RuntimeError:  # none was made yet
        return asked.endpoint
    return f"{url.scheme}://{host_of(str(url))}"


def host_of(url: str) -> str:
    """Host and port in an address, without a user's name and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _proxy(where: str) -> str:
    """Host and port of the proxy that requests to `where` go through; empty for none."""
    from urllib.request import getproxies, proxy_bypass

    proxies, scheme = getproxies(), urlsplit(where).scheme
    proxy = proxies.get(scheme) or proxies.get("all", "")
    if not proxy or proxy_bypass(host_of(where)):
        return ""
    return printable(host_of(proxy if "//" in proxy else f"//{proxy}"))


def _words(error: BaseException) -> str:
    """An exception's text in one safe line; its class where it says nothing."""
    return printable(" ".join(str(error).split())) or type(error).__name__
