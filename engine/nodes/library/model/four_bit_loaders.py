"""Nodes that load files with four-bit weights, under the names of the pack ComfyUI_bitsandbytes_NF4.

The ordinary loaders read such files as well. Where that pack is installed its own classes replace these.
"""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, MODEL, VAE
from darkroom.engine.nodes.widgets import ModelFile


@node("CheckpointLoaderNF4", display_name="Load NF4 Flux Checkpoint", category="loaders", python_module="darkroom")
def checkpoint_loader_nf4(
    context: NodeContext, *, ckpt_name: Annotated[str, ModelFile("checkpoints")]
) -> tuple[MODEL, CLIP, VAE]:
    """Load a checkpoint."""
    model, clip, vae = context.models.checkpoint(ckpt_name)
    return model, clip, vae


@node("UNETLoaderNF4", display_name="Load NF4 Flux UNET", category="advanced/loaders", python_module="darkroom")
def unet_loader_nf4(context: NodeContext, *, unet_name: Annotated[str, ModelFile("diffusion_models")]) -> MODEL:
    """Load a denoising network."""
    model: MODEL = context.models.unet(unet_name)
    return model


NODES = (checkpoint_loader_nf4, unet_loader_nf4)
