"""InputFetcher: download or copy of the files that a prompt refers to into a folder, each content once.

A file is stored as `<folder>/<sha256>.<ext>`, so equal content of two jobs is one file. Concurrent downloads of one
address are merged (single-flight). A download streams to disk within limits of bytes, time and redirects, from public
addresses only. The kind of a file is determined by its magic bytes, never by its name or the server.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import shutil
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from darkroom.worker.concurrency.dedicated_thread import run_in_dedicated_thread
from darkroom.worker.errors import DiskLow, InputRejected
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.plain_responses import EncodedResponse, plain_chunks, plain_client
from darkroom.worker.guard.safe_address import AddressGuard, shown_url
from darkroom.worker.inputs.download_headers import DownloadHeaders, headers_for
from darkroom.worker.inputs.file_checks import check_input
from darkroom.worker.inputs.folder import PARTIAL_PREFIX, InputFolder
from darkroom.worker.inputs.partial_file import too_large, write_partial
from darkroom.worker.inputs.references import INLINE, UPLOAD_PREFIX, Reference
from darkroom.worker.inputs.refusals import FULL_DISK, DownloadFailed, InputBroken, disk_low
from darkroom.worker.inputs.s3_source import S3Source, parse_s3_url
from darkroom.worker.inputs.single_flight import SingleFlight
from darkroom.worker.json.values import JsonObject
from darkroom.worker.media.kinds import HEAD_BYTES, BrokenFile, check_kind
from darkroom.worker.media.process.processes import MediaProcesses
from darkroom.worker.observe.io_metrics import IoMetrics
from darkroom.worker.s3.targets import S3Target
from darkroom.worker.settings.outputs import InputLimits

CONNECT_SECONDS = 10.0
MAX_REDIRECTS = 5  # stores and CDNs redirect once or twice; each address is checked anew
DECODED_LENGTH = 1024 * 1024  # base64 characters decoded at a time
OTHER_ALPHABET = str.maketrans("-_", "+/")


@dataclass(frozen=True, slots=True)
class FetchedInput:
    """A complete and checked file in the folder."""

    file_name: str
    path: Path
    size_bytes: int


class InputFetcher:
    """An HTTP client for inputs whose every connection the address guard has checked. Call `close()` at the end."""

    def __init__(
        self,
        guard: AddressGuard,
        folder: InputFolder,
        limits: InputLimits,
        s3: S3Source,
        min_free_bytes: int = 0,
        io_metrics: IoMetrics | None = None,
        media_processes: MediaProcesses | None = None,
    ) -> None:
        self._media_processes = media_processes or MediaProcesses()
        self._guard = guard
        self._folder = folder
        self._limits = limits
        self._s3 = s3
        self._min_free_bytes = min_free_bytes
        self._io_metrics = io_metrics or IoMetrics()
        self._shared: SingleFlight[FetchedInput] = SingleFlight()
        self._http = plain_client(
            transport=guard.transport(),
            trust_env=False,
            timeout=httpx.Timeout(limits.download_seconds, connect=min(CONNECT_SECONDS, limits.download_seconds)),
            headers={"User-Agent": "darkroom"},
        )

    async def close(self) -> None:
        await self._http.aclose()

    def find_problem(self, reference: Reference, asked_s3: JsonObject | None) -> InputRejected | None:
        """Return the problem of a reference that can be found before any download and without a DNS query, or None."""
        try:
            if reference.source == "url":
                self._guard.check_form(reference.value)
            elif reference.source == "s3":
                self._s3_target(reference, asked_s3)
            elif reference.source == "upload":
                self._uploaded_path(reference)
        except InputRejected as refused:
            return refused
        return None

    async def fetch(
        self,
        reference: Reference,
        job_id: str,
        asked_s3: Mapping[str, object] | None = None,
        asked_headers: DownloadHeaders | None = None,
        *,
        is_operators: bool = False,
    ) -> FetchedInput:
        """Return the file of a reference, which is kept until the job releases it.

        `asked_headers` are the request's own for downloads. If `is_operators`, the prompt is the operator's own, for
        which the operator's credentials read the whole bucket.
        Raises InputRejected (or a subclass) that names node, field and address, and DiskLow.
        """
        where = _where(reference)
        try:
            while True:
                fetched = await self._fetch(reference, asked_s3, asked_headers or {}, is_operators)
                if self._folder.hold(fetched.file_name, job_id):
                    return fetched
        except (InputRejected, DiskLow) as refused:
            self._io_metrics.input_failed(reference.source)
            # The error may be shared with other jobs, whose nodes have other ids.
            raise type(refused)(refused.message, **(where | refused.fields)) from None

    async def _fetch(
        self, reference: Reference, asked_s3: JsonObject | None, asked_headers: DownloadHeaders, is_operators: bool
    ) -> FetchedInput:
        if reference.source == "upload":
            return await asyncio.to_thread(self._uploaded, reference)
        if reference.source in INLINE:
            return await self._bring(reference, None, {})
        target = self._s3_target(reference, asked_s3, is_operators) if reference.source == "s3" else None
        given = frozenset((prefix, *pair) for prefix, headers in asked_headers.items() for pair in headers.items())
        key = (reference.value, reference.media, target, given)
        if self._shared.is_in_flight(key):
            self._io_metrics.input_shared(reference.source)
        return await self._shared.run(key, lambda: self._bring(reference, target, asked_headers))

    def _s3_target(self, reference: Reference, asked_s3: JsonObject | None, is_operators: bool = False) -> S3Target:
        try:
            address = parse_s3_url(reference.value)
        except ValueError as error:
            raise InputBroken(f"{_input(reference)} {error}") from None
        target = self._s3.target(asked_s3, address.bucket)
        if target is None:
            message = f"{_input(reference)}: give credentials in `s3`; the worker's own are for its own bucket alone"
            raise InputRejected(message)
        if not is_operators and not self._s3.may_read(target, address.key):
            raise InputRejected(
                f"{_input(reference)}: the worker's own credentials read nothing there; got {address.key}, expected a "
                "key below S3_INPUT_PREFIXES, or credentials in `s3`"
            )
        return target

    async def _bring(
        self, reference: Reference, target: S3Target | None, asked_headers: DownloadHeaders
    ) -> FetchedInput:
        partial = self._folder.path / f"{PARTIAL_PREFIX}{uuid.uuid4().hex}"
        shown = _shown(reference)
        try:
            await asyncio.to_thread(self._folder.path.mkdir, parents=True, exist_ok=True)
            if target is not None:
                digest, size_bytes = await self._s3.download(
                    target, parse_s3_url(reference.value).key, partial, lambda: self._check_room(0, shown)
                )
            elif reference.source == "url":
                digest, size_bytes = await self._download(reference.value, shown, partial, asked_headers)
            else:
                digest, size_bytes = await asyncio.to_thread(self._decode, reference, partial)
            # its check may wait long for a process: not in one of the few threads that all else shares
            kept = await run_in_dedicated_thread(self._keep, reference, partial, digest, size_bytes)
            self._io_metrics.input_fetched(reference.source, size_bytes)
            return kept
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise disk_low(shown) from None
        finally:
            with suppress(FileNotFoundError):
                os.unlink(partial)

    async def _download(self, url: str, shown: str, partial: Path, asked_headers: DownloadHeaders) -> tuple[str, int]:
        try:
            async with (
                asyncio.timeout(self._limits.download_seconds),
                self._answer_to(url, asked_headers) as response,
            ):
                if response.status_code != 200:
                    raise DownloadFailed(f"{shown} answered {response.status_code}", http_status=response.status_code)
                declared = response.headers.get("content-length", "")
                if declared.isdigit():
                    await asyncio.to_thread(self._check_size, int(declared), shown)
                return await write_partial(
                    plain_chunks(response),
                    partial,
                    max_bytes=self._limits.max_bytes,
                    shown=shown,
                    check_room=lambda: self._check_room(0, shown),
                )
        except TimeoutError:
            raise DownloadFailed(f"{shown} took over {self._limits.download_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise DownloadFailed(f"{shown}: {_why(error)}") from None

    @asynccontextmanager
    async def _answer_to(self, url: str, asked_headers: DownloadHeaders) -> AsyncIterator[httpx.Response]:
        """Open the response at the end of the redirects, whose bodies are never read. Raises httpx.HTTPError."""
        request = self._http.build_request("GET", url, headers=headers_for(url, asked_headers))
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._http.send(request, stream=True)
            try:
                if response.next_request is None:
                    yield response
                    return
                target = response.next_request.url
                request = self._http.build_request("GET", target, headers=headers_for(str(target), asked_headers))
            finally:
                await response.aclose()
        raise httpx.TooManyRedirects("too many redirects", request=request)

    def _uploaded(self, reference: Reference) -> FetchedInput:
        path = self._uploaded_path(reference)
        try:
            with path.open("rb") as file:
                check_kind(file.read(HEAD_BYTES), reference.media)  # its content was checked at the upload
            return FetchedInput(path.name, path, path.stat().st_size)
        except BrokenFile as broken:
            raise InputBroken(f"{_shown(reference)} {broken}") from None
        except FileNotFoundError:
            raise _gone(reference) from None

    def _uploaded_path(self, reference: Reference) -> Path:
        path = self._folder.path / reference.value.removeprefix(UPLOAD_PREFIX)
        if not path.is_file():
            raise _gone(reference)
        return path

    def _decode(self, reference: Reference, partial: Path) -> tuple[str, int]:
        try:
            data = decode_data_uri(reference.value) if reference.source == "data" else _decode_base64(reference.value)
        except ValueError as error:
            raise InputBroken(f"{_input(reference)}: {error}") from None
        self._check_size(len(data), _shown(reference))
        partial.write_bytes(data)
        return hashlib.sha256(data).hexdigest(), len(data)

    def _keep(self, reference: Reference, partial: Path, digest: str, size_bytes: int) -> FetchedInput:
        try:
            kind = check_input(partial, reference.media, self._limits, self._media_processes)
        except BrokenFile as broken:
            raise InputBroken(f"{_shown(reference)} {broken}") from None
        name = f"{digest}.{kind.extension}"
        path = self._folder.keep(partial, name, is_only_copy=reference.source in INLINE)
        return FetchedInput(name, path, size_bytes)

    def _check_size(self, size_bytes: int, shown: str) -> None:
        if size_bytes > self._limits.max_bytes:
            raise too_large(shown, self._limits.max_bytes)
        self._check_room(size_bytes, shown)

    def _check_room(self, size_bytes: int, shown: str) -> None:
        if shutil.disk_usage(self._folder.path).free - size_bytes < self._min_free_bytes:
            raise disk_low(shown)


def decode_data_uri(text: str) -> bytes | bytearray:
    """Decode the content of a `data:` URI, base64 or percent-encoded. Raises ValueError."""
    header, comma, content = text.partition(",")
    if not comma:
        raise ValueError("the data: URI has no comma")
    if header.lower().replace(" ", "").endswith(";base64"):
        return _decode_base64(urllib.parse.unquote(content))
    return urllib.parse.unquote_to_bytes(content)


def _decode_base64(text: str) -> bytearray:
    """Decode base64 of both alphabets, with or without padding and line breaks.

    It is decoded in pieces, so that other threads can run in between.
    """
    made, held = bytearray(), ""
    try:
        for start in range(0, len(text), DECODED_LENGTH):
            held += "".join(text[start : start + DECODED_LENGTH].split()).translate(OTHER_ALPHABET)
            whole = 0 if "=" in held else len(held) // 4 * 4
            made += base64.b64decode(held[:whole], validate=True)
            held = held[whole:]
        plain = held.rstrip("=")
        made += base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        return made
    except (binascii.Error, ValueError):
        raise ValueError("is not base64") from None


def _where(reference: Reference) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "node_id": reference.node_id,
        "class_type": reference.class_type,
        "field": reference.input_name,
    }
    return shown | ({"url": shown_url(reference.value)} if reference.source in ("url", "s3") else {})


def _shown(reference: Reference) -> str:
    return shown_url(reference.value) if reference.source in ("url", "s3") else _input(reference)


def _input(reference: Reference) -> str:
    return f"the input {reference.input_name} of node {reference.node_id}"


def _gone(reference: Reference) -> InputRejected:
    return InputBroken(f"{_input(reference)}: the file that was uploaded is no longer here; send it again")


def _why(error: Exception) -> str:
    """Return the reason of an error without the URL, which the message of httpx may repeat."""
    match error:
        case EncodedResponse():
            return str(error)
        case httpx.TooManyRedirects():
            return "too many redirects"
        case httpx.UnsupportedProtocol():
            return "redirects to an address that is not http:// or https://"
        case httpx.TimeoutException() | TimeoutError():
            return f"took too long: {cause_of(error)}"
        case httpx.ConnectError():
            return f"cannot be reached: {cause_of(error)}"
        case _:
            return f"the download broke off: {cause_of(error)}"
