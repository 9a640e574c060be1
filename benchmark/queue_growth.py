"""Cost of the job database of gateways with more and more waiting jobs, and with a million that have ended.

In one run, on an own PostgreSQL: with 100 to 100,000 jobs that have not ended, the time of a submit (the look at their
number, the insert, the note that the broker has it), of what an idle gateway asks each second, and of a page of
`GET /jobs`; where the database is the queue, that of a submit, of the next job for a worker, and of its end; then the
time to delete 1,000 ended jobs among few and among many. Writes `results/queue_growth.json`.

    python -m benchmark.queue_growth [--waiting 100000] [--ended 1000000] [--repeats 200]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from pydantic import SecretStr
from rich.console import Console

from benchmark.machine import describe_cpu
from benchmark.own_servers import postgres_server
from darkroom.worker.gateway.database import SUFFIX, GatewayDatabase
from darkroom.worker.gateway.job_ledger import JobLedger, adder
from darkroom.worker.gateway.job_records import JobRecords
from darkroom.worker.gateway.queue.consumer import DatabaseBroker
from darkroom.worker.gateway.queue.queue import DatabaseQueue
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.job import Job, JobRequest, JobTimes, Stage
from darkroom.worker.storage.job_list import JobFilter

RESULTS = Path(__file__).parent / "results" / "queue_growth.json"
REPEATS = 200
AGE_MS = 3 * 3_600_000
NUM_OVER = 5000
BAR = 1.3
RESULT = b'{"status": "completed", "message": "", "output": []}'
FILL = """
INSERT INTO jobs (id, number, body_hash, request, prompt, state, stage, attempt, seq, message, outputs, engine_response,
  times, tuning, metadata, asked_id, owner, queued_ms, finished_ms)
SELECT '{word}-' || n, {first} + n, '', '{{"webhook": null}}', '{{}}', '{state}', '{stage}', 1, 0, '', '[]', '{{}}',
  '{{"queued_at_ms": 1}}', '{{}}', '{{}}', '', 'key-' || n % 20, {queued_ms} + n, {finished}
FROM generate_series(1, {num}) AS n
"""
QUEUED = """
INSERT INTO queue (job_id, rank, turn, owner, model, asked_id, num_bytes, number, stored_ms, queued_ms)
SELECT 'gateway-' || to_hex(number), 1, row_number() OVER (PARTITION BY owner ORDER BY number), owner, '', id, 2,
  number, queued_ms, queued_ms FROM jobs WHERE finished_ms IS NULL AND NOT EXISTS (
    SELECT 1 FROM queue WHERE queue.number = jobs.number)
"""


async def run(num_waiting: int, num_ended: int, repeats: int) -> dict[str, Any]:
    with postgres_server() as url:
        config = DatabaseConfig(url=SecretStr(url))
        database = GatewayDatabase(config)
        records = JobRecords(database)
        await records.open()
        queue = DatabaseQueue(database, 3600, JobLedger(database))
        rows, num_filled = [], 0
        for num in (100, 1000, 10_000, 100_000):
            if num <= num_waiting:
                fill(config, "waiting", num_filled, num - num_filled)
                num_filled = num
                rows.append({"waiting": num, **await measure(records, queue, f"of-{num}", repeats)})
        deletions, ended_ms = [], int(time.time() * 1000) - AGE_MS
        for num in (10_000, 100_000, 1_000_000):
            if num <= num_ended:
                fill(config, f"ended-{num}", 0, num, ended_ms)
                deletions.append({"ended": num, "ms_a_thousand": await deletion_ms(records, ended_ms)})
        await records.close()
        await queue.close()
    growth = {
        name: round(rows[-1]["ms"][name] / rows[0]["ms"][name], 2) for name in rows[0]["ms"]
    } | {"deletion": round(deletions[-1]["ms_a_thousand"] / deletions[0]["ms_a_thousand"], 2)}  # fmt: skip
    return {
        "what": "milliseconds at the job database of gateways, and their growth from the fewest to the most jobs",
        "machine": describe_cpu(),
        "when": time.strftime("%Y-%m-%d"),
        "rows": rows,
        "deletions": deletions,
        "growth": growth,
        "is_met": max(growth[name] for name in ("submit", "queue_submit", "queue_take")) <= BAR,
    }


async def measure(records: JobRecords, queue: DatabaseQueue, word: str, repeats: int) -> dict[str, Any]:
    worker, taken = DatabaseBroker(queue, 60, wait_seconds=0), []

    async def queue_submit(number: int) -> None:
        await records.num_live()
        job = a_job(f"{word}-queued-{number}")
        job.stage = Stage.WAITING
        await records.insert(job, None, adder(queue, "", None))

    async def queue_take(_number: int) -> None:
        taken.extend(await worker.receive(1, ["a", "b", "c", "d"]))

    async def queue_end(number: int) -> None:
        await worker.finish(taken[number].job_id, taken[number].receipt, RESULT)

    async def submit(number: int) -> None:
        await records.num_live()
        job = a_job(f"{word}-{number}")
        await records.insert(job, 2**31)
        await records.sent(job)
        await records.delete(job)  # so that the next one finds as many

    async def idle(_number: int) -> None:
        await records.unsent(int(time.time() * 1000) - 2000, 500)
        await records.live_ids(-1, 500)

    async def page(number: int) -> None:
        await records.page(JobFilter((f"key-{number % 20}",)), None, 50)

    acts = {"submit": submit, "idle": idle, "page": page}
    of_queue = {"queue_submit": queue_submit, "queue_take": queue_take, "queue_end": queue_end}
    return {"ms": {name: await ms_of(act, repeats) for name, act in (acts | of_queue).items()}}


async def deletion_ms(records: JobRecords, ended_ms: int) -> float:
    """Return the time to remove a thousand of the jobs that have ended, by batches as they are over."""
    began = time.perf_counter()
    removed = await records.forget_finished_before(ended_ms + NUM_OVER + 1)  # those that ended first
    seconds = time.perf_counter() - began
    assert removed == NUM_OVER, removed
    return round(1000 * seconds / (removed / 1000), 1)


async def ms_of(act: Callable[[int], Awaitable[None]], repeats: int) -> float:
    seconds = []
    for number in range(repeats):
        began = time.perf_counter()
        await act(number)
        seconds.append(time.perf_counter() - began)
    return round(1000 * median(seconds), 2)


def a_job(name: str) -> Job:
    job = Job(name, 0, "", JobRequest(), {"input": {"workflow_json": {}}}, JobTimes(int(time.time() * 1000)))
    job.owner = "submitter"
    return job


def fill(config: DatabaseConfig, word: str, before: int, num: int, ended_ms: int | None = None) -> None:
    """Add jobs in one statement: waiting ones, or some that ended one after another from a time on."""
    values = {
        "word": f"{word}-{before}", "first": abs(hash(word)) % 10**6 * 10**8 + before, "num": num,
        "queued_ms": int(time.time() * 1000) - AGE_MS, "state": "pending" if ended_ms is None else "completed",
        "stage": "waiting" if ended_ms is None else "done",
        "finished": "NULL" if ended_ms is None else f"{ended_ms} + n",
    }  # fmt: skip
    with psycopg.connect(config.url.get_secret_value(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {config.schema_name}{SUFFIX}")
        connection.execute(FILL.format(**values))
        connection.execute("VACUUM ANALYZE jobs")
        connection.execute("VACUUM ANALYZE job_index")
        if ended_ms is None:
            connection.execute(QUEUED)
            connection.execute("VACUUM ANALYZE queue")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--ended", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    report = asyncio.run(run(given.waiting, given.ended, given.repeats))
    given.output.write_text(json.dumps(report, indent=1) + "\n")
    Console().print_json(data=report)


if __name__ == "__main__":
    main()
