"""Pillow's own leniency with files that are cut short or damaged, for a second try, as ComfyUI makes it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

_ONE_AT_A_TIME: Final = threading.Lock()
"""Held while Pillow's flag is set, which is the process's: each block finds it off, and leaves it so."""


@contextlib.contextmanager
def lenient_pillow() -> Iterator[None]:
    """Let Pillow decode what is there of a file, and skip texts that are too long, while the block runs."""
    from PIL import ImageFile

    with _ONE_AT_A_TIME:
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = False
