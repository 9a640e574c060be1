"""A part of `benchmark/gpu.py` as a child process in a process group of its own, with a time limit and a log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

GRACE_SECONDS = 1.5  # between the request to end and the kill
LOG_HEAD_BYTES, LOG_TAIL_BYTES = 192 << 10, 64 << 10  # of a part's output that are kept


class BoundedLog:
    """Append lines of several parts to one file: of each part its first and its last ones."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("ab")

    def write(self, data: bytes) -> None:
        with self._lock:
            self._file.write(data)
            self._file.flush()

    def sync(self) -> None:
        """Block until the file is on the disk."""
        with self._lock:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class RunningPart:
    """A child process that runs. `limit_seconds` from its start it is killed with all processes of its group."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, limit_seconds: float, log: BoundedLog,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.limit_seconds = limit_seconds
        self.was_killed = False
        self._log = log
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._pump = threading.Thread(target=self._copy, args=(self._process.stdout,), daemon=True)
        self._pump.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def poll(self) -> int | None:
        """Return the exit code once the child has ended, killing it where its time is over; None while it runs."""
        code = self._process.poll()
        if code is None and self.seconds > self.limit_seconds:
            self.was_killed = True
            code = self.kill()
        elif code is not None:
            self._signal(signal.SIGKILL)  # what it left behind
            self._pump.join(GRACE_SECONDS)
        return code

    def kill(self) -> int:
        """End the child and its group: by request, and by force where that is not answered. Return the exit code."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        self._pump.join(GRACE_SECONDS)
        return code

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _copy(self, stream: IO[bytes]) -> None:
        """Copy the child's lines to the log: the first ones at once, the last ones at its end."""
        head, tail, tail_bytes, left_out = 0, deque[bytes](), 0, 0
        prefix = f"{self.name}: ".encode()
        for line in iter(lambda: stream.readline(4096), b""):
            text = prefix + line.rstrip(b"\n") + b"\n"
            if head < LOG_HEAD_BYTES:
                self._log.write(text)
                head += len(text)
                continue
            tail.append(text)
            tail_bytes += len(text)
            while tail_bytes > LOG_TAIL_BYTES:
                tail_bytes -= len(tail[0])
                left_out += len(tail.popleft())
        if left_out:
            self._log.write(prefix + f"... {left_out} bytes left out ...\n".encode())
        for text in tail:
            self._log.write(text)


def reason_of(code: int, *, was_killed: bool, limit_seconds: float) -> str | None:
    """Return the reason why a child is not done by its exit code, or None."""
    if was_killed:
        return f"killed after {limit_seconds:.0f} s"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
    return None if code == 0 else f"exit code {code}"


Start = Callable[[str, float], RunningPart]
"""(name, limit in seconds) -> the part's process."""
