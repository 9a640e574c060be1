"""The front as a process of its own, with few open files and with TLS where a test asks for them."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from darkroom.worker.engines.supervisor import free_port
from darkroom.worker.settings.listener import TlsFiles
from tests.fakes import FakeEngine
from tests.worker.databases import give_database
from tests.worker.running_front import until


@dataclass
class FrontProcess:
    process: asyncio.subprocess.Process
    http: httpx.AsyncClient
    url: str
    log: Path

    @property
    def soft_files(self) -> int:
        """Number of files that the process may have open."""
        return resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)[0]


@asynccontextmanager
async def front_process(
    folder: Path,
    engine: FakeEngine,
    *,
    files: tuple[int, int] = (1024, 4096),
    tls: TlsFiles | None = None,
    **names: str,
) -> AsyncIterator[FrontProcess]:
    """Serve from the moment `/ready` says so until the block ends. `files` are the soft and the hard limit."""
    port, log = free_port(), folder / "front.log"
    settings = {"ENGINE_URL": engine.url, "STATE_DIRECTORY": str(folder / "state"), "WORKER_PORT": str(port)}
    settings |= {"BENCHMARK": "off", "LOG_FORMAT": "json", "MIN_FREE_DISK_BYTES": "0", "DRAIN_TIMEOUT": "1"}
    if tls is not None:
        settings |= {"USE_SSL": "true", "SSL_CERTFILE": str(tls.certificate), "SSL_KEYFILE": str(tls.key)}
    settings |= names
    give_database(folder / "state")
    with log.open("a") as output:  # noqa: ASYNC230 - the child writes to it
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "darkroom.worker"),
            env={**os.environ, **settings},
            stdout=output,
            stderr=output,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files),
        )
    url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as http:

        async def is_ready() -> bool:
            assert process.returncode is None, log.read_text()
            try:
                return (await http.get("/ready")).status_code == 200
            except httpx.TransportError:
                return False

        try:
            await until(is_ready)
            yield FrontProcess(process, http, url, log)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
