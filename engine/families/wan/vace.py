"""Transformers of Wan that follow a control: videos and masks (VACE, Jiang et al. 2025, arXiv 2503.07598), or a camera.

VACE has blocks of its own for the control, whose outputs are added behind some blocks of the network. Cameras are
given as the rays of every pixel. `B` batch, `C` channels, `F` latent frames, `h w` latent cells, `H W` pixels, `T`
tokens, `D` width.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.wan.blocks import Float32Conv3d, WanBlock
from darkroom.engine.families.wan.config import WanConfig, wan_config
from darkroom.engine.families.wan.transformer import Inputs, VideoTokens, WanTransformer
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.patches import PATCH, tokens_of
from darkroom.engine.layers.shapes import Shapes, count_children

CONTROLS = "vace_patch_embedding.weight"
CAMERA = "control_adapter.conv.weight"
CELL_PX = 8


@dataclass(frozen=True, slots=True)
class WanVaceConfig(WanConfig):
    """Configuration of VACE. `num_control_blocks` are spread evenly over the others."""

    num_control_blocks: int = 1
    control_channels: int = 96


@dataclass(frozen=True, slots=True)
class WanCameraConfig(WanConfig):
    """Configuration of a network that follows a camera. `camera_channels` are those of four frames' rays."""

    camera_channels: int = 24


def wan_vace_config(shapes: Shapes) -> WanVaceConfig:
    """Return the configuration of VACE with these tensors (names without prefix)."""
    return WanVaceConfig(
        **asdict(wan_config(shapes)),
        num_control_blocks=count_children(shapes, "vace_blocks"),
        control_channels=shapes[CONTROLS][1],
    )


def wan_camera_config(shapes: Shapes) -> WanCameraConfig:
    """Return the configuration of a network that follows a camera with these tensors (names without prefix)."""
    return WanCameraConfig(**asdict(wan_config(shapes)), camera_channels=shapes[CAMERA][1] // CELL_PX**2)


class ControlBlock(WanBlock):
    """A block of the control's tokens, with a layer for what is added to the video's."""

    def __init__(self, config: WanVaceConfig, *, is_first: bool) -> None:
        super().__init__(config)
        self.before_proj = Linear(config.width, config.width) if is_first else None
        self.after_proj = Linear(config.width, config.width)


class WanVaceTransformer(WanTransformer):
    """VACE. `vace_context` [B, N, C, F, h, w] are N controls, `vace_strength` their strengths."""

    def __init__(self, config: WanVaceConfig) -> None:
        super().__init__(config)
        count = config.num_control_blocks
        self.every = config.num_blocks // count
        self.vace_blocks = nn.ModuleList(ControlBlock(config, is_first=index == 0) for index in range(count))
        self.vace_patch_embedding = Float32Conv3d(
            config.control_channels, config.width, self.patch_size, stride=self.patch_size
        )

    def beside_blocks(self, tokens: VideoTokens, shared: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        controls = inputs["vace_context"].unbind(1)
        return {
            "controls": [tokens_of(self.vace_patch_embedding(item)) for item in controls],
            "strengths": inputs["vace_strength"],
            "shared": shared,
        }

    def after_block(self, index: int, img: torch.Tensor, tokens: VideoTokens, memory: dict[str, Any]) -> torch.Tensor:
        number, rest = divmod(index, self.every)
        if rest or number >= len(self.vace_blocks):
            return img
        block: Any = self.vace_blocks[number]
        shared, controls = memory["shared"], memory["controls"]
        for place, strength in enumerate(memory["strengths"]):
            control = controls[place]
            if block.before_proj is not None:
                control = block.before_proj(control) + tokens.img
            control = block(control, shared["txt"], shared["vec"], shared["pe"], shared["transformer_options"])
            controls[place] = control
            img = img + block.after_proj(control) * strength
        return img


class CameraResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv2(functional.relu(self.conv1(x)))
        return out + x


class CameraAdapter(nn.Module):
    """Rays of pixels [B, C, F, H, W] -> what is added to the patches [B, D, F, rows, columns]."""

    def __init__(self, config: WanCameraConfig) -> None:
        super().__init__()
        self.conv = Conv2d(config.camera_channels * CELL_PX**2, config.width, PATCH, stride=PATCH)
        self.residual_blocks = nn.Sequential(CameraResidualBlock(config.width))

    def forward(self, rays: torch.Tensor) -> torch.Tensor:
        frames = functional.pixel_unshuffle(rays.transpose(1, 2).flatten(0, 1), CELL_PX)
        seen: torch.Tensor = self.residual_blocks(self.conv(frames))
        return seen.view(rays.shape[0], -1, *seen.shape[1:]).transpose(1, 2)


class WanCameraTransformer(WanTransformer):
    """`camera_conditions` [B, 24, F, H, W] are the rays of a camera, those of four frames beside each other."""

    def __init__(self, config: WanCameraConfig) -> None:
        super().__init__(config)
        self.control_adapter = CameraAdapter(config)

    def embedded(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        cells = super().embedded(x, inputs)
        rays: torch.Tensor | None = inputs.get("camera_conditions")
        return cells if rays is None else cells + self.control_adapter(rays).to(cells)
