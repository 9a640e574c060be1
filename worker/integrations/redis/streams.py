"""Jobs from Redis Streams: a consumer group per stream, idle time as the lease, results and events in keys beside.

Keys, below the prefix: `jobs:high|normal|low` and `jobs:normal[:owner:KEY][:model:NAME]` are streams with the fields
`id`, `body` and `owner`; `streams` is the set of the latter's names, `waiting` has those with jobs that nobody has
taken, `turns` when a job of each owner was taken last, `wake` an entry for each idle worker that is to look;
`result:ID`, `events:ID`, `cancel:ID`, `dead`; `news` is a stream of the events of all jobs, which each gateway reads
on one connection; of the fleet `workers`, `worker:NAME`, `last-worker` and `nodes:DIGEST`.
Redis 6.2 or later (XAUTOCLAIM).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from redis import asyncio as redis
from redis.exceptions import RedisError, ResponseError

from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.integrations.redis import scripts as redis_scripts
from darkroom.worker.integrations.redis.entries import Receipt, fields_of, is_without_group, listed, text_of
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import FLEET_SECONDS, BrokerUnreachable, Delivery, News, StreamDepth
from darkroom.worker.sources.fleet_entries import marked_last
from darkroom.worker.sources.stream_order import PRIORITIES, JobStream, in_order, priority_name

GROUP = "workers"
WAIT_SECONDS = 10.0
"""Seconds between two looks of an idle worker, shorter with short leases."""

LEAST_WAIT_SECONDS = 0.3
TURN_SECONDS = 3.0
"""Seconds for which one worker has looked for expired leases for all of them."""

MAX_STREAMS = 256
"""Streams that a worker chooses from, where more have waiting jobs: about so many, and of each owner a few."""

STREAMS_OF_OWNER = 4
"""The oldest streams of an owner that a worker chooses from then, besides those of the models that it used last."""

SOCKET_SECONDS = 15.0  # longer than a blocking read
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

    def __init__(self, config: BrokerConfig, max_connections: int = MAX_CONNECTIONS) -> None:
        url = config.url.get_secret_value()
        self._config = config
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
        self.name = f"{parts.scheme}://{place}"
        pool = redis.BlockingConnectionPool.from_url(
            url, max_connections=max_connections, timeout=SOCKET_SECONDS, socket_timeout=SOCKET_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS, health_check_interval=30,
        )  # fmt: skip
        self._redis: redis.Redis = redis.Redis.from_pool(pool)
        self._consumer = ""
        self._groups: set[JobStream] = set()
        self._server_ahead_ms = 0  # against the clock of this machine

    @property
    def lease_seconds(self) -> float:
        return self._config.lease_seconds

    async def connect(self, consumer: str) -> None:
        self._consumer = consumer
        with self._translated():
            await self._redis.ping()
            await self._add_groups(JobStream(priority) for priority in PRIORITIES)

    # the consumer's side

    async def receive(self, most: int, models: Sequence[str], seconds: float | None = None) -> list[Delivery]:
        with self._translated():
            return await self._taken(most, models) or await self._awaited(most, models, seconds)

    async def renew(self, receipts: Collection[str]) -> set[str]:
        ours: set[str] = set()
        by_stream: dict[tuple[str, str], dict[str, Receipt]] = {}
        for text in receipts:
            if (receipt := Receipt.of(text)) is not None:
                by_stream.setdefault((receipt.suffix, receipt.consumer), {})[receipt.entry] = receipt
        with self._translated():
            for (suffix, consumer), entries in by_stream.items():
                keys = [suffix, *(f"result:{receipt.job_id}" for receipt in entries.values())]
                kept = await self._run(redis_scripts.RENEW, keys, GROUP, consumer, *entries)
                ours |= {entries[entry.decode()].text for entry in kept}
        return ours

    async def finish(self, job_id: str, receipt: str, result: bytes) -> None:
        held = Receipt.of(receipt)
        if held is None:
            await self.settle(job_id, result)
            return
        with self._translated():
            keys = [held.suffix, f"result:{job_id}", "streams", "waiting"]
            await self._run(redis_scripts.FINISH, keys, GROUP, held.entry, result, self._result_seconds, held.suffix)

    async def bury(self, delivery: Delivery, reason: str, result: bytes) -> None:
        held = Receipt.of(delivery.receipt)
        if held is None:
            await self.settle(delivery.job_id, result)
            return
        keys = [held.suffix, f"result:{delivery.job_id}", "streams", "waiting", "dead"]
        with self._translated():
            await self._run(
                redis_scripts.BURY, keys, GROUP, held.entry, result, self._result_seconds, held.suffix,
                delivery.job_id, reason, delivery.body,
            )  # fmt: skip

    async def give_back(self, receipt: str) -> bool:
        held = Receipt.of(receipt)
        if held is None:
            return True
        keys = [held.suffix, f"result:{held.job_id}", "wake", "given-back"]
        with self._translated():
            arguments = GROUP, held.consumer, held.entry, FOREVER_IDLE_MILLISECONDS, held.suffix
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

    async def announce(self, entry: bytes, lists: Mapping[str, bytes]) -> None:
        with self._translated():
            async with self._redis.pipeline(transaction=False) as pipe:
                for nodes_id, nodes in lists.items():
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
        stream = JobStream(priority_name(priority), model, owner)
        with self._translated():
            if (
                stream.is_common and stream not in self._groups
            ):  # an autoscaler reads the group, also before the first worker
                await self._add_groups([stream])
            keys = [stream.suffix, f"known:{job_id}", "streams", "waiting", "wake"]
            values = (
                job_id,
                body,
                owner,
                self._result_seconds,
                asked_id,
                stream.suffix,
                int(not stream.is_common),
                GROUP,
            )
            return bool(await self._run(redis_scripts.PUT, keys, *values))

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
            News(entry.decode(), text_of(fields, b"id"), fields.get(b"event", b""))
            for _, entries in listed(found)
            for entry, fields in entries
        ]

    async def depths(self) -> list[StreamDepth]:
        with self._translated():
            streams = await self._streams()
            async with self._redis.pipeline(transaction=False) as pipe:
                for stream in streams:
                    pipe.xlen(self._key(stream.suffix))
                found = await pipe.execute()
        return [StreamDepth(stream.priority, stream.model, num) for stream, num in zip(streams, found, strict=True)]

    async def depth(self) -> int:
        return sum(depth.num_jobs for depth in await self.depths())

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

    async def _taken(self, most: int, models: Sequence[str]) -> list[Delivery]:
        """Take jobs that are there."""
        waited = await self._waited_seconds(models)
        turns = await self._last_turns({stream.owner for stream in waited if stream.owner})
        streams = in_order({*(JobStream(priority) for priority in PRIORITIES), *waited}, models, waited, turns)
        names = [stream.suffix for stream in streams]
        lease_ms = round(self._config.lease_seconds * 1000)
        turn_ms = round(min(TURN_SECONDS, self._config.lease_seconds / 3) * 1000)
        found: Any = await self._run(
            redis_scripts.TAKE, ["turn", "waiting", "streams", "wake", "given-back", "turns"],
            GROUP, self._consumer, most, lease_ms, turn_ms, self._config.prefix, *names,
        )  # fmt: skip
        return [
            self._delivery(suffix.decode(errors="replace"), entry, fields_of(pairs), count)
            for suffix, entry, count, pairs in found
        ]

    async def _waited_seconds(self, models: Sequence[str]) -> dict[JobStream, float]:
        """Return the time that the oldest job of each stream has waited, and note how far the server's clock is off."""
        keys = [self._key("waiting"), self._key("turns")]
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.eval(redis_scripts.WAITING, len(keys), *keys, MAX_STREAMS, STREAMS_OF_OWNER, *models)
            pipe.time()
            listed, (seconds, microseconds) = await pipe.execute()
        waiting = zip(listed[::2], map(float, listed[1::2]), strict=True)
        server_ms = seconds * 1000 + microseconds // 1000
        self._server_ahead_ms = server_ms - round(time.time() * 1000)
        found = {
            JobStream.of(name.decode(errors="replace")): score % redis_scripts.PRIORITY_SPAN for name, score in waiting
        }
        return {stream: (server_ms - score) / 1000 for stream, score in found.items() if stream is not None}

    async def _last_turns(self, owners: Collection[str]) -> dict[str, float]:
        """Return when a job of each owner was taken last; also that of jobs without one."""
        if not owners:
            return {}
        names = ["", *owners]
        found: Any = await self._redis.zmscore(self._key("turns"), [quote(name, safe="") for name in names])
        return {name: score or 0.0 for name, score in zip(names, found, strict=True)}

    async def _awaited(self, most: int, models: Sequence[str], seconds: float | None) -> list[Delivery]:
        """Wait for a job of the streams of all models, or until another stream has one for this worker."""
        names = [*(JobStream(priority).suffix for priority in PRIORITIES), "wake"]
        wait = min(WAIT_SECONDS, max(LEAST_WAIT_SECONDS, self._config.lease_seconds / 3))
        block = max(1, round((wait if seconds is None else min(wait, seconds)) * 1000))  # 0 would wait for ever
        try:
            streams: dict[bytes | str | memoryview[int], int | bytes | str | memoryview[int]] = {
                self._key(name): ">" for name in names
            }
            found: Any = await self._redis.xreadgroup(GROUP, self._consumer, streams, count=1, block=block)
        except ResponseError as error:
            if not is_without_group(error):
                raise
            await self._add_groups(JobStream(priority) for priority in PRIORITIES)  # the broker has lost its data
            return []
        deliveries = []
        is_woken = False
        for key, entries in listed(found):
            suffix = key.decode(errors="replace").removeprefix(f"{self._config.prefix}:")
            for entry, fields in entries:
                if suffix != "wake":
                    deliveries.append(self._delivery(suffix, entry, fields or {}, 1))
                    continue
                await self._forget_wake(entry)
                is_woken = True
        for delivery in deliveries[most:]:  # of several streams at once
            await self.give_back(delivery.receipt)
        if is_woken and len(deliveries) < most:
            deliveries += await self._taken(most - len(deliveries), models)
        return deliveries[:most]

    async def _forget_wake(self, entry: bytes) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.xack(self._key("wake"), GROUP, entry)
            pipe.xdel(self._key("wake"), entry)
            await pipe.execute()

    def _delivery(self, suffix: str, entry: bytes, fields: Mapping[bytes, bytes], num_deliveries: int) -> Delivery:
        """Return the delivery of a stream's entry, whose id has the server's time of its arrival."""
        job_id = text_of(fields, b"id") or entry.decode()
        receipt = Receipt(suffix, entry.decode(), self._consumer, job_id)
        queued_ms = int(entry.partition(b"-")[0]) - self._server_ahead_ms
        return Delivery(
            job_id, fields.get(b"body", b""), receipt.text, num_deliveries, text_of(fields, b"owner"), queued_ms,
            text_of(fields, b"asked"),
        )  # fmt: skip

    async def _add_groups(self, streams: Iterable[JobStream]) -> None:
        """Make the groups of streams, and that of the stream by which workers are woken."""
        found = list(streams)
        for name in (*(stream.suffix for stream in found), "wake"):
            try:
                await self._redis.xgroup_create(self._key(name), GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise
        self._groups.update(found)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            reason = str(error) if isinstance(error, ResponseError) else cause_of(error)
            raise BrokerUnreachable(f"{self.name}: {reason}") from None
