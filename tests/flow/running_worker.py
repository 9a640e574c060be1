"""The real processes: `python -m darkroom.worker serve` with its engine as a child, on free ports and in one folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.s3_server import free_ports
from tests.worker.adjusted_front import Constants, program

ROOT = Path(__file__).parents[2]
CHECKPOINT = "small.safetensors"


@dataclass(frozen=True, slots=True)
class RunningWorker:
    url: str
    base: Path
    log: Path
    process: subprocess.Popen[bytes]
    http: httpx.Client

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path, timeout=30)

    def generate(self, body: Mapping[str, Any] | bytes, **headers: str) -> httpx.Response:
        """POST /generate/sync, the body as it is when it is bytes."""
        content: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": dict(body)}
        return self.http.post("/generate/sync", headers=headers, timeout=60, **content)

    def output_bytes(self, result: Mapping[str, Any]) -> bytes:
        """The first output of a result, by its link."""
        return self.http.get(result["output"][0]["url"], timeout=30).content


@contextmanager
def running_worker(
    base: Path, checkpoint: Path | None, constants: Constants | None = None, /, **environment: str
) -> Iterator[RunningWorker]:
    """Serves from the moment `/ready` says 200 until the block ends. Raises RuntimeError with the log if it dies.

    Without a checkpoint it has the demo model alone.
    """
    folder = base / "models" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint is not None and not (folder / CHECKPOINT).exists():
        os.link(checkpoint, folder / CHECKPOINT)
    (base / "input").mkdir(exist_ok=True)
    port = int(environment.get("WORKER_PORT") or free_ports(1)[0])
    settings = {
        "BASE_DIRECTORY": str(base),
        "WORKER_PORT": str(port),
        "CPU": "true",
        "PRECISION": "fp32",
        "BENCHMARK": "off",
        "ALLOWED_PRIVATE_HOSTS": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    log = base / "worker.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *program(constants)],
            cwd=ROOT,
            env={**os.environ, **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, verify=False, trust_env=False) as http:
        worker = RunningWorker(url, base, log, process, http)
        try:
            wait_until_ready(worker)
            yield worker
        finally:
            stop(worker)


def wait_until_ready(worker: RunningWorker) -> None:
    while worker.process.poll() is None:
        try:
            if worker.get("/ready").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the worker ended with {worker.process.returncode}:\n{worker.log.read_text()[-4000:]}")


def stop(worker: RunningWorker) -> int:
    """Asks it to stop as a platform does, and gives its exit code."""
    if worker.process.poll() is None:
        worker.process.send_signal(signal.SIGTERM)
    try:
        return worker.process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        worker.process.kill()
        worker.process.wait()
        raise
