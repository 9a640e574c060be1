"""Nodes that encode and decode images tile by tile, for images too large for the available memory."""

from __future__ import annotations

from typing import Annotated, Any

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.nested_latent import first_stream
from darkroom.engine.models.video_vae import VideoVae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.latent.latents import as_images
from darkroom.engine.nodes.sockets import FRAMES, IMAGE, LATENT, VAE
from darkroom.engine.nodes.widgets import Int

Overlap = Annotated[int, Int(min=0, max=4096, step=32)]
Frames = Annotated[int, Int(min=8, max=4096, step=4)]
FramesOverlap = Annotated[int, Int(min=4, max=4096, step=4)]


@node(
    "VAEDecodeTiled",
    display_name="VAE Decode (Tiled)",
    category="model/latent",
    facts=NodeFacts(items="alone", decodes="samples"),
    advanced=("tile_size", "overlap", "temporal_size", "temporal_overlap"),
)
def vae_decode_tiled(
    context: NodeContext,
    *,
    samples: LATENT,
    vae: VAE,
    tile_size: Annotated[int, Int(min=64, max=4096, step=32)] = 512,
    overlap: Overlap = 64,
    temporal_size: Frames = 64,
    temporal_overlap: FramesOverlap = 8,
) -> FRAMES:
    """Decode a latent in tiles; sizes in pixels.

    The temporal sizes, in frames, are for VAEs of videos and have no effect on those of still images.
    """
    if tile_size < overlap * 4:
        overlap = tile_size // 4
    tile_t, overlap_t = _latent_frames(vae, temporal_size, temporal_overlap)
    ratio = vae.spacial_compression_decode()
    tile = tile_size // ratio
    sizes: dict[str, Any] = {
        "tile_x": tile, "tile_y": tile, "overlap": overlap // ratio, "tile_t": tile_t, "overlap_t": overlap_t,
    }  # fmt: skip
    latent = first_stream(samples["samples"])
    if isinstance(vae, VideoVae) and context.output_is_streamed():
        frames = vae.tiled_frame_stream(latent, **sizes)
        if frames is not None:
            return frames
    return as_images(vae.decode_tiled(latent, **sizes))


def _latent_frames(vae: VAE, size: int, overlap: int) -> tuple[int | None, int | None]:
    """Return a tile and an overlap of so many frames in latent frames, None for a VAE of still images."""
    ratio = vae.temporal_compression_decode()
    if ratio is None:
        return None, None
    if size < overlap * 2:
        overlap //= 2
    tile = max(2, size // ratio)
    return tile, max(1, min(tile // 2, overlap // ratio))


@node(
    "VAEEncodeTiled",
    display_name="VAE Encode (Tiled)",
    category="model/latent",
    advanced=("tile_size", "overlap", "temporal_size", "temporal_overlap"),
)
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
    """Encode an image in tiles; sizes in pixels, the temporal ones as in VAEDecodeTiled."""
    latent = vae.encode_tiled(
        vae.with_channels(pixels), tile_x=tile_size, tile_y=tile_size, overlap=overlap, tile_t=temporal_size,
        overlap_t=temporal_overlap,
    )  # fmt: skip
    return {"samples": latent}


NODES = (vae_decode_tiled, vae_encode_tiled)
