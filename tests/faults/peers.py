"""The world around a worker, in the test's event loop: a host of images, an S3 store, a webhook receiver.

Each can be told to answer late, badly, or not at all until it is released.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.served import served
from tests.worker.running_front import until

WAIT_SECONDS = 120.0
IMAGE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
BUCKET = "pictures"


@dataclass
class Peer:
    """One of them. `num_asked` counts requests as they arrive."""

    status: int = 200
    delay_seconds: float = 0.0
    num_asked: int = 0
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._released.set()

    def hold(self) -> None:
        """From now on requests wait."""
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    async def until_asked(self, times: int = 1) -> None:
        async def is_asked() -> bool:
            return self.num_asked >= times

        await until(is_asked, WAIT_SECONDS)

    async def behave(self) -> int:
        """Waits as it was told to and gives the status to answer, which is that of the moment of asking."""
        status = self.status
        self.num_asked += 1
        await asyncio.sleep(self.delay_seconds)
        await self._released.wait()
        return status


@dataclass(frozen=True, slots=True)
class Receipt:
    """A webhook as it was received, answered well or not."""

    webhook_id: str
    job_id: str
    status: str
    was_taken: bool


class Peers:
    """`objects`: what was stored, by key. `receipts`: every webhook that came, in its order."""

    def __init__(self) -> None:
        self.source, self.store, self.receiver = Peer(), Peer(), Peer()
        self.objects: dict[str, bytes] = {}
        self.receipts: list[Receipt] = []
        self._parts: dict[str, dict[int, bytes]] = {}
        self.url = ""

    @property
    def image_url(self) -> str:
        return f"{self.url}/source/picture.png"

    @property
    def webhook(self) -> dict[str, Any]:
        """The `webhook` of a request."""
        return {"url": f"{self.url}/hook", "timeout": 5}

    @property
    def s3(self) -> dict[str, Any]:
        """The `s3` of a request."""
        return {
            "access_key_id": "id",
            "secret_access_key": "secret",
            "endpoint_url": self.url,
            "bucket_name": BUCKET,
            "region": "us-east-1",
            "connect_attempts": 1,
        }

    async def until_received(self, job_id: str, times: int = 1) -> list[Receipt]:
        """The taken receipts of a job, once there are so many."""
        taken: list[Receipt] = []

        async def are_enough() -> bool:
            taken[:] = [receipt for receipt in self.receipts if receipt.job_id == job_id and receipt.was_taken]
            return len(taken) >= times

        await until(are_enough, WAIT_SECONDS)
        return taken

    async def _give(self, _request: web.Request) -> web.Response:
        status = await self.source.behave()
        return web.Response(status=status, body=IMAGE, content_type="image/png")

    async def _put(self, request: web.Request) -> web.Response:
        content = await request.read()
        status = await self.store.behave()
        if status >= 300:
            body = "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>"
            return web.Response(status=status, text=body, content_type="application/xml")
        self._keep(request.match_info["key"], int(request.query.get("partNumber", 0)), content)
        return web.Response(headers={"ETag": '"0"'})

    def _keep(self, key: str, part: int, content: bytes) -> None:
        """A part is kept beside the others until the upload is complete."""
        if part:
            self._parts.setdefault(key, {})[part] = content
        else:
            self.objects[key] = content

    async def _post_object(self, request: web.Request) -> web.Response:
        """The beginning and the end of an upload in parts."""
        key = request.match_info["key"]
        await self.store.behave()
        kind = "InitiateMultipartUploadResult"
        if "uploadId" in request.query:
            kind = "CompleteMultipartUploadResult"
            parts = self._parts.pop(key)
            self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        body = f"<?xml version='1.0'?><{kind}><Key>{key}</Key><UploadId>1</UploadId><ETag>0</ETag></{kind}>"
        return web.Response(text=body, content_type="application/xml")

    async def _hook(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        status = await self.receiver.behave()
        receipt = Receipt(request.headers["webhook-id"], body["id"], body["status"], status < 300)
        self.receipts.append(receipt)
        return web.Response(status=status)


@contextlib.asynccontextmanager
async def running_peers() -> AsyncIterator[Peers]:
    peers = Peers()
    app = web.Application(client_max_size=2**28)
    app.add_routes(
        [
            web.get("/source/{name}", peers._give),
            web.put(f"/{BUCKET}/{{key:.+}}", peers._put),
            web.post(f"/{BUCKET}/{{key:.+}}", peers._post_object),
            web.post("/hook", peers._hook),
        ]
    )
    async with served(app) as peers.url:
        try:
            yield peers
        finally:
            for peer in (peers.source, peers.store, peers.receiver):
                peer.release()
