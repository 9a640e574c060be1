"""Time of a page of GET /jobs among a million jobs.

Fills a job database with ended jobs of 20 keys over 30 days, then reads pages through the store as the route does: the
first page, pages from the middle by cursor, filters by owner, by state, by time, and by what hardly any job has. Writes
`results/job_list.json`, or for the PostgreSQL of a URL, in whose schema `job_list` the jobs stay,
`results/job_list_postgres.json`.

    python -m benchmark.job_list [--jobs 1000000] [--database-url postgresql://...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from benchmark.machine import describe_cpu
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.database import JOBS, whole_row
from darkroom.worker.storage.job import Job, JobFailure, JobRequest, JobState, JobTimes
from darkroom.worker.storage.job_list import Cursor, JobFilter
from darkroom.worker.storage.job_partitions import DAY_MS, make_days
from darkroom.worker.storage.postgres_database import PostgresDatabase, open_postgres
from darkroom.worker.storage.store import JobStore

RESULTS = Path(__file__).parent / "results" / "job_list.json"
POSTGRES_RESULTS = RESULTS.with_name("job_list_postgres.json")
NUM_OWNERS = 20
SPAN_MS = 30 * DAY_MS
PAGE = 50
REPEATS = 50
BATCH = 10_000
BAR_MS = 50.0
ENDS = (JobState.COMPLETED,) * 17 + (JobState.FAILED,) * 2 + (JobState.CANCELLED,)
PROMPT = {str(number): {"class_type": "KSampler", "inputs": {"text": "a" * 200}} for number in range(8)}


def jobs(num_jobs: int) -> Iterator[Job]:
    """Ended jobs, one of them of a key that has no other and one in a state that no other is in."""
    draw = random.Random(1)
    for number in range(1, num_jobs + 1):
        queued_ms = SPAN_MS * number // num_jobs
        job = Job(f"job-{number}", number, "0" * 64, JobRequest(), PROMPT, JobTimes(queued_ms))
        job.owner = "rare" if number == num_jobs // 3 else f"key-{draw.randrange(NUM_OWNERS)}"
        job.metadata = {"order": number}
        state = JobState.TIMEOUT if number == num_jobs // 4 else draw.choice(ENDS)
        if state is JobState.COMPLETED:
            for step in (JobState.PROCESSING, JobState.GENERATING, JobState.GENERATED):
                job.move_to(step, "")
        failure = JobFailure(500, "node_failed", "A node failed") if state is JobState.FAILED else None
        job.end(state, "Processing complete.", queued_ms + 5000, failure)
        yield job


async def filled(folder: Path, num_jobs: int, database_url: str) -> JobStore:
    config = DatabaseConfig(url=SecretStr(database_url), schema_name="job_list")
    store = JobStore(folder, database=PostgresDatabase(config) if database_url else None)
    await store.open()
    if database_url:
        await asyncio.to_thread(make_all_days, config)
    batch: list[dict[str, object]] = []
    for job in jobs(num_jobs):
        batch.append(whole_row(job))
        if len(batch) == BATCH or job.number == num_jobs:
            await store.write(*((sa.insert(JOBS), row) for row in batch))
            batch = []
    return store


def make_all_days(config: DatabaseConfig) -> None:
    """Make the partitions as gateways do, day by day."""
    engine = open_postgres(config)
    with engine.connect() as connection:
        for at_ms in range(0, SPAN_MS + 1, DAY_MS):
            make_days(connection, at_ms)
    engine.dispose()


def pages(num_jobs: int) -> dict[str, tuple[JobFilter, Cursor | None]]:
    middle = Cursor(SPAN_MS // 2, num_jobs // 2)
    day_ms = DAY_MS
    return {
        "newest, all": (JobFilter(), None),
        "middle, all": (JobFilter(), middle),
        "newest, one key": (JobFilter(("key-3", None)), None),
        "middle, one key": (JobFilter(("key-3", None)), middle),
        "failed": (JobFilter(states=(JobState.FAILED,)), None),
        "failed, one key, one day": (
            JobFilter(("key-3", None), (JobState.FAILED,), since_ms=7 * day_ms, before_ms=8 * day_ms),
            None,
        ),
        "oldest day, all": (JobFilter(before_ms=day_ms), None),
        "a key with one job": (JobFilter(("rare", None)), None),
        "a state with one job": (JobFilter(states=(JobState.TIMEOUT,)), None),
        "a key without jobs": (JobFilter(("nobody",)), None),
    }


async def measure(store: JobStore, wanted: JobFilter, after: Cursor | None) -> dict[str, Any]:
    seconds, found = [], 0
    for _ in range(REPEATS):
        began = time.perf_counter()
        found = len(await store.page(wanted, after, PAGE + 1))
        seconds.append(time.perf_counter() - began)
    ordered = sorted(seconds)
    return {
        "jobs": min(found, PAGE),
        "median_ms": round(ordered[len(ordered) // 2] * 1000, 2),
        "worst_ms": round(ordered[-1] * 1000, 2),
    }


async def run(num_jobs: int, database_url: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = await filled(Path(folder), num_jobs, database_url)
        rows = [{"page": name, **await measure(store, *page)} for name, page in pages(num_jobs).items()]
        await store.close()
        size_bytes = None if database_url else (Path(folder) / "darkroom.db").stat().st_size
    return {
        "what": f"a page of {PAGE} of {num_jobs:,} jobs, {REPEATS} times each",
        "database": "PostgreSQL" if database_url else "SQLite",
        "machine": describe_cpu(),
        "when": time.strftime("%Y-%m-%d"),
        "database_bytes": size_bytes,
        "rows": rows,
        "is_met": all(row["median_ms"] < BAR_MS for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--database-url", default="")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    report = asyncio.run(run(arguments.jobs, arguments.database_url))
    output = arguments.output or (POSTGRES_RESULTS if arguments.database_url else RESULTS)
    output.write_text(json.dumps(report, indent=2) + "\n")
    columns = ("page", "jobs", "median_ms", "worst_ms")
    table = Table(*columns, title=report["what"])
    for row in report["rows"]:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
