"""Version of the program, from the metadata of its installed distribution, which pyproject.toml sets."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "darkroom"


def version() -> str:
    """Return the version; "unknown" for source code that is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
