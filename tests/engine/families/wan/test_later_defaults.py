"""The cost of Wan-Animate 2 beside the arithmetic of its network, counted at full size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from darkroom.engine.families import registry
from darkroom.engine.families.wan.animate2 import WanAnimate2Config, WanAnimate2Transformer

FULL = WanAnimate2Config(width=5120, num_blocks=40, inner_width=13824, in_channels=36, image_dim=1280)


def work_of_blocks(num_blocks: int, num_frames: int) -> float:
    """Return the operations of one pass of so many blocks over a video of 832x480, in 10^12."""
    frames, cells = (num_frames - 1) // 4 + 1, (60, 104)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        WanAnimate2Transformer(replace(FULL, num_blocks=num_blocks))(
            torch.empty(1, 36, frames + 1, *cells), torch.empty(1), torch.empty(1, 256, 4096),
            clip_fea=torch.empty(1, 257, 1280), pose_latents=torch.empty(1, 16, frames, *cells),
        )  # fmt: skip
    return float(counter.get_total_flops()) / 1e12


def work_of(num_frames: int) -> float:
    """Return the operations of one pass of the network, all of whose blocks do the same."""
    one, two = (work_of_blocks(count, num_frames) for count in (1, 2))
    return one + (FULL.num_blocks - 1) * (two - one)


def test_the_work_and_the_weights_are_those_of_the_network() -> None:
    default = registry.family_named("wan").variant_defaults["animate2"]
    with torch.device("meta"):
        network = WanAnimate2Transformer(FULL)
    assert sum(item.numel() for item in network.parameters()) / 1e9 == pytest.approx(default.billions, rel=0.01)
    assert default.frames is not None
    whole, short = work_of(default.frames), work_of(33)
    assert whole == pytest.approx(default.tflop, rel=0.02)
    shorter = ((33 - 1) // 4 + 1) / ((default.frames - 1) // 4 + 1)
    estimated = whole * (default.attention * shorter**2 + (1 - default.attention) * shorter)
    assert estimated == pytest.approx(short, rel=0.1)
