"""Version of the program, from the metadata of its installed distribution, which pyproject.toml sets."""

from __future__ import annotations

from darkroom.host.distribution import installed_version


def version() -> str:
    """Return the version; "unknown" for source code that is not installed."""
    return installed_version() or "unknown"
