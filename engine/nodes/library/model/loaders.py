"""Nodes that load models from files, or create one with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families import registry
from darkroom.engine.layers.pixel_space import NAME as PIXEL_SPACE
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP, CLIP_VISION, MODEL, VAE
from darkroom.engine.nodes.widgets import Choice, Int, ModelFile

TEXT_TYPES = registry.offered_text_types(num_encoders=1)
RANDOM_SCALES = ("full", "small")
BUILT_IN_VAES = (*registry.tiny_autoencoders(), PIXEL_SPACE)
WEIGHT_TYPES: Mapping[str, torch.dtype | None] = {  # what the node offers -> the type weights are stored in
    "default": None,
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e4m3fn_fast": torch.float8_e4m3fn,  # multiplied like the others: ComfyUI's float8 product is not used
    "fp8_e5m2": torch.float8_e5m2,
}


@node(
    "CheckpointLoaderSimple",
    display_name="Load Checkpoint",
    category="model/loaders",
    facts=NodeFacts(reads_early=True, items="alike"),
)
def checkpoint_loader_simple(
    context: NodeContext, *, ckpt_name: Annotated[str, ModelFile("checkpoints")]
) -> tuple[MODEL, CLIP, VAE]:
    """Loads a diffusion model checkpoint, diffusion models are used to denoise latents."""  # noqa: D401 - ComfyUI's words
    model, clip, vae = context.models.checkpoint(ckpt_name)
    return model, clip, vae


@node(
    "ImageOnlyCheckpointLoader",
    display_name="Load Checkpoint Image Only (img2vid model)",
    category="model/loaders",
    python_module="comfy_extras.nodes_video_model",
)
def image_only_checkpoint_loader(
    context: NodeContext, *, ckpt_name: Annotated[str, ModelFile("checkpoints")]
) -> tuple[MODEL, CLIP_VISION, VAE]:
    """Load a checkpoint with its image encoder, None where it has none, instead of a text encoder."""
    model, _, vae = context.models.checkpoint(ckpt_name)
    return model, context.models.auxiliary.checkpoint_vision(ckpt_name), vae


@node(
    "UNETLoader",
    display_name="Load Diffusion Model",
    category="model/loaders",
    facts=NodeFacts(reads_early=True, items="alike"),
    advanced=("weight_dtype",),
)
def unet_loader(
    context: NodeContext,
    *,
    unet_name: Annotated[str, ModelFile("diffusion_models")],
    weight_dtype: Annotated[str, Choice(tuple(WEIGHT_TYPES))],
) -> MODEL:
    model: MODEL = context.models.unet(unet_name, stored_as=WEIGHT_TYPES[weight_dtype])
    return model


def supported_clip_type(environment: object, *, type: str | None = None) -> str | None:
    known = registry.text_types(num_encoders=1)
    if type in known or type not in TEXT_TYPES:
        return None
    return f"type: text encoders of this type are not supported; got {type!r}, expected {' or '.join(map(repr, known))}"


@node(
    "CLIPLoader",
    display_name="Load CLIP",
    category="model/loaders",
    check=supported_clip_type,
    facts=NodeFacts(reads_early=True, items="alike"),
    advanced=("device",),
)
def clip_loader(
    context: NodeContext,
    *,
    clip_name: Annotated[str, ModelFile("text_encoders")],
    type: Annotated[str, Choice(TEXT_TYPES)],
    device: Annotated[str | None, Choice(("default", "cpu")), Optional()] = None,
) -> CLIP:
    """Load one text encoder."""
    clip: CLIP = context.models.clip(clip_name, text_type=type, on_cpu=device == "cpu")
    return clip


class VaeFile(ModelFile):
    """A file of a VAE, or the name of a built-in one: a small autoencoder whose two files are there, `pixel_space`."""

    def type_in(self, environment: NodeEnvironment) -> list[str]:
        halves = {file.partition(".")[0] for file in environment.model_files("vae_approx")}
        found = [name for name in self.also if name == PIXEL_SPACE or {f"{name}_encoder", f"{name}_decoder"} <= halves]
        return [*environment.model_files(self.kind), *found]


@node("VAELoader", display_name="Load VAE", category="model/loaders", facts=NodeFacts(reads_early=True, items="alike"))
def vae_loader(context: NodeContext, *, vae_name: Annotated[str, VaeFile("vae", also=BUILT_IN_VAES)]) -> VAE:
    """Load a VAE."""
    vae: VAE = context.models.vae(vae_name)
    return vae


@node(
    "DarkroomRandomCheckpoint",
    display_name="Random Checkpoint",
    category="loaders",
    python_module="darkroom",
    facts=NodeFacts(items="alike", random_family="family"),
)
def random_checkpoint(
    context: NodeContext,
    *,
    family: Annotated[str, Choice(registry.family_names())] = registry.default_family().name,
    scale: Annotated[str, Choice(RANDOM_SCALES)] = "full",
    seed: Annotated[int, Int(min=0, max=0xFFFFFFFFFFFFFFFF), Optional()] = 0,
) -> tuple[MODEL, CLIP, VAE]:
    """Create networks of full shape with random weights, on the device and without a file. Images are abstract."""
    model, clip, vae = context.models.random_checkpoint(family, scale, seed)
    return model, clip, vae


NODES = (
    checkpoint_loader_simple, image_only_checkpoint_loader, unet_loader, clip_loader, vae_loader, random_checkpoint,
)  # fmt: skip
