"""Reading figures before they are shown."""

from __future__ import annotations

import asyncio

from worker.observe.scrape import Scrape


async def test_a_reader_that_fails_or_hangs_leaves_the_others_alone() -> None:
    seen: list[str] = []

    async def good() -> None:
        seen.append("read")

    async def broken() -> None:
        raise OSError("gone")

    async def slow() -> None:
        await asyncio.sleep(60)

    await Scrape([broken, slow, good], limit_seconds=0.01).read()
    assert seen == ["read"]


async def test_scrapes_at_once_share_a_reading() -> None:
    num_reads = 0

    async def read() -> None:
        nonlocal num_reads
        num_reads += 1

    scrape = Scrape([read])
    await asyncio.gather(*(scrape.read() for _ in range(5)))
    assert num_reads == 1
