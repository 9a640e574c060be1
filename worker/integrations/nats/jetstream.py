"""Jobs from NATS JetStream: a work queue with a consumer for each priority, and key-value buckets beside it.

Below the prefix: the stream `PREFIX-jobs` with the subjects `PREFIX.jobs.high|normal|low` (header `Nats-Msg-Id`: the
id of the job, header `Owner`), and the buckets `PREFIX-results`, `-events`, `-cancels`, `-leases`, `-dead`,
`-workers` and `-nodes`. JetStream does not distinguish receivers of a message when one acknowledges it: the last one
is the holder of its lease. A server that is killed after acknowledgements may deliver jobs again; those with a result
are acknowledged at once.
NATS server 2.9 or later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, MaxPayloadError, NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, KeyValueConfig, RetentionPolicy, StreamConfig
from nats.js.errors import (
    BadRequestError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoKeysError,
    NoStreamResponseError,
)
from nats.js.errors import NotFoundError as NotThere
from nats.js.kv import KeyValue

from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.integrations.nats.leases import Lease, key_of, parts_of
from darkroom.worker.integrations.nats.result_sizes import ResultSizes
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import FLEET_SECONDS, BrokerUnreachable, Delivery, JobTooLarge, News, StreamDepth
from darkroom.worker.sources.fleet_entries import marked_last
from darkroom.worker.sources.message_size import fitted_result
from darkroom.worker.sources.stream_order import PRIORITIES, priority_name

CONNECT_SECONDS = 5
CONNECT_AGAIN_SECONDS = 1.0  # after a connection that did not come about; until then nobody waits for one
REPLY_SECONDS = 5
OPENINGS = 5  # of the first workers of a fleet, which make the same stream, consumers and buckets at once
FETCH_SECONDS = 0.2
WAIT_SECONDS = 1.0
CANCEL_SECONDS = 86400.0
DUPLICATE_SECONDS = 86400.0
OVERHEAD_BYTES = 4096  # headers and subject of a message
OWNER = "Owner"
ASKED_ID = "Asked-Id"
MESSAGE_ID = "Nats-Msg-Id"
BUCKETS = ("results", "events", "cancels", "leases", "dead", "nodes")
WORKERS = "workers"
LAST_WORKER = "last"


@dataclass(slots=True)
class _Opened:
    """Stream, consumers and buckets that exist at the server."""

    stream: JetStreamContext
    consumers: dict[str, JetStreamContext.PullSubscription]
    buckets: dict[str, KeyValue]
    news: JetStreamContext.PushSubscription | None = None


class NatsBroker:
    """A `Broker` and `Producer` on NATS JetStream."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._servers = config.url.get_secret_value().split(",")
        parts = urlsplit(self._servers[0])
        self.name = f"{parts.scheme}://{parts.hostname}:{parts.port or 4222}"
        self._prefix = config.prefix.replace(".", "-")
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._connects_again_at = 0.0  # monotonic
        self._opened: _Opened | None = None
        self._consumer = ""

    @property
    def lease_seconds(self) -> float:
        return self._config.lease_seconds

    async def connect(self, consumer: str) -> None:
        self._consumer = consumer
        async with self._reached():
            pass

    # the consumer's side

    async def receive(self, most: int, models: Sequence[str], seconds: float | None = None) -> list[Delivery]:
        """Lease jobs by priority; models are not preferred here."""
        async with self._reached() as opened:
            until = time.monotonic() + (WAIT_SECONDS if seconds is None else min(WAIT_SECONDS, seconds))
            while True:
                found: list[Delivery] = []
                for priority in PRIORITIES:
                    if len(found) < most:
                        found += await self._fetched(opened, priority, most - len(found))
                if found or time.monotonic() >= until:
                    return found

    async def _fetched(self, opened: _Opened, priority: str, most: int) -> list[Delivery]:
        try:
            messages = await opened.consumers[priority].fetch(most, timeout=FETCH_SECONDS)
        except TimeoutError:
            return []
        found = [await self._delivery(opened, message) for message in messages]
        return [delivery for delivery in found if delivery is not None]

    async def _delivery(self, opened: _Opened, message: Msg) -> Delivery | None:
        """Take the lease of a message; None for a job that has its result already."""
        headers = message.headers or {}
        job_id = headers.get(MESSAGE_ID) or f"message-{message.metadata.sequence.stream}"
        if await _value(opened.buckets["results"], job_id) is not None:
            await message.ack()
            return None
        held = Lease.of(await _value(opened.buckets["leases"], job_id))
        lease = Lease(self._consumer, held.num_uncounted).as_bytes()
        revision = await opened.buckets["leases"].put(key_of(job_id), lease)
        receipt = json.dumps([job_id, message.reply])
        count = max(1, message.metadata.num_delivered - held.num_uncounted)
        queued_ms = await self._queued_ms(opened, message, revision)
        return Delivery(
            job_id, message.data, receipt, count, headers.get(OWNER, ""), queued_ms, headers.get(ASKED_ID, "")
        )

    async def _queued_ms(self, opened: _Opened, message: Msg, revision: int) -> int:
        """Return the time at which a message was stored, by this machine's clock; 0 for unknown.

        Its age is that of the lease taken just now, by the server's clock: the server has no other way to ask for it.
        """
        with contextlib.suppress(NotThere):  # another lease came at the same moment
            taken = await opened.stream.get_msg(f"KV_{self._prefix}-leases", seq=revision)
            if taken.time is not None:
                age = taken.time - message.metadata.timestamp
                return round((time.time() - age.total_seconds()) * 1000)
        return 0

    async def renew(self, receipts: Collection[str]) -> set[str]:
        ours = set()
        given = {receipt: parts for receipt in receipts if (parts := parts_of(receipt)) is not None}
        async with self._reached() as opened:
            for receipt, (job_id, reply) in given.items():
                stored = await _value(opened.buckets["leases"], job_id)
                if stored is None:  # the server has lost it, or it has ended
                    is_ours = await _value(opened.buckets["results"], job_id) is None
                else:
                    is_ours = Lease.of(stored).holder == self._consumer
                if is_ours:
                    await self._connected.publish(reply, b"+WPI")
                    ours.add(receipt)
            await self._connected.flush(REPLY_SECONDS)
        return ours

    async def finish(self, job_id: str, receipt: str, result: bytes) -> None:
        async with self._reached() as opened:
            with contextlib.suppress(KeyWrongLastSequenceError):  # the first one stays
                whole = fitted_result(result, self._connected.max_payload - OVERHEAD_BYTES)
                await opened.buckets["results"].create(key_of(job_id), whole)
            if (parts := parts_of(receipt)) is not None:
                with contextlib.suppress(NoRespondersError):  # the server has lost the message
                    await self._connected.request(parts[1], b"+ACK", timeout=REPLY_SECONDS)
            await opened.buckets["leases"].purge(key_of(job_id))

    async def bury(self, delivery: Delivery, reason: str, result: bytes) -> None:
        async with self._reached() as opened:
            with contextlib.suppress(MaxPayloadError):
                letter = {"id": delivery.job_id, "reason": reason, "body": delivery.body.decode(errors="replace")}
                await opened.buckets["dead"].put(key_of(delivery.job_id), json.dumps(letter).encode())
        await self.finish(delivery.job_id, delivery.receipt, result)

    async def give_back(self, receipt: str) -> bool:
        parts = parts_of(receipt)
        if parts is None:
            return True
        job_id, reply = parts
        async with self._reached() as opened:
            stored = await _value(opened.buckets["leases"], job_id)
            if stored is None:
                return await _value(opened.buckets["results"], job_id) is not None
            held = Lease.of(stored)
            if held.holder == self._consumer:
                await opened.buckets["leases"].put(key_of(job_id), Lease("", held.num_uncounted + 1).as_bytes())
                await self._connected.publish(reply, b"-NAK")
                await self._connected.flush(REPLY_SECONDS)
            return True

    async def cancelled(self, job_ids: Collection[str]) -> set[str]:
        async with self._reached() as opened:
            return {one for one in job_ids if await _value(opened.buckets["cancels"], one) is not None}

    async def publish(self, job_id: str, event: bytes) -> None:
        async with self._reached() as opened:
            await opened.buckets["events"].put(key_of(job_id), event)

    async def announce(self, entry: bytes, lists: Mapping[str, bytes]) -> None:
        async with self._reached() as opened:
            for nodes_id, nodes in lists.items():
                await opened.buckets["nodes"].put(nodes_id, nodes)
            await opened.buckets["nodes"].put(LAST_WORKER, entry)
            await opened.buckets["workers"].put(key_of(self._consumer), entry)

    async def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(Error, OSError):
                await self._client.close()

    # the producer's side

    async def put(
        self, job_id: str, body: bytes, *, priority: int = 0, model: str = "", owner: str = "", asked_id: str = ""
    ) -> bool:
        async with self._reached() as opened:
            limit = self._connected.max_payload - OVERHEAD_BYTES
            if len(body) > limit:
                raise JobTooLarge(len(body), limit)
            if await _value(opened.buckets["results"], job_id) is not None:
                return False
            named = {OWNER: owner, ASKED_ID: asked_id}
            headers = {MESSAGE_ID: job_id, **{name: value for name, value in named.items() if value}}
            subject = f"{self._prefix}.jobs.{priority_name(priority)}"
            return not (await opened.stream.publish(subject, body, headers=headers, timeout=REPLY_SECONDS)).duplicate

    async def cancel(self, job_id: str) -> None:
        async with self._reached() as opened:
            await opened.buckets["cancels"].put(key_of(job_id), b"1")

    async def result(self, job_id: str) -> bytes | None:
        async with self._reached() as opened:
            return await _value(opened.buckets["results"], job_id)

    async def result_sizes(self, job_ids: Sequence[str]) -> dict[str, int]:
        keys = {key_of(job_id): job_id for job_id in job_ids}
        async with self._reached() as opened:
            sizes = await ResultSizes(opened.stream, f"{self._prefix}-results").of(list(keys))
        return {keys[key]: size for key, size in sizes.items()}

    async def settle(self, job_id: str, result: bytes) -> None:
        async with self._reached() as opened:
            with contextlib.suppress(KeyWrongLastSequenceError):
                await opened.buckets["results"].create(key_of(job_id), result)

    async def fleet(self) -> list[bytes]:
        async with self._reached() as opened:
            keys: list[str] = []
            with contextlib.suppress(NoKeysError):
                keys = await opened.buckets["workers"].keys()
            found = [await _value(opened.buckets["workers"], key) for key in keys]
            there = [entry for entry in found if entry is not None]
            if not there and (last := await _value(opened.buckets["nodes"], LAST_WORKER)) is not None:
                there = [marked_last(last)]
            return there

    async def nodes(self, nodes_id: str) -> bytes | None:
        async with self._reached() as opened:
            return await _value(opened.buckets["nodes"], nodes_id)

    async def events(self, job_id: str) -> list[bytes]:
        """Return the newest event of a job: the bucket keeps no other."""
        async with self._reached() as opened:
            newest = await _value(opened.buckets["events"], job_id)
        return [] if newest is None else [newest]

    async def news(self, after: str, wait_seconds: float) -> list[News]:
        async with self._reached() as opened:
            stream = f"KV_{self._prefix}-events"
            if not after:
                if opened.news is not None:
                    await opened.news.unsubscribe()
                    opened.news = None
                info = await opened.stream.stream_info(stream)
                return [News(str(info.state.last_seq), "", b"")]
            if opened.news is None:
                opened.news = await opened.stream.subscribe(
                    f"$KV.{self._prefix}-events.>", stream=stream, ordered_consumer=True,
                    config=ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=int(after) + 1),
                )  # fmt: skip
            found: list[News] = []
            with contextlib.suppress(TimeoutError):
                found.append(self._news_of(await opened.news.next_msg(wait_seconds)))
                while opened.news.pending_msgs:
                    found.append(self._news_of(await opened.news.next_msg(wait_seconds)))
            return found

    def _news_of(self, message: Msg) -> News:
        key = message.subject.removeprefix(f"$KV.{self._prefix}-events.")
        return News(str(message.metadata.sequence.stream), key, message.data)

    async def depths(self) -> list[StreamDepth]:
        """Return the jobs of each priority: there are no streams of models here."""
        async with self._reached() as opened:
            subjects = f"{self._prefix}.jobs."
            info = await opened.stream.stream_info(f"{self._prefix}-jobs", subjects_filter=f"{subjects}>")
        found = info.state.subjects or {}
        return [StreamDepth(priority, "", found.get(f"{subjects}{priority}", 0)) for priority in PRIORITIES]

    async def depth(self) -> int:
        async with self._reached() as opened:
            return (await opened.stream.stream_info(f"{self._prefix}-jobs")).state.messages

    # the connection

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise BrokerUnreachable(f"{self.name}: not connected")
        return self._client

    @contextlib.asynccontextmanager
    async def _reached(self) -> AsyncIterator[_Opened]:
        with self._translated():
            if not (await self._connection()).is_connected:
                raise BrokerUnreachable(f"{self.name}: disconnected")
            if self._opened is None:
                self._opened = await self._made(self._connected)
            try:
                yield self._opened
            except (NotThere, NoStreamResponseError, NoRespondersError):  # the server has lost its data: make it anew
                self._opened = None
                raise

    async def _connection(self) -> Client:
        """Return the connection, made within a time: the library itself tries a first one without end."""
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                if time.monotonic() < self._connects_again_at:
                    raise BrokerUnreachable(f"{self.name}: not connected")
                self._opened = None
                try:
                    async with asyncio.timeout(CONNECT_SECONDS):
                        self._client = await nats.connect(
                            self._servers, connect_timeout=CONNECT_SECONDS, max_reconnect_attempts=-1,
                            reconnect_time_wait=0.5, allow_reconnect=True, error_cb=_ignore, name="darkroom",
                        )  # fmt: skip
                except TimeoutError:
                    self._connects_again_at = time.monotonic() + CONNECT_AGAIN_SECONDS
                    raise
            return self._client

    async def _made(self, client: Client) -> _Opened:
        """Open all, anew where the server refused what another worker made at the same moment."""
        for _ in range(OPENINGS - 1):
            with contextlib.suppress(BadRequestError):
                return await self._open(client)
        return await self._open(client)

    async def _open(self, client: Client) -> _Opened:
        stream = client.jetstream(timeout=REPLY_SECONDS)
        seconds = self._config.result_seconds
        name = f"{self._prefix}-jobs"
        with contextlib.suppress(BadRequestError):  # there with other settings: the operator's
            await stream.add_stream(
                StreamConfig(
                    name=name, subjects=[f"{self._prefix}.jobs.*"], retention=RetentionPolicy.WORK_QUEUE,
                    duplicate_window=min(seconds, DUPLICATE_SECONDS),
                )
            )  # fmt: skip
        buckets = {kind: await _bucket(stream, f"{self._prefix}-{kind}", seconds) for kind in BUCKETS}
        buckets[WORKERS] = await _bucket(stream, f"{self._prefix}-{WORKERS}", FLEET_SECONDS)
        consumers = {}
        for priority in PRIORITIES:
            config = ConsumerConfig(
                durable_name=priority, ack_policy=AckPolicy.EXPLICIT, ack_wait=self._config.lease_seconds,
                filter_subject=f"{self._prefix}.jobs.{priority}", max_deliver=-1, max_ack_pending=-1,
            )  # fmt: skip
            await stream.add_consumer(name, config)
            consumers[priority] = await stream.pull_subscribe_bind(priority, name)
        return _Opened(stream, consumers, buckets)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (Error, OSError) as error:
            raise BrokerUnreachable(f"{self.name}: {cause_of(error)}") from None


async def _bucket(stream: JetStreamContext, name: str, seconds: float) -> KeyValue:
    try:
        return await stream.key_value(name)
    except BucketNotFoundError:
        return await stream.create_key_value(KeyValueConfig(bucket=name, ttl=seconds))


async def _value(bucket: KeyValue, job_id: str) -> bytes | None:
    try:
        return (await bucket.get(key_of(job_id))).value
    except KeyNotFoundError:  # or deleted
        return None


async def _ignore(_error: Exception) -> None:
    """Leave the report of a lost connection to the call that notices it."""
