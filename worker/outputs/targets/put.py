"""Uploads by plain HTTP PUT: to a presigned address, an Azure container with a SAS, a server of one's own.

The address of a request has `{key}` where each output's key goes. Its query and the headers may hold a secret; the
link in the result has neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from worker.errors import InputRejected
from worker.guard.network_errors import cause_of
from worker.guard.plain_responses import plain_client
from worker.guard.safe_address import AddressGuard, redirect_problem
from worker.outputs.targets.s3 import UploadFailed

KEY: Final = "{key}"
PIECE_BYTES: Final = 256 * 1024
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
CONNECT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class PutTarget:
    """Destination of a request's outputs. `public_url` is where the files can be fetched; empty: at `url`."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    public_url: str = ""
    key_template: str = ""

    @staticmethod
    def of(asked: Mapping[str, Any] | None) -> PutTarget | None:
        """Return the target that a request's settings describe; None without any."""
        return PutTarget(**asked) if asked else None

    def address(self, key: str) -> str:
        """Return the address that a file is sent to."""
        return self.url.replace(KEY, quote(key))

    def link(self, key: str) -> str:
        """Return the address at which the file can be fetched, without a query that may hold a secret."""
        if self.public_url:
            return self.public_url.replace(KEY, quote(key))
        parts = urlsplit(self.address(key))
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))


class PutUploader:
    """Uploads whose addresses pass the guard, each with a deadline."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._http = plain_client(transport=guard.transport(), trust_env=False)

    async def upload(self, target: PutTarget, path: Path, key: str, media_type: str, *, until: float) -> str:
        """Upload a file and return its link. Raises UploadFailed; `until` is a time of the event loop's clock."""
        try:
            size_bytes = (await asyncio.to_thread(path.stat)).st_size
            headers = {**target.headers, "Content-Type": media_type, "Content-Length": str(size_bytes)}
            async with (
                asyncio.timeout_at(until),
                # Streamed and never read: only the status counts.
                self._http.stream(
                    "PUT",
                    target.address(key),
                    content=_pieces(path),
                    headers=headers,
                    timeout=httpx.Timeout(60.0, connect=CONNECT_SECONDS),
                ) as response,
            ):
                if response.is_success:
                    return target.link(key)
                reason = f"status {response.status_code}"
                if response.status_code in REDIRECTS:
                    location = response.headers.get("location", "")
                    reason = redirect_problem(response.status_code, target.address(key), location)
        except InputRejected as refused:  # by the address guard
            reason = refused.message
        except FileNotFoundError:
            reason = "the file is gone"
        except TimeoutError:
            reason = "the uploads of the job took longer than S3_UPLOAD_TIMEOUT"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = cause_of(error)
        raise UploadFailed(f"{path.name} was not uploaded by PUT: {reason}", reason=reason)

    async def close(self) -> None:
        await self._http.aclose()


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece
    finally:
        await asyncio.to_thread(file.close)
