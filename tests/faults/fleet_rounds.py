"""A fleet under kill -9: gateways, workers, Redis and PostgreSQL are killed at random while clients send jobs.

Real processes of all of them. The engines are fakes, one for each worker, or with `--demo` the workers' own, which
draw with the demo model, and die with them. Every job that a gateway has acknowledged must end exactly once, completed,
with its image, and its webhook must arrive at least once.

    python -m tests.faults.fleet_rounds [--jobs 500] [--workers 4] [--gateways 2] [--kills 20] [--seed N] [--demo]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from darkroom.worker.engines.supervisor import free_port
from tests.fakes import FakeEngine, draw, wait
from tests.worker.adjusted_front import Constants, program
from tests.worker.databases import give_database
from tests.worker.postgres_server import PostgresServer, running_postgres
from tests.worker.receiver import Receiver, running_receiver
from tests.worker.running_front import until
from tests.worker.sources.servers import RedisServer, redis_server

LEASE_SECONDS = 5
AWAY_SECONDS = (0.0, 2.0)
BETWEEN_KILLS_SECONDS = (1.0, 3.0)
END_SECONDS = 600
LOG_END = 2000  # characters
CONSTANTS = {"broker": {"max_deliveries": 100}}
DEMO_ENGINE = {"CPU": "1", "OMP_NUM_THREADS": "1"}
DEMO_IMAGE = {"prompt": "a red apple", "width": 64, "height": 64, "steps": 4}


@dataclass
class Member:
    """A gateway or a worker: a process that comes back on the same port with the same folder."""

    name: str
    folder: Path
    arguments: tuple[str, ...]
    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None
    constants: Constants | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        names = {"WORKER_PORT": str(self.port), "LOG_FORMAT": "json", "ACCESS_LOG": "false", **self.environment}
        with (self.folder / "log").open("a") as log:  # noqa: ASYNC230 - the child writes to it
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *program(self.constants),
                *self.arguments,
                env={**os.environ, **names},
                stdout=log,
                stderr=log,
            )

    async def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


@dataclass
class Fleet:
    """All that can be killed, and what clients were told."""

    redis: RedisServer
    postgres: PostgresServer
    gateways: list[Member]
    workers: list[Member]
    acknowledged: set[str] = field(default_factory=set)
    kills: Counter[str] = field(default_factory=Counter)
    is_demo: bool = False

    async def kill_one(self, draw_lots: random.Random) -> None:
        kind = draw_lots.choice(("worker", "worker", "worker", "gateway", "gateway", "redis", "postgres"))
        self.kills[kind] += 1
        away = draw_lots.uniform(*AWAY_SECONDS)
        if kind == "redis":
            self.redis.kill()
            await asyncio.sleep(away)
            await self.redis.start()
        elif kind == "postgres":
            await asyncio.to_thread(self.postgres.kill)
            await asyncio.sleep(away)
            await asyncio.to_thread(self.postgres.start)
        else:
            member = draw_lots.choice(self.workers if kind == "worker" else self.gateways)
            await member.kill()
            await asyncio.sleep(away)
            await member.start()

    async def send(self, job_id: str, webhook: str, draw_lots: random.Random) -> None:
        """Send one job until a gateway takes it, as a client does: the same id again."""
        seed = int(job_id.rpartition("-")[2])  # its own, or an engine would answer from its cache
        work: dict[str, Any] = {"modifier": "Text2Image", "modifications": {**DEMO_IMAGE, "seed": seed}}
        if not self.is_demo:
            workflow = draw(job_id) if draw_lots.random() < 0.7 else wait(draw_lots.uniform(0.1, 1.0))
            work = {"workflow_json": workflow}
        body = {"input": {**work, "request_id": job_id, "webhook": {"url": webhook}}}
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            while job_id not in self.acknowledged:
                gateway = draw_lots.choice(self.gateways)
                with contextlib.suppress(httpx.HTTPError):
                    reply = await http.post(f"{gateway.url}/generate", json=body)
                    assert reply.status_code in (200, 202, 503), reply.text
                    if reply.status_code != 503:
                        self.acknowledged.add(job_id)
                        return
                await asyncio.sleep(0.5)

    async def listed(self) -> list[dict[str, Any]]:
        """Return every job of the list, page by page, from the first gateway that answers."""
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            for gateway in self.gateways:
                with contextlib.suppress(httpx.HTTPError, KeyError):
                    found: list[dict[str, Any]] = []
                    cursor: str | None = ""
                    while cursor is not None:
                        page = (await http.get(f"{gateway.url}/jobs", params={"limit": 1000, "cursor": cursor})).json()
                        found += page["jobs"]
                        cursor = page["next_cursor"]
                    return found
        return []

    async def result(self, job_id: str) -> dict[str, Any]:
        """Return the result of a job from the first gateway that answers."""
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            for gateway in self.gateways:
                with contextlib.suppress(httpx.HTTPError):
                    found: dict[str, Any] = (await http.get(f"{gateway.url}/result/{job_id}")).json()
                    return found
        return {}

    def ended_by_themselves(self) -> list[str]:
        """Return the gateways and workers that have ended without being killed, with the end of their logs."""
        members = [*self.gateways, *self.workers]
        gone = [one for one in members if one.process is not None and one.process.returncode is not None]
        return [f"{one.name}: {(one.folder / 'log').read_text()[-LOG_END:]}" for one in gone]


async def run(
    num_jobs: int, num_workers: int, num_gateways: int, num_kills: int, seed: int, *, is_demo: bool = False
) -> dict[str, Any]:
    draw_lots, began = random.Random(seed), time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        postgres = stack.enter_context(running_postgres())
        redis = await stack.enter_async_context(redis_server(folder / "redis"))
        receiver = await stack.enter_async_context(running_receiver())
        engines: list[FakeEngine] = []
        for number in range(0 if is_demo else num_workers):
            (folder / f"engine-{number}").mkdir()
            engines.append(await stack.enter_async_context(FakeEngine(folder / f"engine-{number}")))
        of_workers = [{"ENGINE_URL": engine.url} for engine in engines] or [DEMO_ENGINE] * num_workers
        fleet = made_fleet(folder, redis, postgres, of_workers, num_gateways)
        fleet.is_demo = is_demo
        for member in (*fleet.gateways, *fleet.workers):
            stack.push_async_callback(member.kill)
            await member.start()
        sending = [
            asyncio.create_task(later(fleet.send(f"job-{number}", receiver.url, draw_lots), draw_lots.uniform(0, 60)))
            for number in range(num_jobs)
        ]
        for _ in range(num_kills):
            await asyncio.sleep(draw_lots.uniform(*BETWEEN_KILLS_SECONDS))
            await fleet.kill_one(draw_lots)
        await asyncio.gather(*sending)
        is_over = await within(END_SECONDS, lambda: have_ended(fleet))
        await within(60, lambda: have_webhooks(fleet, receiver))
        return {"seed": seed, **await judged(fleet, receiver, engines), "seconds": round(time.monotonic() - began),
                "is_over": is_over}  # fmt: skip


def made_fleet(
    folder: Path, redis: RedisServer, postgres: PostgresServer, of_workers: list[dict[str, str]], num_gateways: int
) -> Fleet:
    broker = {"BROKER_URL": redis.url, "BROKER_LEASE_SECONDS": str(LEASE_SECONDS)}
    broker |= {"ALLOWED_PRIVATE_HOSTS": "127.0.0.1"}
    database = postgres.url(postgres.new_database())
    gateways, workers = [], []
    for number in range(num_gateways):
        place = folder / f"gateway-{number}"
        place.mkdir()
        gateways.append(Member(f"gateway-{number}", place, ("gateway",), {**broker, "DATABASE_URL": database}))
    for number, of_worker in enumerate(of_workers):
        place = folder / f"worker-{number}"
        place.mkdir()
        give_database(place / "state")
        own = {"STATE_DIRECTORY": str(place / "state"), "BENCHMARK": "off", "MIN_FREE_DISK_BYTES": "0"}
        own |= {"BASE_DIRECTORY": str(place / "base"), **of_worker}
        workers.append(Member(f"worker-{number}", place, (), {**broker, **own}, constants=CONSTANTS))
    return Fleet(redis, postgres, gateways, workers)


async def later(sending: Any, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await sending


async def within(seconds: float, is_so: Callable[[], Awaitable[bool]]) -> bool:
    try:
        await until(is_so, seconds)
    except TimeoutError:
        return False
    return True


async def have_ended(fleet: Fleet) -> bool:
    ended = {job["id"] for job in await fleet.listed() if job["status"] not in ("pending", "processing", "generating")}
    return fleet.acknowledged <= ended


async def have_webhooks(fleet: Fleet, receiver: Receiver) -> bool:
    return fleet.acknowledged <= {json.loads(content)["id"] for _, content in receiver.calls}


async def judged(fleet: Fleet, receiver: Receiver, engines: list[FakeEngine]) -> dict[str, Any]:
    jobs = await fleet.listed()
    states = Counter(job["status"] for job in jobs)
    numbers = Counter(job["id"] for job in jobs)
    webhooks: dict[str, set[str]] = {}
    for _, content in receiver.calls:
        notice = json.loads(content)
        webhooks.setdefault(notice["id"], set()).add(notice["status"])
    images = [bool((await fleet.result(job_id)).get("output")) for job_id in sorted(fleet.acknowledged)]
    draws = Counter(run.rpartition("-")[0] for engine in engines for run in engine.runs)
    return {
        "acknowledged": len(fleet.acknowledged),
        "states": dict(states),
        "lost": sorted(fleet.acknowledged - set(numbers)),
        "listed_twice": sorted(job_id for job_id, number in numbers.items() if number > 1),
        "not_completed": sorted(job["id"] for job in jobs if job["status"] != "completed"),
        "without_picture": images.count(False),
        "without_webhook": sorted(fleet.acknowledged - set(webhooks)),
        "webhooks_of_two_ends": sorted(job_id for job_id, ends in webhooks.items() if len(ends) > 1),
        "draws": dict(sorted(Counter(draws.values()).items())),
        "ended_by_themselves": fleet.ended_by_themselves(),
        "kills": dict(fleet.kills),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--demo", action="store_true", help="workers draw with the demo model, by engines of their own")
    given = parser.parse_args()
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # an engine of a worker that was killed
    members = (given.jobs, given.workers, given.gateways, given.kills)
    report = asyncio.run(run(*members, given.seed, is_demo=given.demo))
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    wrong = ("lost", "listed_twice", "not_completed", "without_picture", "without_webhook", "webhooks_of_two_ends")
    is_whole = report["is_over"] and not report["ended_by_themselves"]
    return 0 if is_whole and not any(report[name] for name in wrong) else 1


if __name__ == "__main__":
    sys.exit(main())
