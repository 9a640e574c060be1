"""Guidance of videos with audio: by blocks without self-attention, by streams without each other, by two scales."""

from __future__ import annotations

import math
import re
from typing import Annotated

from darkroom.engine.families.ltx2.guidance import (
    WITHOUT_STREAMS,
    StreamsGuider,
    away_from,
    noise_range,
    with_network_options,
)
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CONDITIONING, GUIDER, MODEL
from darkroom.engine.nodes.widgets import Float, Text

MODULE = "comfy_extras.nodes_lt"
CATEGORY = "advanced/guidance"

Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]
Scale = Annotated[float, Float(min=0.0, max=100.0, step=0.1, round=0.01)]
ADVANCED = ("start_percent", "end_percent")


@node(
    "LTXVSpatioTemporalGuidance",
    display_name="LTXV Spatio-Temporal Guidance (STG)",
    category=CATEGORY,
    python_module=MODULE,
    advanced=ADVANCED,
)
def ltxv_spatio_temporal_guidance(
    context: NodeContext,
    *,
    model: MODEL,
    scale: Annotated[float, Float(min=0.0, max=100.0, step=0.01, round=0.01)] = 1.0,
    blocks: Annotated[str, Text(multiline=False)] = "29",
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
) -> MODEL:
    """Guide away from the network whose tokens attend to themselves alone in some blocks (arXiv 2411.18664)."""
    numbers = frozenset(int(number) for number in re.findall(r"\d{1,9}", blocks))
    patched = model.clone()
    if not numbers:
        return patched
    levels = noise_range(model.get_model_object("model_sampling"), start_percent, end_percent)
    weakened = with_network_options({"stg_self_attn_blocks": numbers})
    patched.set_model_sampler_post_cfg_function(away_from(weakened, scale, levels))
    return patched


@node(
    "LTXVModalityGuidance",
    display_name="LTXV Modality Guidance (A/V coupling)",
    category=CATEGORY,
    python_module=MODULE,
    advanced=ADVANCED,
)
def ltxv_modality_guidance(
    context: NodeContext,
    *,
    model: MODEL,
    modality_scale: Annotated[float, Float(min=1.0, max=100.0, step=0.1, round=0.01)] = 3.0,
    start_percent: Percent = 0.0,
    end_percent: Percent = 1.0,
) -> MODEL:
    """Guide away from the network whose video and audio do not attend to each other, so that they fit better."""
    patched = model.clone()
    if math.isclose(modality_scale, 1.0):
        return patched
    levels = noise_range(model.get_model_object("model_sampling"), start_percent, end_percent)
    weakened = with_network_options(WITHOUT_STREAMS)
    patched.set_model_sampler_post_cfg_function(away_from(weakened, modality_scale - 1.0, levels))
    return patched


@node(
    "LTXVDualCFGGuider",
    display_name="LTXV Dual CFG Guider",
    category="model/sampling/guiders",
    python_module=MODULE,
)
def ltxv_dual_cfg_guider(
    context: NodeContext,
    *,
    model: MODEL,
    positive: CONDITIONING,
    negative: CONDITIONING,
    video_cfg: Scale = 3.0,
    audio_cfg: Scale = 7.0,
) -> GUIDER:
    """Guide a video and its audio by scales of their own."""
    guider = StreamsGuider(model)
    guider.set_conds(positive, negative)
    guider.set_cfg(video_cfg, audio_cfg)
    return guider


NODES = (ltxv_spatio_temporal_guidance, ltxv_modality_guidance, ltxv_dual_cfg_guider)
