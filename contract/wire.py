"""The name under which a prompt's checkpoints are kept, as front and engine write it."""

from __future__ import annotations

import re

CHECKPOINT_KEY = "checkpoint"
"""Field of a prompt's `extra_data`: the folder of its checkpoints."""

KEY_FORM = "16 to 64 lower-case hexadecimal digits"

_KEY = re.compile(r"[0-9a-f]{16,64}")


def is_checkpoint_key(value: object) -> bool:
    """Return True for a name that is safe as a folder's."""
    return isinstance(value, str) and _KEY.fullmatch(value) is not None
