"""A model file behind an HTTP address: ranges of it, through redirects, each hop with its own credentials."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import httpx

from darkroom.worker.concurrency.backoff import retry_after_seconds
from darkroom.worker.errors import InputRejected
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.plain_responses import EncodedResponse, plain_chunks
from darkroom.worker.models.download.credentials import Credentials
from darkroom.worker.models.download.remote import Passing, RemoteBody
from darkroom.worker.models.errors import DownloadBroke, ModelBroken, SourceFailed, SourceMissing, SourceRefused

MAX_REDIRECTS = 6
PASSING_STATUSES = frozenset({408, 423, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524})
MAX_RETRY_AFTER_SECONDS = 60.0

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")

Explain = Callable[[int, Mapping[str, str]], SourceFailed | None]
"""The error of a status and its headers where the kind of source says more than HTTP does."""


def no_explanation(status: int, headers: Mapping[str, str]) -> SourceFailed | None:
    return None


class HttpRemote:
    """A file at an address. Where its redirects led is kept, and asked for anew when that stops to answer."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        shown: str,
        credentials: Credentials,
        *,
        reach_seconds: float,
        sha256: str | None = None,
        trusts_etag: bool = False,
        explain: Explain = no_explanation,
    ) -> None:
        self.shown = shown
        self._client = client
        self._url = url
        self._bearers = credentials
        self._reach_seconds = reach_seconds
        self._sha256 = sha256
        self._trusts_etag = trusts_etag
        self._explain = explain
        self._location = ""

    @asynccontextmanager
    async def open(self, start: int, stop: int) -> AsyncIterator[RemoteBody]:
        """Open bytes of the file. See `Remote`."""
        try:
            response = await self._answer(start, stop)
        except httpx.InvalidURL:
            raise DownloadBroke(f"{self.shown}: redirects to what is no address") from None
        except httpx.HTTPError as error:
            self._location = ""
            raise _failure(error, self.shown, has_answered=False) from None
        try:
            yield self._body(response, start, stop)
        finally:
            await response.aclose()

    async def _answer(self, start: int, stop: int) -> httpx.Response:
        """Return the good answer at the end of the redirects."""
        url = self._location or self._url
        for _ in range(MAX_REDIRECTS):
            headers = {"Range": f"bytes={start}-{stop - 1}", **self._bearers.headers_for(url)}
            response = await self._send(url, headers)
            self._note_published(url, response)
            if response.next_request is None:
                await self._check(response, url)
                self._location = url if url != self._url else ""
                return response
            url = str(response.next_request.url)
            await response.aclose()
        raise DownloadBroke(f"{self.shown}: too many redirects")

    async def _send(self, url: str, headers: Mapping[str, str]) -> httpx.Response:
        request = self._client.build_request("GET", url, headers=dict(headers))
        try:
            async with asyncio.timeout(self._reach_seconds):
                return await self._client.send(request, stream=True)
        except TimeoutError:
            raise Passing(f"no answer within {self._reach_seconds:g} s", has_answered=False) from None
        except InputRejected as refused:  # the address guard's
            if refused.code == "host_unknown":
                raise Passing("the host does not resolve", has_answered=False) from None
            raise SourceRefused(f"{self.shown}: {refused.message}") from None

    def _note_published(self, url: str, response: httpx.Response) -> None:
        """Keep the SHA-256 that a hub gives with its redirect; other servers' ETags mean nothing outside them."""
        if self._trusts_etag and self._sha256 is None and url == self._url:
            tag = response.headers.get("x-linked-etag") or response.headers.get("etag", "")
            found = _SHA256.fullmatch(tag.removeprefix("W/").strip('"').lower())
            self._sha256 = found[0] if found else None

    async def _check(self, response: httpx.Response, url: str) -> None:
        status = response.status_code
        if status in (200, 206):
            return
        await response.aclose()
        if self._location:  # a link that expired
            self._location = ""
            raise Passing(f"a link of the source answered {status}")
        if status in PASSING_STATUSES:
            asked = retry_after_seconds(response.headers.get("retry-after"), time.time()) or 0.0
            raise Passing(f"the source answered {status}", retry_after_seconds=min(asked, MAX_RETRY_AFTER_SECONDS))
        raise self._explain(status, response.headers) or self._refusal(status, url)

    def _refusal(self, status: int, url: str) -> SourceFailed:
        if status in (401, 403):
            done = "the token for it was refused" if self._bearers.has_for(url) else "it needs a token"
            return SourceRefused(f"{self.shown}: answered {status}; {done} (MODEL_TOKENS)")
        if status in (404, 410):
            return SourceMissing(f"{self.shown}: there is no such file; the source answered {status}")
        if status == 416:
            return ModelBroken(f"{self.shown}: the file is empty, or shorter than the manifest says")
        return DownloadBroke(f"{self.shown}: the source answered {status}")

    def _body(self, response: httpx.Response, start: int, stop: int) -> RemoteBody:
        if "text/html" in response.headers.get("content-type", "").lower():
            raise ModelBroken(f"{self.shown}: the source sent a web page in place of a model")
        size_bytes: int | None = None
        first, has_ranges = 0, response.status_code == 206
        if has_ranges:
            found = _RANGE.fullmatch(response.headers.get("content-range", "").strip())
            if found is None or int(found[1]) != start or int(found[2]) != min(stop, int(found[3])) - 1:
                raise ModelBroken(f"{self.shown}: the source sent another range than the one asked for")
            first, size_bytes = start, int(found[3])
        else:
            declared = response.headers.get("content-length", "")
            size_bytes = int(declared) if declared.isascii() and declared.isdigit() else None
        return RemoteBody(first, size_bytes, _validator(response), self._sha256, has_ranges, self._chunks(response))

    async def _chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in plain_chunks(response):
                yield chunk
        except httpx.HTTPError as error:
            raise _failure(error, self.shown, has_answered=True) from None


def _validator(response: httpx.Response) -> str:
    """Return the validator of a content; a weak ETag does not identify bytes, and is used for lack of another."""
    return str(response.headers.get("etag") or response.headers.get("last-modified") or "")


def _failure(error: httpx.HTTPError, shown: str, *, has_answered: bool) -> Exception:
    """Return the error of a connection, without the address, which httpx's own words may repeat."""
    match error:
        case EncodedResponse():
            return DownloadBroke(f"{shown}: {error}")
        case httpx.UnsupportedProtocol():
            return DownloadBroke(f"{shown}: redirects to an address that is not http:// or https://")
        case httpx.ConnectTimeout() | httpx.ConnectError():
            return Passing(f"it cannot be reached: {cause_of(error)}", has_answered=has_answered)
        case httpx.TimeoutException():
            return Passing("no byte came for too long", has_answered=has_answered)
        case _:
            return Passing(f"the connection broke off: {cause_of(error)}", has_answered=has_answered)
