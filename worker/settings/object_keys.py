"""Object keys under which outputs are stored. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

PLACES = ("request_id", "node_id", "subfolder", "filename", "index")
OWN_PREFIX = "{request_id}/"
"""The start of templates whose keys are all below the job's own prefix."""
_PLACE = re.compile(r"\{([^{}]*)\}")


def find_template_problem(template: str) -> str | None:
    """Return the problem of a key template, or None."""
    unknown = [name for name in _PLACE.findall(template) if name not in PLACES]
    if unknown:
        return f"{{{unknown[0]}}} is not one of {', '.join('{' + name + '}' for name in PLACES)}"
    if template != template.strip() or not template.isprintable():
        return "white space at an end, or a character that cannot be printed"
    if "{filename}" not in template and "{index}" not in template:
        return "a key needs {filename} or {index}"
    return None


def make_keys(template: str, request_id: str, outputs: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a unique key for each output record; a duplicate gets `_<node>_<index>` before its extension."""
    keys: list[str] = []
    for index, output in enumerate(outputs):
        values = {
            "request_id": request_id,
            "node_id": str(output["node_id"]).replace("/", "_"),
            "subfolder": str(output.get("subfolder") or ""),
            "filename": str(output["filename"]),
            "index": str(index),
        }
        key = _tidy(_PLACE.sub(lambda place, values=values: values[place[1]], template))  # type: ignore[misc]
        if key in keys:
            path = PurePosixPath(key)
            key = str(path.with_name(f"{path.stem}_{values['node_id']}_{index}{path.suffix}"))
        keys.append(key)
    return keys


def _tidy(key: str) -> str:
    """Remove empty parts (of an empty subfolder, for example) and parts that point upwards."""
    return "/".join(part for part in key.split("/") if part not in ("", ".", ".."))
