"""PacedClient: an HTTP client whose transfers end, whatever the other side does.

The timeouts of httpx are for one read or write each: a server that sends a byte every few seconds never runs into them.
Here the whole head of an answer must come within the read timeout after the request was sent, and of a body that is
waited for so long at least MIN_BYTES_PER_SECOND. Without a read timeout there is no such limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import httpx

MIN_BYTES_PER_SECOND: Final = 1024


class PacedClient(httpx.AsyncClient):
    """An asynchronous client. A transfer that is too slow raises httpx.ReadTimeout."""

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request and return its response, its body read unless `stream`."""
        timeouts = request.extensions.get("timeout", {})
        read_seconds = timeouts.get("read")
        if read_seconds is None:
            return await super().send(request, stream=stream, **options)
        response = await self._head(request, timeouts, read_seconds, options)
        if isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _PacedBody(response.stream, read_seconds, request)
        if not stream:
            try:
                await response.aread()
            except BaseException:
                await response.aclose()
                raise
        return response

    async def _head(
        self, request: httpx.Request, timeouts: dict[str, Any], read_seconds: float, options: dict[str, Any]
    ) -> httpx.Response:
        """Return the response once its head has come; the clock begins anew with each piece that is sent."""
        loop = asyncio.get_running_loop()
        before_seconds = sum(timeouts.get(name) or 0.0 for name in ("pool", "connect"))
        try:
            async with asyncio.timeout(before_seconds + read_seconds) as limit:

                def note_sent() -> None:
                    limit.reschedule(loop.time() + read_seconds)

                if isinstance(request.stream, httpx.AsyncByteStream):
                    request.stream = _SentBody(request.stream, note_sent)
                return await super().send(request, stream=True, **options)
        except TimeoutError:
            raise httpx.ReadTimeout(f"no answer within {read_seconds:g} s", request=request) from None


class _SentBody(httpx.AsyncByteStream):
    """The body of a request; `note` is called as each of its pieces is taken, and at its end."""

    def __init__(self, inner: httpx.AsyncByteStream, note: Callable[[], None]) -> None:
        self._inner = inner
        self._note = note

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._note()
            yield piece
        self._note()

    async def aclose(self) -> None:
        await self._inner.aclose()


class _PacedBody(httpx.AsyncByteStream):
    """The body of a response. Only the time that is spent waiting for it counts, not that of whoever reads it."""

    def __init__(self, inner: httpx.AsyncByteStream, window_seconds: float, request: httpx.Request) -> None:
        self._inner = inner
        self._window_seconds = window_seconds
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces, loop = aiter(self._inner), asyncio.get_running_loop()
        least_bytes = self._window_seconds * MIN_BYTES_PER_SECOND
        waited_seconds, num_bytes = 0.0, 0
        while True:
            began = loop.time()
            try:
                async with asyncio.timeout(max(0.0, self._window_seconds - waited_seconds)):
                    piece = await anext(pieces, None)
            except TimeoutError:
                message = f"less than {MIN_BYTES_PER_SECOND} bytes a second for {self._window_seconds:g} s"
                raise httpx.ReadTimeout(message, request=self._request) from None
            if piece is None:
                return
            waited_seconds += loop.time() - began
            num_bytes += len(piece)
            if num_bytes >= least_bytes:
                waited_seconds, num_bytes = 0.0, 0
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
