"""HTTP clients that decode nothing: they ask for identity, keep no cookie, and read answers raw and up to a bound.

A few bytes of gzip, Brotli or Zstandard become gigabytes before a decoding client shows the first of them, so an answer
with a Content-Encoding is refused before its body is read. Redirects are not followed by themselves either: httpx reads
and decodes the body of each.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

MAX_ANSWER_BYTES = 1024 * 1024
IDENTITY = {"Accept-Encoding": "identity"}


class EncodedAnswer(httpx.RemoteProtocolError):
    """The server compressed its answer although it was asked not to."""


class AnswerTooLarge(httpx.RemoteProtocolError):
    """The answer is longer than any that is expected."""


def plain_client(
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    trust_env: bool = True,
    timeout: httpx.Timeout | float = 5.0,
    headers: Mapping[str, str] | None = None,
    verify: ssl.SSLContext | bool = True,
) -> httpx.AsyncClient:
    """Make an asynchronous client; read its answers by `plain_chunks` or `plain_body`."""
    return httpx.AsyncClient(
        transport=transport,
        trust_env=trust_env,
        timeout=timeout,
        verify=verify,
        headers={**IDENTITY, **(headers or {})},
        follow_redirects=False,
        cookies=_no_cookies(),
    )


def blocking_plain_client(
    *,
    headers: Mapping[str, str],
    timeout: httpx.Timeout | float,
    verify: ssl.SSLContext | bool,
    mounts: Mapping[str, None],
) -> httpx.Client:
    """Make a client for a command; an encoded answer raises EncodedAnswer before it is read."""
    return httpx.Client(
        headers={**IDENTITY, **headers},
        timeout=timeout,
        verify=verify,
        mounts=mounts,
        cookies=_no_cookies(),
        event_hooks={"response": [check_is_plain]},
    )


def check_is_plain(response: Any) -> None:
    """Raise EncodedAnswer for an answer whose body is encoded. Takes the response of any client with `headers`."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise EncodedAnswer(f"Content-Encoding: got {encoding[:40]!r}, expected identity")


async def plain_chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of a streamed answer as it comes. Raises EncodedAnswer before the first byte is read."""
    check_is_plain(response)
    async for chunk in response.aiter_raw():
        yield chunk


async def plain_body(response: httpx.Response, max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """Return the body of a streamed answer. Raises EncodedAnswer, and AnswerTooLarge past `max_bytes`."""
    body = bytearray()
    async for chunk in plain_chunks(response):
        body += chunk
        if len(body) > max_bytes:
            raise AnswerTooLarge(f"answer: got over {max_bytes} bytes, expected fewer")
    return bytes(body)


def _no_cookies() -> CookieJar:
    """Return a jar that takes no cookie: one client serves the requests of many callers."""
    return CookieJar(policy=DefaultCookiePolicy(allowed_domains=()))
