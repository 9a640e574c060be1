"""Reporter: sends the worker's status and ended requests to Vast's autoscaler.

`worker_status/`: every ten seconds, and after a change within a second once loaded. `delete_requests/`: within a second
of an end. Each report goes to the first of the addresses, in order, that accepts it; three tries each. Counters are
reset only after a delivery. An error text is reported as long as the error lasts.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx
import structlog

from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.integrations.vast.ledger import Ledger
from darkroom.worker.settings.platforms import VastConfig, VastTiming

VERSION: Final = "1.1.0"
NO_DELETES_AT: Final = "https://cloud.vast.ai/api/v0"
GIB: Final = 2**30

log = structlog.get_logger("vast")


@dataclass(slots=True)
class WorkerStatus:
    """Contents of a status report besides the ledger. `speed` is costs per second."""

    load_seconds: float = 0.0
    speed: float = 0.0
    error: str = ""

    @property
    def is_loaded(self) -> bool:
        return self.load_seconds > 0

    def fail(self, error: str) -> None:
        """Set the error of the next report; empty: none."""
        self.error = error

    def load(self, speed: float, load_seconds: float) -> None:
        """Record that the worker takes jobs. The load time is that of the first call."""
        self.speed = speed
        self.load_seconds = self.load_seconds or load_seconds


class Reporter:
    """Sender of the reports; `run()` is its task. Changes of `status` are sent with the next tick after `touch()`."""

    def __init__(
        self,
        config: VastConfig,
        ledger: Ledger,
        http: httpx.AsyncClient,
        timing: VastTiming,
    ) -> None:
        self._config = config
        self._addresses = config.report_addresses
        self._ledger = ledger
        self._http = http
        self._timing = timing
        self._is_touched = True
        self._last_sent: float | None = None
        self._disk_told_gib = _disk_used_gib()
        self.status = WorkerStatus()

    def touch(self) -> None:
        """Mark the status as changed."""
        self._is_touched = True

    async def run(self) -> None:
        """Send reports forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._report_status), name="vast-status")
            group.create_task(self._repeat(self._report_ends), name="vast-ends")

    async def flush(self) -> None:
        """Send one last report of everything, with one try at each address."""
        await self._send_ends(num_tries=1)
        await self._send_status(num_tries=1)

    async def _report_status(self) -> None:
        if self._is_due():
            await self._send_status(self._timing.num_tries)

    async def _report_ends(self) -> None:
        await self._send_ends(self._timing.num_tries)

    async def _repeat(self, report: Callable[[], Awaitable[None]]) -> None:
        """Send a report every tick and survive any error: the platform destroys a worker that stops reporting."""
        while True:
            await asyncio.sleep(self._timing.tick)
            try:
                await report()
            except Exception:  # noqa: BLE001 - the report
                log.exception("autoscaler report failed")

    def _is_due(self) -> bool:
        if self._last_sent is None or time.monotonic() - self._last_sent >= self._timing.at_least_every:
            return True
        return self._is_touched or (self.status.is_loaded and self._ledger.has_news)

    async def _send_status(self, num_tries: int) -> None:
        reading, disk_gib = self._ledger.reading(), _disk_used_gib()
        self._is_touched = False
        body = {
            "id": self._config.container_id,
            "mtoken": self._config.master_token.get_secret_value(),
            "version": VERSION,
            "loadtime": self.status.load_seconds,
            "new_load": max(0.0, reading.sums.received - reading.sums.cancelled),
            "cur_load": reading.load,
            "rej_load": reading.sums.rejected,
            "max_perf": self.status.speed,
            "cur_perf": reading.sums.done,
            "error_msg": self.status.error,
            "num_requests_working": reading.num_working,
            "num_requests_recieved": reading.num_received,
            "additional_disk_usage": disk_gib - self._disk_told_gib,
            "disk_usage": disk_gib,
            "working_request_idxs": list(reading.working_request_idxs),
            "cur_capacity": 0,
            "max_capacity": 0,
            "url": self._config.url,
        }
        if await self._send("worker_status/", body, self._addresses, num_tries):
            self._ledger.delivered(reading)
            self._disk_told_gib = disk_gib
            self._last_sent = time.monotonic()
        else:
            self._is_touched = True

    async def _send_ends(self, num_tries: int) -> None:
        ended = self._ledger.ended
        if not ended:
            return
        body = {
            "worker_id": self._config.container_id,
            "mtoken": self._config.master_token.get_secret_value(),
            "requests": [entry.as_json() for entry in ended],
        }
        addresses = [address for address in self._addresses if address != NO_DELETES_AT]
        if await self._send("delete_requests/", body, addresses, num_tries):
            self._ledger.ends_delivered(ended)

    async def _send(self, route: str, body: Mapping[str, object], addresses: Sequence[str], num_tries: int) -> bool:
        for address in addresses:
            for attempt in range(num_tries):
                if attempt:
                    await asyncio.sleep(self._timing.between_tries)
                try:
                    await self._post(f"{address}/{route}", body)
                    return True
                except httpx.HTTPStatusError as error:
                    reason = f"status {error.response.status_code}"
                except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
                    reason = cause_of(error)
                log.warning("report rejected", route=route, address=address, reason=reason, attempt=attempt + 1)
        return False

    async def _post(self, url: str, body: Mapping[str, object]) -> None:
        """Send a report; only the status of the reply is read. Raises httpx.HTTPStatusError for a refusal."""
        seconds = self._timing.request
        async with asyncio.timeout(seconds), self._http.stream("POST", url, json=body, timeout=seconds) as response:
            response.raise_for_status()


def _disk_used_gib() -> float:
    return shutil.disk_usage("/").used / GIB
