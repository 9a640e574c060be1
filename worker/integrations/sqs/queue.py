"""Jobs from an SQS queue: the visibility timeout is the lease, other queues take results and dead letters.

A message's body is the job's, its attributes `id` and `owner` are strings; without `id` it has the message's. Progress
goes to a queue of its own. Cancellations come from another one, which every worker reads without taking anything from
the others: it notes the ids and makes the messages visible again. SQS counts every delivery. On a standard queue two
workers may get one message; its result then comes twice, under one id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.json.values import WRONG_SHAPE
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import BrokerUnreachable, Delivery
from darkroom.worker.sources.message_size import fitted_result

MAX_BATCH = 10
WAIT_SECONDS = 1
CANCEL_BATCHES = 5  # of cancellations, at each look
CANCEL_HOLD_SECONDS = 2  # for which a worker that is killed meanwhile hides them from the others
CLOCK_AGREES_MILLISECONDS = 2000
MAX_MESSAGE_BYTES = 256 * 1024 - 4096
REGION = re.compile(r"^(?:[a-z-]+\.)?sqs(?:-fips)?\.([a-z0-9-]+)\.")
GONE = frozenset(
    {
        "ReceiptHandleIsInvalid",
        "InvalidParameterValue",
        "MessageNotInflight",
        "AWS.SimpleQueueService.MessageNotInflight",
    }
)
"""Codes for a receipt of a message that is deleted, or whose lease has run out."""

Answer = TypeVar("Answer")


class SqsBroker:
    """A `Broker` on SQS, or a server with its API."""

    def __init__(self, config: BrokerConfig) -> None:
        url = config.url.get_secret_value()
        self._queue = f"https{url.removeprefix('sqs')}" if url.startswith("sqs://") else url
        parts = urlsplit(self._queue)
        self.name = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
        self._config = config
        self._client: Any = None
        self._dead_queue = ""
        self._cancellations: dict[str, tuple[float, str]] = {}  # by job: when it was seen last, and its receipt

    async def connect(self, consumer: str) -> None:
        self._dead_queue = await self._call(self._connect)

    def _connect(self) -> str:
        """Create the client and return the URL of the redrive queue; empty without one."""
        client = self._sqs()
        named = client.get_queue_attributes(QueueUrl=self._queue, AttributeNames=["RedrivePolicy"])
        policy = json.loads(named.get("Attributes", {}).get("RedrivePolicy", "{}"))
        if "deadLetterTargetArn" not in policy:
            return ""
        *_, account, name = policy["deadLetterTargetArn"].split(":")
        return str(client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"])

    async def receive(self, most: int, models: Sequence[str], seconds: float | None = None) -> list[Delivery]:
        """Lease jobs; models are not preferred here."""
        found = await self._call(
            lambda: self._sqs().receive_message(
                QueueUrl=self._queue,
                MaxNumberOfMessages=min(most, MAX_BATCH),
                WaitTimeSeconds=WAIT_SECONDS if seconds is None else min(WAIT_SECONDS, round(seconds)),
                VisibilityTimeout=self.lease_seconds,
                AttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
                MessageAttributeNames=["id", "owner"],
            )
        )
        ahead_ms = _server_ahead_ms(found, time.time())
        return [_delivery(message, ahead_ms) for message in found.get("Messages", ())]

    async def renew(self, receipts: Collection[str]) -> set[str]:
        held = list(receipts)
        kept = await asyncio.gather(*(self._extended(receipt, self.lease_seconds) for receipt in held))
        return {receipt for receipt, is_kept in zip(held, kept, strict=True) if is_kept}

    async def finish(self, job_id: str, receipt: str, result: bytes) -> None:
        if self._config.result_queue:
            body = fitted_result(result, MAX_MESSAGE_BYTES).decode()
            await self._send(self._config.result_queue, job_id, body, {"id": job_id})
        with contextlib.suppress(_Gone):
            await self._call(lambda: self._sqs().delete_message(QueueUrl=self._queue, ReceiptHandle=_handle(receipt)))
        await self._forget_cancellation(job_id)

    async def bury(self, delivery: Delivery, reason: str, result: bytes) -> None:
        if self._dead_queue:
            attributes = {"id": delivery.job_id, "reason": reason, "owner": delivery.owner}
            await self._send(self._dead_queue, delivery.job_id, delivery.body.decode(errors="replace"), attributes)
        await self.finish(delivery.job_id, delivery.receipt, result)

    async def give_back(self, receipt: str) -> bool:
        """End a lease. SQS counts the delivery all the same, and does not report a message that it has lost."""
        await self._extended(receipt, 0)
        return True

    async def cancelled(self, job_ids: Collection[str]) -> set[str]:
        """Return the jobs whose cancellation is in the queue for them, or was seen there."""
        if not self._config.cancel_queue:
            return set()
        now = time.monotonic()
        for message in await self._call(self._look_at_cancellations):
            named = message.get("MessageAttributes", {}).get("id", {}).get("StringValue") or message["Body"].strip()
            self._cancellations[named] = now, message["ReceiptHandle"]
        oldest = now - self._config.result_seconds
        self._cancellations = {name: seen for name, seen in self._cancellations.items() if seen[0] >= oldest}
        return self._cancellations.keys() & set(job_ids)

    def _look_at_cancellations(self) -> list[dict[str, Any]]:
        """Return the messages of the queue for cancellations, and make them visible again."""
        queue, found = self._config.cancel_queue, list[dict[str, Any]]()
        for _ in range(CANCEL_BATCHES):
            reply = self._sqs().receive_message(
                QueueUrl=queue,
                MaxNumberOfMessages=MAX_BATCH,
                VisibilityTimeout=CANCEL_HOLD_SECONDS,
                MessageAttributeNames=["id"],
            )
            messages = reply.get("Messages", [])
            found += messages
            if len(messages) < MAX_BATCH:
                break
        for first in range(0, len(found), MAX_BATCH):
            entries = [
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
                for number, message in enumerate(found[first : first + MAX_BATCH])
            ]
            self._sqs().change_message_visibility_batch(QueueUrl=queue, Entries=entries)
        return found

    async def _forget_cancellation(self, job_id: str) -> None:
        """Delete the cancellation of a job that has ended; one that another worker has seen since stays."""
        seen = self._cancellations.pop(job_id, None)
        if seen is not None:
            with contextlib.suppress(_Gone):
                await self._call(
                    lambda: self._sqs().delete_message(QueueUrl=self._config.cancel_queue, ReceiptHandle=seen[1])
                )

    async def publish(self, job_id: str, event: bytes) -> None:
        """Send progress to its queue, if there is one."""
        if self._config.event_queue:
            await self._send(self._config.event_queue, job_id, event.decode(), {"id": job_id})

    async def announce(self, entry: bytes, lists: Mapping[str, bytes]) -> None:
        """Do nothing: SQS has no place for it."""

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # small parts

    @property
    def lease_seconds(self) -> int:
        return max(1, round(self._config.lease_seconds))

    async def _extended(self, receipt: str, seconds: int) -> bool:
        change = partial(self._change_visibility, receipt, seconds)
        try:
            await self._call(change)
        except _Gone:
            return False
        return True

    def _change_visibility(self, receipt: str, seconds: int) -> None:
        self._sqs().change_message_visibility(
            QueueUrl=self._queue, ReceiptHandle=_handle(receipt), VisibilityTimeout=seconds
        )

    async def _send(self, queue: str, job_id: str, body: str, attributes: Mapping[str, str]) -> None:
        once = sha256(body.encode()).hexdigest() if queue == self._config.event_queue else job_id
        order = {"MessageGroupId": job_id, "MessageDeduplicationId": once} if queue.endswith(".fifo") else {}
        values = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items() if value}
        await self._call(
            lambda: self._sqs().send_message(QueueUrl=queue, MessageBody=body, MessageAttributes=values, **order)
        )

    def _sqs(self) -> Any:
        """Return the client, created at the first call: it looks for credentials."""
        if self._client is None:
            parts = urlsplit(self._queue)
            found = REGION.match(parts.hostname or "")
            timeouts = Config(connect_timeout=5, read_timeout=15, retries={"total_max_attempts": 2, "mode": "standard"})
            self._client = get_session().create_client(
                "sqs",
                region_name=found.group(1) if found else None,
                endpoint_url=None if found else f"{parts.scheme}://{parts.netloc}",
                config=timeouts,
            )
        return self._client

    async def _call(self, function: Callable[[], Answer]) -> Answer:
        with self._translated():
            return await asyncio.to_thread(function)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in GONE:
                raise _Gone from None
            raise BrokerUnreachable(f"{self.name}: {code}") from None
        except (BotoCoreError, OSError) as error:
            raise BrokerUnreachable(f"{self.name}: {cause_of(error)}") from None


class _Gone(Exception):
    """A receipt that is no longer valid."""


def _server_ahead_ms(reply: Mapping[str, Any], now_seconds: float) -> int:
    """Return the milliseconds that the server's clock is ahead of this machine's, by the date of a reply.

    0 for clocks that agree to the second, which is all that a date tells, and for a reply without one.
    """
    date = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        ahead_ms = round((parsedate_to_datetime(date).timestamp() - now_seconds) * 1000)
    except (TypeError, ValueError):
        return 0
    return 0 if abs(ahead_ms) <= CLOCK_AGREES_MILLISECONDS else ahead_ms


def _delivery(message: Mapping[str, Any], server_ahead_ms: int) -> Delivery:
    attributes = message.get("MessageAttributes", {})
    job_id = str(attributes.get("id", {}).get("StringValue") or message["MessageId"])
    sent_ms = int(message.get("Attributes", {}).get("SentTimestamp", 0))
    return Delivery(
        job_id=job_id,
        body=str(message["Body"]).encode(),
        receipt=json.dumps([message["MessageId"], message["ReceiptHandle"]]),
        num_deliveries=int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
        owner=str(attributes.get("owner", {}).get("StringValue") or ""),
        queued_ms=sent_ms and sent_ms - server_ahead_ms,
    )


def _handle(receipt: str) -> str:
    """Return the server's part of a receipt. Raises _Gone for that of another broker."""
    try:
        return str(json.loads(receipt)[1])
    except WRONG_SHAPE:
        raise _Gone from None
