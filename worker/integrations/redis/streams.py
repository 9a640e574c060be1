"""Jobs from Redis Streams: a consumer group per stream, idle time as the lease, results and events in keys beside.

Keys, below the prefix: `jobs:high|normal|low` and `jobs:normal:model:NAME` are streams with the fields `id`, `body` and
`owner`; `streams` is the set of the latter's names; `result:ID`, `events:ID`, `cancel:ID`, `dead`; `news` is a stream
of the events of all jobs, which each gateway reads on one connection; of the fleet
`workers`, `worker:NAME`, `last-worker` and `nodes:DIGEST`.
Redis 6.2 or later (XAUTOCLAIM).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis import asyncio as redis
from redis.exceptions import RedisError, ResponseError

from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.integrations.redis import scripts as redis_scripts
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import FLEET_SECONDS, BrokerUnreachable, Delivery, News
from darkroom.worker.sources.fleet_entries import marked_last
from darkroom.worker.sources.stream_order import PRIORITIES, JobStream, in_order, priority_name

GROUP = "workers"
WAIT_MILLISECONDS = 1000
SOCKET_SECONDS = 10.0
MAX_EVENTS = 200
MAX_NEWS = 10_000
MAX_NEWS_AT_ONCE = 1000
MAX_CONNECTIONS = 32
"""Connections of one process; more commands at a time than that wait for one. Two of them may be held for seconds."""

CANCEL_SECONDS = 86400
CONNECT_SECONDS = 5.0
FOREVER_IDLE_MILLISECONDS = 10**12


class RedisBroker:
    """A `Broker` on Redis Streams, with the producer's side: `put`, `cancel`, `result`, `events`."""

    def __init__(self, config: BrokerConfig) -> None:
        url = config.url.get_secret_value()
        self._config = config
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
        self.name = f"{parts.scheme}://{place}"
        pool = redis.BlockingConnectionPool.from_url(
            url, max_connections=MAX_CONNECTIONS, timeout=SOCKET_SECONDS, socket_timeout=SOCKET_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS, health_check_interval=30,
        )  # fmt: skip
        self._redis: redis.Redis = redis.Redis.from_pool(pool)
        self._consumer = ""
        self._groups: set[JobStream] = set()

    async def connect(self, consumer: str) -> None:
        self._consumer = consumer
        with self._translated():
            await self._redis.ping()
            await self._add_groups(JobStream(priority) for priority in PRIORITIES)

    # the consumer's side

    async def receive(self, most: int, models: Sequence[str]) -> list[Delivery]:
        with self._translated():
            streams = await self._ordered_streams(models)
            found: list[Delivery] = []
            for stream in streams:
                if len(found) < most:
                    found += await self._expired(stream, most - len(found))
            for stream in streams:
                if len(found) < most:
                    found += await self._new(stream, most - len(found))
            if not found:
                await self._wait(streams)
            return found

    async def renew(self, receipts: Collection[str]) -> set[str]:
        ours: set[str] = set()
        by_stream: dict[tuple[str, str], dict[str, _Receipt]] = {}
        for text in receipts:
            receipt = _Receipt.of(text)
            by_stream.setdefault((receipt.suffix, receipt.consumer), {})[receipt.entry] = receipt
        with self._translated():
            for (suffix, consumer), entries in by_stream.items():
                keys = [suffix, *(f"result:{receipt.job_id}" for receipt in entries.values())]
                kept = await self._run(redis_scripts.RENEW, keys, GROUP, consumer, *entries)
                ours |= {entries[entry.decode()].text for entry in kept}
        return ours

    async def finish(self, job_id: str, receipt: str, result: bytes) -> None:
        held = _Receipt.of(receipt)
        with self._translated():
            keys = [held.suffix, f"result:{job_id}"]
            await self._run(redis_scripts.FINISH, keys, GROUP, held.entry, result, self._result_seconds)

    async def bury(self, delivery: Delivery, reason: str, result: bytes) -> None:
        held = _Receipt.of(delivery.receipt)
        keys = [held.suffix, f"result:{delivery.job_id}", "dead"]
        with self._translated():
            await self._run(
                redis_scripts.BURY, keys, GROUP, held.entry, result, self._result_seconds,
                delivery.job_id, reason, delivery.body,
            )  # fmt: skip

    async def give_back(self, receipt: str) -> bool:
        held = _Receipt.of(receipt)
        keys = [held.suffix, f"result:{held.job_id}"]
        with self._translated():
            arguments = GROUP, held.consumer, held.entry, FOREVER_IDLE_MILLISECONDS
            return bool(await self._run(redis_scripts.GIVE_BACK, keys, *arguments))

    async def cancelled(self, job_ids: Collection[str]) -> set[str]:
        ids = list(job_ids)
        if not ids:
            return set()
        with self._translated():
            marks = await self._redis.mget([self._key(f"cancel:{job_id}") for job_id in ids])
        return {job_id for job_id, mark in zip(ids, marks, strict=True) if mark is not None}

    async def publish(self, job_id: str, event: bytes) -> None:
        key = self._key(f"events:{job_id}")
        with self._translated():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.xadd(key, {"event": event}, maxlen=MAX_EVENTS, approximate=True)
                pipe.expire(key, self._result_seconds)
                pipe.xadd(self._key("news"), {"id": job_id, "event": event}, maxlen=MAX_NEWS, approximate=True)
                await pipe.execute()

    async def announce(self, entry: bytes, nodes_id: str, nodes: bytes) -> None:
        with self._translated():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(self._key(f"nodes:{nodes_id}"), nodes, ex=self._result_seconds)
                pipe.set(self._key(f"worker:{self._consumer}"), entry, ex=FLEET_SECONDS)
                pipe.hset(self._key("workers"), self._consumer, entry)
                pipe.set(self._key("last-worker"), entry)
                await pipe.execute()

    async def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()

    # the producer's side

    async def put(
        self, job_id: str, body: bytes, *, priority: int = 0, model: str = "", owner: str = "", asked_id: str = ""
    ) -> bool:
        """Queue a job. Returns False for an id that is known already: nothing is queued then."""
        stream = JobStream(priority_name(priority), model)
        with self._translated():
            if stream not in self._groups:  # an autoscaler reads the group, also before the first worker
                await self._add_groups([stream])
            if model:
                await self._redis.sadd(self._key("streams"), stream.suffix)
            keys = [stream.suffix, f"known:{job_id}"]
            return bool(await self._run(redis_scripts.PUT, keys, job_id, body, owner, self._result_seconds, asked_id))

    async def cancel(self, job_id: str) -> None:
        """Request the cancellation of a job, wherever it is."""
        with self._translated():
            await self._redis.set(self._key(f"cancel:{job_id}"), "1", ex=CANCEL_SECONDS)

    async def result(self, job_id: str) -> bytes | None:
        """Return the result of a job that has ended."""
        with self._translated():
            found: Any = await self._redis.get(self._key(f"result:{job_id}"))
        return None if found is None else bytes(found)

    async def result_sizes(self, job_ids: Sequence[str]) -> dict[str, int]:
        if not job_ids:
            return {}
        with self._translated():
            sizes = await self._run(redis_scripts.SIZES, [f"result:{job_id}" for job_id in job_ids])
        return {job_id: size for job_id, size in zip(job_ids, sizes, strict=True) if size}

    async def settle(self, job_id: str, result: bytes) -> None:
        with self._translated():
            await self._redis.set(self._key(f"result:{job_id}"), result, nx=True, ex=self._result_seconds)

    async def fleet(self) -> list[bytes]:
        with self._translated():
            names: Any = await self._redis.hkeys(self._key("workers"))
            keys = [self._key(f"worker:{name.decode()}") for name in names]
            entries: Any = await self._redis.mget(keys) if keys else []
            gone = [name for name, entry in zip(names, entries, strict=True) if entry is None]
            if gone:
                await self._redis.hdel(self._key("workers"), *gone)
            there = [entry for entry in entries if entry is not None]
            last: Any = None if there else await self._redis.get(self._key("last-worker"))
            if last is not None:
                there = [marked_last(last)]
        return there

    async def nodes(self, nodes_id: str) -> bytes | None:
        with self._translated():
            found: Any = await self._redis.get(self._key(f"nodes:{nodes_id}"))
        return None if found is None else bytes(found)

    async def events(self, job_id: str) -> list[bytes]:
        with self._translated():
            found: Any = await self._redis.xrange(self._key(f"events:{job_id}"))
        return [fields[b"event"] for _, fields in found]

    async def news(self, after: str, wait_seconds: float) -> list[News]:
        key = self._key("news")
        with self._translated():
            if not after:
                newest: Any = await self._redis.xrevrange(key, count=1)
                return [News(newest[0][0].decode() if newest else "0-0", "", b"")]
            block = max(1, round(wait_seconds * 1000))  # 0 would wait for ever
            found: Any = await self._redis.xread({key: after}, count=MAX_NEWS_AT_ONCE, block=block)
        return [
            News(entry.decode(), _text(fields, b"id"), fields.get(b"event", b""))
            for _, entries in _listed(found)
            for entry, fields in entries
        ]

    async def depth(self) -> int:
        """Return the number of jobs that are queued or leased."""
        with self._translated():
            streams = await self._streams()
            async with self._redis.pipeline(transaction=False) as pipe:
                for stream in streams:
                    pipe.xlen(self._key(stream.suffix))
                return sum(await pipe.execute())

    # small parts

    @property
    def _result_seconds(self) -> int:
        return max(1, round(self._config.result_seconds))

    def _key(self, suffix: str) -> str:
        return f"{self._config.prefix}:{suffix}"

    async def _run(self, script: str, suffixes: Sequence[str], *arguments: str | bytes | int) -> Any:
        keys = [self._key(suffix) for suffix in suffixes]
        return await self._redis.eval(script, len(keys), *keys, *arguments)

    async def _streams(self) -> list[JobStream]:
        names: Any = await self._redis.smembers(self._key("streams"))
        found = [JobStream.of(name.decode(errors="replace")) for name in names]
        return [*(JobStream(priority) for priority in PRIORITIES), *(stream for stream in found if stream is not None)]

    async def _ordered_streams(self, models: Sequence[str]) -> list[JobStream]:
        streams = await self._streams()
        await self._add_groups(stream for stream in streams if stream not in self._groups)
        if len(streams) == len(PRIORITIES):
            return streams
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                pipe.xinfo_groups(self._key(stream.suffix))
            groups = await pipe.execute(raise_on_error=False)
            for stream, known in zip(streams, groups, strict=True):
                last = next((group["last-delivered-id"] for group in _listed(known)), b"0-0")
                pipe.xrange(self._key(stream.suffix), f"({last.decode()}", "+", count=1)
            oldest = await pipe.execute(raise_on_error=False)
        now = time.time()
        waited = {
            stream: now - int(entries[0][0].partition(b"-")[0]) / 1000
            for stream, entries in zip(streams, oldest, strict=True)
            if _listed(entries)
        }
        return in_order(streams, models, waited)

    async def _add_groups(self, streams: Any) -> None:
        for stream in streams:
            try:
                await self._redis.xgroup_create(self._key(stream.suffix), GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise
            self._groups.add(stream)

    async def _expired(self, stream: JobStream, most: int) -> list[Delivery]:
        """Take over jobs whose leases have run out."""
        key, idle = self._key(stream.suffix), round(self._config.lease_seconds * 1000)
        try:
            claimed = await self._redis.xautoclaim(key, GROUP, self._consumer, idle, count=most)
        except ResponseError as error:
            if not _is_without_group(error):
                raise
            self._groups.discard(stream)  # the broker has lost its data: the next call makes it anew
            return []
        found = []
        for entry, fields in claimed[1]:
            pending: Any = await self._redis.xpending_range(key, GROUP, entry, entry, 1)
            found += await self._deliveries(stream, [(entry, fields)], pending[0]["times_delivered"] if pending else 1)
        return found

    async def _new(self, stream: JobStream, most: int) -> list[Delivery]:
        key = self._key(stream.suffix)
        try:
            found: Any = await self._redis.xreadgroup(GROUP, self._consumer, {key: ">"}, count=most)
        except ResponseError as error:
            if not _is_without_group(error):
                raise
            self._groups.discard(stream)
            return []
        return [one for _, entries in _listed(found) for one in await self._deliveries(stream, entries, 1)]

    async def _deliveries(self, stream: JobStream, entries: Any, num_deliveries: int) -> list[Delivery]:
        """Return the deliveries of a stream's entries, whose ids have the server's time of their arrival."""
        found = []
        seconds, microseconds = await self._redis.time()
        server_ahead_ms = seconds * 1000 + microseconds // 1000 - round(time.time() * 1000)
        for entry, fields in entries:
            if fields is not None:
                job_id = _text(fields, b"id") or entry.decode()
                receipt = _Receipt(stream.suffix, entry.decode(), self._consumer, job_id)
                body, owner = fields.get(b"body", b""), _text(fields, b"owner")
                queued_ms = int(entry.partition(b"-")[0]) - server_ahead_ms
                asked_id = _text(fields, b"asked")
                found.append(Delivery(job_id, body, receipt.text, num_deliveries, owner, queued_ms, asked_id))
        return found

    async def _wait(self, streams: Sequence[JobStream]) -> None:
        """Wait until something is added to a stream, or for `WAIT_MILLISECONDS`."""
        await self._redis.xread({self._key(stream.suffix): "$" for stream in streams}, count=1, block=WAIT_MILLISECONDS)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            reason = str(error) if isinstance(error, ResponseError) else cause_of(error)
            raise BrokerUnreachable(f"{self.name}: {reason}") from None


@dataclass(frozen=True, slots=True)
class _Receipt:
    """An entry of a stream, the consumer that holds it, and the id of its job."""

    suffix: str
    entry: str
    consumer: str
    job_id: str

    @property
    def text(self) -> str:
        return json.dumps([self.suffix, self.entry, self.consumer, self.job_id])

    @staticmethod
    def of(text: str) -> _Receipt:
        return _Receipt(*json.loads(text))


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode(errors="replace")


def _listed(found: Any) -> list[Any]:
    """Return the items of a reply: a list, or pairs of a mapping as newer protocols have them; none for an error."""
    if isinstance(found, Mapping):
        return [(name, entries[0] if len(entries) == 1 else entries) for name, entries in found.items()]
    return found if isinstance(found, list) else []


def _is_without_group(error: ResponseError) -> bool:
    return "NOGROUP" in str(error) or "no such key" in str(error)
