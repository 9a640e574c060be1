"""Jobs from a gateway over HTTPS: the worker asks by long poll, with a token of its own and no broker's credentials.

What a job's messages name is the receipt that came with it. Calls that change something may be repeated: a result that
was stored, a lease that was given back. Where an answer is lost, the lease runs out and the job is given again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.plain_responses import plain_client
from darkroom.worker.integrations.gateway.cancellation_watch import CancellationWatch
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import BrokerRefused, BrokerUnreachable, Delivery
from darkroom.worker.sources.message_size import fitted_result

WAIT_SECONDS: Final = 20.0
"""Seconds of one poll: proxies and load balancers end requests that are idle for a minute or half of one."""

ANSWER_SECONDS: Final = 30.0
RESULT_TIMEOUT: Final = httpx.Timeout(ANSWER_SECONDS, read=600.0)
MOST_AT_ONCE: Final = 16
RECEIPTS_AT_ONCE: Final = 500
WORKER_HEADER: Final = "Darkroom-Worker"
RECEIPT_HEADER: Final = "Darkroom-Receipt"
PIECE_BYTES: Final = 256 * 1024
MAX_RECEIPTS: Final = 10_000
MAX_REASON: Final = 300
MAX_NAME: Final = 200
REFUSED: Final = ("unauthorized", "invalid_key")
"""Codes of a gateway that does not know the token. What a proxy before it refuses is tried again."""


class ReceiptGone(Exception):
    """The gateway knows no such job of this worker."""


class ResultTooLarge(Exception):
    """A result over `max_bytes`, the gateway's limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"expected at most {max_bytes} bytes")
        self.max_bytes = max_bytes


class HttpBroker:
    """A `Broker` at a gateway."""

    def __init__(self, config: BrokerConfig) -> None:
        parts = urlsplit(config.gateway_url)
        self.name = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self.lease_seconds = config.lease_seconds
        self._http = plain_client(
            headers={"Authorization": f"Bearer {config.worker_token.get_secret_value()}"}, timeout=ANSWER_SECONDS
        )
        self._url = f"{config.gateway_url}/api/v1/worker/"
        self._receipts: OrderedDict[str, str] = OrderedDict()  # by the ids of jobs, the newest last
        self._watch = CancellationWatch(self._cancelled_among)

    async def connect(self, consumer: str) -> None:
        self._http.headers[WORKER_HEADER] = consumer
        self.lease_seconds = float((await self._ask("POST", "connect"))["lease_seconds"])

    async def receive(self, most: int, models: Sequence[str], seconds: float | None = None) -> list[Delivery]:
        wait = WAIT_SECONDS if seconds is None else min(WAIT_SECONDS, seconds)
        wish = {
            "most": min(most, MOST_AT_ONCE),
            "models": [name[:200] for name in models],
            "wait_seconds": wait,
        }
        jobs = (await self._ask("POST", "jobs", wish, seconds=wait + ANSWER_SECONDS))["jobs"]
        deliveries = [_delivery(job) for job in jobs]
        for job, delivery in zip(jobs, deliveries, strict=True):
            self._keep(delivery.receipt)
            if job["is_cancelled"]:
                self._watch.note(delivery.job_id)
        return deliveries

    async def renew(self, receipts: Collection[str]) -> set[str]:
        ours: set[str] = set()
        asked = list(receipts)
        for first in range(0, len(asked), RECEIPTS_AT_ONCE):
            part = asked[first : first + RECEIPTS_AT_ONCE]
            ours |= set((await self._ask("POST", "renewals", {"receipts": part}))["receipts"])
        for receipt in ours:
            self._keep(receipt)
        return ours

    async def finish(self, job_id: str, receipt: str, result: bytes) -> None:
        with contextlib.suppress(ReceiptGone):  # of another token: its lease runs out
            try:
                await self._put("result", receipt, result)
            except ResultTooLarge as error:
                await self._put("result", receipt, fitted_result(result, error.max_bytes))

    async def bury(self, delivery: Delivery, reason: str, result: bytes) -> None:
        letter = {"body": delivery.body.decode(errors="replace"), "reason": reason, "result": json.loads(result)}
        with contextlib.suppress(ReceiptGone):
            try:
                await self._put("dead-letter", delivery.receipt, json.dumps(letter).encode())
            except ResultTooLarge:
                await self.finish(delivery.job_id, delivery.receipt, result)

    async def give_back(self, receipt: str) -> bool:
        try:
            is_known = bool((await self._ask("POST", "given-back", {"receipt": receipt}))["is_known"])
        except ReceiptGone:
            is_known = True
        return is_known

    async def cancelled(self, job_ids: Collection[str]) -> set[str]:
        """Return those of the jobs whose cancellation the gateway has reported: a request waits for it meanwhile."""
        return self._watch.cancelled(job_id for job_id in job_ids if job_id in self._receipts)

    async def publish(self, job_id: str, event: bytes) -> None:
        receipt = self._receipts.get(job_id)
        if receipt is not None:
            with contextlib.suppress(ReceiptGone):
                await self._ask("POST", "progress", {"receipt": receipt, "event": json.loads(event)})

    async def announce(self, entry: bytes, lists: Mapping[str, bytes]) -> None:
        announced: dict[str, Any] = {"entry": json.loads(entry)}
        announced["entry"]["models"] = _short(announced["entry"].get("models", ()))
        wanted = (await self._ask("POST", "announcement", announced))["lists"]
        if wanted:
            announced["lists"] = {name: base64.b64encode(lists[name]).decode() for name in wanted if name in lists}
            await self._ask("POST", "announcement", announced)

    async def close(self) -> None:
        await self._watch.close()
        await self._http.aclose()

    def _keep(self, receipt: str) -> None:
        """Keep the receipt of a job: its end is published once the gateway has its result."""
        job_id = _job_id_of(receipt)
        self._receipts[job_id] = receipt
        self._receipts.move_to_end(job_id)
        if len(self._receipts) > MAX_RECEIPTS:
            self._receipts.popitem(last=False)

    async def _cancelled_among(self, job_ids: Collection[str], seconds: float) -> set[str]:
        receipts = [self._receipts[job_id] for job_id in job_ids if job_id in self._receipts]
        held = {"receipts": receipts[:RECEIPTS_AT_ONCE], "wait_seconds": seconds}
        found = await self._ask("POST", "cancellations", held, seconds=seconds + ANSWER_SECONDS)
        return {_job_id_of(receipt) for receipt in found["receipts"]}

    async def _put(self, path: str, receipt: str, content: bytes) -> None:
        headers = {RECEIPT_HEADER: receipt, "Content-Length": str(len(content)), "Content-Type": "application/json"}
        await self._send("PUT", path, content=_pieces(content), headers=headers, timeout=RESULT_TIMEOUT)

    async def _ask(
        self, method: str, path: str, body: JsonObject | None = None, *, seconds: float = ANSWER_SECONDS
    ) -> dict[str, Any]:
        reply = await self._send(method, path, json=body, timeout=httpx.Timeout(ANSWER_SECONDS, read=seconds))
        try:
            answer = reply.json() if reply.content else {}
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise BrokerUnreachable(f"{self.name}: no answer of a gateway; got {reply.content[:50]!r}")
        return answer

    async def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Return the answer of the gateway.

        Raises BrokerUnreachable, BrokerRefused, ReceiptGone, ResultTooLarge.
        """
        try:
            reply = await self._http.request(method, self._url + path, **request)
        except (httpx.HTTPError, OSError) as error:
            raise BrokerUnreachable(f"{self.name}: {cause_of(error)}") from None
        if reply.is_success:
            return reply
        told = _error_in(reply)
        reason = f"{self.name}: {reply.status_code} {str(told.get('message') or '')[:MAX_REASON]}".strip()
        if told.get("code") in REFUSED:
            raise BrokerRefused(reason)
        if told.get("code") == "receipt_unknown":
            raise ReceiptGone(reason)
        if told.get("code") == "request_too_large" and isinstance(told.get("limit_bytes"), int):
            raise ResultTooLarge(told["limit_bytes"])
        raise BrokerUnreachable(reason)


def _delivery(job: Mapping[str, Any]) -> Delivery:
    """Return the delivery of a job. The time since it was queued is the gateway's, so the clock here may be wrong."""
    body = job["body"].encode() if job["body"] is not None else base64.b64decode(job["packed_body"])
    waited_ms = job["waited_ms"]
    return Delivery(
        job["id"], body, job["receipt"], job["num_deliveries"], job["owner"],
        0 if waited_ms is None else round(time.time() * 1000) - waited_ms, job["asked_id"],
    )  # fmt: skip


def _job_id_of(receipt: str) -> str:
    """Return the id in a receipt, whose signature is the gateway's matter."""
    return str(json.loads(base64.urlsafe_b64decode(receipt.partition(".")[0]))[0])


def _error_in(reply: httpx.Response) -> Mapping[str, Any]:
    try:
        body = reply.json()
    except ValueError:
        return {}
    return object_at(body, "error")


def _short(models: Sequence[str]) -> list[str]:
    """Return the names of model files that a gateway takes: those that streams are named by."""
    return [name for name in models if len(name) <= MAX_NAME]


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]
