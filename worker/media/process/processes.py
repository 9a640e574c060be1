"""Child processes in which files that strangers or node packs made are decoded and encoded. Blocking: call in a thread.

Libraries of codecs are large and take memory by the pixel, and the front holds the secrets. Each job runs in a process
forked for it from a warm one (`worker/outputs/media_child.py`), confined to its files, to memory and to time. A warm
process is started when the first job needs it, ends by itself when idle, and with the front. It never reads a file
itself.

A job is the name of an operation and its arguments; what comes back is data, read with bounds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from darkroom.host.memory import total_bytes
from darkroom.start import command_of
from darkroom.worker.settings.environment import child_environment

COMMAND = command_of("darkroom.worker.outputs.media_child")
NUM_PROCESSES = 2
MAX_BYTES = 4 << 30
MIN_BYTES = 512 << 20
SHARE_OF_MEMORY = 4  # a process may take one part in so many of the machine's memory
MAX_SECONDS = 300.0
MAX_REPLY_BYTES = 1 << 20
END_SECONDS = 5.0

log = structlog.get_logger("media")


class MediaJobFailed(ValueError):
    """A job that the operation refused, or that exceeded a limit or crashed. The message gives the reason.

    `is_refused` means that the message is the operation's own.
    """

    is_refused = False


class MediaJobRefused(MediaJobFailed):
    """A job that the operation refused."""

    is_refused = True


class _Ended(Exception):
    """The warm process has ended without a reply, as it does when it was idle."""


@dataclass(slots=True)
class MediaProcesses:
    """At most `num_processes` jobs at once, each with `max_bytes` of memory and `max_seconds`."""

    num_processes: int = NUM_PROCESSES
    max_bytes: int = field(default_factory=lambda: _share_of_memory())
    max_seconds: float = MAX_SECONDS
    _idle: list[_WarmProcess] = field(default_factory=list)
    _busy: list[_WarmProcess] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _slots: threading.BoundedSemaphore = field(init=False)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._slots = threading.BoundedSemaphore(self.num_processes)

    def run(
        self, operation: str, arguments: dict[str, Any], *, reads: Sequence[Path] = (), writes: Sequence[Path] = ()
    ) -> dict[str, object]:
        """Run an operation and return its result.

        It may read the files `reads`, and write below the folders `writes`. Raises MediaJobFailed.
        """
        request = {
            "operation": operation,
            "arguments": arguments,
            "reads": [str(path) for path in reads],
            "writes": [str(path) for path in writes],
            "max_bytes": self.max_bytes,
            "cpu_seconds": max(1, round(self.max_seconds * 2)),  # of all its threads
        }
        with self._slots:
            reply = self._run(json.dumps(request).encode() + b"\n")
        return self._result_of(operation, reply)

    def close(self) -> None:
        """End all processes, with what they do. Their jobs fail, and so do later ones."""
        with self._lock:
            idle, busy, self._is_closed = self._idle, list(self._busy), True
            self._idle = []
        for process in busy:
            process.kill()
        for process in idle:
            process.close()

    def _run(self, line: bytes) -> dict[str, object]:
        until = time.monotonic() + self.max_seconds
        while True:
            with self._lock:
                if self._is_closed:
                    raise MediaJobFailed("the worker is stopping")
                process = self._idle.pop() if self._idle else None
                is_new = process is None
                process = process or self._started()
                self._busy.append(process)
            try:
                reply = process.ask(line, until)
            except TimeoutError:
                process.abandon()
                raise MediaJobFailed(f"it takes more than {self.max_seconds:g} s") from None
            except _Ended:
                process.abandon()
                if is_new and not self._is_closed:
                    raise MediaJobFailed("the process that decodes and encodes media ended") from None
                continue
            except BaseException:
                process.abandon()
                raise
            finally:
                with self._lock:
                    self._busy.remove(process)
            with self._lock:
                is_kept = not self._is_closed
                if is_kept:
                    self._idle.append(process)
            if not is_kept:
                process.close()
            return reply

    def _started(self) -> _WarmProcess:
        try:
            return _WarmProcess()
        except OSError as error:
            reason = error.strerror or error
            raise MediaJobFailed(f"no process to decode and encode media can be started ({reason})") from None

    def _result_of(self, operation: str, reply: dict[str, Any]) -> dict[str, object]:
        if isinstance(result := reply.get("result"), dict):
            return result
        if isinstance(refused := reply.get("refused"), str):
            raise MediaJobRefused(refused)
        ended_by = reply.get("signal")
        if reply.get("is_out_of_memory"):
            reason = f"it needs more memory than {self.max_bytes >> 20} MiB"
        elif ended_by == signal.SIGXCPU:
            reason = f"it takes more than {round(self.max_seconds * 2)} s of processor time"
        elif ended_by == signal.SIGKILL:
            reason = "its process was killed, most likely because the machine is short of memory"
        elif isinstance(ended_by, int) and ended_by:
            reason = f"the library for its format crashed ({_signal_name(ended_by)})"
        else:
            log.error("media job failed", operation=operation, reason=str(reply.get("crashed"))[:2000])
            raise MediaJobFailed("the worker failed; its log has the reason")
        log.warning("media job ended", operation=operation, reason=reason)
        raise MediaJobFailed(reason)


class _WarmProcess:
    """One warm process, which takes one job at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            COMMAND,
            env=child_environment(()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        # One that ends when it is idle leaves no zombie behind.
        threading.Thread(target=self._process.wait, name="media process", daemon=True).start()

    def ask(self, line: bytes, until: float) -> dict[str, object]:
        """Send a job and wait for its reply. Raises TimeoutError at `until`, _Ended, MediaJobFailed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            view = memoryview(line)
            while view:
                view = view[self._process.stdin.write(view) or 0 :]
        except OSError:
            raise _Ended from None
        received = bytearray()
        number = self._process.stdout.fileno()
        waiting = select.poll()
        waiting.register(number, select.POLLIN)
        while not received.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not waiting.poll(left * 1000):
                raise TimeoutError
            piece = os.read(number, 1 << 16)
            received += piece
            if not piece:
                raise _Ended
            if len(received) > MAX_REPLY_BYTES:
                raise MediaJobFailed("the reply of its process is too large")
        return _parsed(bytes(received))

    def close(self) -> None:
        """Close its pipes, after which it ends, and wait for that."""
        self._close_pipes()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def abandon(self) -> None:
        """Kill it and its job, and close its pipes. For the thread that asks it."""
        self.kill()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def kill(self) -> None:
        """Kill it and its job. From any thread: another one may read its pipes."""
        if self._process.returncode is None:  # else its number may be another process's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _parsed(line: bytes) -> dict[str, object]:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise MediaJobFailed("the reply of its process is not readable")
    return reply


def _share_of_memory() -> int:
    """Return the memory of one process: a share of the machine's, within bounds."""
    return min(MAX_BYTES, max(MIN_BYTES, (total_bytes() or MAX_BYTES * SHARE_OF_MEMORY) // SHARE_OF_MEMORY))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
