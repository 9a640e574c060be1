"""Names of files as prompts give them: in a folder of its own, annotated, or still to be fetched. Pure."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from darkroom.contract.errors import Problem

ANNOTATIONS = ("output", "input", "temp")
ABOUT_FILES = ("value_not_in_list", "custom_validation_failed")


def split_annotation(name: str) -> tuple[str, str | None]:
    """`"photo.png [output]"` as `("photo.png", "output")`; a name without one of the three words as it is."""
    for kind in ANNOTATIONS:
        if name.endswith(f"[{kind}]"):
            return name[: -len(kind) - 3], kind
    return name, None


def names_another_folder(name: object) -> bool:
    """Return True for a name that no list of the input folder can hold: one in a subfolder, or annotated."""
    return isinstance(name, str) and ("/" in name or split_annotation(name)[1] is not None)


def is_pending(pending: Collection[str], problem: Problem, inputs: Mapping[str, object]) -> bool:
    """Return True if a problem of a node with these inputs is only that a file of `pending` is not there."""
    value = inputs.get(str(problem.extra_info.get("input_name")))
    if not pending or problem.type not in ABOUT_FILES or not isinstance(value, str):
        return False
    name = split_annotation(value)[0]
    return value in pending or name in pending or os.path.normpath(name) in pending
