"""Node classes made for HunyuanVideo 1.5: latents of videos, those that begin with images, and super-resolution.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.hunyuan_image_refiner.vae_files import VAE_CHANNELS
from darkroom.engine.families.hunyuan_video15.upsamplers import VideoUpsampler
from darkroom.engine.images.pixels import LATENT_METHODS, resize, resize_image
from darkroom.engine.models.kinds.latent_upscaler_value import LatentUpscaler
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP_VISION_OUTPUT, CONDITIONING, IMAGE, LATENT, LATENT_UPSCALE_MODEL, VAE
from darkroom.engine.nodes.widgets import Combo, Float, Int

MODULE = "comfy_extras.nodes_hunyuan"
CATEGORY = "model/conditioning/hunyuan video"
CELL_PX, FRAMES_RATIO = 16, 4
MIN_SIDE_PX = 64
VIDEO_AXES = 5

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]
Length = Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=4)]
NewSide = Annotated[int, Int(min=0, max=16384, step=8)]
GivenImage = Annotated[IMAGE | None, Optional()]
SeenImage = Annotated[CLIP_VISION_OUTPUT | None, Optional()]


def empty_video(batch_size: int, length: int, width: int, height: int) -> torch.Tensor:
    """Return zeros [B, 32, f, h, w] for videos of `length` frames of a size in pixels."""
    frames = (length - 1) // FRAMES_RATIO + 1
    return torch.zeros(batch_size, VAE_CHANNELS, frames, height // CELL_PX, width // CELL_PX)


def encoded(vae: Vae, images: torch.Tensor, num_latent_frames: int, width: int, height: int) -> torch.Tensor:
    """Return the latent [1, C, f, h, w] of the first frames of a video of that size in pixels, from images cut to it.

    Raises ValueError for a VAE of other latents.
    """
    if vae.latent_channels != VAE_CHANNELS or vae.latent_dim + 2 != VIDEO_AXES:
        raise ValueError(
            f"vae: it is not HunyuanVideo 1.5's; got one of {vae.latent_channels} channels, expected {VAE_CHANNELS}"
        )
    first = images[: FRAMES_RATIO * (num_latent_frames - 1) + 1, :, :, :3]
    latent: torch.Tensor = vae.encode(resize_image(first, width, height, "bilinear", "center"))
    return latent


@node(
    "EmptyHunyuanVideo15Latent",
    display_name="Empty HunyuanVideo 1.5 Latent",
    category="model/latent/hunyuan video",
    python_module=MODULE,
)
def empty_hunyuan_video15_latent(
    context: NodeContext,
    *,
    width: Side = 848,
    height: Side = 480,
    length: Length = 25,
    batch_size: Count = 1,
) -> LATENT:
    """Return an empty latent of videos of `length` frames."""
    return {"samples": empty_video(batch_size, length, width, height), "downscale_ratio_spacial": CELL_PX}


@node("HunyuanVideo15ImageToVideo", display_name=None, category=CATEGORY, python_module=MODULE)
def hunyuan_video15_image_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 848,
    height: Side = 480,
    length: Length = 33,
    batch_size: Count = 1,
    start_image: GivenImage = None,
    clip_vision_output: SeenImage = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video begin with images, and condition it on the tokens of an image. Raises ValueError for another VAE."""
    latent = empty_video(batch_size, length, width, height)
    options: dict[str, object] = {}
    if start_image is not None:
        given = encoded(vae, start_image[:length], latent.shape[2], width, height)
        known = torch.zeros_like(latent)
        known[:, :, : given.shape[2]] = given
        redrawn = torch.ones(1, 1, *latent.shape[2:])
        redrawn[:, :, : given.shape[2]] = 0.0
        options |= {"concat_latent_image": known, "concat_mask": redrawn}
    if clip_vision_output is not None:
        options["clip_vision_output"] = clip_vision_output
    return with_options(positive, **options), with_options(negative, **options), {"samples": latent}


@node(
    "HunyuanVideo15SuperResolution",
    display_name="Hunyuan Video 1.5 Super Resolution",
    category=CATEGORY,
    python_module=MODULE,
    advanced=("noise_augmentation",),
)
def hunyuan_video15_super_resolution(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: Annotated[VAE | None, Optional()] = None,
    start_image: GivenImage = None,
    clip_vision_output: SeenImage = None,
    latent: LATENT,
    noise_augmentation: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.70,
) -> tuple[Positive, Negative, Start]:
    """Give the network of super-resolution the video to redraw, with noise on it, and images that it begins with.

    Raises ValueError for a latent or a VAE of another family, and for images without a VAE.
    """
    video = checked_video(latent["samples"], "latent")
    nothing = torch.zeros_like(video)[:, :1]
    known, known_mask, video_mask = torch.zeros_like(video), nothing, nothing + 1
    if start_image is not None:
        if vae is None:
            raise ValueError("vae: it is missing; got none, expected that of HunyuanVideo 1.5 to encode start_image")
        *_, frames, rows, columns = video.shape
        given = encoded(vae, start_image, frames, columns * CELL_PX, rows * CELL_PX)
        known[:, :, : given.shape[2]] = given
    parts = torch.cat([known, known_mask, video, video_mask], dim=1)
    if start_image is not None:
        parts[:, VAE_CHANNELS + 1, 0] = 1  # of the video's first channel, as in ComfyUI: the mask's is before it
    options: dict[str, object] = {"concat_latent_image": parts, "noise_augmentation": noise_augmentation}
    if clip_vision_output is not None:
        options["clip_vision_output"] = clip_vision_output
    return with_options(positive, **options), with_options(negative, **options), latent


@node(
    "HunyuanVideo15LatentUpscaleWithModel",
    display_name="Hunyuan Video 15 Latent Upscale With Model",
    category="model/latent/hunyhuan video",
    python_module=MODULE,
    facts=NodeFacts(items="alone", keeps_channels=True),
)
def hunyuan_video15_latent_upscale_with_model(
    context: NodeContext,
    *,
    model: LATENT_UPSCALE_MODEL,
    samples: LATENT,
    upscale_method: Annotated[str, Combo(LATENT_METHODS)] = "bilinear",
    width: NewSide = 1280,
    height: NewSide = 720,
    crop: Annotated[str, Combo(("disabled", "center"))],
) -> LATENT:
    """Resize a latent to a size in pixels and refine it by a network; all of it may be sampled.

    A side of 0 follows from the other; with both 0 the latent is unchanged. Raises ValueError for a network or a
    latent of another family.
    """
    if width == 0 and height == 0:
        return samples
    network = _checked_network(model)
    latent = checked_video(samples["samples"], "samples")
    rows, columns = latent.shape[-2:]
    if width == 0:
        height = max(MIN_SIDE_PX, height)
        width = round(columns * height / rows)
    elif height == 0:
        width = max(MIN_SIDE_PX, width)
        height = round(rows * width / columns)
    width, height = max(MIN_SIDE_PX, width), max(MIN_SIDE_PX, height)
    large = resize(latent, width // CELL_PX, height // CELL_PX, upscale_method, crop)
    with torch.no_grad(), model.patcher.in_use(working_bytes=network.working_bytes(large.shape)) as loaded:
        refined: torch.Tensor = loaded(large.to(model.load_device, model.model_dtype()))
        return {"samples": refined.to("cpu", torch.float32)}


def checked_video(latent: torch.Tensor, field: str) -> torch.Tensor:
    """Return a latent of videos [B, 32, f, h, w]. Raises ValueError for one of another family."""
    if latent.ndim != VIDEO_AXES or latent.shape[1] != VAE_CHANNELS:
        raise ValueError(
            f"{field}: it is not a latent of HunyuanVideo 1.5; got shape {list(latent.shape)}, expected "
            f"[batch, {VAE_CHANNELS}, frames, rows, columns]"
        )
    return latent


def _checked_network(model: LatentUpscaler) -> VideoUpsampler:
    network = model.model
    if not isinstance(network, VideoUpsampler):
        raise ValueError(
            "model: a network of other latents; got another one, expected a latent upsampler of HunyuanVideo 1.5 "
            "(hunyuanvideo15_latent_upsampler_1080p)"
        )
    return network


NODES = (
    empty_hunyuan_video15_latent,
    hunyuan_video15_image_to_video,
    hunyuan_video15_super_resolution,
    hunyuan_video15_latent_upscale_with_model,
)
