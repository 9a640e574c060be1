"""The process that `isolated` starts: `… isolated_child MODULE:FUNCTION FOLDER MEMORY_BYTES`."""

from __future__ import annotations

import importlib
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from darkroom.engine.media.isolated import COMPLAINT, GIVEN, MADE


def main(arguments: Sequence[str]) -> None:
    """Call the function with the arrays of the folder and write those that it returns, or why it refuses them."""
    function, name, memory_bytes = arguments
    folder = Path(name)
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module, _, member = function.partition(":")
    try:
        with np.load(folder / GIVEN) as given:
            made = getattr(importlib.import_module(module), member)(dict(given))
        np.savez(folder / MADE, **made)
    except ValueError as error:
        (folder / COMPLAINT).write_text(str(error), "utf-8")
    except MemoryError:
        allowed = int(memory_bytes) >> 20
        (folder / COMPLAINT).write_text(f"it takes too much memory; expected at most {allowed} MiB", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
