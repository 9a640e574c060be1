"""Connections, heads and bodies that never end keep nobody out, and probes are answered whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from functools import partial
from pathlib import Path

import httpx
import pytest

from darkroom.worker.guard.listener.connections import (
    OWN_PROBE_SLOTS,
    PROBE_SLOTS,
    PROBE_SLOTS_PER_ADDRESS,
    Connection,
    ConnectionTable,
    Slot,
    group_of,
)
from darkroom.worker.guard.listener.open_files import fitting
from darkroom.worker.settings.listener import ConnectionLimits, TlsFiles
from tests.engine.server.certificate import write_certificate
from tests.fakes import FakeEngine, draw
from tests.security.front_process import FrontProcess, front_process
from tests.security.raw_http import RawClient
from tests.worker.running_front import RunningFront, running_front, until

BODY = {"input": {"workflow_json": draw()}}
LONG = 2_000_000
ATTACKERS = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")


def limits(total: int = 10, per_address: int = 4) -> ConnectionLimits:
    return ConnectionLimits(max_connections=total, max_per_address=per_address)


async def connect_many(url: str, num_each: int, *, is_tls: bool | None = None) -> list[RawClient]:
    """Open connections from several addresses, as many as are taken."""
    opened = []
    for source in ATTACKERS:
        for _ in range(num_each):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(20):
                    opened.append(await RawClient.connect(url, source, is_tls=is_tls))
    return opened


async def probe(front: FrontProcess | RunningFront, path: str, source: str) -> int:
    """Return the status that a client on a new connection from an address gets."""
    client = await RawClient.connect(front.url, source)
    try:
        await client.ask("GET", path)
        return await client.status()
    finally:
        client.close()


# the process


async def test_silent_connections_of_many_addresses_shut_nobody_out(tmp_path: Path, engine: FakeEngine) -> None:
    async with front_process(tmp_path, engine, files=(160, 160)) as front:
        silent = await connect_many(front.url, 100)
        await asyncio.sleep(1.2)  # until the oldest count as idle
        for path in ("/live", "/ready", "/health"):
            assert await probe(front, path, "127.0.0.1") == 200
            assert await probe(front, path, "127.0.0.9") == 200
        async with httpx.AsyncClient(base_url=front.url, timeout=30, trust_env=False) as http:
            assert (await http.post("/generate/sync", json=BODY)).status_code == 200
        for client in silent:
            client.close()


async def test_probes_are_answered_while_every_place_is_busy(tmp_path: Path, engine: FakeEngine) -> None:
    async with front_process(tmp_path, engine, files=(160, 160)) as front:
        await front.http.aclose()
        busy = await connect_many(front.url, 30)

        async def ask(client: RawClient) -> None:
            with contextlib.suppress(ConnectionError):  # it gave way before it was busy
                await client.ask("POST", "/generate/sync", {"Content-Length": "1000"})
                await client.send(b'{"input": ')

        async def is_full() -> bool:
            with contextlib.suppress(ConnectionError, EOFError):  # one of those that gave way
                if await probe(front, "/modifiers", "127.0.0.9") == 503:
                    return True
            for client in await connect_many(front.url, 1):  # in place of those that gave way on a slow machine
                busy.append(client)
                await ask(client)
            return False

        for client in busy:
            await ask(client)

        async def has_room() -> bool:
            return await probe(front, "/modifiers", "127.0.0.9") == 200

        await until(is_full)
        for source in ("127.0.0.1", "127.0.0.9"):
            assert await probe(front, "/live", source) == 200
            assert await probe(front, "/ready", source) == 200
            assert await probe(front, "/modifiers", source) == 503
        for client in busy:
            client.close()
        await until(has_room)


async def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one(tmp_path: Path, engine: FakeEngine) -> None:
    async with front_process(tmp_path, engine, files=(200, 2000)) as front:
        assert front.soft_files == 2000


async def test_silent_connections_to_a_tls_port_are_counted_too(tmp_path: Path, engine: FakeEngine) -> None:
    key, certificate = write_certificate(tmp_path)
    async with front_process(
        tmp_path, engine, files=(160, 160), tls=TlsFiles(certificate=certificate, key=key)
    ) as front:
        silent = await connect_many(front.url, 60, is_tls=False)
        await asyncio.sleep(1.2)
        for source in ("127.0.0.1", "127.0.0.9"):
            assert await probe(front, "/live", source) == 200
        done = await front.http.post("/generate/sync", json=BODY)
        assert done.status_code == 200
        for client in silent:
            client.close()


# one connection


async def test_a_head_has_a_time_limit(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, constants={"connections": {"head_seconds": 0.4}}) as front:
        silent, slow = await RawClient.connect(front.url), await RawClient.connect(front.url)
        await slow.send(b"GET /live HTTP/1.1\r\nHost: x\r\n")
        assert await silent.is_closed_within(60)
        assert await slow.status() == 408
        assert await slow.is_closed_within(60)
        dribbling = await RawClient.connect(front.url)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                await dribbling.send(b"\r\n")
                await asyncio.sleep(0.02)
        assert await dribbling.is_closed_within(60)


@pytest.mark.parametrize("num_lines", [1, 2000, 200])
async def test_a_head_has_a_largest_size_and_number_of_lines(front: RunningFront, num_lines: int) -> None:
    client = await RawClient.connect(front.url)
    length = 30 if num_lines == 200 else 4_000_000 // num_lines
    await client.send(b"GET /live HTTP/1.1\r\nHost: x\r\n")
    with contextlib.suppress(ConnectionError):
        for number in range(num_lines):
            await client.send(b"X-%d: " % number + b"a" * length + b"\r\n")
        await client.send(b"\r\n")
    with contextlib.suppress(ConnectionError):  # it may be gone before we have read its answer
        assert await client.status() == 431
    assert await client.is_closed_within(60)
    assert (await front.http.get("/live")).status_code == 200


async def test_a_head_within_its_limits_is_taken(front: RunningFront) -> None:
    headers = {f"X-{number}": "a" * 600 for number in range(100)}
    assert (await front.http.get("/live", headers=headers)).status_code == 200
    assert (await front.http.get("/live", params={"a": "b" * 60_000})).status_code == 200


async def test_a_body_that_stands_still_or_comes_too_slowly_ends_with_408(tmp_path: Path, engine: FakeEngine) -> None:
    constants = {"connections": {"body_idle_seconds": 2.0, "body_bytes_per_second": 1000}}
    async with running_front(tmp_path, engine, constants=constants) as front:
        still, slow, steady = [await RawClient.connect(front.url) for _ in range(3)]
        for client in (still, slow, steady):
            await client.ask("POST", "/generate/sync", {"Content-Length": str(LONG)})
        await still.send(b'{"input": {')
        await slow.send(b'{"input": "')
        await steady.send(b'{"input": "')

        async def feed(client: RawClient, piece: bytes) -> None:
            with contextlib.suppress(ConnectionError):
                while not is_over.is_set():
                    await client.send(piece)
                    num_sent[piece] += len(piece)
                    await asyncio.sleep(0.05)

        is_over, num_sent = asyncio.Event(), Counter[bytes]()
        feeding = [asyncio.create_task(feed(slow, b"a")), asyncio.create_task(feed(steady, b"a" * 1000))]
        assert await still.status(60) == 408
        assert await slow.status(60) == 408
        is_over.set()
        await asyncio.gather(*feeding)
        await steady.send(b"a" * (LONG - 11 - num_sent[b"a" * 1000]))
        assert await steady.status() == 422
        for client in (still, slow, steady):
            client.close()


async def test_what_follows_a_body_in_chunks_is_not_kept(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, constants={"connections": {"body_idle_seconds": 0.6}}) as front:
        client = await RawClient.connect(front.url)
        await client.ask("POST", "/generate/sync", {"Transfer-Encoding": "chunked"})
        with contextlib.suppress(ConnectionError):
            await client.send(b"2\r\n{}\r\n0\r\n")
            for number in range(1000):
                await client.send(b"X-%d: " % number + b"a" * 1000 + b"\r\n")
                await asyncio.sleep(0.002)
        assert await client.is_closed_within(60)


async def test_requests_sent_far_ahead_of_replies_end_the_connection(front: RunningFront) -> None:
    client = await RawClient.connect(front.url)
    few = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n" * 5
    await client.send(few)
    assert [await client.status() for _ in range(5)] == [200] * 5
    with contextlib.suppress(ConnectionError):
        await client.send(few * 200)
    assert await client.is_closed_within(60)


async def test_a_refused_body_is_thrown_away_for_some_time_and_the_connection_goes_on(front: RunningFront) -> None:
    client = await RawClient.connect(front.url)
    await client.ask("POST", "/cancel/nobody", {"Content-Length": "500000"})
    await client.send(b"a" * 200_000)
    assert await client.status() == 413
    await client.send(b"a" * 300_000)
    await client.ask("GET", "/live")
    assert await client.status() == 200
    client.close()


async def test_what_is_no_http_is_refused_without_a_banner(front: RunningFront) -> None:
    for line in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    ):
        client = await RawClient.connect(front.url)
        await client.send(line)
        head = await client.head()
        assert head.startswith("http/1.1 4") and "server:" not in head and "uvicorn" not in head
        client.close()


# the table


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_address_over_its_share_takes_the_place_of_its_own_oldest_idle_connection() -> None:
    clock = Clock()
    table = ConnectionTable(limits(), clock=clock)
    closed: list[Connection] = []
    held = [table.admit("203.0.113.9") for _ in range(4)]
    for item in held:
        assert item is not None
        item.held_by(partial(closed.append, item))
    young = table.admit("203.0.113.9")
    assert young is not None and young.slot is Slot.PROBE
    clock.now = 2.0
    assert held[0] is not None
    held[0].begin_request()
    newest = table.admit("203.0.113.9")
    assert newest is not None and newest.slot is Slot.FULL and closed == [held[1]]
    assert table.admit("203.0.113.10").slot is Slot.FULL  # type: ignore[union-attr]


def test_with_all_places_taken_the_address_with_the_most_gives_one() -> None:
    clock = Clock()
    table = ConnectionTable(limits(total=6), clock=clock)
    closed: list[str] = []
    for number, host in enumerate(["203.0.113.1", *["203.0.113.2"] * 4, "203.0.113.3"]):
        item = table.admit(host)
        assert item is not None
        item.held_by(partial(closed.append, f"{host} {number}"))
    clock.now = 2.0
    assert table.admit("203.0.113.4").slot is Slot.FULL  # type: ignore[union-attr]
    assert closed == ["203.0.113.2 1"]


def test_places_for_probes_are_few_and_this_machine_has_its_own() -> None:
    table = ConnectionTable(limits(total=1), clock=Clock())
    table.admit("203.0.113.1")
    taken = [table.admit(f"203.0.113.{number}") for number in range(2, 60) for _ in range(3)]
    given = [item for item in taken if item is not None]
    assert len(given) == PROBE_SLOTS and all(item.slot is Slot.PROBE for item in given)
    assert sum(item.address == "203.0.113.2" for item in given) == PROBE_SLOTS_PER_ADDRESS
    own = [table.admit("127.0.0.1") for _ in range(OWN_PROBE_SLOTS)]
    assert None not in own and table.admit("127.0.0.1") is None
    for item in given:
        table.release(item)
        table.release(item)
    assert table.num_connections == 1 + OWN_PROBE_SLOTS


def test_proxies_and_this_machine_bring_many_clients() -> None:
    table = ConnectionTable(limits(total=100, per_address=2), proxies=("10.0.0.0/8", "nonsense"))
    for host in ("127.0.0.1", "::1", "10.1.2.3"):
        assert {table.admit(host).slot for _ in range(9)} == {Slot.FULL}  # type: ignore[union-attr]
    assert [table.admit("192.0.2.1").slot for _ in range(3)][-1] is Slot.PROBE  # type: ignore[union-attr]


def test_a_network_of_ipv6_is_one_client() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:1") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:192.0.2.1") == group_of("192.0.2.1")
    assert group_of("fe80::1%eth0") == group_of("fe80::2")


@pytest.mark.parametrize(
    ("files", "total", "per_address"), [(2**20, 2048, 512), (1024, 768, 384), (200, 100, 50), (10, 16, 8)]
)
def test_connections_fit_into_the_files_that_may_be_open(files: int, total: int, per_address: int) -> None:
    fitted = fitting(limits(2048, 512), files)
    assert (fitted.max_connections, fitted.max_per_address) == (total, per_address)
