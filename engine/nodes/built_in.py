"""All built-in node classes: by topic, where a new file adds one line here, then those made for one model family.

The latter are in `nodes` of the family's folder, a file or a package, and are found by its being there.
"""

from __future__ import annotations

import importlib

from engine.families import registry
from engine.nodes.base import NodeClass
from engine.nodes.library.basic import arithmetic, logic, primitives, strings
from engine.nodes.library.conditioning import (
    audio_encoder,
    clip_vision,
    conditioning,
    conditioning_properties,
    controlnet,
    gligen,
    hooks,
    inpainting,
    photomaker,
    references,
    text,
    text_generation,
)
from engine.nodes.library.image import (
    client_pictures,
    compositing,
    growing_batches,
    image_batches,
    image_filters,
    image_geometry,
    image_sets,
    images,
    later_pictures,
    masks,
    resizing,
    svg,
    upscaling,
)
from engine.nodes.library.latent import (
    audio_latents,
    latent_arithmetic,
    latent_batches,
    latent_compositing,
    latent_geometry,
    latent_operations,
    latents,
    tiled_vae,
)
from engine.nodes.library.media import audio, audio_editing, load_3d, meshes, preview_3d, video
from engine.nodes.library.model import (
    compilation,
    four_bit_loaders,
    gguf_loaders,
    hypernetwork,
    loaders,
    lora,
    lora_extraction,
    model_merging,
    model_patches,
    model_saving,
    old_loaders,
    trained_lora,
)
from engine.nodes.library.sampling import (
    attention_guidance,
    custom_sampling,
    guidance,
    model_sampling,
    samplers,
    sampling,
    sigmas,
    skip_layers,
    step_cache,
    unet_patches,
)

TOPICS = (
    sampling,
    loaders,
    text,
    text_generation,
    latents,
    images,
    lora,
    model_merging,
    controlnet,
    gligen,
    clip_vision,
    audio_encoder,
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
    resizing,
    growing_batches,
    later_pictures,
    compositing,
    masks,
    strings,
    primitives,
    arithmetic,
    logic,
    custom_sampling,
    samplers,
    sigmas,
    guidance,
    attention_guidance,
    skip_layers,
    unet_patches,
    model_sampling,
    step_cache,
    inpainting,
    tiled_vae,
    hooks,
    upscaling,
    hypernetwork,
    model_saving,
    model_patches,
    lora_extraction,
    old_loaders,
    gguf_loaders,
    four_bit_loaders,
    references,
    photomaker,
    client_pictures,
    svg,
    video,
    audio,
    audio_editing,
    audio_latents,
    preview_3d,
    load_3d,
    meshes,
    image_sets,
    trained_lora,
    compilation,
)


def nodes_of_families() -> tuple[NodeClass, ...]:
    """Return the node classes made for one model family, by the names of their folders."""
    modules = (importlib.import_module(name) for name in registry.modules_of_families("nodes"))
    return tuple(node_class for module in modules for node_class in module.NODES)


def built_in_nodes() -> tuple[NodeClass, ...]:
    return (*(node_class for topic in TOPICS for node_class in topic.NODES), *nodes_of_families())
