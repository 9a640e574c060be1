"""A computation by a foreign library in a process of its own, which ends at a deadline, whatever the library does.

Arrays go there and back in files. The process is ended when the run is cancelled, too, and ends with the engine.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from darkroom.engine.cancel import CancelToken
from darkroom.start import command_of

POLL_SECONDS = 0.02
TAIL_CHARACTERS = 500
GIVEN, MADE, COMPLAINT, OUTPUT = "given.npz", "made.npz", "complaint.txt", "output.txt"  # in the folder of a process

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a process. `memory_bytes` are of its data; the code of libraries does not count."""

    seconds: float
    memory_bytes: int

    @property
    def cpu_seconds(self) -> int:
        """Processor time that the process can take until the deadline: all processors for so long."""
        return math.ceil(self.seconds) * (os.cpu_count() or 1)


def isolated(function: str, given: Arrays, bounds: Bounds, cancel: CancelToken) -> dict[str, NDArray[np.generic]]:
    """Call `package.module:function` with arrays by name in a separate process, and return its arrays.

    Raises ValueError with the function's own, at the deadline, and where the process ends by a signal or of memory.
    """
    with tempfile.TemporaryDirectory(prefix="darkroom-isolated-") as name:
        folder = Path(name)
        np.savez(folder / GIVEN, allow_pickle=False, **given)
        numbers = (bounds.memory_bytes, bounds.cpu_seconds, os.getpid())
        with (folder / OUTPUT).open("wb") as sink:
            child = subprocess.Popen(
                [*command_of("darkroom.engine.media.isolated_child"), function, name, *map(str, numbers)],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip
            try:
                code = _wait(child, bounds.seconds, cancel)
            finally:
                child.kill()
                child.wait()
        if (folder / COMPLAINT).is_file():
            raise ValueError((folder / COMPLAINT).read_text("utf-8"))
        if code or not (folder / MADE).is_file():
            raise ValueError(_how_it_ended(code, bounds, folder / OUTPUT))
        with np.load(folder / MADE) as made:
            return dict(made)


def _wait(child: subprocess.Popen[bytes], seconds: float, cancel: CancelToken) -> int | None:
    """Return the exit code, None at the deadline."""
    deadline = time.monotonic() + seconds
    while (code := child.poll()) is None and time.monotonic() < deadline:
        cancel.check()
        time.sleep(POLL_SECONDS)
    return code


def _how_it_ended(code: int | None, bounds: Bounds, output: Path) -> str:
    if code is None:
        return f"it takes too long; got no result within {bounds.seconds:g} s, expected a smaller input"
    tail = output.read_text("utf-8", errors="replace")[-TAIL_CHARACTERS:].strip()
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    limit = f"{bounds.memory_bytes >> 20} MiB of memory were allowed"
    return f"its process ended without a result ({how}; {limit}){': ' if tail else ''}{tail}"
