"""The soak: ten minutes of mixed jobs while everything around the front fails, then a look at what is left.

    python -m tests.faults.soak [--minutes 10] [--seed N] [--output benchmark/results/soak.json]

Jobs of all kinds come from clients that wait, poll, stream, cancel, leave and come back. Meanwhile the engine is killed
or stopped for a while, the store and the webhook receiver refuse, hang or are slow. At the end everything heals. Every
acknowledged job must have ended exactly once, with its webhook; and the front's memory, open files, threads and tasks
must be back where they were after its first jobs. Prints a summary as JSON; exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.faults.ledger import Entry, find_wrongs, owed, unfinished
from tests.faults.nodes import draw, read_tally
from tests.faults.peers import Peer, Peers, running_peers
from tests.faults.rig import UNREACHABLE, Rig, a_rig

NUM_CLIENTS = 6
WARM_UP_JOBS = 600  # more than the front remembers in memory, so that what it remembers is full
GRACE_SECONDS = 1.0
QUIET_SECONDS = 6.0
END_SECONDS = 240.0
PATIENCE_SECONDS = 300.0
"""A client that waits longer than this for an answer has been forgotten."""
SETTINGS = {
    "SYNC_GRACE_SECONDS": str(GRACE_SECONDS),
    "LOG_FORMAT": "json",
    "MAX_QUEUE_SIZE": "1000",
}
CONSTANTS = {"supervision": {"max_restarts": 10_000}}
MEMORY_ROOM_MB = 12.0
"""The allocator does not give everything back; a leak of a few kB a job would be more than this."""
ROOM = {"open_files": 6, "threads": 4, "tasks": 4}


@dataclass(frozen=True, slots=True)
class Holdings:
    """Number of things of each kind that the front holds."""

    memory_mb: float
    open_files: int
    threads: int
    tasks: int


def find_leaks(before: Holdings, after: Holdings) -> list[str]:
    """Return the things that have not come back, one line each. Pure."""
    room = {"memory_mb": MEMORY_ROOM_MB, **ROOM}
    was, now = asdict(before), asdict(after)
    return [f"{name} was {was[name]} and is {now[name]}" for name in was if now[name] > was[name] + room[name]]


class Soak:
    def __init__(self, rig: Rig, peers: Peers, seed: int) -> None:
        self._rig = rig
        self._peers = peers
        self._chance = random.Random(seed)
        self._numbers = iter(range(10**9))
        self.entries: dict[str, Entry] = {}
        self.kills: list[float] = []
        self.counts: Counter[str] = Counter()
        self.memory_mb: list[float] = []

    async def warm_up(self) -> Holdings:
        """The first jobs, undisturbed; every kind of client and peer is met once."""
        await asyncio.gather(*(self._visit_often(WARM_UP_JOBS // NUM_CLIENTS) for _ in range(NUM_CLIENTS)))
        await self._come_to_rest()
        return await self._holdings()

    async def disturb(self, seconds: float) -> None:
        """Clients and faults for so long."""
        until = time.monotonic() + seconds
        tasks = [self._visit_until(until) for _ in range(NUM_CLIENTS)]
        faults = [self._kill_engine, self._stop_engine, self._trouble_store, self._trouble_receiver]
        await asyncio.gather(*tasks, self._watch(until), *(self._again(fault, until) for fault in faults))

    async def finish(self) -> tuple[Holdings, list[str]]:
        """Return the front's holdings once everything has ended, and the faults."""
        await self._rig.until_ready()
        await self._come_to_rest()
        for entry in self.entries.values():
            if entry.is_acknowledged:
                entry.see(*await self._rig.get(f"/result/{entry.job_id}"))
        wrong = find_wrongs(list(self.entries.values()), read_tally(self._rig.base), self._peers.receipts, self.kills)
        status, health = await self._rig.get("/health")
        return await self._holdings(), wrong + ([] if status == 200 else [f"/health answers {status}: {health}"])

    # clients

    async def _visit_often(self, times: int) -> None:
        for _ in range(times):
            await self._visit()

    async def _visit_until(self, until: float) -> None:
        while time.monotonic() < until:
            await self._visit()
            await asyncio.sleep(self._chance.uniform(0, 0.1))

    async def _visit(self) -> None:
        """One job, in one of the ways of clients."""
        kinds = [self._waits, self._polls, self._streams, self._cancels, self._leaves, self._comes_back]
        visit = self._chance.choices(kinds, weights=[4, 4, 2, 1, 1, 1])[0]
        self.counts[visit.__name__.strip("_")] += 1
        body = self._body()
        entry = self.entries[body["job_id"]] = Entry(body["job_id"], has_webhook="webhook" in body)
        try:
            await visit(entry, body)
        except UNREACHABLE as error:
            raise AssertionError(f"the front was unreachable: {error!r}") from error

    def _body(self) -> dict[str, Any]:
        chance, job_id = self._chance.random, f"job-{next(self._numbers)}"
        image_url = self._peers.image_url if chance() < 0.15 else ""
        seconds = 0.0 if chance() < 0.8 else self._chance.uniform(0.05, 0.5)
        body: dict[str, Any] = {"job_id": job_id, "workflow": draw(job_id, seconds, image_url=image_url)}
        if chance() < 0.3:
            body["webhook"] = self._peers.webhook | {"timeout": 1}
        if chance() < 0.2:
            body["s3"] = self._peers.s3
        return body

    async def _send(self, path: str, entry: Entry, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Sends until it is taken: while no engine is up a job is refused."""
        while True:
            status, reply = await self._rig.post(path, **body)
            if reply["timings"]:
                entry.is_acknowledged = True
                entry.see(status, reply)
                return status, reply
            self.counts["refused"] += 1
            if status not in (429, 502, 503):
                raise AssertionError(f"{status}: {reply}")
            await asyncio.sleep(0.2)

    async def _waits(self, entry: Entry, body: dict[str, Any]) -> None:
        await self._send("/generate/sync", entry, body)

    async def _polls(self, entry: Entry, body: dict[str, Any]) -> None:
        await self._send("/generate", entry, body)
        while not entry.has_ended:
            await asyncio.sleep(0.1)
            entry.see(*await self._rig.get(f"/result/{entry.job_id}"))

    async def _streams(self, entry: Entry, body: dict[str, Any]) -> None:
        await self._send("/generate", entry, body)
        async for event in self._rig.stream(**body):
            result = event.get("result", event)
            if result.get("status") in ("generating", "generated", "completed", "failed", "cancelled", "timeout"):
                entry.see(200, result)

    async def _cancels(self, entry: Entry, body: dict[str, Any]) -> None:
        entry.cancel_asked = True
        await self._send("/generate", entry, body)
        await asyncio.sleep(self._chance.uniform(0, 0.3))
        _, reply = await self._rig.post(f"/cancel/{entry.job_id}")
        entry.cancel_promised = reply["message"] == "Request cancelled"

    async def _leaves(self, entry: Entry, body: dict[str, Any]) -> None:
        """A client that goes away and does not come back: the job may end as it likes, but it must end."""
        entry.cancel_asked = True
        await self._leave_soon(body)
        await asyncio.sleep(GRACE_SECONDS)
        await self._know_of(entry)

    async def _comes_back(self, entry: Entry, body: dict[str, Any]) -> None:
        entry.cancel_asked = True  # on a busy machine it may come too late
        await self._leave_soon(body)
        await self._send("/generate/sync", entry, body)

    async def _leave_soon(self, body: dict[str, Any]) -> None:
        sending = asyncio.create_task(self._rig.post("/generate/sync", **body))
        await asyncio.wait({sending}, timeout=self._chance.uniform(0.01, 0.3))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    async def _know_of(self, entry: Entry) -> None:
        """It was taken if the front knows it."""
        status, result = await self._rig.get(f"/result/{entry.job_id}")
        entry.is_acknowledged = status != 404
        entry.see(status, result)

    # faults

    async def _again(self, fault: Callable[[], Awaitable[None]], until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, self._chance.uniform(2, 12)))
            self.counts[fault.__name__.strip("_")] += 1
            await fault()

    async def _kill_engine(self) -> None:
        """Once it has been up for as long as its start took, so that a busy machine gets on with its jobs too."""
        began = time.monotonic()
        await self._rig.until_ready()
        await asyncio.sleep(time.monotonic() - began + self._chance.uniform(0, 2))
        self._rig.kill_engine()
        self.kills.append(time.time())

    async def _stop_engine(self) -> None:
        pid = self._rig.engine_pid
        self._rig.kill_process(pid, signal.SIGSTOP)
        await asyncio.sleep(self._chance.uniform(0.2, 2))
        self._rig.kill_process(pid, signal.SIGCONT)

    async def _trouble_store(self) -> None:
        await self._trouble(self._peers.store, 403)

    async def _trouble_receiver(self) -> None:
        await self._trouble(self._peers.receiver, 500)

    async def _trouble(self, peer: Peer, status: int) -> None:
        """Refuses, is slow, or hangs for some seconds."""
        kind = self._chance.choice(("refuses", "is slow", "hangs"))
        if kind == "hangs":
            peer.hold()
        peer.status, peer.delay_seconds = (status, 0.0) if kind == "refuses" else (200, 0.5 * (kind == "is slow"))
        await asyncio.sleep(self._chance.uniform(0.5, 3))
        peer.status, peer.delay_seconds = 200, 0.0
        peer.release()

    # looking

    async def _watch(self, until: float) -> None:
        while time.monotonic() < until:
            self.memory_mb.append((await self._holdings()).memory_mb)
            await asyncio.sleep(10)

    async def _come_to_rest(self) -> None:
        """Waits until every job has ended and every webhook has come, or it takes too long; then a while."""
        until = time.monotonic() + END_SECONDS
        while time.monotonic() < until:
            waiting = unfinished(self.entries.values())
            for entry in waiting:
                entry.see(*await self._rig.get(f"/result/{entry.job_id}"))
            if not waiting and not owed(self.entries.values(), self._peers.receipts):
                break
            await asyncio.sleep(0.2)
        await asyncio.sleep(QUIET_SECONDS)

    async def _holdings(self) -> Holdings:
        shown = await self._rig.text("/metrics")
        values = {name: float(value) for name, value in re.findall(r"^(\w+) ([\d.e+-]+)$", shown, re.MULTILINE)}
        return Holdings(
            memory_mb=round(values["process_resident_memory_bytes"] / 2**20, 1),
            open_files=int(values["process_open_fds"]),
            threads=int(values["darkroom_front_threads"]),
            tasks=int(values["darkroom_front_tasks"]),
        )


async def play(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    async with running_peers() as peers, a_rig(folder, PATIENCE_SECONDS, CONSTANTS, **SETTINGS) as rig:
        await rig.start()
        await rig.until_ready()
        soak = Soak(rig, peers, seed)
        before = await soak.warm_up()
        await soak.disturb(seconds)
        after, wrong = await soak.finish()
        acknowledged = [entry for entry in soak.entries.values() if entry.is_acknowledged]
        return {
            "what": "mixed jobs under failing engine, store, receiver and clients; one front all the time",
            "seed": seed,
            "minutes": round(seconds / 60, 2),
            "when": time.strftime("%Y-%m-%d"),
            "jobs": len(acknowledged),
            "ended": dict(Counter(entry.seen[-1] for entry in acknowledged if entry.seen)),
            "clients_and_faults": dict(sorted(soak.counts.items())),
            "webhooks_owed": sum(entry.has_webhook for entry in acknowledged),
            "webhooks_received": len(peers.receipts),
            "before": asdict(before),
            "after": asdict(after),
            "memory_mb_every_10_s": soak.memory_mb,
            "leaks": find_leaks(before, after),
            "wrong": wrong,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="drawn when left out")
    parser.add_argument("--output", type=Path, help="also write the summary there")
    parser.add_argument("--folder", type=Path, help="keep the worker's folder and log there")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    sys.stderr.write(f"seed {seed}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        summary = asyncio.run(play(folder, given.minutes * 60, seed))
    text = json.dumps(summary, indent=2)
    sys.stdout.write(text + "\n")
    if given.output is not None:
        given.output.write_text(text + "\n")
    return 1 if summary["wrong"] or summary["leaks"] else 0


if __name__ == "__main__":
    sys.exit(main())
