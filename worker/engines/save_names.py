"""File names under which no run could save, found before the run costs anything. Pure.

Nodes check the prefix of the files that they save only when the image is finished.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from pathlib import Path

from darkroom.contract.graph.facts import Facts
from darkroom.worker.errors import Problem
from darkroom.worker.json.values import JsonObject

MAX_PART_BYTES = 255
MAX_PATH_BYTES = 1024
COUNTER_BYTES = 20  # after the last part: a number and the extension
ALLOWED = "a name, or a path below the output folder"


def find_name_problems(prompt: JsonObject, object_info: JsonObject, output_folder: Path | None) -> list[Problem]:
    """Return the problem of every unsafe file name. `output_folder` is the engine's, None where it is not known."""
    problems, facts = [], Facts(object_info)
    for node_id, node in prompt.items():
        inputs = node.get("inputs") if isinstance(node, Mapping) else None
        class_type = node.get("class_type") if isinstance(node, Mapping) else None
        field = facts.of(class_type).saves
        prefix = inputs.get(field) if field and isinstance(inputs, Mapping) else None
        if not isinstance(prefix, str):
            continue
        message = _problem_of(field, prefix, output_folder)
        if message is not None:
            kind = "invalid_filename_prefix"
            problems.append(
                Problem(message, field=field, node_id=node_id, class_type=str(class_type), type=kind, allowed=ALLOWED)
            )
    return problems


def _problem_of(field: str, prefix: str, output_folder: Path | None) -> str | None:
    if "\0" in prefix:
        return f"{field} has a null character in it"
    if not prefix.isascii() and any("\ud800" <= letter <= "\udfff" for letter in prefix):
        return f"{field} has half of a surrogate pair in it"
    path = os.path.normpath(prefix)
    is_absolute = os.path.isabs(path)
    leaves = not is_absolute and path.split(os.sep)[0] == os.pardir
    if leaves or (is_absolute and output_folder is not None and not Path(path).is_relative_to(output_folder)):
        return f"{field} leads out of the output folder"
    if "%" in prefix:  # placeholders: how long it becomes shows only then
        return None
    if len(path.encode()) > MAX_PATH_BYTES:
        return f"{field} is too long: it has more than {MAX_PATH_BYTES} bytes"
    *folders, name = path.split(os.sep)
    if len(name.encode()) > MAX_PART_BYTES - COUNTER_BYTES or any(len(f.encode()) > MAX_PART_BYTES for f in folders):
        return f"{field} is too long: a part of it has more than {MAX_PART_BYTES - COUNTER_BYTES} bytes"
    return None
