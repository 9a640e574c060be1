"""A worker as real processes that a test kills and starts again: the front, and the engine as its child."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from darkroom.worker.engines.supervisor import free_port
from tests.faults.dying_front import TRIGGER
from tests.faults.nodes import Stroke, read_tally, write_pack
from tests.faults.peers import WAIT_SECONDS
from tests.worker.adjusted_front import Constants, program
from tests.worker.databases import give_database
from tests.worker.running_front import until

ROOT = Path(__file__).parents[2]
FINAL = frozenset({"completed", "failed", "cancelled", "timeout"})
UNREACHABLE = (aiohttp.ClientError, ConnectionError, TimeoutError)


class Rig:
    """`start`, kill, `start` again: the same folder, the same address."""

    def __init__(
        self, base: Path, http: aiohttp.ClientSession, settings: Mapping[str, str], constants: Constants | None = None
    ) -> None:
        self.base = base
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = base / "worker.log"
        self._http = http
        self._settings = settings
        self._constants = constants
        self._process: asyncio.subprocess.Process | None = None
        give_database(base / "state")

    # the processes

    async def start(self, *, dies_at: str = "", constants: Constants | None = None, **settings: str) -> None:
        """Starts a front. `dies_at`: a point of `tests/faults/dying_front.py` at which it dies after `let_die`.

        `constants` differ in place of those that the rig was made with.
        """
        environment = {
            "BASE_DIRECTORY": str(self.base),
            "WORKER_PORT": self.url.rpartition(":")[2],
            "CPU": "1",
            "PRECISION": "fp32",
            "BENCHMARK": "off",
            "ALLOWED_PRIVATE_HOSTS": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "MIN_FREE_DISK_BYTES": "0",
            "LOG_FORMAT": "json",
            **self._settings,
            **settings,
        }
        dying = ["-m", "tests.faults.dying_front", dies_at, str(self.base / TRIGGER)]
        program_of_worker = dying if dies_at else program(constants or self._constants)
        with self.log.open("ab") as log:  # noqa: ASYNC230 - the child writes to it
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *program_of_worker, env={**os.environ, **environment}, stdout=log, stderr=log, cwd=ROOT
            )

    @property
    def front_pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def engine_pid(self) -> int | None:
        """The front's child, if there is one now."""
        with contextlib.suppress(OSError):
            for pid in Path(f"/proc/{self.front_pid}/task/{self.front_pid}/children").read_text().split():
                if b"engine" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return int(pid)
        return None

    async def kill_front(self) -> None:
        """SIGKILL. The engine ends by itself, because its pipe closes."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def kill_engine(self) -> None:
        self.kill_process(self.engine_pid)

    def kill_process(self, pid: int | None, number: int = signal.SIGKILL) -> None:
        """Sends a signal, to nobody when there is no such process any more."""
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def let_die(self) -> None:
        """The front dies when it next comes to the point that it was started with."""
        (self.base / TRIGGER).touch()

    async def until_dead(self) -> int:
        """Waits for the front to end by itself."""
        assert self._process is not None
        async with asyncio.timeout(WAIT_SECONDS):
            return await self._process.wait()

    async def stop(self) -> int:
        """Stop the front as a platform does, by SIGTERM, and return the exit code."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        return await self.until_dead()

    async def until_ready(self) -> None:
        """Raises AssertionError with the log's end when the front ends instead."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                assert self.is_running, self.log.read_text()[-4000:]
                with contextlib.suppress(*UNREACHABLE):
                    if (await self.get("/ready"))[0] == 200:
                        return
                await asyncio.sleep(0.02)

    # what a client does

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._http.get(f"{self.url}{path}") as reply:
            return reply.status, await reply.json()

    async def post(self, path: str, job_id: str = "", workflow: Any = None, **fields: Any) -> tuple[int, Any]:
        content = {"input": {"request_id": job_id, "workflow_json": workflow, **fields}} if workflow else {}
        async with self._http.post(f"{self.url}{path}", json=content) as reply:
            return reply.status, await reply.json()

    async def text(self, path: str) -> str:
        async with self._http.get(f"{self.url}{path}") as reply:
            return await reply.text()

    async def stream(self, job_id: str, workflow: Any, **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """The events of `/generate/stream`."""
        content = {"input": {"request_id": job_id, "workflow_json": workflow, **fields}}
        async with self._http.post(f"{self.url}/generate/stream", json=content) as reply:
            async for line in reply.content:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    async def submit(self, job_id: str, workflow: Any, **fields: Any) -> None:
        """Returns when the job is acknowledged; sent again, as its client would, where the engine has just gone."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                status, reply = await self.post("/generate", job_id, workflow, **fields)
                if status != 503:
                    break
                await asyncio.sleep(0.1)
        assert status == 202, reply

    async def result(self, job_id: str) -> dict[str, Any]:
        return dict((await self.get(f"/result/{job_id}"))[1])

    async def until(self, job_id: str, *states: str) -> dict[str, Any]:
        """The result once its status is one of `states` (else: once it has ended)."""
        result: dict[str, Any] = {}

        async def is_there() -> bool:
            result.update(await self.result(job_id))
            return result["status"] in (states or FINAL)

        await until(is_there, WAIT_SECONDS)
        return result

    async def file(self, result: Mapping[str, Any]) -> bytes:
        """The first output, by its link."""
        async with self._http.get(result["output"][0]["url"]) as reply:
            assert reply.status == 200
            return await reply.read()

    # what really happened

    def strokes(self, text: str) -> list[Stroke]:
        return [stroke for stroke in read_tally(self.base) if stroke.text == text]

    def num_begun(self, text: str) -> int:
        return sum(1 for stroke in self.strokes(text) if not stroke.is_end)

    async def until_begun(self, text: str, times: int = 1) -> None:
        async def has_begun() -> bool:
            return self.num_begun(text) >= times

        await until(has_begun, WAIT_SECONDS)


@contextlib.asynccontextmanager
async def a_rig(
    base: Path, patience_seconds: float = WAIT_SECONDS, constants: Constants | None = None, **settings: str
) -> AsyncIterator[Rig]:
    """A worker's folder with the pack in it; nothing runs yet. Ends what runs at the end of the block."""
    write_pack(base)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(patience_seconds)) as http:
        rig = Rig(base, http, settings, constants)
        try:
            yield rig
        finally:
            engine_pid = rig.engine_pid if rig.is_running else None
            if rig.is_running:
                await rig.kill_front()
            rig.kill_process(engine_pid)  # one that a test has stopped does not see its pipe close
