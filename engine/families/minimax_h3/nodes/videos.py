"""Empty latents of videos with audio, videos between a first and a last image, and the noise levels of both streams."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.minimax_h3.conditions import KEYFRAMES
from darkroom.engine.families.minimax_h3.nodes.inputs import (
    CATEGORY,
    MODULE,
    Length,
    Positive,
    Prompt,
    Side,
    empty_latent,
    encoded,
    resized,
)
from darkroom.engine.families.minimax_h3.sampling import AudioVideoFlow
from darkroom.engine.families.minimax_h3.sizes import frames_above
from darkroom.engine.families.minimax_h3.transformer import AUDIO_SHIFT, VIDEO_SHIFT
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.library.sampling.model_sampling import sampled_with
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CLIP, IMAGE, LATENT, MODEL, VAE
from darkroom.engine.nodes.widgets import Float

Shift = Annotated[float, Float(min=0.01, max=100.0, step=0.01)]


@node("EmptyMiniMaxH3LatentAV", display_name="Empty MiniMax H3 AV Latent", category="model/latent/minimax",
      python_module=MODULE)  # fmt: skip
def empty_minimax_h3_latent_av(
    context: NodeContext, *, width: Side = 1344, height: Side = 768, length: Length = 124
) -> LATENT:
    """Return an empty latent of a video with audio, of the next number of frames that such a video may have."""
    return empty_latent(width, height, frames_above(length))


@node("MiniMaxH3ImageToVideo", display_name="MiniMax H3 Image to Video", category=CATEGORY, python_module=MODULE)
def minimax_h3_image_to_video(
    context: NodeContext,
    *,
    clip: CLIP,
    vae: VAE,
    prompt: Prompt,
    width: Side = 1344,
    height: Side = 768,
    length: Length = 124,
    first_frame: Annotated[IMAGE | None, Optional()] = None,
    last_frame: Annotated[IMAGE | None, Optional()] = None,
) -> tuple[Positive, LATENT]:
    """Encode a prompt for a video that begins and ends with images, where there are such, and return its empty latent.

    The first image is stretched to the video's size, the last one cut to its proportions.
    """
    frames = frames_above(length)
    shown: list[tuple[int, torch.Tensor]] = []
    if first_frame is not None:
        shown.append((0, resized(first_frame[:1], width, height, crops=False)))
    if last_frame is not None:
        shown.append((frames - 1, resized(last_frame[:1], width, height, crops=True)))
    guides = [{"resolved_frame_index": frame, "latent": encoded(vae, image)} for frame, image in shown]
    tokens = clip.tokenize(prompt, images=[image for _, image in shown])
    positive = clip.encode_from_tokens_scheduled(tokens)
    positive = with_options(positive, **{KEYFRAMES: guides}) if guides else positive
    return positive, empty_latent(width, height, frames)


@node("MiniMaxH3SigmaShift", display_name="ModelSamplingMiniMaxH3", category="model/patch/minimax",
      python_module=MODULE, facts=NodeFacts(items="alike"))  # fmt: skip
def minimax_h3_sigma_shift(
    context: NodeContext, *, model: MODEL, shift_video: Shift = 12.0, shift_audio: Shift = 3.0
) -> MODEL:
    """Set the shifts of the noise levels of the video, by which the sampler goes, and of its audio."""
    flow: Any = AudioVideoFlow(shift_video, shift_audio)
    flow.noise_scale = getattr(model.get_model_object("model_sampling"), "noise_scale", 1.0)
    patched = sampled_with(model, flow)
    options = patched.model_options["transformer_options"]
    options[VIDEO_SHIFT], options[AUDIO_SHIFT] = shift_video, shift_audio
    return patched


NODES = (empty_minimax_h3_latent_av, minimax_h3_image_to_video, minimax_h3_sigma_shift)
