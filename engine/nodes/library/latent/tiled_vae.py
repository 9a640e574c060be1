"""Nodes that encode and decode pictures tile by tile, for pictures too large for the available memory."""

from __future__ import annotations

from typing import Annotated

from engine.nodes.base import Int, NodeContext, node
from engine.nodes.sockets import IMAGE, LATENT, VAE

Overlap = Annotated[int, Int(min=0, max=4096, step=32)]
Frames = Annotated[int, Int(min=8, max=4096, step=4)]
FramesOverlap = Annotated[int, Int(min=4, max=4096, step=4)]


@node("VAEDecodeTiled", display_name="VAE Decode (Tiled)", category="_for_testing")
def vae_decode_tiled(
    context: NodeContext,
    *,
    samples: LATENT,
    vae: VAE,
    tile_size: Annotated[int, Int(min=64, max=4096, step=32)] = 512,
    overlap: Overlap = 64,
    temporal_size: Frames = 64,
    temporal_overlap: FramesOverlap = 8,
) -> IMAGE:
    """Decode a latent in tiles; sizes in pixels.

    The temporal sizes are for VAEs of videos and have no effect on those of still pictures.
    """
    if tile_size < overlap * 4:
        overlap = tile_size // 4
    ratio = vae.spacial_compression_decode()
    tile = tile_size // ratio
    return vae.decode_tiled(samples["samples"], tile_x=tile, tile_y=tile, overlap=overlap // ratio)


@node("VAEEncodeTiled", display_name="VAE Encode (Tiled)", category="_for_testing")
def vae_encode_tiled(
    context: NodeContext,
    *,
    pixels: IMAGE,
    vae: VAE,
    tile_size: Annotated[int, Int(min=64, max=4096, step=64)] = 512,
    overlap: Overlap = 64,
    temporal_size: Frames = 64,
    temporal_overlap: FramesOverlap = 8,
) -> LATENT:
    """Encode a picture in tiles; sizes in pixels, the temporal ones as in VAEDecodeTiled."""
    return {"samples": vae.encode_tiled(pixels[..., :3], tile_x=tile_size, tile_y=tile_size, overlap=overlap)}


NODES = (vae_decode_tiled, vae_encode_tiled)
