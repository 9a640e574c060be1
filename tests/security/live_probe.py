"""Probe of a worker under attack, in a process of its own: new connections to `/live`, and an honest customer's jobs.

    python -m tests.security.live_probe URL SECONDS KEY

Prints one JSON object when the time is over.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

PROBE_SECONDS = 0.2
HONEST_PAUSE_SECONDS = 2.0
HONEST_SECONDS = 150.0
GRAPH = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 255}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "honest"}},
}


@dataclass
class Observations:
    """Probes, how long the slowest took in seconds, what went wrong with others, and how the honest jobs ended."""

    live_probes: int = 0
    live_slowest_seconds: float = 0.0
    live_faults: list[str] = field(default_factory=list)
    honest_jobs: Counter[str] = field(default_factory=Counter)


async def probe(url: str, until: float, seen: Observations) -> None:
    """Ask `/live` again and again, each time on a new connection."""
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
                status = (await http.get(f"{url}/live")).status_code
            if status != 200:
                seen.live_faults.append(f"answered {status}")
        except httpx.HTTPError as error:
            seen.live_faults.append(type(error).__name__)
        seen.live_probes += 1
        seen.live_slowest_seconds = max(seen.live_slowest_seconds, round(time.monotonic() - began, 3))
        await asyncio.sleep(PROBE_SECONDS)


async def send_honest_job(url: str, key: str) -> str:
    """Have one small image made and return how that ended."""
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, timeout=HONEST_SECONDS, trust_env=False, headers=headers) as http:
        try:
            reply = await http.post("/generate/sync", json={"input": {"workflow_json": GRAPH}})
            return str(reply.json().get("status", reply.status_code))
        except httpx.HTTPError as error:
            return type(error).__name__


async def be_honest(url: str, key: str, until: float, seen: Observations) -> None:
    """Send honest jobs, one after the other."""
    while time.monotonic() < until:
        seen.honest_jobs[await send_honest_job(url, key)] += 1
        await asyncio.sleep(HONEST_PAUSE_SECONDS)


async def observe(url: str, seconds: float, key: str) -> Observations:
    """Probe and be honest for so long."""
    seen, until = Observations(), time.monotonic() + seconds
    await asyncio.gather(probe(url, until, seen), be_honest(url, key, until, seen))
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(vars(asyncio.run(observe(sys.argv[1], float(sys.argv[2]), sys.argv[3])))))
