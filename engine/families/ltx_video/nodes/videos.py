"""Latents of videos, images that they begin with, frame rates, and images as a video codec leaves them."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.ltx_video.nodes.noise_masks import noise_mask_of
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.media.still_video import compressed
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CONDITIONING, IMAGE, LATENT, VAE
from darkroom.engine.nodes.widgets import Flag, Float, Int

MODULE = "comfy_extras.nodes_lt"
CATEGORY = "model/conditioning/ltxv"
CHANNELS, CELL_PX, FRAMES_RATIO = 128, 32, 8

Side = Annotated[int, Int(min=64, max=MAX_SIDE_PX, step=32)]


def empty_video(batch_size: int, length: int, width: int, height: int) -> torch.Tensor:
    """Return zeros [batch_size, 128, f, h, w] for videos of `length` frames of a size in pixels."""
    frames = (length - 1) // FRAMES_RATIO + 1
    return torch.zeros([batch_size, CHANNELS, frames, height // CELL_PX, width // CELL_PX])


@node("EmptyLTXVLatentVideo", display_name=None, category="model/latent/ltxv", python_module=MODULE)
def empty_ltxv_latent_video(
    context: NodeContext,
    *,
    width: Side = 768,
    height: Side = 512,
    length: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=8)] = 97,
    batch_size: Count = 1,
) -> LATENT:
    """Return an empty latent of videos of `length` frames."""
    return {"samples": empty_video(batch_size, length, width, height), "downscale_ratio_spacial": CELL_PX}


@node("LTXVImgToVideo", display_name=None, category=CATEGORY, python_module=MODULE)
def ltxv_img_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    image: IMAGE,
    width: Side = 768,
    height: Side = 512,
    length: Annotated[int, Int(min=9, max=MAX_SIDE_PX, step=8)] = 97,
    batch_size: Count = 1,
    strength: Annotated[float, Float(min=0.0, max=1.0)] = 1.0,
) -> tuple[Positive, Negative, Start]:
    """Let a video begin with an image, of which sampling changes the more, the lower `strength` is."""
    given: torch.Tensor = vae.encode(resize_image(image, width, height, "bilinear", "center")[..., :3])
    samples = empty_video(batch_size, length, width, height)
    samples[:, :, : given.shape[2]] = given
    mask = torch.ones(batch_size, 1, samples.shape[2], 1, 1)
    mask[:, :, : given.shape[2]] = 1.0 - strength
    return positive, negative, {"samples": samples, "noise_mask": mask}


@node("LTXVImgToVideoInplace", display_name=None, category=CATEGORY, python_module=MODULE)
def ltxv_img_to_video_inplace(
    context: NodeContext,
    *,
    vae: VAE,
    image: IMAGE,
    latent: LATENT,
    strength: Annotated[float, Float(min=0.0, max=1.0)] = 1.0,
    bypass: Annotated[bool, Flag(extra={"tooltip": "Bypass the conditioning."})] = False,
) -> Start:
    """Let the video of a latent begin with an image, of which sampling changes the more, the lower `strength` is."""
    if bypass:
        return latent
    samples = latent["samples"].clone()
    height, width = (side * CELL_PX for side in samples.shape[3:])
    pixels = image if image.shape[1:3] == (height, width) else resize_image(image, width, height, "bilinear", "center")
    given = vae.encode(pixels[..., :3])
    samples[:, :, : given.shape[2]] = given
    mask = noise_mask_of(latent)
    mask[:, :, : given.shape[2]] = 1.0 - strength
    return {"samples": samples, "noise_mask": mask}


@node("LTXVConditioning", display_name=None, category=CATEGORY, python_module=MODULE)
def ltxv_conditioning(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    frame_rate: Annotated[float, Float(min=0.0, max=1000.0, step=0.01)] = 25.0,
) -> tuple[Positive, Negative]:
    """Set the frame rate of the video. Raises ValueError for none."""
    if frame_rate <= 0.0:
        raise ValueError(f"frame_rate: a video has frames every second; got {frame_rate}, expected more than 0")
    return with_options(positive, frame_rate=frame_rate), with_options(negative, frame_rate=frame_rate)


@node("LTXVPreprocess", display_name="LTXV Preprocess", category="video/preprocessors", python_module=MODULE)
def ltxv_preprocess(
    context: NodeContext,
    *,
    image: IMAGE,
    img_compression: Annotated[
        int, Int(min=0, max=100, extra={"tooltip": "Amount of compression to apply on image."})
    ] = 35,
) -> Annotated[IMAGE, Out("output_image")]:
    """Compress images as frames of a video are, with which the network was trained."""
    if img_compression == 0:
        return image
    return torch.stack([compressed(frame, img_compression) for frame in image])


NODES = (
    empty_ltxv_latent_video, ltxv_img_to_video, ltxv_img_to_video_inplace, ltxv_conditioning, ltxv_preprocess,
)  # fmt: skip
