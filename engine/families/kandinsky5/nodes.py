"""Node classes made for Kandinsky 5: a prompt for each of its text encoders, and videos that begin with images."""

from __future__ import annotations

from typing import Annotated, cast

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.hunyuan_video.vae_files import LATENT_CHANNELS
from darkroom.engine.families.kandinsky5.denoiser import GIVEN_FRAMES
from darkroom.engine.families.text.qwen25_vl import SLOT
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.models.audio_vae import AudioVae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, IMAGE, LATENT, VAE, Latent
from darkroom.engine.nodes.widgets import Int, PromptText

MODULE = "comfy_extras.nodes_kandinsky5"
CATEGORY = "model/conditioning/kandinsky"
CELL_PX, FRAMES_RATIO = 8, 4
EXPECTED_VAE = "that of HunyuanVideo, in whose latents Kandinsky 5 draws videos"

Prompt = Annotated[str, PromptText(multiline=True, dynamicPrompts=True)]
Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]


@node("CLIPTextEncodeKandinsky5", display_name="CLIP Text Encode (Kandinsky 5)", category=CATEGORY,
      python_module=MODULE, facts=NodeFacts(items="alike"))  # fmt: skip
def clip_text_encode_kandinsky5(context: NodeContext, *, clip: CLIP, clip_l: Prompt, qwen25_7b: Prompt) -> CONDITIONING:
    """Encode a prompt for each text encoder."""
    tokens = {**clip.tokenize(clip_l), SLOT: clip.tokenize(qwen25_7b)[SLOT]}
    return clip.encode_from_tokens_scheduled(tokens)


@node("Kandinsky5ImageToVideo", display_name=None, category=CATEGORY, python_module=MODULE)
def kandinsky5_image_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 768,
    height: Side = 512,
    length: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=4)] = 121,
    batch_size: Count = 1,
    start_image: Annotated[IMAGE | None, Optional()] = None,
) -> tuple[
    Positive,
    Negative,
    Start,
    Annotated[LATENT, Out("cond_latent")],
]:
    """Let a video begin with images; without any, return the empty latent and an empty latent of images.

    Raises ValueError for a VAE of another family.
    """
    frames = (length - 1) // FRAMES_RATIO + 1
    latent = torch.zeros([batch_size, LATENT_CHANNELS, frames, height // CELL_PX, width // CELL_PX])
    if start_image is None:
        return positive, negative, {"samples": latent}, cast("Latent", {})
    _check_vae(vae)
    images = resize_image(start_image[:length, ..., :3], width, height, "bilinear", "center")
    given: torch.Tensor = vae.encode(images)
    mask = torch.ones(1, 1, *latent.shape[2:])
    mask[:, :, : (len(images) - 1) // FRAMES_RATIO + 1] = 0.0
    options = {GIVEN_FRAMES: given, "concat_mask": mask}
    encoded = with_options(positive, **options), with_options(negative, **options)
    return *encoded, {"samples": latent}, {"samples": given}


def _check_vae(vae: VAE) -> None:
    """Raise ValueError for a VAE of images, of audio, or of other latents."""
    if isinstance(vae, AudioVae):
        raise ValueError(f"vae: one of audio; expected {EXPECTED_VAE}")
    channels, frames = vae.latent_channels, vae.temporal_compression_decode()
    if (channels, frames) != (LATENT_CHANNELS, FRAMES_RATIO):
        kind = "images" if frames is None else f"videos, {frames} frames to a latent one"
        raise ValueError(f"vae: one of another family; got {channels} channels of {kind}, expected {EXPECTED_VAE}")


NODES = (clip_text_encode_kandinsky5, kandinsky5_image_to_video)
