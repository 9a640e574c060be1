"""A worker that a command starts for itself, on a free port of this machine, and stops again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from darkroom.start import command_of
from darkroom.worker.engines.supervisor import free_port
from darkroom.worker.settings.environment import inherited_environment

STOP_SECONDS = 30.0
StartedWorker = tuple[subprocess.Popen[bytes], str]


@contextmanager
def worker_alone(
    changes: Mapping[str, str], log: IO[bytes] | None = None, command: Sequence[str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a worker with this environment's settings and `changes`; give its process and address.

    Its log goes to `log`, standard error without one. `command` starts it, `darkroom serve` without one.
    """
    port = free_port()
    address = {"WORKER_HOST": "127.0.0.1", "WORKER_PORT": str(port), "AUTOSCALER": "plain", "USE_SSL": "false"}
    output = sys.stderr if log is None else log
    environment = inherited_environment({**address, **changes})
    process = subprocess.Popen(
        command or command_of("darkroom.worker"), env=environment, stdout=output, stderr=None if log is None else log
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
