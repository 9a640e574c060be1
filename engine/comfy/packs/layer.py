"""Layer of Python packages that `darkroom nodes sync` installs for packs, behind the engine's own on the import path.

`BASE_DIRECTORY/pack_packages` is a link to the layer in use, so that another takes its place at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

LINK = "pack_packages"


def layer_folders(base_directory: Path) -> list[Path]:
    """Return the folders of importable packages in the layer of a base directory; none without a layer."""
    try:
        layer = (base_directory / LINK).resolve(strict=True)
    except OSError:
        return []
    return package_folders(layer)


def package_folders(layer: Path) -> list[Path]:
    """Return the folders below a prefix that pip has put packages into."""
    patterns = ("lib*/python*/*-packages", "local/lib*/python*/*-packages")
    return sorted(path for pattern in patterns for path in layer.glob(pattern) if path.is_dir())


def add_layer(base_directory: Path) -> list[str]:
    """Put the layer behind everything on the import path. Return the entries that were added."""
    added = [str(path) for path in layer_folders(base_directory) if str(path) not in sys.path]
    sys.path.extend(added)
    return added


def remove_layer(added: list[str]) -> None:
    """Take entries off the import path that `add_layer` added."""
    for entry in added:
        if entry in sys.path:
            sys.path.remove(entry)
