"""Error reports to Vast's autoscaler from a worker that could not start, every ten seconds, until it is stopped."""

from __future__ import annotations

import asyncio
import signal

from darkroom.worker.guard.plain_responses import plain_client
from darkroom.worker.integrations.vast.ledger import Ledger
from darkroom.worker.integrations.vast.reports import Reporter
from darkroom.worker.settings.platforms import VastConfig, VastTiming


def report_error_until_stopped(config: VastConfig, reason: str) -> None:
    """Report the error until the first SIGTERM or SIGINT."""
    asyncio.run(_report(config, f"Worker Server failed to launch: {reason}"))


async def _report(config: VastConfig, message: str) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with plain_client() as http:
        reporter = Reporter(config, Ledger(), http, VastTiming())
        reporter.status.fail(message)
        reporting = asyncio.create_task(reporter.run())
        await stopped.wait()
        reporting.cancel()
