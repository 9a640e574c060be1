"""Cost of the job database of gateways with more and more waiting jobs, and with a million that have ended.

In one run, on an own PostgreSQL: with 100 to 100,000 jobs that have not ended, the time of a submit (the look at their
number, the insert, the note that the broker has it), of what an idle gateway asks each second, and of a page of
`GET /jobs`; then the time to delete 1,000 ended jobs among few and among many. Writes `results/queue_growth.json`.

    python -m benchmark.queue_growth [--waiting 100000] [--ended 1000000]
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
from darkroom.worker.gateway.job_records import JobRecords
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.job import Job, JobRequest, JobTimes
from darkroom.worker.storage.job_list import JobFilter

RESULTS = Path(__file__).parent / "results" / "queue_growth.json"
REPEATS = 200
AGE_MS = 3 * 3_600_000
NUM_OVER = 5000
BAR = 1.3
FILL = """
INSERT INTO jobs (id, number, body_hash, request, prompt, state, stage, attempt, seq, message, outputs, engine_response,
  times, tuning, metadata, asked_id, owner, queued_ms, finished_ms)
SELECT '{word}-' || n, {first} + n, '', '{{}}', '{{}}', '{state}', '{stage}', 1, 0, '', '[]', '{{}}',
  '{{"queued_at_ms": 1}}', '{{}}', '{{}}', '', 'key-' || n % 20, {queued_ms} + n, {finished}
FROM generate_series(1, {num}) AS n
"""


async def run(num_waiting: int, num_ended: int) -> dict[str, Any]:
    with postgres_server() as url:
        config = DatabaseConfig(url=SecretStr(url))
        records = JobRecords(GatewayDatabase(config))
        await records.open()
        rows, num_filled = [], 0
        for num in (100, 1000, 10_000, 100_000):
            if num <= num_waiting:
                fill(config, "waiting", num_filled, num - num_filled)
                num_filled = num
                rows.append({"waiting": num, **await measure(records, f"of-{num}")})
        deletions, ended_ms = [], int(time.time() * 1000) - AGE_MS
        for num in (10_000, 100_000, 1_000_000):
            if num <= num_ended:
                fill(config, f"ended-{num}", 0, num, ended_ms)
                deletions.append({"ended": num, "ms_a_thousand": await deletion_ms(records, ended_ms)})
        await records.close()
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
        "is_met": growth["submit"] <= BAR,
    }


async def measure(records: JobRecords, word: str) -> dict[str, Any]:
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

    return {"ms": {"submit": await ms_of(submit), "idle": await ms_of(idle), "page": await ms_of(page)}}


async def deletion_ms(records: JobRecords, ended_ms: int) -> float:
    """Return the time to remove a thousand of the jobs that have ended, by batches as they are over."""
    began = time.perf_counter()
    removed = await records.forget_finished_before(ended_ms + NUM_OVER + 1)  # those that ended first
    seconds = time.perf_counter() - began
    assert removed == NUM_OVER, removed
    return round(1000 * seconds / (removed / 1000), 1)


async def ms_of(act: Callable[[int], Awaitable[None]]) -> float:
    seconds = []
    for number in range(REPEATS):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--ended", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    report = asyncio.run(run(given.waiting, given.ended))
    given.output.write_text(json.dumps(report, indent=1) + "\n")
    Console().print_json(data=report)


if __name__ == "__main__":
    main()
