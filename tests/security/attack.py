"""Attack a running worker for some minutes, then report what broke, what stayed and what leaked.

    python -m tests.security.attack [--minutes 10] [--seed N] [--output benchmark/results/attack.json]

Assaults of all kinds (`assaults.py`) run at once while a probe asks `/live` on new connections and an honest customer
sends jobs. At the end the worker must serve, be the process it was, have answered every probe within a second, hold at
most 300 MB more than before, and none of the planted secrets may be in a log, the database, an output, the metrics or a
process list. Prints a summary as JSON; exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import random
import secrets
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.flow.running_worker import RunningWorker
from tests.security import planted
from tests.security.assaults import ASSAULTS, Assault, Target, furnish_models
from tests.security.live_probe import send_honest_job
from tests.security.lying_server import (
    LyingServer,
    answer,
    answer_without_length,
    dribbling_head,
    endless,
    running_lying_server,
)
from tests.security.worker_process import processes_below, worker_process

ROOT = Path(__file__).parents[2]
LIVE_SECONDS = 1.0
END_SECONDS = 300.0
MEMORY_ROOM_MB = 300.0
MAX_STORED_BYTES = 50 * 1024 * 1024
OWN_FAULTS = ("internal_error", "submission_failed")
"""Codes of replies that say the worker itself failed."""

SETTINGS = {
    "API_KEYS": f"shop:{planted.CUSTOMER_KEY}:submit+read,hoarder:{planted.HOARDERS_KEY}:submit+read",
    "ADMIN_API_KEYS": planted.OPERATOR_KEY,
    "JOB_TIMEOUT": "60",
    "FETCH_MISSING": "any",
    "CALLER_MAX_STORED_BYTES": str(MAX_STORED_BYTES),
    "MAX_QUEUE_SIZE": "200",
    "LOG_FORMAT": "json",
    "ENGINE_SANDBOX": "bwrap" if shutil.which("bwrap") else "off",
}
CONSTANTS = {"supervision": {"cancel_grace_seconds": 5}, "inputs": {"timeout_seconds": 5}}


@dataclass
class Report:
    """Result of an attack. `wrong` is empty when the worker held."""

    seconds: float = 0.0
    seed: int = 0
    attacks: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)
    live_probes: int = 0
    live_slowest_seconds: float = 0.0
    honest_jobs: Counter[str] = field(default_factory=Counter)
    front_mb: tuple[float, float] = (0.0, 0.0)
    engine_mb: tuple[float, float] = (0.0, 0.0)
    wrong: list[str] = field(default_factory=list)


class Attack:
    """One run against one worker."""

    def __init__(
        self, worker: RunningWorker, liar: LyingServer, seed: int, seconds: float, only: Sequence[str]
    ) -> None:
        address = urlsplit(worker.url)
        self._worker = worker
        self._liar = liar
        self._seed = seed
        self._seconds = seconds
        self._only = only
        self._target = Target(str(address.hostname), int(address.port or 0), liar.url, random.Random(seed))
        self._until = time.monotonic() + seconds
        self.report = Report(seconds=seconds, seed=seed)

    async def run(self) -> None:
        """Warm up, attack, wait until it is quiet, and look."""
        await self._send_honest_job()
        before = self._memory_mb()
        self._until = time.monotonic() + self._seconds
        rounds = (self._repeat(name, ASSAULTS[name]) for name in self._only)
        await asyncio.gather(self._observe(), *rounds)
        await self._wait_until_quiet()
        after = self._memory_mb()
        self.report.front_mb, self.report.engine_mb = (before[0], after[0]), (before[1], after[1])
        self.report.wrong += self._find_wrongs()

    async def _repeat(self, name: str, assault: Assault) -> None:
        while time.monotonic() < self._until:
            try:
                replies = await assault(self._target)
            except AssertionError as error:
                self.report.wrong.append(str(error))
                continue
            self.report.attacks[name] += 1
            for reply in replies:
                self._note(name, reply)
            await asyncio.sleep(self._target.chance.uniform(0.2, 1.0))

    def _note(self, name: str, reply: httpx.Response | None) -> None:
        self.report.replies["closed" if reply is None else str(reply.status_code)] += 1
        if reply is None or reply.status_code < 500:
            return
        if any(code in reply.text for code in OWN_FAULTS):
            self.report.wrong.append(f"{name}: {reply.status_code} {reply.text[:300]}")

    async def _observe(self) -> None:
        """Let another process probe: this one is busy with attacking."""
        command = [sys.executable, "-m", "tests.security.live_probe", self._worker.url, str(self._seconds)]
        observing = await asyncio.create_subprocess_exec(*command, planted.OPERATOR_KEY, stdout=PIPE, cwd=ROOT)
        printed, _ = await observing.communicate()
        seen = json.loads(printed)
        self.report.wrong += [f"/live: {fault}" for fault in seen.pop("live_faults")]
        self.report.honest_jobs.update(seen.pop("honest_jobs"))
        for name, value in seen.items():
            setattr(self.report, name, value)

    async def _send_honest_job(self) -> str:
        outcome = await send_honest_job(self._worker.url, planted.OPERATOR_KEY)
        self.report.honest_jobs[outcome] += 1
        return outcome

    async def _wait_until_quiet(self) -> None:
        """Cancel what waits, and wait until nothing does and an honest job completes."""
        until = time.monotonic() + END_SECONDS
        headers = {"Authorization": f"Bearer {planted.OPERATOR_KEY}"}
        async with httpx.AsyncClient(base_url=self._worker.url, headers=headers, timeout=60, trust_env=False) as http:
            while time.monotonic() < until:
                jobs = (await http.get("/queue-info")).json().get("jobs", [])
                if not jobs:
                    break
                for job in jobs:
                    await http.post(f"/cancel/{job['id']}")
                await asyncio.sleep(1)
            else:
                self.report.wrong.append(f"jobs were left {END_SECONDS:g} s after the attack")
            await self._deliver_webhooks(http)
        if await self._send_honest_job() != "completed":
            self.report.wrong.append("an honest job after the attack did not complete")
        await asyncio.sleep(5)

    async def _deliver_webhooks(self, http: httpx.AsyncClient) -> None:
        """Let the receiver heal and every webhook be sent again: until then it keeps what it takes to deliver it."""
        self._liar.scripts = {"POST ": answer(200)}
        for _ in range(round(END_SECONDS)):
            held = [(await http.get("/webhooks", params={"state": state})).json() for state in ("pending", "dead")]
            rows = [row["id"] for page in held for row in page["webhooks"]]
            if not rows:
                return
            for row in rows:
                await http.post(f"/webhooks/{row}/redeliver")
            await asyncio.sleep(1)
        self.report.wrong.append("webhooks could not be delivered after the attack")

    def _memory_mb(self) -> tuple[float, float]:
        front = self._worker.process.pid
        engines = sum(resident_bytes(pid) for pid in processes_below(front))
        return round(resident_bytes(front) / 1e6, 1), round(engines / 1e6, 1)

    def _find_wrongs(self) -> Iterator[str]:
        report = self.report
        if self._worker.process.poll() is not None:
            yield f"the worker ended with {self._worker.process.returncode}"
        if report.live_slowest_seconds > LIVE_SECONDS:
            yield f"/live took {report.live_slowest_seconds} s"
        for name, (before, after) in {"front": report.front_mb, "engine": report.engine_mb}.items():
            if after > before + MEMORY_ROOM_MB:
                yield f"the {name} held {before} MB and holds {after} MB"
        if any(planted.environment()["HF_TOKEN"].encode() in head for head in self._liar.heads):
            yield "the hub's token was sent for a source that a request names"
        assets = self._worker.base / "state" / "assets"
        num_bytes = sum(path.stat().st_size for path in assets.glob("*"))
        if num_bytes > MAX_STORED_BYTES:
            yield f"{num_bytes} bytes of assets are kept, expected at most {MAX_STORED_BYTES}"
        yield from (f"leaked: {leak.secret} in {leak.place}" for leak in self._find_leaks())

    def _find_leaks(self) -> Iterator[planted.Leak]:
        yield from planted.find_in_files(self._worker.base, frozenset({"api_keys"}))
        front = self._worker.process.pid
        engines = processes_below(front)
        yield from planted.find_in_processes([front, *engines], with_environment=engines)
        for path in ("/metrics", "/health", "/queue-info", "/webhooks", "/benchmark", "/openapi.json"):
            headers = {"Authorization": f"Bearer {planted.OPERATOR_KEY}"}
            yield from planted.find_in(self._worker.http.get(path, headers=headers).content, path)


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that no file backs; 0 for one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields.get("RssAnon", "0").split()[0]) * 1024


def scripts() -> dict[str, Callable[..., None]]:
    """Return the answers of the lying server, by path."""
    compressed = double_gzip()
    answers: dict[str, Callable[..., None]] = {}
    for method in ("GET", "PUT", "POST", "HEAD"):
        answers |= {
            f"{method} /bomb": answer(200, compressed, Content_Encoding="gzip, gzip", Content_Type="image/png"),
            f"{method} /endless": endless(200),
            f"{method} /refusal": endless(403, Content_Type="application/xml"),
            f"{method} /dribble": dribbling_head,
            f"{method} /nolength": answer_without_length(b"not an image"),
            f"{method} /inwards": answer(302, Location="http://169.254.169.254/latest/meta-data/"),
        }
    return answers


def double_gzip() -> bytes:
    """Return 256 MiB of zeros, compressed twice to some thousand bytes."""
    return gzip.compress(gzip.compress(bytes(256 * 1024 * 1024), 9), 9)


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack a running worker and report what broke or leaked.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(ASSAULTS), default=list(ASSAULTS), metavar="ASSAULT")
    parser.add_argument("--folder", type=Path, help="keep the worker's files here")
    arguments = parser.parse_args()
    report = attack(arguments.minutes * 60, arguments.seed, arguments.only, arguments.folder)
    text = json.dumps(vars(report), indent=2)
    sys.stdout.write(f"{text}\n")
    if arguments.output:
        arguments.output.write_text(f"{text}\n", encoding="utf-8")
    return 1 if report.wrong else 0


def attack(seconds: float, seed: int, only: Sequence[str], kept: Path | None = None, **settings: str) -> Report:
    """Start a worker with a hostile pack and planted secrets, attack it, and return what was found."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, running_lying_server(scripts()) as liar:
        base = kept or Path(folder)
        furnish(base)
        host = urlsplit(liar.url).hostname
        environment = {**planted.environment(), **SETTINGS, "ALLOWED_PRIVATE_HOSTS": str(host), **settings}
        environment["HF_ENDPOINT"] = f"{liar.url}/hub"
        with worker_process(base, CONSTANTS, **environment) as worker:
            run = Attack(worker, liar, seed, seconds, only)
            asyncio.run(run.run())
            return run.report


def furnish(base: Path) -> None:
    """Put the hostile pack where packs lie, and malformed files where models do."""
    furnish_models(base / "models")
    pack = base / "custom_nodes" / "hostile"
    pack.mkdir(parents=True)
    (pack / "__init__.py").write_text((Path(__file__).parent / "attack_pack.py").read_text(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
