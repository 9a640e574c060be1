"""Node classes made for SeedVR2: images before and after restoration, conditioning, and parts of long videos."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.seedvr2.denoiser import CONDITION
from darkroom.engine.families.seedvr2.transformer import SeedVr2Transformer
from darkroom.engine.families.seedvr2.vae import FRAMES_RATIO, LATENT_CHANNELS
from darkroom.engine.images.restored_frames import RestoredFrames, padded_video
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import Negative, Positive
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.markers import Labelled, Out, Socket
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import FRAMES, IMAGE, INT, LATENT, MODEL, Latent
from darkroom.engine.nodes.widgets import Combo, Int

MODULE = "comfy_extras.nodes_seedvr"
MOST_FRAMES = 16384
LEAST_SIDE_PX = 2
CELL_PX = 8
CORRECTIONS = ("lab", "wavelet", "adain", "none")
BYTES_PER_PIXEL = 12  # red, green and blue, float32

# Working memory of the transformer, as ComfyUI 0.33.0 has it measured: a latent frame of 10^6 pixels; the model and
# what is fixed; four deviations of the measurement.
FRAME_GIB, RESERVED_GIB, SPREAD_GIB = 0.55, 8.5, 4 * 0.55
GIB = 1 << 30

LatentFrames = Annotated[int, Int(min=0, max=MOST_FRAMES)]
MODES = (
    ("auto", ()),
    ("manual", (Field("frames_per_chunk", Int(min=1, max=MOST_FRAMES, step=FRAMES_RATIO), 21),)),
)


@node("SeedVR2Preprocess", display_name="Pre-Process SeedVR2 Input", category="image/pre-processors",
      python_module=MODULE, search_aliases=["seedvr2", "upscale", "video upscale", "pad", "preprocess"])  # fmt: skip
def seedvr2_preprocess(context: NodeContext, *, resized_images: IMAGE) -> Annotated[IMAGE, Out("images")]:
    """Return images as one video [1, F, H, W, 3], filled up to 16 pixels a side and to 1 + 4n frames, without alpha.

    Raises ValueError for images of a side of one pixel, and where the video would not fit the free memory.
    """
    height, width = resized_images.shape[-3:-1]
    if min(height, width) < LEAST_SIDE_PX:
        raise ValueError(
            f"resized_images: too small; got {width}x{height} pixels, expected at least {LEAST_SIDE_PX} a side"
        )
    return padded_video(resized_images, lambda num_bytes: check_fits(context, "resized_images", num_bytes))


@node("SeedVR2PostProcessing", display_name="Post-Process SeedVR2 Output", category="image/post-processors",
      python_module=MODULE,
      search_aliases=["seedvr2", "upscale", "color correction", "color match", "postprocess"])  # fmt: skip
def seedvr2_post_processing(
    context: NodeContext,
    *,
    images: FRAMES,
    original_resized_images: IMAGE,
    color_correction_method: Annotated[str, Combo(CORRECTIONS)] = "lab",
) -> Annotated[FRAMES, Out("images")]:
    """Return restored images at the size of the originals, with their alpha, and with their colours if asked for.

    Frames are corrected as they are taken where the node behind this one takes them one by one. Raises ValueError for
    images of other channels than the originals, and where all frames together would not fit the free memory.
    """
    frames = RestoredFrames(images, original_resized_images, color_correction_method)
    *_, height, width, channels = frames.shape

    def compute() -> Iterator[torch.Tensor]:
        device = context.models.device_for(frames.working_bytes)
        for done, frame in enumerate(frames.restored(device), start=1):
            context.cancel.check()
            context.report_progress(done, len(frames))
            yield frame[None]

    held_bytes = images.get_ram_usage() if isinstance(images, FrameStream) else images.nbytes
    stream = FrameStream((len(frames), height, width, channels), compute, held_bytes + original_resized_images.nbytes)
    if context.output_is_streamed():
        return stream
    check_fits(context, "images", math.prod(frames.shape) * torch.float32.itemsize)
    return stream.whole().view(frames.shape)


@node("SeedVR2Conditioning", display_name="Apply SeedVR2 Conditioning", category="model/conditioning",
      python_module=MODULE, search_aliases=["seedvr2", "upscale", "conditioning"])  # fmt: skip
def seedvr2_conditioning(
    context: NodeContext,
    *,
    model: MODEL,
    vae_conditioning: Annotated[Latent, Labelled("LATENT", "latent")],
) -> tuple[Positive, Negative]:
    """Return the texts that come with the model, and the video to restore, as conditioning.

    Raises ValueError for another model or for latents of another VAE.
    """
    samples = _video_latent(vae_conditioning, "vae_conditioning")
    network: Any = model.model.diffusion_model
    if not isinstance(network, SeedVr2Transformer):
        raise ValueError(f"model: not SeedVR2; got {type(network).__name__}, expected a model of SeedVR2")
    condition = torch.cat([samples, samples.new_ones(samples.shape[0], 1, *samples.shape[2:])], dim=1)
    with model.in_use():
        texts = [
            model.weights.current_weight(f"diffusion_model.{kind}_conditioning") for kind in ("positive", "negative")
        ]
        positive, negative = (
            [[text.detach().to("cpu", torch.float32, copy=True)[None], {CONDITION: condition}]] for text in texts
        )
    return positive, negative


@node("SeedVR2TemporalChunk", display_name="Split SeedVR2 Latent", category="model/latent/batch", python_module=MODULE,
      facts=NodeFacts(keeps_channels=True),
      search_aliases=["seedvr2", "split", "chunk", "temporal", "video upscale", "rebatch"])  # fmt: skip
def seedvr2_temporal_chunk(
    context: NodeContext,
    *,
    latent: LATENT,
    temporal_overlap: LatentFrames = 0,
    chunking_mode: Annotated[Mapping[str, Any], DynamicChoice(fields=MODES)],
) -> tuple[
    Annotated[list[Latent], Labelled("LATENT", "latent"), Out("latents", is_list=True)],
    Annotated[INT, Out("temporal_overlap")],
]:
    """Return parts of a video's latent that follow each other, and how many latent frames neighbours share.

    `auto` takes parts as long as the free memory of the device allows. Raises ValueError for latents of another VAE,
    and for a number of frames that is not 1 + 4n.
    """
    samples = _video_latent(latent, "latent")
    length = samples.shape[2]
    if chunking_mode["chunking_mode"] == "auto":
        part = _fitting_frames(samples, context.models.free_device_bytes())
    else:
        frames = chunking_mode["frames_per_chunk"]
        if frames % FRAMES_RATIO != 1:
            raise ValueError(f"frames_per_chunk: no whole latent frames; got {frames}, expected 1, 5, 9, 13, 17, …")
        part = (frames - 1) // FRAMES_RATIO + 1
    if length <= part:
        return [latent], 0
    overlap = min(temporal_overlap, part - 1)
    starts = range(0, length - overlap, part - overlap)
    parts: list[Latent] = []
    for start in starts:
        cut: Latent = {**latent, "samples": samples[:, :, start : start + part].contiguous()}
        parts.append(cut)
    return parts, overlap


@node("SeedVR2TemporalMerge", display_name="Merge SeedVR2 Latents", category="model/latent/batch",
      python_module=MODULE, input_is_list=True, is_input_list=True, facts=NodeFacts(keeps_channels=True),
      search_aliases=["seedvr2", "merge", "temporal", "hann", "crossfade"])  # fmt: skip
def seedvr2_temporal_merge(
    context: NodeContext,
    *,
    latents: Annotated[Sequence[Latent], Socket("LATENT")],
    temporal_overlap: Annotated[int, Int(min=0, max=MOST_FRAMES, extra={"forceInput": True})] = 0,
) -> Annotated[LATENT, Out("latent")]:
    """Return the latent of a whole video, whose parts fade into each other where they overlap.

    Raises ValueError for parts of different sizes, for a part but the last one of another length than the first, and
    for a last one that is shorter than the overlap.
    """
    overlaps: Any = temporal_overlap  # all inputs come as lists
    parts = [item["samples"] for item in latents]
    _check_parts(parts)
    overlap = min(overlaps[0], parts[0].shape[2] - 1)
    if parts[-1].shape[2] < overlap:
        raise ValueError(
            f"temporal_overlap: longer than the last part; got {overlap} latent frames, expected at most "
            f"{parts[-1].shape[2]}"
        )
    merged: Latent = {**latents[0], "samples": _merged(parts, overlap)}
    merged.pop("noise_mask", None)
    return merged


def _video_latent(latent: Latent, name: str) -> torch.Tensor:
    """Return the samples [B, 16, f, h, w] of a latent. Raises ValueError for those of another VAE."""
    samples: torch.Tensor = latent["samples"]
    if samples.ndim != 5 or samples.shape[1] != LATENT_CHANNELS:
        raise ValueError(
            f"{name}: not a latent of SeedVR2's VAE; got the shape {list(samples.shape)}, expected "
            f"[batch, {LATENT_CHANNELS}, frames, rows, columns]"
        )
    return samples


def _fitting_frames(samples: torch.Tensor, free_bytes: int) -> int:
    """Return the number of latent frames of videos [B, 16, f, h, w] that fit a device's memory, at least one."""
    megapixels = samples.shape[0] * samples.shape[3] * samples.shape[4] * CELL_PX**2 / 1e6
    room_gib = free_bytes / GIB - RESERVED_GIB - SPREAD_GIB
    return max(1, int(room_gib / (FRAME_GIB * megapixels)))


def _check_parts(parts: Sequence[torch.Tensor]) -> None:
    """Raise ValueError for latents that are not parts of one video."""
    first = parts[0]
    if first.ndim != 5:
        raise ValueError(f"latents: not those of videos; got the shape {list(first.shape)}, expected five axes")
    for index, part in enumerate(parts[1:], start=1):
        is_last = index == len(parts) - 1
        if part.ndim != 5 or part.shape[:2] != first.shape[:2] or part.shape[3:] != first.shape[3:]:
            raise ValueError(
                f"latents: part {index} is of another video; got the shape {list(part.shape)}, expected that of the "
                f"first, {list(first.shape)}, but for its frames"
            )
        if not is_last and part.shape[2] != first.shape[2]:
            raise ValueError(
                f"latents: part {index} has another length; got {part.shape[2]} latent frames, expected "
                f"{first.shape[2]}, as only the last part may have others"
            )


def _merged(parts: Sequence[torch.Tensor], overlap: int) -> torch.Tensor:
    """Return parts [B, C, f, h, w] as one video; those of the overlap are a mean whose weights fall along a cosine."""
    step = parts[0].shape[2] - overlap
    merged = torch.cat([parts[0], *(part[:, :, overlap:] for part in parts[1:])], dim=2)
    weights = _fading(overlap).to(merged).view(1, 1, -1, 1, 1)
    for index, part in enumerate(parts[1:], start=1):
        both = merged.narrow(2, index * step, overlap)
        both.mul_(weights).add_(part[:, :, :overlap] * (1.0 - weights))
    return merged


def _fading(length: int) -> torch.Tensor:
    """Return weights [length] from 1 to 0 that fall in the middle third alone, along half a cosine."""
    ramp = ((torch.linspace(0.0, 1.0, steps=length) - 1.0 / 3.0) / (1.0 / 3.0)).clamp(0.0, 1.0)
    return 0.5 + 0.5 * torch.cos(torch.pi * ramp)


NODES = (
    seedvr2_preprocess, seedvr2_post_processing, seedvr2_conditioning, seedvr2_temporal_chunk, seedvr2_temporal_merge,
)  # fmt: skip
