"""Requests per second of a caller, counted at two gateways together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from darkroom.worker.errors import LimitReached
from darkroom.worker.gateway.database import SUFFIX
from darkroom.worker.gateway.request_rates import RequestRates
from tests.worker.gateway.running_gateway import running_gateway
from tests.worker.postgres_server import SCHEMA, PostgresServer
from tests.worker.running_front import until
from tests.worker.sources.servers import redis_server

SEVEN_A_MINUTE = 7 / 60


@asynccontextmanager
async def two_counters(
    postgres: PostgresServer, database: str, per_second: float = SEVEN_A_MINUTE
) -> AsyncIterator[list[RequestRates]]:
    rates = [RequestRates(postgres.config(database), per_second) for _ in range(2)]
    try:
        yield rates
    finally:
        for one in rates:
            await one.close()


async def is_allowed(rates: RequestRates, caller: str) -> bool:
    try:
        assert await rates.count(caller), "counted in the database"
    except LimitReached:
        return False
    return True


def set_clock_ahead(postgres: PostgresServer, database: str, seconds: float) -> None:
    """Let time pass for the counts: all their times are so much older."""
    with psycopg.connect(postgres.url(database)) as connection:
        connection.execute(
            f"UPDATE {SCHEMA}{SUFFIX}.request_rates SET times_us = ARRAY(SELECT t - %s FROM unnest(times_us) t)",
            [round(seconds * 1_000_000)],
        )


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.request_rates.ANSWER_SECONDS", 30.0)


async def test_gateways_together_let_exactly_as_many_requests_pass_as_are_allowed(postgres: PostgresServer) -> None:
    async with two_counters(postgres, postgres.new_database()) as rates:
        found = await asyncio.gather(*(is_allowed(rates[number % 2], "key:a") for number in range(60)))
        assert sum(found) == 7
        assert await is_allowed(rates[0], "key:b")


async def test_a_request_makes_room_when_it_is_as_old_as_the_window(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    async with two_counters(postgres, database) as rates:
        for _ in range(3):
            assert await is_allowed(rates[0], "key:a")
        set_clock_ahead(postgres, database, 40)
        for _ in range(4):
            assert await is_allowed(rates[1], "key:a")
        with pytest.raises(LimitReached) as refusal:
            await rates[0].count("key:a")
        assert {"limit": "requests_per_second", "value": 8, "allowed": 7}.items() <= refusal.value.fields.items()
        assert 1 <= (refusal.value.retry_after_seconds or 0) <= 20, "the first three are 40 seconds old"
        set_clock_ahead(postgres, database, 20)
        assert [await is_allowed(rates[number % 2], "key:a") for number in range(4)] == [True, True, True, False]
        set_clock_ahead(postgres, database, -3600)  # the server's clock is an hour back
        assert await is_allowed(rates[0], "key:a")


async def test_callers_that_have_not_come_for_a_window_are_forgotten(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    async with two_counters(postgres, database) as rates:
        await rates[0].count("key:old")
        set_clock_ahead(postgres, database, 61)
        await rates[1].count("key:new")
        await rates[0].forget_old()
    with psycopg.connect(postgres.url(database)) as connection:
        assert connection.execute(f"SELECT caller FROM {SCHEMA}{SUFFIX}.request_rates").fetchall() == [("key:new",)]


async def test_two_gateways_count_a_key_together_and_alone_while_the_database_is_gone(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.gateway.request_rates.ALONE_SECONDS", 0.2)
    keys: dict[str, Any] = {"api_keys": ("shop:shop-secret",), "caller_max_requests_per_second": SEVEN_A_MINUTE}
    shop = {"Authorization": "Bearer shop-secret"}
    database = postgres.url(postgres.new_database())
    async with (
        redis_server(tmp_path / "redis") as broker,
        running_gateway(broker.url, database, **keys) as one,
        running_gateway(broker.url, database, **keys) as other,
    ):

        async def refused(num_requests: int, headers: dict[str, str]) -> int:
            asked = [(one, other)[number % 2].get("/jobs", headers=headers) for number in range(num_requests)]
            return [reply.status_code for reply in await asyncio.gather(*asked)].count(429)

        assert await refused(20, shop) == 13
        assert await refused(20, {"Authorization": "Bearer a guess", "X-Forwarded-For": "203.0.113.9"}) == 13
        for route in ("/live", "/modifiers"):
            assert (await one.get(route)).status_code == 200, "they need no caller"
        postgres.kill()
        try:
            assert await refused(20, shop) == 6, "each gateway lets seven pass by itself"
        finally:
            postgres.start()

        async def is_counted_together() -> bool:
            return (await one.get("/jobs", headers=shop)).status_code == 200

        await until(is_counted_together)  # its counts did not outlive the server; alone the gateway would refuse
