"""Every built-in node class, family by family: a new family is a line here."""

from __future__ import annotations

from engine.nodes import (
    images,
    latents,
    loaders,
    lora,
    model_merging,
    sampling,
    text,
)
from engine.nodes.base import NodeClass

FAMILIES = (
    sampling,
    loaders,
    text,
    latents,
    images,
    lora,
    model_merging,
)


def built_in_nodes() -> tuple[NodeClass, ...]:
    return tuple(node_class for family in FAMILIES for node_class in family.NODES)
