"""The memory of tracked objects: how masks are remembered, and how a frame is read with what is remembered.

After Ravi et al., "SAM 2: Segment Anything in Images and Videos" (arXiv 2408.00714); objects are
remembered in groups. `G` groups of `M` objects, `S` cells of a frame, `R` remembered tokens, `D` hidden size.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.sam3.layers import HEAD_SIZE, CellNorm, smoothed
from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.rotary import rotated

MASK_CHANNELS = (16, 64, 256, 1024)
MASK_CELL_PX = 16  # of a mask, in a cell
FUSER_LAYERS, FUSER_KERNEL = 2, 7
POSITION_SHARE = 0.1


class MemoryLayer(nn.Module):
    """Attention of a frame to itself and to what is remembered, whose keys are of masks and of frames together."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        for attended in ("self_attn", "cross_attn"):
            for part in ("q", "k", "v", "out"):
                self.add_module(f"{attended}_{part}_proj", Linear(hidden_size, hidden_size))
        self.image_cross_attn_q_proj = Linear(hidden_size, hidden_size)
        self.image_cross_attn_k_proj = Linear(hidden_size, hidden_size)
        self.linear1 = Linear(hidden_size, intermediate_size)
        self.linear2 = Linear(intermediate_size, hidden_size)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(hidden_size) for _ in range(3))
        self.num_heads = hidden_size // HEAD_SIZE

    def forward(
        self, frame: torch.Tensor, x: torch.Tensor, remembered: Remembered, turns: torch.Tensor
    ) -> torch.Tensor:
        """Return `x` [G, S, D]. `frame` is the encoded frame itself."""
        normed = self.norm1(x)
        q, k = (self._turned(self._part(f"self_attn_{part}_proj", normed), turns) for part in ("q", "k"))
        x = x + self._attended("self_attn", q, k, normed)
        q = self.image_cross_attn_q_proj(frame) + self._part("cross_attn_q_proj", self.norm2(x))
        k = self._part("cross_attn_k_proj", remembered.tokens)
        k = k + self.image_cross_attn_k_proj(remembered.frames) + remembered.positions
        x = x + self._attended("cross_attn", self._turned(q, turns), self._turned(k, turns), remembered.tokens)
        out: torch.Tensor = x + self.linear2(functional.gelu(self.linear1(self.norm3(x))))
        return out

    def _part(self, name: str, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.get_submodule(name)(x)
        return out

    def _attended(self, name: str, q: torch.Tensor, k: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        v = self._part(f"{name}_v_proj", values)
        return self._part(f"{name}_out_proj", attention(q, k, v, self.num_heads))

    def _turned(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Rotate the cells of all frames in tokens [G, R, D]; what is behind the last whole frame stays."""
        num_cells = turns.shape[2]
        num_frames = x.shape[1] // num_cells
        cells, rest = x[:, : num_frames * num_cells], x[:, num_frames * num_cells :]
        heads = cells.reshape(x.shape[0] * num_frames, num_cells, self.num_heads, HEAD_SIZE).transpose(1, 2)
        turned = rotated(heads, turns).transpose(1, 2).reshape(cells.shape)
        return torch.cat((turned, rest), dim=1)


class Remembered:
    """Tokens [G, R, D] of masks and objects, the frames they were seen in, and positions, both [G or 1, R, D]."""

    def __init__(self, tokens: torch.Tensor, frames: torch.Tensor, positions: torch.Tensor) -> None:
        self.tokens, self.frames, self.positions = tokens, frames, positions


class MemoryAttention(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MemoryLayer(hidden_size, intermediate_size) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)

    def forward(
        self, frame: torch.Tensor, positions: torch.Tensor, remembered: Remembered, turns: torch.Tensor
    ) -> torch.Tensor:
        """Return the tokens [G, S, D] of a frame [1, S, D] as they are for each group."""
        x = (frame + POSITION_SHARE * positions).expand(len(remembered.tokens), -1, -1)
        for layer in self.layers:
            x = layer(frame, x, remembered, turns)
        out: torch.Tensor = self.norm(x)
        return out


class MaskDownsampler(nn.Module):
    """Masks [G, C, 16 h, 16 w] -> cells [G, D, h, w]."""

    def __init__(self, hidden_size: int, in_channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for out_channels in MASK_CHANNELS:
            layers += [Conv2d(channels, out_channels, 3, stride=2, padding=1), CellNorm(out_channels), nn.GELU()]
            channels = out_channels
        self.encoder = nn.Sequential(*layers, Conv2d(channels, hidden_size, 1))

    def forward(self, masks: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.encoder(masks)
        return out


class FuserLayer(nn.Module):
    """ConvNeXt's block (Liu et al. 2022, arXiv 2201.03545)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dwconv = Conv2d(hidden_size, hidden_size, FUSER_KERNEL, padding=FUSER_KERNEL // 2, groups=hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.pwconv1 = Linear(hidden_size, 4 * hidden_size)
        self.pwconv2 = Linear(4 * hidden_size, hidden_size)
        self.gamma = nn.Parameter(torch.empty(hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        inner = self.pwconv2(functional.gelu(self.pwconv1(inner))) * self.gamma.to(x)
        out: torch.Tensor = x + inner.permute(0, 3, 1, 2)
        return out


class Fuser(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(FuserLayer(hidden_size) for _ in range(FUSER_LAYERS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class MemoryEncoder(nn.Module):
    """Encoder of a frame and of the masks in it, as they are remembered."""

    def __init__(self, hidden_size: int, in_channels: int) -> None:
        super().__init__()
        self.mask_downsampler = MaskDownsampler(hidden_size, in_channels)
        self.pix_feat_proj = Conv2d(hidden_size, hidden_size, 1)
        self.fuser = Fuser(hidden_size)

    def forward(self, frame: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """Return cells [G, D, h, w] of a frame [1, D, h, w] and of masks [G, C, H, W] of any size."""
        sides = (MASK_CELL_PX * frame.shape[2], MASK_CELL_PX * frame.shape[3])
        if tuple(masks.shape[2:]) != sides:
            masks = smoothed(masks, sides)
        out: torch.Tensor = self.fuser(self.pix_feat_proj(frame) + self.mask_downsampler(masks.to(frame.dtype)))
        return out
