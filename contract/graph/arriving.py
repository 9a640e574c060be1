"""Model files that a prompt may read while they are downloaded, and the nodes that are better run late for it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from darkroom.contract.graph.prompt import Node
from darkroom.contract.wire import ARRIVING_KEY

ORDER = ("text_encoders", "clip", "checkpoints", "diffusion_models", "unet", "controlnet", "vae")
"""Folders of model files in the order in which a prompt needs them; the texts are encoded while the others come."""


def arriving_files(extra_data: Mapping[str, object]) -> tuple[str, ...]:
    """Return the files (`kind/name`) of a prompt's extra data that are being downloaded."""
    found = extra_data.get(ARRIVING_KEY)
    return tuple(place for place in found if isinstance(place, str)) if isinstance(found, list) else ()


def lateness(node: Node, arriving: Collection[str]) -> int:
    """Return 0 for a node that names no arriving file; of others the one with the lower number runs first."""
    places = [place.partition("/") for place in arriving]
    kinds = [kind for kind, _, name in places if name in node.inputs.values()]
    return max((1 + (ORDER.index(kind) if kind in ORDER else len(ORDER)) for kind in kinds), default=0)
