"""TetheredWorker: a worker as a child process that ends with its parent, even one that is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from darkroom.start import command_of
from darkroom.worker.engines.supervisor import free_port
from darkroom.worker.settings.environment import inherited_environment

TETHER: Final = """
exec 3<&0
(read -r _ <&3; kill $$) &
exec "$@" 3<&-
"""
"""Script of the shell that becomes the worker: a parent that is gone closes the input of its child, `read` ends."""


class WorkerEnded(Exception):
    """A worker that ended by itself."""


class TetheredWorker:
    """A worker on a free port of this machine, with the environment's settings and `changes`."""

    def __init__(self, state: Path, changes: Mapping[str, str]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        address = {"WORKER_HOST": "127.0.0.1", "WORKER_PORT": str(port), "AUTOSCALER": "plain", "USE_SSL": "false"}
        command = list(command_of("darkroom.worker"))
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", TETHER, "sh", *command],
            env=inherited_environment({**changes, **address, "STATE_DIRECTORY": str(state)}),
            stdin=subprocess.PIPE,
        )

    def check_running(self) -> None:
        """Raise WorkerEnded once the worker has ended by itself."""
        code = self._process.poll()
        if code is not None:
            raise WorkerEnded(f"the worker ended with exit code {code}; its log has the reason")

    def stop(self, seconds: float) -> None:
        """Stop the worker as SIGTERM does; kill what is left after `seconds`."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
