"""S3Stores: objects into and out of any store that speaks S3. Cancelling a transfer closes its sockets.

botocore signs, the front's own clients send: everything runs on the event loop, answers are never decoded, and of an
answer that is no object's body at most MAX_ANSWER_BYTES are read. A store that the request names, not the operator, is
reached through the address guard. Errors of the libraries become StoreFailed here.
"""

from __future__ import annotations

import asyncio
import html
import re
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.errors import WorkerError
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.plain_responses import (
    EncodedResponse,
    ResponseTooLarge,
    check_is_plain,
    plain_body,
    plain_client,
)
from darkroom.worker.guard.safe_address import AddressGuard, shown_url
from darkroom.worker.json.values import JsonObject
from darkroom.worker.s3.signer import SIGNED_SECONDS, NotSignable, S3Signer, make_signer
from darkroom.worker.s3.targets import S3Target

READ_TIMEOUT_SECONDS = 60.0  # without a byte, either way
SIGNERS_KEPT = 8
PART_BYTES = 8 * 1024 * 1024
MAX_PARTS = 10_000
PARTS_AT_ONCE = 4
PIECE_BYTES = 256 * 1024  # of a file, read and sent at a time
ABORT_SECONDS = 60.0  # nobody waits for it, and what is left behind costs storage
KEYS_A_PAGE = 100  # what an answer may hold is bounded
BACKOFF = Backoff(first_seconds=0.5, longest_seconds=10.0)
RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})
OTHER_REGION_STATUSES = frozenset({301, 302, 307, 400})
FRAMED_ENCODING = "aws-chunked"  # some stores repeat it of an upload; the object's bytes are not encoded
MAY_NOT_LIST = "AccessDenied"

_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d{1,2}")
_PLACE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")
_BODY_REGION = re.compile(rb"<Region>([a-z0-9-]{1,32})</Region>")
_KEY = re.compile(rb"<Key>([^<]{1,4096})</Key>")
_UPLOAD_ID = re.compile(rb"<UploadId>([^<]{1,2048})</UploadId>")

MakeBody = Callable[[], bytes | AsyncIterator[bytes]]


class StoreFailed(Exception):
    """A store did not do what was asked. `reason` is short and free of its own words, which may repeat keys."""

    def __init__(self, reason: str, *, code: str = "", status: int = 0, region: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.status = status
        self.region = region


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object under way: its length where the store gives one, and its bytes as they come.

    `first` is the place of the first byte where the store sent a part as it was asked, else None; `size_bytes` is the
    whole object's. `validator` differs for different contents.
    """

    length: int | None
    chunks: AsyncIterator[bytes]
    first: int | None = None
    size_bytes: int | None = None
    validator: str = ""


@dataclass(frozen=True, slots=True)
class _Call:
    """One request to a store; `body` is made anew for each try."""

    operation: str
    method: str
    parameters: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    body: MakeBody = bytes


class S3Stores:
    """Owns the signers of the last few targets and two HTTP clients. Use `close()` at the end."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guarded = plain_client(transport=guard.transport(), trust_env=False)
        self._trusted: httpx.AsyncClient | None = None
        self._session: Any = None
        self._signers: OrderedDict[S3Target, S3Signer] = OrderedDict()
        self._signing = asyncio.Lock()
        self._aborting: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._aborting:
            task.cancel()
        await asyncio.gather(*self._aborting, return_exceptions=True)
        await self._guarded.aclose()
        if self._trusted is not None:
            await self._trusted.aclose()

    @asynccontextmanager
    async def read(
        self, target: S3Target, key: str, part: tuple[int, int] | None = None
    ) -> AsyncIterator[StoredObject]:
        """Open an object, or a part of it: from one place to another (exclusive).

        Raises StoreFailed, also while its bytes come; AddressRefused, HostUnknown.
        """
        headers = {} if part is None else {"Range": f"bytes={part[0]}-{part[1] - 1}"}
        call = _Call("get_object", "GET", {"Key": key}, headers)
        async with self._answer(target, call) as response:
            if response.headers.get("content-encoding", "").strip().lower() != FRAMED_ENCODING:
                check_is_plain(response)
            declared = response.headers.get("content-length", "")
            length = int(declared) if declared.isascii() and declared.isdigit() else None
            first, size_bytes = _place_of(response) or (None, length)
            yield StoredObject(length, response.aiter_raw(), first, size_bytes, response.headers.get("etag", ""))

    async def write(self, target: S3Target, path: Path, key: str, media_type: str) -> None:
        """Store a file, a large one in parts. Raises StoreFailed, OSError, AddressRefused, HostUnknown."""
        size_bytes = (await asyncio.to_thread(path.stat)).st_size
        if size_bytes > PART_BYTES:
            await self._write_parts(target, path, key, media_type, size_bytes)
            return
        headers = {"Content-Type": media_type, "Content-Length": str(size_bytes)}
        parameters = {"Key": key, "ContentType": media_type}
        body = _bytes_of(path, 0, size_bytes)
        await self._ask(target, _Call("put_object", "PUT", parameters, headers, body))

    async def keys(self, target: S3Target, prefix: str) -> list[str]:
        """Return the keys that begin so, in their order. Raises StoreFailed, AddressRefused, HostUnknown."""
        found: list[str] = []
        while True:
            after = {"StartAfter": found[-1]} if found else {}
            call = _Call("list_objects_v2", "GET", {"Prefix": prefix, "MaxKeys": KEYS_A_PAGE, **after})
            page = [html.unescape(key.decode()) for key in _KEY.findall(await self._ask(target, call))]
            found += page
            if len(page) < KEYS_A_PAGE:
                return found

    async def remove(self, target: S3Target, key: str) -> None:
        """Remove an object; one that is not there is no error. Raises StoreFailed, AddressRefused, HostUnknown."""
        await self._ask(target, _Call("delete_object", "DELETE", {"Key": key}))

    async def link(self, target: S3Target, key: str, seconds: int) -> str:
        """Return a presigned link to an object. Raises StoreFailed."""
        try:
            return await self._url(target, "get_object", seconds, Key=key)
        except NotSignable as error:
            raise StoreFailed(str(error)) from None

    async def find_problem(self, target: S3Target) -> str | None:
        """Return the reason why nothing could be stored, judged by a listing of the bucket, or None."""
        try:
            await self._ask(target, _Call("list_objects_v2", "GET", {"MaxKeys": 1}))
        except StoreFailed as failed:
            return None if failed.code == MAY_NOT_LIST else failed.reason  # a key that may only write
        except WorkerError as error:
            return error.message
        return None

    # in parts

    async def _write_parts(self, target: S3Target, path: Path, key: str, media_type: str, size_bytes: int) -> None:
        begin = _Call(
            "create_multipart_upload",
            "POST",
            {"Key": key, "ContentType": media_type},
            {"Content-Type": media_type, "Content-Length": "0"},
        )
        found = _UPLOAD_ID.search(await self._ask(target, begin))
        if found is None:
            raise StoreFailed("the store's answer names no upload")
        upload = {"Key": key, "UploadId": html.unescape(found[1].decode("utf-8", "replace"))}
        try:
            tags = await self._send_parts(target, path, upload, size_bytes)
            done = _completion(tags)
            headers = {"Content-Type": "application/xml", "Content-Length": str(len(done))}
            call = _Call("complete_multipart_upload", "POST", upload, headers, lambda: done)
            answer = await self._ask(target, call)
            if b"<Error>" in answer:  # the status was sent before the store knew
                raise _refused(200, {}, answer)
        except BaseException:
            self._abort_soon(target, upload)
            raise

    async def _send_parts(self, target: S3Target, path: Path, upload: JsonObject, size_bytes: int) -> list[str]:
        """Send every part, a few at a time; return their tags in order."""
        part_bytes = max(PART_BYTES, -(-size_bytes // MAX_PARTS))
        at_once = asyncio.Semaphore(PARTS_AT_ONCE)

        async def send(number: int, start: int) -> str:
            num_bytes = min(part_bytes, size_bytes - start)
            parameters = {**upload, "PartNumber": number}
            headers = {"Content-Length": str(num_bytes)}
            call = _Call("upload_part", "PUT", parameters, headers, _bytes_of(path, start, num_bytes))
            async with at_once, self._answer(target, call) as response:
                await plain_body(response)
                tag = str(response.headers.get("etag", ""))
                if not tag:
                    raise StoreFailed("the store's answer names no part")
                return tag

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(send(number, start))
                    for number, start in enumerate(range(0, size_bytes, part_bytes), start=1)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    def _abort_soon(self, target: S3Target, upload: JsonObject) -> None:
        """Abort an upload that ended and remove its parts, without a wait for its caller."""

        async def abort() -> None:
            with suppress(StoreFailed, WorkerError, TimeoutError):
                async with asyncio.timeout(ABORT_SECONDS):
                    await self._ask(target, _Call("abort_multipart_upload", "DELETE", upload))

        task = asyncio.create_task(abort(), name="s3-abort")
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    # one request

    async def _ask(self, target: S3Target, call: _Call) -> bytes:
        """Return the answer's body. Raises StoreFailed, AddressRefused, HostUnknown."""
        async with self._answer(target, call) as response:
            return await plain_body(response)

    @asynccontextmanager
    async def _answer(self, target: S3Target, call: _Call) -> AsyncIterator[httpx.Response]:
        """Open the store's good answer, closed again at the end of the block."""
        response = await self._good_answer(target, call)
        try:
            yield response
        except httpx.HTTPError as error:
            raise StoreFailed(_reason(error)) from None
        finally:
            await response.aclose()

    async def _good_answer(self, target: S3Target, call: _Call) -> httpx.Response:
        """Send a request until its answer is good, as often as the target allows. Raises StoreFailed."""
        tries = AsyncRetrying(
            retry=retry_if_exception(_is_passing),
            wait=BACKOFF,
            stop=stop_after_attempt(target.connect_attempts),
            reraise=True,
        )
        return await tries(self._try, target, call)

    async def _try(self, target: S3Target, call: _Call) -> httpx.Response:
        """Send a request once, and signed anew where the store names another region."""
        try:
            return await self._answered(target, call)
        except StoreFailed as failed:
            if not failed.region or target.endpoint_url:
                raise
            await self._sign_for(target, failed.region)
        return await self._answered(target, call)

    async def _answered(self, target: S3Target, call: _Call) -> httpx.Response:
        try:
            response = await self._send(target, call)
        except httpx.TransportError as error:
            raise StoreFailed(_reason(error), status=503) from None
        except NotSignable as error:
            raise StoreFailed(str(error)) from None
        if not response.is_success:
            raise await _refusal(response)
        return response

    async def _send(self, target: S3Target, call: _Call) -> httpx.Response:
        url = await self._url(target, call.operation, **call.parameters)
        http = self._trusted_client() if target.is_trusted else self._guarded
        timeout = httpx.Timeout(READ_TIMEOUT_SECONDS, connect=target.connect_timeout_seconds, pool=None)
        try:
            request = http.build_request(call.method, url, content=call.body(), headers=call.headers, timeout=timeout)
        except (httpx.InvalidURL, UnicodeError):
            raise NotSignable("the endpoint is not an address") from None
        return await http.send(request, stream=True, auth=httpx.Auth())  # the address may hold a name and password

    async def _url(self, target: S3Target, operation: str, seconds: int = SIGNED_SECONDS, **parameters: object) -> str:
        """Return a signed URL. Raises NotSignable."""
        signer = await self._signer(target)
        if signer.is_refreshing:
            return await asyncio.to_thread(signer.url, operation, seconds, **parameters)
        return signer.url(operation, seconds, **parameters)

    def _trusted_client(self) -> httpx.AsyncClient:
        if self._trusted is None:
            bundle = self._session.get_config_variable("ca_bundle")  # AWS_CA_BUNDLE
            self._trusted = plain_client(verify=ssl.create_default_context(cafile=bundle) if bundle else True)
        return self._trusted

    async def _signer(self, target: S3Target) -> S3Signer:
        signer = self._signers.get(target)
        if signer is None:
            return await self._sign_for(target)
        self._signers.move_to_end(target)
        return signer

    async def _sign_for(self, target: S3Target, region: str = "") -> S3Signer:
        """Make and keep the signer of a target. Raises NotSignable."""
        async with self._signing:
            if self._session is None:
                self._session = await asyncio.to_thread(_new_session)
            signer = await asyncio.to_thread(make_signer, self._session, target, region)
        self._signers[target] = signer
        self._signers.move_to_end(target)
        while len(self._signers) > SIGNERS_KEPT:
            self._signers.popitem(last=False)
        return signer


def _new_session() -> object:
    from botocore.session import Session  # a front that never meets a store never needs it

    return Session()


def _bytes_of(path: Path, start: int, num_bytes: int) -> MakeBody:
    """Return the reader of a part of a file, which begins anew with each call."""

    async def pieces() -> AsyncIterator[bytes]:
        left = num_bytes
        with await asyncio.to_thread(path.open, "rb") as file:
            file.seek(start)
            while left > 0:
                piece = await asyncio.to_thread(file.read, min(PIECE_BYTES, left))
                if not piece:
                    raise StoreFailed("the file is shorter than it was")
                left -= len(piece)
                yield piece

    return pieces


def _place_of(response: httpx.Response) -> tuple[int, int] | None:
    """Return the first place of the part that an answer holds, and the object's size; None for a whole object."""
    found = _PLACE.fullmatch(response.headers.get("content-range", "").strip())
    return (int(found[1]), int(found[2])) if response.status_code == 206 and found is not None else None


def _completion(tags: list[str]) -> bytes:
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(tag)}</ETag></Part>"
        for number, tag in enumerate(tags, start=1)
    )
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{parts}</CompleteMultipartUpload>'.encode()


async def _refusal(response: httpx.Response) -> StoreFailed:
    """Return the error of a failed response; its body is read up to the bound, and closed."""
    try:
        body = await plain_body(response)
    except httpx.HTTPError:
        body = b""
    finally:
        await response.aclose()
    return _refused(response.status_code, response.headers, body)


def _refused(status: int, headers: Mapping[str, str], body: bytes) -> StoreFailed:
    found = _CODE.search(body)
    code = found[1].decode() if found else ""
    named = _BODY_REGION.search(body)
    region = headers.get("x-amz-bucket-region", "") or (named[1].decode() if named else "")
    is_elsewhere = status in OTHER_REGION_STATUSES and _REGION.fullmatch(region) is not None
    reason = f"{code or 'refused'} ({status})"
    if 300 <= status < 400 and headers.get("location"):
        reason += f", a redirect to {shown_url(headers['location'])}; redirects are not followed: give that address"
    return StoreFailed(reason, code=code, status=status, region=region if is_elsewhere else "")


def _is_passing(error: BaseException) -> bool:
    """Return True if another try may succeed."""
    return isinstance(error, StoreFailed) and error.status in RETRIED_STATUSES


def _reason(error: httpx.HTTPError) -> str:
    """Return a reason without the address, which httpx's own words may repeat."""
    match error:
        case EncodedResponse() | ResponseTooLarge():
            return f"the store's {error}"
        case httpx.TimeoutException():
            return f"the store takes too long: {cause_of(error)}"
        case httpx.ConnectError():
            return f"the store cannot be reached: {cause_of(error)}"
        case _:
            return f"the connection to the store broke off: {cause_of(error)}"
