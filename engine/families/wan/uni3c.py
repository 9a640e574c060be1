"""Uni3C (Cao et al. 2025, arXiv 2504.14899): a control of Wan that follows the camera of a rendered video.

Blocks of its own see the noisy latent beside the render's, and add to the tokens behind the first blocks of Wan. `B`
batch, `C` channels, `F` latent frames, `h w` latent cells, `T` tokens, `D` hidden size, `V` that of Wan.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.base import Network, Shapes
from darkroom.engine.families.layouts import names_behind
from darkroom.engine.families.wan.blocks import Float32Conv3d
from darkroom.engine.families.wan.transformer import video_places
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH, tokens_of
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, RotaryHeads

FIRST = "controlnet_patch_embedding.weight"
HEADS = 16
ADAPTED_EPS = 1e-5
# Names of attention in files of the diffusers library -> those of the network.
DIFFUSERS_NAMES = {".self_attn.to_q.": ".self_attn.q.", ".self_attn.to_k.": ".self_attn.k.",
                   ".self_attn.to_v.": ".self_attn.v.", ".self_attn.to_out.0.": ".self_attn.o."}  # fmt: skip
UNREAD = "controlnet_mask_embedding."  # of masks and rays of a camera, which ComfyUI 0.33.0 does not read either


@dataclass(frozen=True, slots=True)
class Uni3cConfig:
    """Configuration of Uni3C. `embedded_width` is the width of embedded patches, `model_width` that of Wan."""

    width: int
    num_blocks: int
    inner_width: int
    in_channels: int
    embedded_width: int
    model_width: int

    @property
    def axes(self) -> tuple[int, int, int]:
        """Channels of a head that rotate by frame, row and column."""
        head = self.width // HEADS
        return head - 4 * (head // 6), 2 * (head // 6), 2 * (head // 6)


def uni3c_config(shapes: Shapes) -> Uni3cConfig:
    """Return the configuration of Uni3C with these tensors (names of the network)."""
    embedded, channels = shapes[FIRST][:2]
    return Uni3cConfig(
        width=shapes["proj_in.weight"][0] if "proj_in.weight" in shapes else embedded,
        num_blocks=count_children(shapes, "proj_out"),
        inner_width=shapes["controlnet_blocks.0.ffn.0.bias"][0],
        in_channels=channels,
        embedded_width=embedded,
        model_width=shapes["proj_out.0.weight"][0],
    )


def _layout(shapes: Shapes) -> Names | None:
    """Return the names of Uni3C's weights in a file, None for another one."""
    if FIRST not in shapes:
        return None
    names: dict[str, str] = {}
    for name in names_behind(shapes, ""):
        own = name
        for theirs, ours in DIFFUSERS_NAMES.items():
            own = own.replace(theirs, ours)
        if not own.startswith(UNREAD):
            names[own] = name
    return names


class TimedNorm(nn.Module):
    """A norm whose shift and scale the time makes, and the gate of what follows it."""

    def __init__(self, time_width: int, width: int) -> None:
        super().__init__()
        self.linear = Linear(time_width, 3 * width)
        self.norm = nn.LayerNorm(width, eps=ADAPTED_EPS)
        self.adaptive_norm = AdaptiveNorm(eps=ADAPTED_EPS)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens [B, T, D] and the gate [B, 1, D] for the time [B, V]."""
        shift, scale, gate = self.linear(functional.silu(time))[:, None].chunk(3, dim=-1)
        return self.adaptive_norm(x, scale, shift, self.norm), gate


class ControlAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (Linear(width, width) for _ in range(4))
        self.norm_q, self.norm_k = RmsNorm(width), RmsNorm(width)
        self.rotary_heads = RotaryHeads(token_dim=1, num_heads=HEADS)

    def forward(self, x: torch.Tensor, pe: torch.Tensor) -> torch.Tensor:
        q, k = self.rotary_heads([(self.q(x), self.norm_q)], [(self.k(x), self.norm_k)], pe)
        out: torch.Tensor = self.o(optimized_attention(q.flatten(2), k.flatten(2), self.v(x), HEADS))
        return out


class ControlBlock(nn.Module):
    def __init__(self, config: Uni3cConfig) -> None:
        super().__init__()
        width, inner = config.width, config.inner_width
        self.norm1, self.norm2 = (TimedNorm(config.model_width, width) for _ in range(2))
        self.self_attn = ControlAttention(width)
        self.ffn = nn.Sequential(Linear(width, inner), Gelu("tanh"), Linear(inner, width))
        self.residual = GatedResidual()

    def forward(self, x: torch.Tensor, time: torch.Tensor, pe: torch.Tensor) -> torch.Tensor:
        """Return [B, T, D]. `time` [B, V] is Wan's embedded time."""
        normed, gate = self.norm1(x, time)
        x = self.residual(x, self.self_attn(normed, pe), gate)
        normed, gate = self.norm2(x, time)
        out: torch.Tensor = self.residual(x, self.ffn(normed), gate)
        return out


class Uni3c(nn.Module):
    """The control. Its blocks are called one by one (`engine/families/wan/nodes/camera_control.py`)."""

    def __init__(self, config: Uni3cConfig) -> None:
        super().__init__()
        self.config = config
        kernel = (1, PATCH, PATCH)
        self.controlnet_patch_embedding = Float32Conv3d(
            config.in_channels, config.embedded_width, kernel, stride=kernel
        )
        self.proj_in: nn.Module = nn.Identity()
        if config.embedded_width != config.width:
            self.proj_in = Linear(config.embedded_width, config.width)
        self.controlnet_blocks = nn.ModuleList(ControlBlock(config) for _ in range(config.num_blocks))
        self.proj_out = nn.ModuleList(Linear(config.width, config.model_width) for _ in range(config.num_blocks))

    def embedded(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens [B, T, D] of latents beside each other [B, C, F, h, w], and their rotations."""
        cells: torch.Tensor = self.controlnet_patch_embedding(x)
        places = video_places(*cells.shape[2:], device=x.device)
        pe = rotations(places, self.config.axes).transpose(1, 2)
        return self.proj_in(tokens_of(cells)), pe

    def added(
        self, index: int, x: torch.Tensor, time: torch.Tensor, pe: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens [B, T, D] behind a block, and what is added to Wan's tokens [B, T, V]."""
        x = self.controlnet_blocks[index](x, time, pe)
        return x, self.proj_out[index](x)


UNI3C = Network(
    layouts=(_layout,), in_checkpoint=(), configure=uni3c_config, build=Uni3c,
    float32_ends=(".controlnet_patch_embedding.weight", ".controlnet_patch_embedding.bias"),
)  # fmt: skip
