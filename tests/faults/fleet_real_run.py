"""The simulation of `benchmark/fleet.py` beside a real run: four workers, one queue, jobs of known length.

Real processes of workers and Redis; engines are fakes that take as long as a job says. Jobs arrive at the same moments
and are as long in both. Writes `benchmark/results/fleet_real_run.json`.

    python -m tests.faults.fleet_real_run [--jobs 100] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import redis.asyncio as redis

from benchmark.fleet import STEP_PIXELS, Kind, World, poisson, simulate
from darkroom.worker.gateway.routing import Policy
from tests.fakes import FakeEngine, wait
from tests.faults.fleet_rounds import Member
from tests.worker.databases import give_database
from tests.worker.running_front import until
from tests.worker.sources.servers import redis_server

NUM_WORKERS = 4
LENGTHS = (0.5, 3.5)
PER_SECOND = 1.5  # three quarters of what four workers can do
RESULTS = Path(__file__).parents[2] / "benchmark" / "results" / "fleet_real_run.json"


async def really(arrivals: list[float], lengths: list[float]) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        broker = await stack.enter_async_context(redis_server(folder / "redis"))
        for number in range(NUM_WORKERS):
            place = folder / f"worker-{number}"
            (place / "engine").mkdir(parents=True)
            engine = await stack.enter_async_context(FakeEngine(place / "engine"))
            give_database(place / "state")
            settings = {"ENGINE_URL": engine.url, "STATE_DIRECTORY": str(place / "state"), "BROKER_URL": broker.url}
            settings |= {"BENCHMARK": "off", "MIN_FREE_DISK_BYTES": "0"}
            member = Member(f"worker-{number}", place, (), settings, constants={"broker": {"num_held": 1}})
            stack.push_async_callback(member.kill)
            await member.start()
        queue = stack.enter_context(contextlib.closing(_Results(broker.url)))
        await until(queue.has_workers)
        begin = time.monotonic()
        for number, (at, length) in enumerate(zip(arrivals, lengths, strict=True)):
            await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
            await queue.send(number, length)
        await until(lambda: queue.has_all(len(arrivals)))
        timings = [(await queue.result(number))["timings"] for number in range(len(arrivals))]
        waits = sorted((item["total_ms"] - item["generation_ms"]) / 1000 for item in timings)
        seconds = (max(item["completed_at_ms"] for item in timings) - timings[0]["queued_at_ms"]) / 1000
    return _figures(waits, sum(lengths), seconds)


class _Results:
    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url)

    def close(self) -> None:
        """Leave the connection to the end of the process."""

    async def has_workers(self) -> bool:
        return bool(await self._redis.hlen("darkroom:workers") >= NUM_WORKERS)

    async def send(self, number: int, length: float) -> None:
        body = json.dumps({"input": {"workflow_json": wait(length)}})
        await self._redis.xadd("darkroom:jobs:normal", {"id": f"job-{number}", "body": body})

    async def has_all(self, count: int) -> bool:
        return bool(await self._redis.exists(*(f"darkroom:result:job-{number}" for number in range(count))) == count)

    async def result(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self._redis.get(f"darkroom:result:job-{number}") or b"{}")
        return found


def simulated(arrivals: list[float], lengths: list[float], seed: int) -> dict[str, Any]:
    kind = Kind("worker", 1 / STEP_PIXELS, 1.0, 1.0)
    world = World(
        NUM_WORKERS,
        boot_seconds=0.0,
        start_seconds=0.0,
        load_seconds=0.0,
        idle_seconds=1e9,
        num_models=1,
        kinds=(kind,),
    )
    following = iter(lengths)
    found = simulate(world, Policy.FIRST_FREE, arrivals, seed, lambda chance: next(following))
    return {name: found[name] for name in ("wait_p50_seconds", "wait_p99_seconds")}


def _figures(waits: list[float], busy_seconds: float, seconds: float) -> dict[str, Any]:
    return {
        "wait_p50_seconds": round(waits[len(waits) // 2], 2),
        "wait_p99_seconds": round(waits[int(len(waits) * 0.99)], 2),
        "utilisation": round(busy_seconds / NUM_WORKERS / seconds, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    arrivals = poisson(chance, given.jobs, PER_SECOND)
    lengths = [chance.uniform(*LENGTHS) for _ in arrivals]
    lasting = f"{LENGTHS[0]:g} to {LENGTHS[1]:g} s"
    result = {
        "what": f"{given.jobs} jobs of {lasting}, {PER_SECOND:g} a second, {NUM_WORKERS} workers",
        "seed": given.seed,
        "simulated": simulated(arrivals, lengths, given.seed),
        "real": asyncio.run(really(arrivals, lengths)),
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))  # noqa: T201 - its result


if __name__ == "__main__":
    main()
