"""Commands and statements for a job with more and more idle workers, and for workers that have nothing to do.

In one run, on an own Redis: 1 to 200 connected consumers wait, jobs of 100 models are sent one after another, each is
taken by whoever comes first, and ended. Counted are all commands, those of scripts among them. Then the same at a
gateway whose database is the queue, over its HTTP with everything that it does for a job: a caller sends it and waits,
a worker takes it, reports its progress twice and sends the result. Counted are the statements that PostgreSQL gets, but
for BEGIN and COMMIT. Writes `results/idle_workers.json`.

    python -m benchmark.idle_workers [--workers 200] [--jobs 100]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
from pydantic import SecretStr
from redis import asyncio as redis
from rich.console import Console

from benchmark.gateway_process import gateway_process
from benchmark.machine import describe_cpu
from benchmark.own_servers import COUNTER, redis_server
from darkroom.worker.integrations.gateway.http_broker import HttpBroker
from darkroom.worker.integrations.redis.streams import RedisBroker
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.broker import Delivery

RESULTS = Path(__file__).parent / "results" / "idle_workers.json"
NUM_MODELS = 100
IDLE_SECONDS = 15.0
POLL_SECONDS = 40.0  # of two looks of each worker
BAR = 1.5
MOST_STATEMENTS = 10


async def run(num_workers: int, num_jobs: int) -> dict[str, Any]:
    rows = []
    with redis_server() as url:
        for number in (1, 10, 50, 200):
            if number <= num_workers:
                rows.append(await measure(url, number, num_jobs))
    growth = round(rows[-1]["commands_a_job"] / rows[0]["commands_a_job"], 2)
    database = [await measure_database(number, num_jobs) for number in (1, 50, 200) if number <= num_workers]
    is_met = max(row["statements_a_job"] for row in database) <= MOST_STATEMENTS
    return {
        "what": f"commands at Redis with idle workers, jobs of {NUM_MODELS} models one after another",
        "machine": describe_cpu(),
        "when": time.strftime("%Y-%m-%d"),
        "rows": rows,
        "database": database,
        "growth": growth,
        "is_met": growth <= BAR and is_met,
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


async def measure_database(num_workers: int, num_jobs: int) -> dict[str, Any]:
    """Measure a gateway whose database is the queue, its workers and its caller over HTTP."""
    async with (
        gateway_process(is_broker_left_out=True) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False) as http,
    ):
        made = await http.post("/api/v1/worker-tokens", json={"name": "workers"})
        config = BrokerConfig(gateway_url=gateway.url, worker_token=SecretStr(made.json()["token"]))
        brokers = [HttpBroker(config) for _ in range(num_workers)]
        for number, broker in enumerate(brokers):
            await broker.connect(f"worker-{number}")
        working = [asyncio.create_task(work_for_gateway(broker)) for broker in brokers]
        await asyncio.sleep(3.0)
        before, began = num_statements(gateway.database_url), time.perf_counter()
        for number in range(num_jobs):
            model = {"ckpt_name": f"{number % NUM_MODELS}.safetensors"}
            graph = {"1": {"class_type": "CheckpointLoaderSimple", "inputs": model}}
            ended = (await http.post("/generate/sync", json={"input": {"workflow_json": graph}})).json()
            assert ended["status"] == "completed", ended
        statements, seconds = num_statements(gateway.database_url) - before, time.perf_counter() - began
        before = num_statements(gateway.database_url)
        await asyncio.sleep(POLL_SECONDS)
        idle = num_statements(gateway.database_url) - before
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        for broker in brokers:
            await broker.close()
    return {
        "workers": num_workers,
        "statements_a_job": round((statements - idle * seconds / POLL_SECONDS) / num_jobs, 1),
        "seconds_a_job": round(seconds / num_jobs, 4),
        "idle_statements_a_second_and_worker": round(idle / POLL_SECONDS / num_workers, 3),
    }


async def work_for_gateway(broker: HttpBroker) -> None:
    while True:
        for job in await broker.receive(1, []):
            event = {"id": job.asked_id, "message": "", "seq": 1}
            await broker.publish(job.job_id, json.dumps({**event, "status": "generating"}).encode())
            result = {"id": job.asked_id, "status": "completed", "message": "", "output": []}
            await broker.finish(job.job_id, job.receipt, json.dumps(result).encode())
            await broker.publish(job.job_id, json.dumps({**event, "status": "completed"}).encode())


def num_statements(url: str) -> int:
    """Return the statements that the server has got, but for BEGIN, COMMIT and ROLLBACK."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE EXTENSION IF NOT EXISTS {COUNTER}")
        query = f"SELECT sum(calls) FROM {COUNTER} WHERE query !~* '^(begin|commit|rollback)'"
        return int((connection.execute(query).fetchone() or (0,))[0])


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
