"""Loaders of older and other layouts: folders of the diffusers library, a configuration beside a checkpoint."""

from __future__ import annotations

import re
from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.model_sampling import VDiscrete
from darkroom.engine.families import registry
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP, CLIP_VISION, MODEL, VAE
from darkroom.engine.nodes.widgets import Choice, ModelFile

PAIR_TYPES = registry.offered_text_types(num_encoders=2)
PREDICTS_V = re.compile(r"^\s*parameterization:\s*[\"']?v[\"']?\s*(#.*)?$", re.MULTILINE)
LAYER_INDEX = re.compile(r"^\s*layer_idx:\s*(-?\d+)", re.MULTILINE)


@node("DiffusersLoader", display_name="Load Diffusers Model (DEPRECATED)", category="model/loaders", deprecated=True)
def diffusers_loader(
    context: NodeContext, *, model_path: Annotated[str, ModelFile("diffusers")]
) -> tuple[MODEL, CLIP, VAE]:
    model, clip, vae = context.models.diffusers(model_path)
    return model, clip, vae


@node(
    "CheckpointLoader",
    display_name="Load Checkpoint With Config (DEPRECATED)",
    category="model/loaders",
    deprecated=True,
)
def checkpoint_loader(
    context: NodeContext,
    *,
    config_name: Annotated[str, ModelFile("configs")],
    ckpt_name: Annotated[str, ModelFile("checkpoints")],
) -> tuple[MODEL, CLIP, VAE]:
    """Load a checkpoint with a configuration file.

    The shape follows from the checkpoint. The configuration gives the prediction and the text encoder's layer.
    """
    model, clip, vae = context.models.checkpoint(ckpt_name)
    config = context.models.files.text("configs", config_name)
    if PREDICTS_V.search(config):
        model = model.clone()
        model.add_object_patch("model_sampling", VDiscrete(model.model.model_config))
    layer = LAYER_INDEX.search(config)
    if layer is not None:
        clip.clip_layer(int(layer[1]))
    return model, clip, vae


@node("unCLIPCheckpointLoader", display_name="Load unCLIP Checkpoint", category="model/loaders")
def unclip_checkpoint_loader(
    context: NodeContext, *, ckpt_name: Annotated[str, ModelFile("checkpoints")]
) -> tuple[MODEL, CLIP, VAE, CLIP_VISION]:
    """Load a checkpoint as `CheckpointLoaderSimple`, with its image encoder, None where it has none."""
    model, clip, vae = context.models.checkpoint(ckpt_name)
    return model, clip, vae, context.models.auxiliary.checkpoint_vision(ckpt_name)


def supported_pair(environment: object, *, type: str | None = None) -> str | None:
    known = registry.text_types(num_encoders=2)
    if type in known or type not in PAIR_TYPES:
        return None
    expected = " or ".join(map(repr, known)) or f"CLIPLoader, for a model of {registry.labels()}"
    return f"type: no family of models has such a set; got {type!r}, expected {expected}"


@node(
    "DualCLIPLoader",
    display_name="Load CLIP (Dual)",
    category="model/loaders",
    check=supported_pair,
    facts=NodeFacts(reads_early=True, items="alike"),
    advanced=("device",),
)
def dual_clip_loader(
    context: NodeContext,
    *,
    clip_name1: Annotated[str, ModelFile("text_encoders")],
    clip_name2: Annotated[str, ModelFile("text_encoders")],
    type: Annotated[str, Choice(PAIR_TYPES)],
    device: Annotated[str | None, Choice(("default", "cpu")), Optional()] = None,
) -> CLIP:
    """Load two text encoders for one model."""
    clip: CLIP = context.models.clip_set([clip_name1, clip_name2], text_type=type, on_cpu=device == "cpu")
    return clip


NODES = (diffusers_loader, checkpoint_loader, unclip_checkpoint_loader, dual_clip_loader)
