"""What a file of the input folder holds, as a number that changes with it."""

from __future__ import annotations

import hashlib
from typing import Any

from engine.nodes.base import NodeEnvironment


def content_hash(environment: NodeEnvironment, name: Any) -> str | None:
    """Of the file a name stands for: a result is only reused while the file holds the same bytes. None for a link."""
    if name is None:
        return None
    with environment.input_path(str(name)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
