"""All built-in node classes by topic; a new family of nodes adds one line here."""

from __future__ import annotations

from engine.nodes.base import NodeClass
from engine.nodes.library.basic import primitives, strings
from engine.nodes.library.conditioning import (
    clip_vision,
    conditioning,
    conditioning_properties,
    controlnet,
    diffusion_upscaling,
    gligen,
    hooks,
    inpainting,
    lotus,
    other_families,
    photomaker,
    picture_models,
    text,
)
from engine.nodes.library.image import (
    client_pictures,
    compositing,
    image_batches,
    image_filters,
    image_geometry,
    images,
    masks,
    svg,
    upscaling,
)
from engine.nodes.library.latent import (
    latent_arithmetic,
    latent_batches,
    latent_compositing,
    latent_geometry,
    latent_operations,
    latents,
    stable_cascade,
    tiled_vae,
)
from engine.nodes.library.media import audio, audio_editing, preview_3d, video
from engine.nodes.library.model import (
    compilation,
    hypernetwork,
    loaders,
    lora,
    lora_extraction,
    model_merging,
    model_saving,
    old_loaders,
)
from engine.nodes.library.sampling import (
    attention_guidance,
    custom_sampling,
    guidance,
    model_sampling,
    samplers,
    sampling,
    sigmas,
    step_cache,
    unet_patches,
)

FAMILIES = (
    sampling,
    loaders,
    text,
    latents,
    images,
    lora,
    model_merging,
    controlnet,
    gligen,
    clip_vision,
    diffusion_upscaling,
    lotus,
    picture_models,
    conditioning,
    conditioning_properties,
    latent_geometry,
    latent_batches,
    latent_arithmetic,
    latent_compositing,
    latent_operations,
    stable_cascade,
    image_geometry,
    image_batches,
    image_filters,
    compositing,
    masks,
    strings,
    primitives,
    custom_sampling,
    samplers,
    sigmas,
    guidance,
    attention_guidance,
    unet_patches,
    model_sampling,
    step_cache,
    inpainting,
    tiled_vae,
    hooks,
    upscaling,
    hypernetwork,
    model_saving,
    lora_extraction,
    old_loaders,
    other_families,
    photomaker,
    client_pictures,
    svg,
    video,
    audio,
    audio_editing,
    preview_3d,
    compilation,
)


def built_in_nodes() -> tuple[NodeClass, ...]:
    return tuple(node_class for family in FAMILIES for node_class in family.NODES)
