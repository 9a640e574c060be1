"""The version of the installed program, from its one place: the metadata of the distribution."""

from __future__ import annotations

from importlib import metadata

FROM_SOURCE = "0+source"


def darkroom_version() -> str:
    """Return the version of Darkroom, `0+source` where it is run without being installed."""
    try:
        return metadata.version("darkroom")
    except metadata.PackageNotFoundError:
        return FROM_SOURCE
