"""Fronts and scripts as processes of their own, started and stopped from an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.worker.databases import give_database
from tests.worker.running_front import until

ROOT = Path(__file__).parents[2]


@dataclass
class FrontProcess:
    url: str
    log: Path
    process: asyncio.subprocess.Process

    async def until_ready(self) -> None:
        async with httpx.AsyncClient() as http, asyncio.timeout(60):
            while self.process.returncode is None:
                try:
                    if (await http.get(f"{self.url}/ready")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.05)
        raise RuntimeError(f"the front ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}")

    async def until_stopping(self) -> None:
        """Wait until the front takes no more jobs because it was asked to end."""
        async with httpx.AsyncClient(base_url=self.url) as http:

            async def is_stopping() -> bool:
                return (await http.get("/ready")).status_code != 200

            await until(is_stopping)

    def kill(self) -> None:
        """Kill the process, as when a machine is switched off."""
        self.process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def front_process(base: Path, port: int, **environment: str) -> AsyncIterator[FrontProcess]:
    """`python -m darkroom.worker` on a port, its state below `base`; asked to stop at the end."""
    await asyncio.to_thread(base.mkdir, parents=True, exist_ok=True)
    give_database(base / "state")
    log = base / "worker.log"
    settings = {"BASE_DIRECTORY": str(base), "WORKER_PORT": str(port), "BENCHMARK": "off", "MIN_FREE_DISK_BYTES": "0"}
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "darkroom.worker",
            cwd=ROOT,
            env={**os.environ, **settings, **environment},
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        yield FrontProcess(f"http://127.0.0.1:{port}", log, process)
    finally:
        await stop(process)


@asynccontextmanager
async def script(
    python: str, path: Path, *arguments: str, cwd: Path, environment: Mapping[str, str], standard_input: bytes = b""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another program's process; its output is kept in `<cwd>/<name>.log` but for standard output, which is a pipe."""
    with (cwd / f"{path.stem}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            python,
            str(path),
            *arguments,
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    if process.stdin is not None:
        process.stdin.write(standard_input)
        process.stdin.close()
    try:
        yield process
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 60)
        except TimeoutError:
            process.kill()
            await process.wait()
