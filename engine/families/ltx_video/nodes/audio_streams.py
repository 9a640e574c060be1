"""Nodes that join the latents of a video and its audio to one, and part them again, for any model of both."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.nested_latent import NestedLatent, streams_of
from darkroom.engine.diffusion.sample import resized_mask
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import LATENT, Latent

MODULE = "comfy_extras.nodes_lt"
CATEGORY = "model/latent/ltxv"

Joined = Annotated[LATENT, Out("latent")]
Video = Annotated[LATENT, Out("video_latent")]
AudioStream = Annotated[LATENT, Out("audio_latent")]


@node("LTXVConcatAVLatent", display_name="Concat AV Latent", category=CATEGORY, python_module=MODULE)
def ltxv_concat_av_latent(context: NodeContext, *, video_latent: LATENT, audio_latent: LATENT) -> Joined:
    """Join the latents of a video and of audio to one.

    A video's latent that has audio gets the other one in its place, cut to its length or with an empty end.
    """
    video, audio = video_latent["samples"], audio_latent["samples"]
    video_mask, audio_mask = video_latent.get("noise_mask"), audio_latent.get("noise_mask")
    streams = streams_of(video)
    if streams:
        video, old_audio = streams[:2]
        video_mask = None if video_mask is None else (streams_of(video_mask) or [video_mask])[0]
        audio, audio_mask = _fitted(old_audio, audio, audio_mask)
    joined: Any = {**video_latent, **audio_latent, "samples": NestedLatent([video, audio])}
    if video_mask is not None or audio_mask is not None:
        masks = [torch.ones_like(video) if video_mask is None else video_mask]
        masks.append(torch.ones_like(audio) if audio_mask is None else audio_mask)
        joined["noise_mask"] = NestedLatent(masks)
    result: Latent = joined
    return result


@node(
    "LTXVSeparateAVLatent",
    display_name="Separate AV Latent",
    category=CATEGORY,
    python_module=MODULE,
    facts=NodeFacts(parts_streams="av_latent"),
)
def ltxv_separate_av_latent(context: NodeContext, *, av_latent: LATENT) -> tuple[Video, AudioStream]:
    """Part the latent of a video with audio into those of either."""
    streams = streams_of(av_latent["samples"])
    if len(streams) < 2:
        raise ValueError("av_latent: a latent of one stream; got a plain latent, expected one of a video and its audio")
    masks = streams_of(av_latent.get("noise_mask"))
    parts: list[Any] = [{**av_latent, "samples": stream} for stream in streams[:2]]
    for part, mask in zip(parts, masks, strict=False):
        part["noise_mask"] = mask
    return parts[0], parts[1]


def _fitted(
    reference: torch.Tensor, audio: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return audio and its mask with the length of another audio's latent; what is added is empty, and painted.

    Raises ValueError for latents that differ in more than their length.
    """
    differing = [axis for axis in range(reference.ndim) if reference.shape[axis] != audio.shape[axis]]
    if not differing:
        return audio, mask
    axis, length = differing[0], reference.shape[differing[0]]
    if len(differing) > 1 or axis < 2:
        raise ValueError(
            f"audio_latent: does not fit the audio that it replaces; got {list(audio.shape)}, expected "
            f"{list(reference.shape)} but for its length"
        )
    mask = None if mask is None else resized_mask(mask, audio.shape)
    if audio.shape[axis] > length:
        return audio.narrow(axis, 0, length), None if mask is None else mask.narrow(axis, 0, length)
    added = list(audio.shape)
    added[axis] = length - audio.shape[axis]
    empty = audio.new_zeros(added)
    longer = None if mask is None else torch.cat([mask, torch.ones_like(empty)], dim=axis)
    return torch.cat([audio, empty], dim=axis), longer


NODES = (ltxv_concat_av_latent, ltxv_separate_av_latent)
