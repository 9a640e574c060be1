"""The process that `isolated` starts: `… isolated_child MODULE:FUNCTION FOLDER MEMORY_BYTES CPU_SECONDS PARENT`."""

from __future__ import annotations

import importlib
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from darkroom.engine.media.isolated import COMPLAINT, GIVEN, MADE
from darkroom.engine.media.process_limits import end_before, lower_limits


def main(arguments: Sequence[str]) -> None:
    """Call the function with the arrays of the folder and write those that it returns, or why it refuses them."""
    function, name, *numbers = arguments
    memory_bytes, cpu_seconds, parent = map(int, numbers)
    end_before(parent)
    lower_limits({resource.RLIMIT_DATA: memory_bytes, resource.RLIMIT_CPU: cpu_seconds, resource.RLIMIT_CORE: 0})
    folder = Path(name)
    module, _, member = function.partition(":")
    try:
        with np.load(folder / GIVEN) as given:
            made = getattr(importlib.import_module(module), member)(dict(given))
        np.savez(folder / MADE, **made)
    except ValueError as error:
        (folder / COMPLAINT).write_text(str(error), "utf-8")
    except MemoryError:
        allowed = memory_bytes >> 20
        (folder / COMPLAINT).write_text(f"it takes too much memory; expected at most {allowed} MiB", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
