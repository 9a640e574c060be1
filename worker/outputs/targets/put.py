"""Uploads by plain HTTP PUT: to a presigned address, an Azure container with a SAS, a server of one's own.

The address of a request has `{key}` where each output's key goes. Its query and the headers may hold a secret; the
link in the result has neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import httpx
from pydantic import ConfigDict, Field, field_validator

from darkroom.worker.errors import InputRejected, Problem, WorkerError
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.plain_responses import plain_client
from darkroom.worker.guard.safe_address import AddressGuard, redirect_problem
from darkroom.worker.json.request_model import RequestModel
from darkroom.worker.json.values import JsonObject
from darkroom.worker.outputs.targets.form import (
    OWN_HEADERS,
    check_template,
    checked,
    find_header_problem,
    without_nulls,
)
from darkroom.worker.outputs.targets.target import Destination, SentFile, UploadFailed, check_address, send_each
from darkroom.worker.settings.store_names import find_put_problem

KEY: Final = "{key}"
PIECE_BYTES: Final = 256 * 1024
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
CONNECT_SECONDS: Final = 10.0


class PutInput(RequestModel):
    """Destination of this request's outputs by plain HTTP PUT; `{key}` in an address stands for each output's key."""

    model_config = ConfigDict(extra="ignore")

    url: str
    headers: dict[str, str] = Field(default_factory=dict)
    public_url: str = Field(
        default="", description="Where the files can be fetched; left out: `url` without its query."
    )
    key_template: str = ""

    @field_validator("key_template")
    @classmethod
    def _makes_keys(cls, value: str) -> str:
        return check_template(value)

    @field_validator("url", "public_url")
    @classmethod
    def _has_key(cls, value: str) -> str:
        if value and KEY not in value:
            raise ValueError(f"expected an address with {KEY} where the key of each output goes")
        return value

    @field_validator("url")
    @classmethod
    def _takes_files(cls, value: str) -> str:
        return checked(value, lambda url: find_put_problem(url, datetime.now(UTC)))

    @field_validator("public_url")
    @classmethod
    def _is_of_the_web(cls, value: str) -> str:
        scheme, separator, _ = value.partition("://")
        if value and (not separator or scheme.lower() not in ("http", "https")):
            raise ValueError(f"expected an address that begins with http:// or https://; got {value[:40]!r}")
        return value

    @field_validator("headers", mode="before")
    @classmethod
    def _headers_alone(cls, value: object) -> object:
        return without_nulls(value)

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        problem = find_header_problem(value, OWN_HEADERS)
        if problem:
            raise ValueError(problem)
        return value


@dataclass(frozen=True, slots=True)
class PutTarget:
    """Destination of a request's outputs. `public_url` is where the files can be fetched; empty: at `url`."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    public_url: str = ""
    key_template: str = ""

    @staticmethod
    def of(asked: Mapping[str, Any]) -> PutTarget:
        """Return the target that a request's settings describe."""
        return PutTarget(**asked)

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
            reason = "the uploads of the job took longer than an hour"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = cause_of(error)
        raise UploadFailed(f"{path.name} was not uploaded by PUT: {reason}", reason=reason)

    async def close(self) -> None:
        await self._http.aclose()


class PutOutputTarget:
    """The OutputTarget of plain HTTP PUT: the address of a request."""

    def __init__(self, addresses: AddressGuard) -> None:
        self._addresses = addresses
        self._uploader = PutUploader(addresses)

    def check(self, asked: JsonObject) -> Problem | None:
        """Check the address of a request's store. Raises RequestRejected for one that cannot be a store's."""
        check_address(self._addresses, str(asked["url"]).replace(KEY, "key"), "input.put.url")
        return None

    def describe(self, asked: JsonObject) -> Destination | None:
        """Return the destination of files, None for a request without an address."""
        if not asked:
            return None
        target = PutTarget.of(asked)
        return Destination(urlsplit(target.url).netloc, target.key_template)

    async def deliver(
        self, asked: JsonObject, job_id: str, files: Sequence[SentFile], *, seconds: float
    ) -> list[str | WorkerError]:
        """Upload files within some seconds; return the link of each, or why it was not uploaded."""
        target, until = PutTarget.of(asked), asyncio.get_running_loop().time() + seconds

        async def send(file: SentFile) -> str:
            return await self._uploader.upload(target, file.path, file.key, file.media_type, until=until)

        return await send_each(files, send)

    async def close(self) -> None:
        await self._uploader.close()


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece
    finally:
        await asyncio.to_thread(file.close)
