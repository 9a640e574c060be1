"""HTTP clients without decompression: they request identity encoding, keep no cookie and limit the response size.

A few bytes of gzip, Brotli or Zstandard expand to gigabytes before a decoding client yields the first of them. A
response with a Content-Encoding is therefore refused before its body is read. Redirects are not followed by the client
either, because httpx reads and decodes the body of each.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from darkroom.worker.guard.paced_client import PacedClient

MAX_ANSWER_BYTES = 1024 * 1024
IDENTITY = {"Accept-Encoding": "identity"}


class EncodedResponse(httpx.RemoteProtocolError):
    """A response with a Content-Encoding, although the request excluded it."""


class ResponseTooLarge(httpx.RemoteProtocolError):
    """A response longer than the allowed size."""


def plain_client(
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    trust_env: bool = True,
    timeout: httpx.Timeout | float = 5.0,
    headers: Mapping[str, str] | None = None,
    verify: ssl.SSLContext | bool = True,
) -> httpx.AsyncClient:
    """Create an asynchronous client whose responses are read with `plain_chunks` or `plain_body`.

    Its transfers end in bounded time unless a request has no read timeout.
    """
    return PacedClient(
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
    """Create a synchronous client for a command; an encoded response raises EncodedResponse before it is read."""
    return httpx.Client(
        headers={**IDENTITY, **headers},
        timeout=timeout,
        verify=verify,
        mounts=mounts,
        cookies=_no_cookies(),
        event_hooks={"response": [check_is_plain]},
    )


def check_is_plain(response: Any) -> None:
    """Raise EncodedResponse if a response has an encoded body. Accepts any client's response that has `headers`."""
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise EncodedResponse(f"Content-Encoding: got {encoding[:40]!r}, expected identity")


async def plain_chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of a streamed response as it arrives. Raises EncodedResponse before the first byte is read."""
    check_is_plain(response)
    async for chunk in response.aiter_raw():
        yield chunk


async def plain_body(response: httpx.Response, max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """Return the body of a streamed response. Raises EncodedResponse, or ResponseTooLarge above `max_bytes`."""
    body = bytearray()
    async for chunk in plain_chunks(response):
        body += chunk
        if len(body) > max_bytes:
            raise ResponseTooLarge(f"answer: got over {max_bytes} bytes, expected fewer")
    return bytes(body)


def _no_cookies() -> CookieJar:
    """Return a cookie jar that stores nothing, because one client serves the requests of many callers."""
    return CookieJar(policy=DefaultCookiePolicy(allowed_domains=()))
