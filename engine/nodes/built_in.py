"""Every built-in node class, family by family: a new family is a line here."""

from __future__ import annotations

from engine.nodes import (
    compositing,
    conditioning,
    conditioning_properties,
    controlnet,
    image_batches,
    image_filters,
    image_geometry,
    images,
    latent_arithmetic,
    latent_batches,
    latent_compositing,
    latent_geometry,
    latent_operations,
    latents,
    loaders,
    lora,
    masks,
    model_merging,
    primitives,
    sampling,
    strings,
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
    controlnet,
    conditioning,
    conditioning_properties,
    latent_geometry,
    latent_batches,
    latent_arithmetic,
    latent_compositing,
    latent_operations,
    image_geometry,
    image_batches,
    image_filters,
    compositing,
    masks,
    strings,
    primitives,
)


def built_in_nodes() -> tuple[NodeClass, ...]:
    return tuple(node_class for family in FAMILIES for node_class in family.NODES)
