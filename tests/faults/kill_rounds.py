"""Rounds of kill -9: the front, the engine or both are killed at a random instant of work, and started again.

    python -m tests.faults.kill_rounds [--rounds 200] [--seed N] [--minutes 30]

Every round sends jobs of all kinds, kills, starts again and asks for every id that was ever acknowledged. At the end
each must have ended exactly once and in the way the ledger demands. Prints the seed, so that a run can be repeated, and
a summary as JSON; exit code 1 when anything was lost. 200 rounds take 10 to 15 minutes on two quiet cores; no round
begins after `--minutes`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.ledger import Entry, find_wrongs, owed, unfinished
from tests.faults.nodes import draw, read_tally
from tests.faults.peers import Peers, running_peers
from tests.faults.rig import UNREACHABLE, Rig, a_rig

JOBS_A_ROUND = 6
LONGEST_ROUND_SECONDS = 1.2
ASKED_AGAIN = 20
"""Number of ended jobs that are asked for after each restart; all of them at the end."""
LOOK_SECONDS = 0.03
END_SECONDS = 180.0
TARGETS = ("front", "engine", "both", "starting front")


class KillRounds:
    def __init__(self, rig: Rig, peers: Peers, seed: int) -> None:
        self._rig = rig
        self._peers = peers
        self._chance = random.Random(seed)
        self._bodies: dict[str, dict[str, Any]] = {}
        self._clients: set[asyncio.Task[None]] = set()
        self.entries: dict[str, Entry] = {}
        self.kills: list[float] = []
        self.num_kills: Counter[str] = Counter()
        self.num_refused = 0
        self.num_rounds = 0

    async def play(self, num_rounds: int, seconds: float) -> list[str]:
        """Return the faults, one line each. No round begins after so many seconds."""
        until = time.monotonic() + seconds
        while self.num_rounds < num_rounds and time.monotonic() < until:
            await self._play_one(self.num_rounds)
            self.num_rounds += 1
        await self._begin()
        await self._finish()
        return (
            find_wrongs(list(self.entries.values()), read_tally(self._rig.base), self._peers.receipts, self.kills)
            + await self._look_inside()
        )

    async def _play_one(self, number: int) -> None:
        target = self._chance.choice(TARGETS)
        if target == "starting front" and not self._rig.is_running:
            await self._rig.start()
            await asyncio.sleep(self._chance.uniform(0, 1.0))
            await self._kill("front")
        await self._begin()
        for index in range(JOBS_A_ROUND):
            self._spawn(self._send(self._new_job(f"r{number}-{index}"), self._chance.uniform(0, 0.5)))
        await asyncio.sleep(self._chance.uniform(0.02, LONGEST_ROUND_SECONDS))
        await self._kill("engine" if target == "engine" else "both" if target == "both" else "front")

    async def _begin(self) -> None:
        """Everything is up, every client has noticed the kill, and nothing that was acknowledged is unknown."""
        if not self._rig.is_running:
            await asyncio.gather(*self._clients)
            await self._rig.start()
        await self._rig.until_ready()
        ended = [entry for entry in self.entries.values() if entry.has_ended]
        asked = [entry for entry in self.entries.values() if entry.is_acknowledged and not entry.has_ended]
        for entry in [*asked, *self._chance.sample(ended, min(len(ended), ASKED_AGAIN))]:
            entry.see(*await self._rig.get(f"/result/{entry.job_id}"))
        for entry in list(self.entries.values()):
            if not entry.is_acknowledged:  # its client does not know whether it was taken, and sends it again
                self._spawn(self._send(entry, 0.0))

    async def _kill(self, target: str) -> None:
        self.num_kills[target] += 1
        parts = ["engine", "front"] if target == "both" else [target]
        self._chance.shuffle(parts)
        engine_pid = self._rig.engine_pid
        for part in parts:
            if part == "front":
                await self._rig.kill_front()
            else:
                self._rig.kill_process(engine_pid)
            self.kills.append(time.time())

    # clients

    def _new_job(self, job_id: str) -> Entry:
        chance = self._chance.random
        seconds = 0.0 if chance() < 0.6 else self._chance.uniform(0.05, 0.4)
        image_url = self._peers.image_url if chance() < 0.15 else ""
        body: dict[str, Any] = {"job_id": job_id, "workflow": draw(job_id, seconds, image_url=image_url)}
        if chance() < 0.4:
            body["webhook"] = self._peers.webhook
        if chance() < 0.15:
            body["s3"] = self._peers.s3
        body["path"] = "/generate/sync" if chance() < 0.3 else "/generate"
        self._bodies[job_id] = body
        entry = self.entries[job_id] = Entry(job_id, has_webhook="webhook" in body, cancel_asked=chance() < 0.08)
        return entry

    async def _send(self, entry: Entry, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        body = self._bodies[entry.job_id]
        try:
            status, reply = await self._rig.post(**body)
            if not reply["timings"]:  # refused for now: no engine is up
                self.num_refused += 1
                return
            entry.is_acknowledged = True
            entry.see(status, reply)
            if entry.cancel_asked:
                status, reply = await self._rig.post(f"/cancel/{entry.job_id}")
                entry.cancel_promised = reply.get("message") == "Request cancelled"
            while not entry.has_ended:
                await asyncio.sleep(LOOK_SECONDS)
                entry.see(*await self._rig.get(f"/result/{entry.job_id}"))
        except UNREACHABLE:
            return

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    # the end

    async def _finish(self) -> None:
        """Waits until every client is content and every webhook has come, or it takes too long."""
        until = time.monotonic() + END_SECONDS
        while time.monotonic() < until:
            await asyncio.gather(*self._clients)
            waiting = unfinished(self.entries.values())
            for entry in waiting:
                entry.see(*await self._rig.get(f"/result/{entry.job_id}"))
            if not waiting and not owed(self.entries.values(), self._peers.receipts):
                break
            await asyncio.sleep(0.1)
        for entry in self.entries.values():
            if entry.is_acknowledged:
                entry.see(*await self._rig.get(f"/result/{entry.job_id}"))

    async def _look_inside(self) -> list[str]:
        status, health = await self._rig.get("/health")
        wrong = [] if status == 200 else [f"/health answers {status}: {health}"]
        for entry in self.entries.values():
            if entry.has_ended and entry.seen[-1] == "completed" and entry.is_acknowledged:
                stored = [text for key, text in self._peers.objects.items() if key.startswith(f"{entry.job_id}/")]
                content = stored[-1] if "s3" in self._bodies[entry.job_id] else await self._rig.file(entry.result)
                if content != entry.job_id.encode():
                    wrong.append(f"{entry.job_id}: its output holds {content[:40]!r}")
        return wrong


async def play(folder: Path, num_rounds: int, seed: int, seconds: float = 1800.0) -> dict[str, Any]:
    """Plays and gives the summary; `wrong` is empty when nothing was lost."""
    began = time.monotonic()
    async with running_peers() as peers, a_rig(folder) as rig:
        rounds = KillRounds(rig, peers, seed)
        wrong = await rounds.play(num_rounds, seconds)
        acknowledged = [entry for entry in rounds.entries.values() if entry.is_acknowledged]
        runs = Counter(stroke.text for stroke in read_tally(folder) if not stroke.is_end)
        return {
            "what": "front and engine killed with SIGKILL at random instants, then everything acknowledged asked for",
            "seed": seed,
            "rounds": rounds.num_rounds,
            "seconds": round(time.monotonic() - began),
            "kills": dict(rounds.num_kills),
            "refused": rounds.num_refused,
            "acknowledged": len(acknowledged),
            "ended": dict(Counter(entry.seen[-1] for entry in acknowledged if entry.has_ended)),
            "runs_by_job": dict(sorted(Counter(runs[entry.job_id] for entry in acknowledged).items())),
            "webhooks_owed": sum(entry.has_webhook for entry in acknowledged),
            "webhooks_received": len(peers.receipts),
            "wrong": wrong,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, help="drawn when left out")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--output", type=Path, help="also write the summary there")
    parser.add_argument("--folder", type=Path, help="keep the worker's folder and log there")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    sys.stderr.write(f"seed {seed}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        summary = asyncio.run(play(folder, given.rounds, seed, given.minutes * 60))
    text = json.dumps(summary, indent=2)
    sys.stdout.write(text + "\n")
    if given.output is not None:
        given.output.write_text(text + "\n")
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
