"""Commands that Redis executes for a job with more and more idle workers, and for workers that have nothing to do.

In one run, on an own Redis: 1 to 200 connected consumers wait, jobs of 100 models are sent one after another, each is
taken by whoever comes first, and ended. Counted are all commands, those of scripts among them. Writes
`results/idle_workers.json`.

    python -m benchmark.idle_workers [--workers 200] [--jobs 100]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from redis import asyncio as redis
from rich.console import Console

from benchmark.machine import describe_cpu
from benchmark.own_servers import redis_server
from darkroom.worker.integrations.redis.streams import RedisBroker
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import Delivery

RESULTS = Path(__file__).parent / "results" / "idle_workers.json"
NUM_MODELS = 100
IDLE_SECONDS = 15.0
BAR = 1.5


async def run(num_workers: int, num_jobs: int) -> dict[str, Any]:
    rows = []
    with redis_server() as url:
        for number in (1, 10, 50, 200):
            if number <= num_workers:
                rows.append(await measure(url, number, num_jobs))
    growth = round(rows[-1]["commands_a_job"] / rows[0]["commands_a_job"], 2)
    return {
        "what": f"commands at Redis with idle workers, jobs of {NUM_MODELS} models one after another",
        "machine": describe_cpu(),
        "when": time.strftime("%Y-%m-%d"),
        "rows": rows,
        "growth": growth,
        "is_met": growth <= BAR,
    }


async def measure(url: str, num_workers: int, num_jobs: int) -> dict[str, Any]:
    client = redis.Redis.from_url(url)
    brokers = [RedisBroker(BrokerConfig(url=SecretStr(url))) for _ in range(num_workers)]
    producer = RedisBroker(BrokerConfig(url=SecretStr(url)))
    taken: asyncio.Queue[tuple[RedisBroker, Delivery]] = asyncio.Queue()
    for number, broker in enumerate(brokers):
        await broker.connect(f"worker-{number}")
    workers = [asyncio.create_task(work(broker, taken)) for broker in brokers]
    await asyncio.sleep(1.0)
    before, began = await num_commands(client), time.perf_counter()
    for job in range(num_jobs):
        await producer.put(f"{num_workers}-{job}", b"{}", model=f"{job % NUM_MODELS}.safetensors")
        broker, delivery = await taken.get()
        await broker.finish(delivery.job_id, delivery.receipt, b"{}")
    commands, seconds = await num_commands(client) - before, time.perf_counter() - began
    before = await num_commands(client)
    await asyncio.sleep(IDLE_SECONDS)
    idle = await num_commands(client) - before
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    for each in (*brokers, producer):
        await each.close()
    await client.aclose()
    return {
        "workers": num_workers,
        "commands_a_job": round(commands / num_jobs, 1),
        "seconds_a_job": round(seconds / num_jobs, 4),
        "idle_commands_a_second_and_worker": round(idle / IDLE_SECONDS / num_workers, 2),
    }


async def work(broker: RedisBroker, taken: asyncio.Queue[tuple[RedisBroker, Delivery]]) -> None:
    while True:
        for delivery in await broker.receive(1, []):
            await taken.put((broker, delivery))


async def num_commands(client: redis.Redis) -> int:
    stats = await client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name != "cmdstat_info")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    report = asyncio.run(run(given.workers, given.jobs))
    given.output.write_text(json.dumps(report, indent=1) + "\n")
    Console().print_json(data=report)


if __name__ == "__main__":
    main()
