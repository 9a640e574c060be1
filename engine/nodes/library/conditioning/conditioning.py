"""Nodes that change CONDITIONING: join, average, or restrict it to a part of the image or of the steps.

An entry is `[tokens [1, T, D], options]`; it is copied before its options change, since other nodes may hold it.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.log_context import report_warning
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, MASK, Conditioning
from darkroom.engine.nodes.widgets import Choice, Float, Int, PromptText

MAX_SIDE_PX = 16384

log = logging.getLogger(__name__)


def with_options(conditioning: Conditioning, **options: object) -> Conditioning:
    """Return the same entries with these options set."""
    return [[tokens, {**old, **options}] for tokens, old in conditioning]


def with_appended(conditioning: Conditioning, name: str, item: object) -> Conditioning:
    """Return the same entries with one more item in a list among their options."""
    return [[tokens, {**options, name: [*(options.get(name) or []), item]}] for tokens, options in conditioning]


def with_mask(conditioning: Conditioning, mask: torch.Tensor, strength: float, set_cond_area: str) -> Conditioning:
    """Return the same entries restricted to where `mask` ([H, W] or [B, H, W]) is not 0."""
    return with_options(
        conditioning,
        mask=mask.unsqueeze(0) if mask.ndim < 3 else mask,
        set_area_to_bounds=set_cond_area != "default",
        mask_strength=strength,
    )


def _first_tokens(conditioning: Conditioning, node_name: str) -> list[Any]:
    if len(conditioning) > 1:
        message = f"{node_name}: conditioning_from has {len(conditioning)} entries, only the first is used"
        report_warning(log, "conditioning_left_out", message)
    return conditioning[0]


@node(
    "ConditioningCombine",
    display_name="Conditioning (Combine)",
    category="model/conditioning/transform",
    facts=NodeFacts(items="alike"),
    essentials_category="Image Generation",
)
def conditioning_combine(
    context: NodeContext, *, conditioning_1: CONDITIONING, conditioning_2: CONDITIONING
) -> CONDITIONING:
    return conditioning_1 + conditioning_2


@node("ConditioningAverage", display_name="Conditioning (Average)", category="model/conditioning/transform")
def conditioning_average(
    context: NodeContext,
    *,
    conditioning_to: CONDITIONING,
    conditioning_from: CONDITIONING,
    conditioning_to_strength: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 1.0,
) -> CONDITIONING:
    """Blend two conditionings linearly; a shorter `from` is padded with zeros, a longer one cut."""
    source, source_options = _first_tokens(conditioning_from, "ConditioningAverage")
    source_pooled = source_options.get("pooled_output")
    share = conditioning_to_strength
    averaged = []
    for tokens, old in conditioning_to:
        other = source[:, : tokens.shape[1]]
        if other.shape[1] < tokens.shape[1]:
            padding = tokens.new_zeros((1, tokens.shape[1] - other.shape[1], tokens.shape[2]))
            other = torch.cat([other, padding], dim=1)
        options = dict(old)
        if source_pooled is not None:
            pooled = old.get("pooled_output", source_pooled)
            options["pooled_output"] = (
                source_pooled if pooled is None else pooled * share + source_pooled * (1.0 - share)
            )
        averaged.append([tokens * share + other * (1.0 - share), options])
    return averaged


@node(
    "ConditioningConcat",
    display_name="Conditioning (Concat)",
    category="model/conditioning/transform",
    facts=NodeFacts(items="alike"),
)
def conditioning_concat(
    context: NodeContext, *, conditioning_to: CONDITIONING, conditioning_from: CONDITIONING
) -> CONDITIONING:
    """Append the tokens of `from` to those of each entry of `to`."""
    source = _first_tokens(conditioning_from, "ConditioningConcat")[0]
    return [[torch.cat((tokens, source), dim=1), dict(options)] for tokens, options in conditioning_to]


@node("ConditioningSetArea", display_name="Conditioning (Set Area)", category="model/conditioning/transform")
def conditioning_set_area(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    width: Annotated[int, Int(min=64, max=MAX_SIDE_PX, step=8)] = 64,
    height: Annotated[int, Int(min=64, max=MAX_SIDE_PX, step=8)] = 64,
    x: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    y: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
) -> CONDITIONING:
    """Restrict conditioning to an area; sizes in pixels, stored in latent cells (8 px)."""
    area = (height // 8, width // 8, y // 8, x // 8)
    return with_options(conditioning, area=area, strength=strength, set_area_to_bounds=False)


@node(
    "ConditioningSetAreaPercentage",
    display_name="Conditioning (Set Area with Percentage)",
    category="model/conditioning/transform",
)
def conditioning_set_area_percentage(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    width: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 1.0,
    height: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 1.0,
    x: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 0,
    y: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 0,
    strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
) -> CONDITIONING:
    """Restrict conditioning to an area; sizes are fractions of the image.

    They become latent cells when the latent's size is known.
    """
    area = ("percentage", height, width, y, x)
    return with_options(conditioning, area=area, strength=strength, set_area_to_bounds=False)


@node(
    "ConditioningSetAreaPercentageVideo",
    display_name="Conditioning (Set Area with Percentage for Video)",
    category="model/conditioning/transform",
    python_module="comfy_extras.nodes_video_model",
)
def conditioning_set_area_percentage_video(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    width: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 1.0,
    height: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 1.0,
    temporal: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 1.0,
    x: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 0,
    y: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 0,
    z: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 0,
    strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
) -> CONDITIONING:
    """Restrict conditioning to a part of a video latent [B, C, T, h, w].

    `temporal` and `z` are fractions of its time.
    """
    area = ("percentage", temporal, height, width, z, y, x)
    return with_options(conditioning, area=area, strength=strength, set_area_to_bounds=False)


@node(
    "ConditioningSetAreaStrength",
    display_name="Conditioning (Set Area Strength)",
    category="model/conditioning/transform",
)
def conditioning_set_area_strength(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
) -> CONDITIONING:
    return with_options(conditioning, strength=strength)


@node("ConditioningSetMask", display_name="Conditioning (Set Mask)", category="model/conditioning/transform")
def conditioning_set_mask(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    mask: MASK,
    strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
    set_cond_area: Annotated[str, Choice(("default", "mask bounds"))],
) -> CONDITIONING:
    """Restrict conditioning to a mask. With `mask bounds` only the mask's bounding box goes through the network."""
    return with_mask(conditioning, mask, strength, set_cond_area)


@node(
    "ConditioningZeroOut",
    display_name="Conditioning Zero Out",
    category="model/conditioning/transform",
    facts=NodeFacts(items="alike"),
)
def conditioning_zero_out(context: NodeContext, *, conditioning: CONDITIONING) -> CONDITIONING:
    zeroed = []
    for tokens, old in conditioning:
        options = dict(old)
        for name in ("pooled_output", "conditioning_lyrics", "conditioning_scale"):
            if options.get(name) is not None:
                options[name] = torch.zeros_like(options[name])
        zeroed.append([torch.zeros_like(tokens), options])
    return zeroed


@node("ConditioningSetTimestepRange", category="model/conditioning/transform")
def conditioning_set_timestep_range(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    start: Annotated[float, Float(min=0.0, max=1.0, step=0.001)] = 0.0,
    end: Annotated[float, Float(min=0.0, max=1.0, step=0.001)] = 1.0,
) -> CONDITIONING:
    """Restrict conditioning to fractions `start` to `end` of the noise schedule (0 is pure noise)."""
    return with_options(conditioning, start_percent=start, end_percent=end)


@node(
    "CLIPTextEncodeControlnet",
    display_name="CLIP Text Encode (Controlnet)",
    category="model/conditioning",
    python_module="comfy_extras.nodes_cond",
    experimental=True,
)
def clip_text_encode_controlnet(
    context: NodeContext,
    *,
    clip: CLIP,
    conditioning: CONDITIONING,
    text: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
) -> CONDITIONING:
    """Set a separate prompt for the ControlNets of these entries."""
    tokens, pooled = clip.encode_from_tokens(clip.tokenize(text), return_pooled=True)
    return with_options(conditioning, cross_attn_controlnet=tokens, pooled_output_controlnet=pooled)


NODES = (
    conditioning_average,
    conditioning_combine,
    conditioning_concat,
    conditioning_set_area,
    conditioning_set_area_percentage,
    conditioning_set_area_percentage_video,
    conditioning_set_area_strength,
    conditioning_set_mask,
    conditioning_zero_out,
    conditioning_set_timestep_range,
    clip_text_encode_controlnet,
)
