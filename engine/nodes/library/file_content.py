"""Content hash of a file in the input folder, for cache signatures."""

from __future__ import annotations

import hashlib

from darkroom.engine.nodes.base import NodeEnvironment


def content_hash(environment: NodeEnvironment, name: object) -> str | None:
    """Return the content hash of the named file, or None for a link.

    A result is only reused while the file holds the same bytes.
    """
    if name is None:
        return None
    with environment.input_path(str(name)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
