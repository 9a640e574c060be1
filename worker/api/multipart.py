"""multipart/form-data on the generate routes: the JSON body in the part `input` (or `json`), files beside it.

Files stream to disk as they arrive; only the JSON is held in memory. A caller that requires an envelope sends the JSON
part before any file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.guard.bodies import Bodies, Lease
from darkroom.worker.guard.json_scan import JsonScan
from darkroom.worker.inputs.uploads import ReceivedFile, Upload, UploadedFiles
from darkroom.worker.inputs.zipped import PART, unzip

JSON_PARTS = ("input", "json")
MAX_PARTS = 64
MAX_NAME_LENGTH = 200


@dataclass(slots=True)
class Received:
    """Parts of a multipart body. `content` is the JSON, `files` by the names of their parts."""

    content: bytes | bytearray
    files: dict[str, ReceivedFile] = field(default_factory=dict)

    def discard(self) -> None:
        """Remove the files that have not been kept."""
        for file in self.files.values():
            file.path.unlink(missing_ok=True)


def is_multipart(request: Request) -> bool:
    return request.headers.get("content-type", "").strip().lower().startswith("multipart/form-data")


async def read_multipart(
    request: Request,
    uploads: UploadedFiles,
    bodies: Bodies,
    lease: Lease,
    check_before_file: Callable[[bytearray | None], None],
) -> Received:
    """Read the parts of a body, files to disk.

    `check_before_file` gets the JSON received so far before each file, and raises if files are refused.

    Raises RequestRejected, RequestTooLarge, MemoryLow, DiskLow; no file is left on disk then.
    """
    bodies.check_length(request)
    _, options = parse_options_header(request.headers["content-type"])
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= 70:
        raise RequestRejected([Problem("multipart/form-data without a boundary", field="body")])
    reader = _Reader(boundary, uploads, JsonScan(bodies.json_limits(lease.sender)), check_before_file)
    num_bytes, is_whole = 0, False
    try:
        async for chunk in request.stream():
            num_bytes += len(chunk)
            bodies.check_size(num_bytes, lease.sender)
            await asyncio.to_thread(reader.feed, chunk)
            lease.grow(reader.num_json_bytes - lease.num_bytes)
        received = reader.finish()
        if PART in received.files:

            def check_total(num_unzipped: int) -> None:
                bodies.check_size(num_bytes + num_unzipped, lease.sender)

            await asyncio.to_thread(reader.unzip, check_total)
        is_whole = True
        return received
    except FormParserError as error:
        raise RequestRejected([Problem(f"multipart body: malformed; got {error}", field="body")]) from None
    finally:
        if not is_whole:
            reader.discard()


class _Reader:
    """Callbacks of the multipart parser that collect the parts."""

    def __init__(
        self,
        boundary: bytes,
        uploads: UploadedFiles,
        scan: JsonScan,
        check_before_file: Callable[[bytearray | None], None],
    ) -> None:
        self._uploads = uploads
        self._scan = scan
        self._check_before_file = check_before_file
        self._header: list[bytes] = [b"", b""]
        self._headers: dict[str, bytes] = {}
        self._num_parts = 0
        self._json: bytearray | None = None
        self._is_in_json = False
        self._upload: Upload | None = None
        self._files: dict[str, ReceivedFile] = {}
        self._is_ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    @property
    def num_json_bytes(self) -> int:
        """Size of the JSON part so far, in bytes."""
        return len(self._json or b"")

    def feed(self, chunk: bytes) -> None:
        self._parser.write(chunk)

    def finish(self) -> Received:
        self._parser.finalize()
        if not self._is_ended:
            raise RequestRejected([Problem("multipart body: truncated", field="body")])
        if self._json is None:
            known = " or ".join(JSON_PARTS)
            raise RequestRejected([Problem(f"there is no part {known} with the JSON of the request", field="body")])
        return Received(self._json, self._files)

    def unzip(self, check_total: Callable[[int], None]) -> None:
        """Replace the archive among the files by the files in it. Raises RequestRejected, RequestTooLarge, DiskLow."""
        archive = self._files.pop(PART)
        try:
            unzipped = unzip(archive.path, self._uploads, MAX_PARTS, check_total)
        finally:
            archive.path.unlink(missing_ok=True)
        twice = sorted(unzipped.keys() & self._files.keys())
        if twice:
            Received(b"", unzipped).discard()
            raise RequestRejected([Problem("a part and a file of the archive have this name", field=twice[0])])
        self._files |= unzipped

    def discard(self) -> None:
        if self._upload is not None:
            self._upload.discard()
        Received(b"", self._files).discard()

    # callbacks of the parser

    def _begin_part(self) -> None:
        self._headers = {}
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise RequestRejected([Problem(f"more than {MAX_PARTS} parts", field="body")])

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[name.decode("latin-1").lower()] = value
        self._header = [b"", b""]

    def _end_headers(self) -> None:
        name = _name_of(self._headers)
        self._is_in_json = name in JSON_PARTS
        if self._is_in_json:
            if self._json is not None:
                raise RequestRejected([Problem("the JSON of the request is in two parts", field=name)])
            self._json = bytearray()
            return
        if name in self._files:
            raise RequestRejected([Problem("two parts have this name", field=name)])
        self._check_before_file(self._json)
        self._upload = self._uploads.begin(name)

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_in_json and self._json is not None:
            self._scan.feed(data[start:end])
            self._json += data[start:end]
        elif self._upload is not None:
            self._upload.write(data[start:end])

    def _end_part(self) -> None:
        if self._upload is not None:
            self._files[self._upload.part] = self._upload.finish()
            self._upload = None
        self._is_in_json = False

    def _end(self) -> None:
        self._is_ended = True


def _name_of(headers: Mapping[str, bytes]) -> str:
    _, options = parse_options_header(headers.get("content-disposition", b""))
    name = options.get(b"name", b"").decode(errors="replace")
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise RequestRejected([Problem("part name: missing or too long", field="body")])
    return name
