"""Media processes that tests share, since starting one takes half a second."""

from __future__ import annotations

import atexit
import functools

from darkroom.worker.media.process.processes import MediaProcesses
from darkroom.worker.outputs.confined_coding import ConfinedCoding


@functools.cache
def media_processes() -> MediaProcesses:
    """Return the processes, which end with the tests."""
    processes = MediaProcesses()
    atexit.register(processes.close)
    return processes


def confined_coding() -> ConfinedCoding:
    return ConfinedCoding(media_processes())
