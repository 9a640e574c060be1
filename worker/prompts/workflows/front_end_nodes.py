"""Nodes that exist on ComfyUI's page only, and nodes that work by a script of their pack. Data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REROUTES: Final = frozenset({"Reroute", "Reroute (rgthree)"})
PRIMITIVE: Final = "PrimitiveNode"
GETTERS: Final = frozenset({"GetNode", "easy getNode"})
SETTERS: Final = frozenset({"SetNode", "easy setNode"})
WITHOUT_EFFECT: Final = frozenset(
    {
        "Note",
        "MarkdownNote",
        "Label (rgthree)",
        "Bookmark (rgthree)",
        "Fast Actions Button (rgthree)",
        "Fast Bypasser (rgthree)",
        "Fast Groups Bypasser (rgthree)",
        "Fast Groups Muter (rgthree)",
        "Fast Muter (rgthree)",
        "Mute / Bypass Relay (rgthree)",
        "Mute / Bypass Repeater (rgthree)",
        "Node Collector (rgthree)",
        "Random Unmuter (rgthree)",
    }
)
"""Notes, labels, and switches of other nodes' modes, which the file has saved with those nodes."""

VIRTUAL: Final = REROUTES | GETTERS | SETTERS | WITHOUT_EFFECT | {PRIMITIVE}

SCRIPTED: Final[Mapping[str, str]] = {
    "Anything Everywhere": "links that its pack's script draws (Use Everywhere)",
    "Anything Everywhere?": "links that its pack's script draws (Use Everywhere)",
    "Anything Everywhere3": "links that its pack's script draws (Use Everywhere)",
    "Prompts Everywhere": "links that its pack's script draws (Use Everywhere)",
    "Seed Everywhere": "links that its pack's script draws (Use Everywhere)",
    "Power Primitive (rgthree)": "a value that its pack's script converts",
}
"""Classes whose links or values only a script on the page makes, with what these are."""

RECORDED: Final = "a file that the page records"
"""Requirement of a class whose input a script of ComfyUI's page records."""
