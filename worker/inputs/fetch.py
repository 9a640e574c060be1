"""InputFetcher: brings the files that a prompt refers to into a folder, each content once.

`<folder>/<sha256>.<ext>`: what two jobs send alike is one file. A download streams to disk within limits of bytes, time
and redirects, from public addresses only; the kind of the file comes from its bytes, never from its name or the server.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import urllib.parse
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from worker.errors import InputRejected
from worker.guard.safe_address import AddressGuard, shown_url
from worker.inputs.file_kinds import HEAD_BYTES, BrokenFile, FileKind, check_kind, check_picture
from worker.inputs.references import Reference
from worker.settings import InputLimits

CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class FetchedInput:
    """A file in the folder, whole and checked."""

    file_name: str
    path: Path
    size_bytes: int
    media_type: str


class DownloadFailed(InputRejected):
    """The server did not give the file: no connection, an error status, too slow, too many redirects."""

    code = "download_failed"


class InputTooLarge(InputRejected):
    code = "input_too_large"


class InputBroken(InputRejected):
    """The file came and is not what the node takes, or the inline data does not decode."""

    code = "input_broken"


class InputFetcher:
    """Owns an HTTP client whose every connection the guard has checked. Use `close()` at the end."""

    def __init__(self, guard: AddressGuard, directory: Path, limits: InputLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._http = httpx.AsyncClient(
            transport=guard.transport(),
            trust_env=False,
            follow_redirects=True,
            max_redirects=limits.max_redirects,
            timeout=httpx.Timeout(limits.timeout_seconds, connect=min(CONNECT_SECONDS, limits.timeout_seconds)),
            headers={"User-Agent": "darkroom", "Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def forget_before(self, time_seconds: float) -> None:
        """Removes every file that was last fetched before, and what a crash left of a download."""
        await asyncio.to_thread(_remove_older, self._directory, time_seconds)

    async def fetch(self, reference: Reference) -> FetchedInput:
        """The file of a reference. Raises InputRejected (or a class below it) that names node, field and URL."""
        where = _where(reference)
        await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True)
        partial = self._directory / f".partial-{uuid.uuid4().hex}"
        try:
            if reference.source == "url":
                digest, size_bytes = await self._download(reference, partial, where)
            else:
                digest, size_bytes = await asyncio.to_thread(self._decode, reference, partial, where)
            return await asyncio.to_thread(self._keep, reference, partial, digest, size_bytes, where)
        except InputRejected as refused:
            refused.fields = where | refused.fields  # the guard knows no node
            raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(partial)

    async def _download(self, reference: Reference, partial: Path, where: dict[str, Any]) -> tuple[str, int]:
        try:
            async with (
                asyncio.timeout(self._limits.timeout_seconds),
                self._http.stream("GET", reference.value) as response,
            ):
                if response.status_code != 200:
                    message = f"{where['url']} answered {response.status_code}"
                    raise DownloadFailed(message, http_status=response.status_code, **where)
                declared = response.headers.get("content-length", "")
                if declared.isdigit() and int(declared) > self._limits.max_bytes:
                    raise self._too_large(where)
                return await self._write(response.aiter_bytes(), partial, where)
        except TimeoutError:
            raise DownloadFailed(f"{where['url']} took over {self._limits.timeout_seconds:g} s", **where) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DownloadFailed(f"{where['url']}: {_why(error)}", **where) from None

    async def _write(self, chunks: AsyncIterator[bytes], partial: Path, where: dict[str, Any]) -> tuple[str, int]:
        digest, size_bytes = hashlib.sha256(), 0
        with partial.open("xb") as file:  # noqa: ASYNC230 - small writes to a local disk
            async for chunk in chunks:
                size_bytes += len(chunk)
                if size_bytes > self._limits.max_bytes:
                    raise self._too_large(where)
                digest.update(chunk)
                file.write(chunk)
        return digest.hexdigest(), size_bytes

    def _decode(self, reference: Reference, partial: Path, where: dict[str, Any]) -> tuple[str, int]:
        try:
            data = decode_data_uri(reference.value) if reference.source == "data" else _decode_base64(reference.value)
        except ValueError as error:
            raise InputBroken(f"{_input(reference)}: {error}", **where) from None
        if len(data) > self._limits.max_bytes:
            raise self._too_large(where)
        partial.write_bytes(data)
        return hashlib.sha256(data).hexdigest(), len(data)

    def _keep(
        self, reference: Reference, partial: Path, digest: str, size_bytes: int, where: dict[str, Any]
    ) -> FetchedInput:
        try:
            kind = _checked_kind(partial, reference)
        except BrokenFile as broken:
            shown = where.get("url") or _input(reference)
            raise InputBroken(f"{shown} {broken}", **where) from None
        name = f"{digest}.{kind.extension}"
        path = self._directory / name
        os.replace(partial, path)  # the same content under the same name: whoever comes last changes nothing
        return FetchedInput(name, path, size_bytes, kind.media_type)

    def _too_large(self, where: dict[str, Any]) -> InputTooLarge:
        limit = self._limits.max_bytes
        shown = where.get("url") or f"the input {where['field']} of node {where['node_id']}"
        return InputTooLarge(f"{shown} is over {limit} bytes", limit_bytes=limit, **where)


def decode_data_uri(text: str) -> bytes:
    """The content of a `data:` URI, base64 or percent-encoded. Raises ValueError."""
    header, comma, content = text.partition(",")
    if not comma:
        raise ValueError("the data: URI has no comma")
    if header.lower().replace(" ", "").endswith(";base64"):
        return _decode_base64(urllib.parse.unquote(content))
    return urllib.parse.unquote_to_bytes(content)


def _decode_base64(text: str) -> bytes:
    """Both alphabets, with or without padding and line breaks."""
    plain = "".join(text.split()).rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise ValueError("is not base64") from None


def _remove_older(directory: Path, time_seconds: float) -> None:
    for path in directory.glob("*") if directory.is_dir() else ():
        with suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_mtime < time_seconds:
                path.unlink()


def _checked_kind(path: Path, reference: Reference) -> FileKind:
    with path.open("rb") as file:
        kind = check_kind(file.read(HEAD_BYTES), reference.media)
    if kind.is_image:
        check_picture(path, kind)
    return kind


def _where(reference: Reference) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "node_id": reference.node_id,
        "class_type": reference.class_type,
        "field": reference.input_name,
    }
    return shown | ({"url": shown_url(reference.value)} if reference.source == "url" else {})


def _input(reference: Reference) -> str:
    return f"the input {reference.input_name} of node {reference.node_id}"


def _why(error: Exception) -> str:
    """A reason without the URL, which httpx's own words may repeat."""
    match error:
        case httpx.TooManyRedirects():
            return "too many redirects"
        case httpx.UnsupportedProtocol():
            return "redirects to an address that is not http:// or https://"
        case httpx.TimeoutException():
            return "took too long"
        case httpx.ConnectError():
            return "cannot be reached"
        case _:
            return f"the download broke off ({type(error).__name__})"
