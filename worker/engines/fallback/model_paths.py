"""ComfyUI's extra_model_paths.yaml with the folders of our engine's models, so that both read the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

SECTION = "darkroom"


def model_paths(folders: Mapping[str, Sequence[str]]) -> str:
    """Return the file's text for absolute folders by kind of model. JSON is valid YAML."""
    lines = {kind: "\n".join(paths) for kind, paths in sorted(folders.items()) if paths}
    return json.dumps({SECTION: {"is_default": True, **lines}}, indent=2) + "\n"
