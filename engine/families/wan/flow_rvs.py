"""FlowRVS (2025): Wan that draws the mask of what a text names in a video from the video itself, without noise."""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.engine.families.wan.config import WanConfig


@dataclass(frozen=True, slots=True)
class FlowRvsConfig(WanConfig):
    """Configuration of FlowRVS, whose network is Wan from text."""
