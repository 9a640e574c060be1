"""Node classes made for Hunyuan3D 2: its latents, what its network sees of images, and decoding to voxels."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.engine.families.hunyuan3d.vae_files import LATENT_CHANNELS
from darkroom.engine.models.shape_vae import ShapeVae, Voxel
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP_VISION_OUTPUT, LATENT, VAE, VOXEL, Conditioning
from darkroom.engine.nodes.widgets import Int

MODULE = "comfy_extras.nodes_hunyuan3d"
CATEGORY = "model/conditioning/hunyuan 3d"
MAX_PERIOD = 10000.0

Seen = Annotated[CLIP_VISION_OUTPUT | None, Optional()]


@node("EmptyLatentHunyuan3Dv2", display_name=None, category="model/latent/hunyuan 3d", python_module=MODULE)
def empty_latent_hunyuan3d_v2(
    context: NodeContext, *, resolution: Annotated[int, Int(min=1, max=8192)] = 3072, batch_size: Count = 1
) -> LATENT:
    """Return an empty latent of shapes of `resolution` tokens."""
    return {"samples": torch.zeros(batch_size, LATENT_CHANNELS, resolution), "type": "hunyuan3dv2"}


def _with_nothing(tokens: torch.Tensor) -> tuple[Conditioning, Conditioning]:
    """Return conditionings of tokens [B, T, D] and of zeros."""
    return [[tokens, {}]], [[torch.zeros_like(tokens), {}]]


@node("Hunyuan3Dv2Conditioning", display_name=None, category=CATEGORY, python_module=MODULE)
def hunyuan3d_v2_conditioning(
    context: NodeContext, *, clip_vision_output: CLIP_VISION_OUTPUT
) -> tuple[Positive, Negative]:
    """Let a network see an image."""
    return _with_nothing(clip_vision_output.last_hidden_state)


def side_waves(side: int, width: int) -> torch.Tensor:
    """Return the sines and cosines [D] that tell the tokens of one side from those of others."""
    half = width // 2
    angles = side / MAX_PERIOD ** (torch.arange(half, dtype=torch.float32) / (width / 2))
    return torch.cat([angles.sin(), angles.cos()])


@node("Hunyuan3Dv2ConditioningMultiView", display_name=None, category=CATEGORY, python_module=MODULE)
def hunyuan3d_v2_conditioning_multi_view(
    context: NodeContext, *, front: Seen = None, left: Seen = None, back: Seen = None, right: Seen = None
) -> tuple[Positive, Negative]:
    """Let a network see images of several sides of a shape. Raises ValueError without any."""
    seen: list[Any] = [front, left, back, right]
    tokens = [
        item.last_hidden_state + side_waves(side, item.last_hidden_state.shape[-1])
        for side, item in enumerate(seen)
        if item is not None
    ]
    if not tokens:
        raise ValueError("front, left, back, right: no image; got none, expected at least one of them")
    return _with_nothing(torch.cat(tokens, dim=1))


@node(
    "VAEDecodeHunyuan3D",
    display_name=None,
    category="model/latent/hunyuan 3d",
    python_module=MODULE,
    advanced=("num_chunks", "octree_resolution"),
)
def vae_decode_hunyuan3d(
    context: NodeContext,
    *,
    samples: LATENT,
    vae: VAE,
    num_chunks: Annotated[int, Int(min=1000, max=500000)] = 8000,
    octree_resolution: Annotated[int, Int(min=16, max=512)] = 256,
) -> VOXEL:
    """Decode shapes to voxels, `octree_resolution` + 1 a side; `num_chunks` points are computed at once."""
    if not isinstance(vae, ShapeVae):
        raise ValueError("vae: one of images or audio; got a VAE of those, expected one of shapes")

    def on_chunk(done: int, total: int) -> None:
        context.cancel.check()
        context.report_progress(done, total)

    options = {"num_chunks": num_chunks, "octree_resolution": octree_resolution, "on_chunk": on_chunk}
    return Voxel(vae.decode(samples["samples"], vae_options=options))


NODES = (
    empty_latent_hunyuan3d_v2, hunyuan3d_v2_conditioning, hunyuan3d_v2_conditioning_multi_view, vae_decode_hunyuan3d,
)  # fmt: skip
