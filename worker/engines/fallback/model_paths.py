"""ComfyUI's extra_model_paths.yaml with the folders of our engine's models, so that both read the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

SECTION = "darkroom"


def model_paths(folders: Mapping[str, Sequence[str]]) -> str:
    """Return the file's text for absolute folders by kind of model. JSON is valid YAML."""
    lines = {kind: "\n".join(paths) for kind, paths in sorted(folders.items()) if paths}
    return json.dumps({SECTION: {"is_default": True, **lines}}, indent=2) + "\n"


def write_shared(path: Path, text: str) -> None:
    """Write a file that the fallback may read, also as another user. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o644)
