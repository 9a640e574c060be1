"""RequestRates: requests of each caller, counted at all gateways together, in PostgreSQL.

A caller's row has the times of its last requests by the server's clock, as many as are allowed. One statement checks
and adds: a request passes if the oldest of them is over. While the database does not answer each gateway counts alone.
"""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import sqlalchemy as sa
import structlog

from darkroom.worker.errors import LimitReached
from darkroom.worker.gateway.database import SUFFIX
from darkroom.worker.guard.rate_limits import window_of
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.postgres_database import open_postgres

POOL_SIZE: Final = 4
ANSWER_SECONDS: Final = 1.0
"""Seconds for which a request waits for its count."""

ALONE_SECONDS: Final = 5.0
"""Seconds for which a gateway counts alone after the database has not answered."""

NOW_US: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
OLDEST: Final = "held.times_us[cardinality(held.times_us) - :most + 1]"
COUNT: Final = sa.text(
    f"INSERT INTO request_rates AS held (caller, times_us) VALUES (:caller, ARRAY[{NOW_US}]) "
    "ON CONFLICT (caller) DO UPDATE SET times_us = "
    f"(array_append(held.times_us, {NOW_US}))[greatest(1, cardinality(held.times_us) - :most + 2):] "
    f"WHERE cardinality(held.times_us) < :most OR {OLDEST} <= {NOW_US} - :window_us "
    f"OR {OLDEST} > {NOW_US} "  # the server's clock was set back
    "RETURNING 1"
)
LEFT_US: Final = sa.text(f"SELECT {OLDEST} + :window_us - {NOW_US} FROM request_rates AS held WHERE caller = :caller")
FORGET: Final = sa.text(
    f"DELETE FROM request_rates WHERE times_us[cardinality(times_us)] NOT BETWEEN {NOW_US} - :window_us AND {NOW_US}"
)

log = structlog.get_logger("gateway")


class RequestRates:
    """At most `per_second` requests of a caller, in any time as long as the window that makes it a whole number."""

    def __init__(self, config: DatabaseConfig, per_second: float) -> None:
        self._num_requests, self._window_seconds = window_of(per_second)
        shared = config.model_copy(update={"schema_name": f"{config.schema_name}{SUFFIX}"})
        self._engine = open_postgres(shared, num_connections=POOL_SIZE)
        self._threads = ThreadPoolExecutor(POOL_SIZE, thread_name_prefix="gateway-rates")
        self._alone_until = 0.0

    async def count(self, caller: str) -> bool:
        """Count one request of a caller. Returns False if the database does not answer: it is not counted then.

        Raises LimitReached.
        """
        if time.monotonic() < self._alone_until:
            return False
        counting = asyncio.get_running_loop().run_in_executor(self._threads, self._left_seconds, caller)
        try:
            left_seconds = await asyncio.wait_for(counting, ANSWER_SECONDS)
        except (sa.exc.SQLAlchemyError, TimeoutError) as error:
            self._alone_until = time.monotonic() + ALONE_SECONDS
            log.warning("requests counted by this gateway alone", reason=type(error).__name__)
            return False
        if left_seconds is not None:
            raise LimitReached(
                "requests_per_second",
                self._num_requests + 1,
                self._num_requests,
                unit=f"in {self._window_seconds} s",
                retry_after_seconds=min(max(1.0, math.ceil(left_seconds)), float(self._window_seconds)),
            )
        return True

    async def forget_old(self) -> None:
        """Remove callers without a request in the window, if the database answers."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._forget)
        except sa.exc.SQLAlchemyError as error:
            log.warning("old request counts not removed", reason=type(error).__name__)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)
        await asyncio.to_thread(self._engine.dispose)

    def _left_seconds(self, caller: str) -> float | None:
        """Count a request and return None, or return the seconds until the next one is allowed."""
        values = {"caller": caller, "most": self._num_requests, "window_us": self._window_us}
        with self._engine.begin() as connection:
            if connection.execute(COUNT, values).one_or_none() is not None:
                return None
            left_us = connection.execute(LEFT_US, values).scalar()
        return 0.0 if left_us is None else left_us / 1e6

    def _forget(self) -> None:
        with self._engine.begin() as connection:
            connection.execute(FORGET, {"window_us": self._window_us})

    @property
    def _window_us(self) -> int:
        return self._window_seconds * 1_000_000
