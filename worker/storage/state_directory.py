"""StateDirectory: the directory of the worker's state, held with an exclusive file lock.

It is apart from the job store so that the directory can be locked before the database's libraries are imported.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from filelock import FileLock, Timeout

from darkroom.worker.errors import StateUnusable


class StateDirectory:
    """A directory of mode 0700, locked between `take()` and `release()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / "lock", thread_local=False)  # acquired on one thread, released on another

    @property
    def is_held(self) -> bool:
        """True while this process holds the lock."""
        return self._lock.is_locked

    def take(self) -> None:
        """Lock the directory for this process. Raises StateUnusable naming the process that holds it. Blocking."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.chmod(0o700)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise StateUnusable(
                f"{self.path} is in use by {self._holder()}. Workers may share BASE_DIRECTORY; each needs a "
                "STATE_DIRECTORY of its own, on a local disk"
            ) from None
        except OSError as error:
            raise StateUnusable(
                f"{self.path} cannot be used: {error.strerror}; expected a directory that the worker's user may "
                "write (STATE_DIRECTORY), on a local disk"
            ) from None
        self.record_holder()
        (self.path / "jobs").mkdir(exist_ok=True)

    def record_holder(self) -> None:
        """Write which process holds the directory, for the error of another that wants it."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        (self.path / "holder").write_text(f"process {os.getpid()} on {socket.gethostname()}, since {now}")

    def release(self) -> None:
        self._lock.release()

    def _holder(self) -> str:
        with contextlib.suppress(OSError):
            return (self.path / "holder").read_text()
        return "another process"
