"""Key of signed links, on disk so that links remain valid after a restart."""

from __future__ import annotations

import secrets
from pathlib import Path

from darkroom.worker.errors import StateUnusable

LINK_KEY_BYTES = 32


def link_key(state_path: Path) -> bytes:
    """Return the key of links, created once so that links remain valid after a restart. Raises StateUnusable."""
    path = state_path / "keys" / "links"
    try:
        return _stored_link_key(path)
    except OSError as error:
        reason = error.strerror or error
        raise StateUnusable(f"{path}: cannot be read or written: {reason}; check STATE_DIRECTORY") from None


def _stored_link_key(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = path.read_bytes() if path.exists() else b""
    if len(key) != LINK_KEY_BYTES:  # none yet, or truncated by a crash: with an empty key every caller could sign
        key = secrets.token_bytes(LINK_KEY_BYTES)
        whole = path.with_suffix(".new")
        whole.touch(mode=0o600)
        whole.write_bytes(key)
        whole.replace(path)
    return key
