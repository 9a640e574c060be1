"""Nodes of later versions of ComfyUI that the engine here does not have, read from `later_nodes.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class LaterNode:
    """A node class of ComfyUI itself, the version it came with, and whether it calls a partner's service."""

    class_type: str
    version: str
    is_partner: bool

    @property
    def words(self) -> str:
        """A sentence on the node, and the way to run it."""
        if self.is_partner:
            return (
                f"{self.class_type}: is a partner node of ComfyUI {self.version} and later, which needs an account with"
                " Comfy.org; it runs on a ComfyUI server, to which ENGINE_URL can point"
            )
        return (
            f"{self.class_type}: is a node of ComfyUI {self.version} and later, which this engine does not have; "
            "ENGINE_URL can point to a ComfyUI that has it"
        )


def find_later_node(class_type: str) -> LaterNode | None:
    """Return the facts about a class of later versions of ComfyUI, None for any other class.

    >>> find_later_node("TrainLoraNode").version, find_later_node("VHS_LoadVideo")
    ('0.3.41', None)
    """
    for part, classes in _tables().items():
        if class_type in classes:
            return LaterNode(class_type, classes[class_type], part == "partner")
    return None


@cache
def _tables() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads((files("darkroom.worker.engines") / "later_nodes.toml").read_text(encoding="utf-8"))
