"""Reading figures before they are shown."""

from __future__ import annotations

import asyncio

import pytest

from darkroom.worker.observe.scrape import Scrape


async def test_a_reader_that_fails_or_hangs_leaves_the_others_alone() -> None:
    seen: list[str] = []

    async def good() -> None:
        seen.append("read")

    async def broken() -> None:
        raise OSError("gone")

    async def slow() -> None:
        await asyncio.sleep(60)

    scrape = Scrape([broken, slow, good], limit_seconds=0.01)
    await scrape.read()
    assert seen == ["read"]


async def test_a_reader_that_hangs_is_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.worker.observe.scrape.FRESH_SECONDS", 0.0)
    num_begun, num_read, go_on = 0, 0, asyncio.Event()

    async def hanging() -> None:
        nonlocal num_begun
        num_begun += 1
        await go_on.wait()

    async def good() -> None:
        nonlocal num_read
        num_read += 1

    scrape = Scrape([hanging, good], limit_seconds=0.01)
    for _ in range(3):
        await scrape.read()
    assert (num_begun, num_read) == (1, 3)
    go_on.set()
    await scrape.read()
    await scrape.read()
    assert num_begun == 2


async def test_scrapes_at_once_share_a_reading() -> None:
    num_reads = 0

    async def read() -> None:
        nonlocal num_reads
        num_reads += 1

    scrape = Scrape([read])
    await asyncio.gather(*(scrape.read() for _ in range(5)))
    assert num_reads == 1
