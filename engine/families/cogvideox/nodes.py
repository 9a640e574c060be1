"""Node classes of VOID: masks of what is to go, the video that is changed, noise that moves with it, its sampler.

`F` frames, `H W` pixels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch.nn import functional

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.cogvideox.noise_warp import WarpedNoise
from darkroom.engine.families.cogvideox.vae import FRAMES_RATIO
from darkroom.engine.families.cogvideox.vae_files import LATENT_CHANNELS
from darkroom.engine.families.cogvideox.void_sampler import VoidSampler
from darkroom.engine.images.morphology import dilate
from darkroom.engine.images.pixels import resize, resize_image
from darkroom.engine.models.kinds.optical_flow.flow_estimator import SMALLEST_SIDE_PX, FlowEstimator
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Negative, Positive, Side, Start
from darkroom.engine.nodes.library.image.masks import batched
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import (
    CONDITIONING,
    IMAGE,
    LATENT,
    MASK,
    NOISE,
    OPTICAL_FLOW,
    SAMPLER,
    VAE,
    Latent,
)
from darkroom.engine.nodes.widgets import Int

MODULE = "comfy_extras.nodes_void"
CELL_PX = 8
VIDEO_AXES = 5
PATCH_FRAMES = 2  # latent frames of a token
LEVELS, LIMITS = (0.0, 63.0, 127.0, 255.0), (31.0, 95.0, 191.0)  # of a quadmask, and the largest rounded to each
LARGEST_REMOVED = 128  # below it a pixel is of the object, or of what lies over it
# Of warped noise: frames that the flow is estimated on, and cells of noise in place of a pixel of these, along a side.
FRAMES_SCALE, NOISE_SCALE = 0.5, 8
POOLED_SIDE = 32  # cells of noise a side that become one latent cell
MOST_PX = 1920 * 1088  # of a frame: every channel of noise has 16 cells a pixel
STATES = 16  # tensors as large as the noise that are there at a time: 15.2 by the peak on a processor
LEAST_SIDE_PX = int(SMALLEST_SIDE_PX / FRAMES_SCALE)

Length = Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)]
Count = Annotated[int, Int(min=1, max=64)]


def num_latent_frames(length: int) -> int:
    """Return the latent frames of a video of `length` frames, rounded down to whole tokens, at least one of those."""
    frames = (length - 1) // FRAMES_RATIO + 1
    return max(PATCH_FRAMES, frames - frames % PATCH_FRAMES)


def rounded_length(length: int) -> int:
    """Return the frames of a video of `length` frames of which whole tokens are made."""
    frames = (length - 1) // FRAMES_RATIO + 1
    return length if frames % PATCH_FRAMES == 0 else (num_latent_frames(length) - 1) * FRAMES_RATIO + 1


@node("VOIDQuadmaskPreprocess", display_name="VOID Quadmask Preprocessor", category="image/mask", python_module=MODULE)
def void_quadmask_preprocess(
    context: NodeContext, *, mask: MASK, dilate_width: Annotated[int, Int(min=0, max=50, step=1)] = 0
) -> Annotated[MASK, Out("quadmask")]:
    """Round a mask to four levels and invert it: 1 for the object to remove, 0 for what stays.

    Levels of the given mask are 0 for the object, 63 where it covers what it changes, 127 for that, 255 for the rest,
    or these divided by 255. The object grows by `dilate_width` pixels.
    """
    levels = mask * 255.0 if mask.max() <= 1.0 else mask
    if dilate_width > 0:
        removed = (levels < LARGEST_REMOVED).float()
        grown = dilate(batched(removed).unsqueeze(1), 2 * dilate_width + 1).view(levels.shape)
        levels = torch.where(grown > 0.5, 0.0, levels)
    rounded = torch.tensor(LEVELS)[torch.bucketize(levels, torch.tensor(LIMITS))]
    return (255.0 - rounded) / 255.0


@node("VOIDInpaintConditioning", display_name=None, category="model/conditioning/void", python_module=MODULE)
def void_inpaint_conditioning(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    video: IMAGE,
    quadmask: MASK,
    width: Side = 672,
    height: Side = 384,
    length: Length = 45,
    batch_size: Count = 1,
) -> tuple[Positive, Negative, Start]:
    """Condition on a video without its object, and on the mask of that; the latent to sample is empty.

    Raises ValueError for a VAE of other latents, and for a mask of other frames than the video has.
    """
    _check_vae(vae)
    frames, length = num_latent_frames(length), rounded_length(length)
    pixels = resize_image(video[:length, :, :, :3], width, height, "bilinear", "center")
    removed = resize(batched(quadmask)[:length].unsqueeze(1), width, height, "bilinear", "center").movedim(1, -1)
    if len(removed) not in (1, len(pixels)):
        raise ValueError(
            f"quadmask: it has other frames than the video; got {len(removed)}, expected 1 or {len(pixels)}"
        )
    kept = 1.0 - removed.expand(-1, -1, -1, 3)
    latents = (_of_length(vae.encode(part), frames) for part in (kept, pixels * kept))
    known = torch.cat(list(latents), dim=1)
    empty = torch.zeros(batch_size, LATENT_CHANNELS, frames, height // CELL_PX, width // CELL_PX)
    positive, negative = (with_options(item, concat_latent_image=known) for item in (positive, negative))
    return positive, negative, {"samples": empty}


def _check_vae(vae: Vae) -> None:
    if vae.latent_channels != LATENT_CHANNELS or vae.latent_dim + 2 != VIDEO_AXES:
        raise ValueError(
            f"vae: it is not CogVideoX's; got one of {vae.latent_channels} channels and {vae.latent_dim} dimensions, "
            f"expected one of {LATENT_CHANNELS} channels and 3 dimensions (cogvideox_vae)"
        )


def _of_length(latent: torch.Tensor, frames: int) -> torch.Tensor:
    """Return a latent [1, C, f, h, w] of so many frames: cut, or with the last one repeated."""
    missing = max(0, frames - latent.shape[2])
    return torch.cat([latent, latent[:, :, -1:].expand(-1, -1, missing, -1, -1)], dim=2)[:, :, :frames]


@node("VOIDWarpedNoise", display_name=None, category="model/latent/void", python_module=MODULE)
def void_warped_noise(
    context: NodeContext,
    *,
    optical_flow: OPTICAL_FLOW,
    video: IMAGE,
    width: Side = 672,
    height: Side = 384,
    length: Length = 45,
    batch_size: Count = 1,
) -> Annotated[LATENT, Out("warped_noise")]:
    """Return noise that moves as the video does, of as many latent frames as VOID samples.

    Raises ValueError for sides that are too small to estimate a flow, or too large.
    """
    frames, length = num_latent_frames(length), rounded_length(length)
    given = video[:length, :, :, :3]
    _check_size(width, height, len(given))
    pixels = resize_image(given, width, height, "bilinear", "center").movedim(-1, 1)  # [F, 3, H, W]
    levels = (pixels.clamp(0, 1) * 255).to(torch.uint8).float() / 255.0
    small = functional.interpolate(levels, size=(height // 2, width // 2), mode="area")
    drawn = _warped(context, optical_flow, small)
    chosen = torch.linspace(0, len(drawn) - 1, frames).long()
    noise = torch.stack(drawn).to("cpu")[chosen] if len(drawn) != frames else torch.stack(drawn).to("cpu")
    latent = noise.transpose(0, 1)[None]  # [1, C, f, h, w]
    return {"samples": latent.repeat(batch_size, 1, 1, 1, 1)}


def _check_size(width: int, height: int, num_frames: int) -> None:
    if width * height > MOST_PX:
        raise ValueError(
            f"width, height: noise of so many pixels does not fit into memory; got {width}x{height} px, expected at "
            f"most {MOST_PX} pixels"
        )
    if num_frames > 1 and min(width, height) < LEAST_SIDE_PX:
        raise ValueError(
            f"width, height: too small to estimate how the video moves; got {width}x{height} px, expected at least "
            f"{LEAST_SIDE_PX} px a side"
        )


def _warped(context: NodeContext, estimator: FlowEstimator, frames: torch.Tensor) -> list[torch.Tensor]:
    """Return the noise [C, h, w] of each of the frames [F, 3, H, W]."""
    height, width = (NOISE_SCALE * side for side in frames.shape[2:])
    working_bytes = STATES * LATENT_CHANNELS * height * width * torch.float32.itemsize
    with torch.no_grad(), estimator.patcher.in_use(working_bytes=working_bytes):
        noise = WarpedNoise(LATENT_CHANNELS, height, width, estimator.load_device)
        drawn = [noise.pooled(POOLED_SIDE)]
        for first, second in zip(frames[:-1], frames[1:], strict=True):
            context.cancel.check()
            flow = _flow(estimator, first[None], second[None]).to(estimator.load_device)
            large = functional.interpolate(flow, size=(height, width), mode="bilinear")[0]
            noise.move(large * NOISE_SCALE)
            drawn.append(noise.pooled(POOLED_SIDE))
            context.report_progress(len(drawn), len(frames))
    return drawn


def _flow(estimator: FlowEstimator, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the flow [1, 2, H, W] from one frame [1, 3, H, W] to another, estimated on whole cells of 8 pixels."""
    size = first.shape[2:]
    whole = tuple(side // CELL_PX * CELL_PX for side in size)
    if whole == tuple(size):
        return estimator.flow(first, second)
    first, second = (functional.interpolate(item, size=whole, mode="bilinear") for item in (first, second))
    return functional.interpolate(estimator.flow(first, second), size=size, mode="bilinear")


class LatentNoise:
    """NOISE that is a latent."""

    seed = 0

    def __init__(self, latent: Latent) -> None:
        self._samples = latent["samples"]

    def generate_noise(self, input_latent: Latent) -> torch.Tensor:
        """Return the noise, on the CPU. Raises ValueError for a latent of another size."""
        noise, samples = self._samples, input_latent["samples"]
        if noise.shape[1:] != samples.shape[1:] or samples.shape[0] not in (1, noise.shape[0]):
            raise ValueError(
                f"noise: it has another size than latent_image; got {list(noise.shape)}, expected {list(samples.shape)}"
            )
        return noise.clone().cpu()


@node("VOIDWarpedNoiseSource", display_name=None, category="model/latent/void", python_module=MODULE)
def void_warped_noise_source(context: NodeContext, *, warped_noise: LATENT) -> NOISE:
    """Return a latent of noise as the noise that a sampler starts from."""
    return LatentNoise(warped_noise)


@node(
    "VOIDSampler",
    display_name=None,
    category="model/sampling/samplers",
    python_module=MODULE,
    facts=NodeFacts(sampler="euler"),  # it evaluates the network as often
)
def void_sampler(context: NodeContext) -> SAMPLER:
    """Return the sampler of VOID, which starts from the noise itself."""
    return VoidSampler()


NODES = (
    void_quadmask_preprocess,
    void_inpaint_conditioning,
    void_warped_noise,
    void_warped_noise_source,
    void_sampler,
)
