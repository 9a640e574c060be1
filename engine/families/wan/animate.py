"""The transformer of Wan 2.2 Animate: a figure that moves as poses and faces of a video do.

`B` batch, `F` latent frames, `h w` latent cells, `T` tokens, `D` width, `P` images of faces.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.wan.config import HEAD_WIDTH, NORM_EPS, WanConfig, wan_config
from darkroom.engine.families.wan.motion_encoder import IMAGES_AT_ONCE, FaceEncoder, MotionEncoder
from darkroom.engine.families.wan.transformer import Inputs, VideoTokens, WanTransformer
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, RotaryHeads

FACES = "face_adapter.fuser_blocks.0.k_norm.weight"
POSES = "pose_patch_embedding.weight"
BLOCKS_PER_FACE = 5  # after the first of each group of blocks the tokens attend to faces


@dataclass(frozen=True, slots=True)
class WanAnimateConfig(WanConfig):
    """Configuration of Animate. `pose_channels` are those of the latent of poses."""

    pose_channels: int = 16


def wan_animate_config(shapes: Shapes) -> WanAnimateConfig:
    """Return the configuration of Animate with these tensors (names without prefix)."""
    return WanAnimateConfig(**asdict(wan_config(shapes)), pose_channels=shapes[POSES][1])


class FaceAttention(nn.Module):
    """Attention of each frame's tokens to the tokens of its face."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.linear1_kv, self.linear1_q, self.linear2 = (
            Linear(width, 2 * width),
            Linear(width, width),
            Linear(width, width),
        )
        self.q_norm, self.k_norm = RmsNorm(HEAD_WIDTH), RmsNorm(HEAD_WIDTH)
        self.adaptive_norm, self.rotary_heads = AdaptiveNorm(eps=NORM_EPS), RotaryHeads(token_dim=1)

    def forward(self, x: torch.Tensor, faces: torch.Tensor) -> torch.Tensor:
        """Return [B, T, D] for tokens [B, T, D] and faces [B, F, N, D]."""
        batch, frames = faces.shape[:2]
        q = self.linear1_q(self.adaptive_norm(x)).reshape(batch * frames, -1, self.heads, HEAD_WIDTH)
        k, v = self.linear1_kv(self.adaptive_norm(faces)).flatten(0, 1).chunk(2, dim=-1)
        heads = k.reshape(*k.shape[:2], self.heads, HEAD_WIDTH)
        q, k = self.rotary_heads([(q, self.q_norm)], [(heads, self.k_norm)], None)
        attended = optimized_attention(q.flatten(2), k.flatten(2), v, self.heads)
        out: torch.Tensor = self.linear2(attended.reshape(x.shape))
        return out


class WanAnimateTransformer(WanTransformer):
    """`pose_latents` [B, 16, f, h, w] are the latent of poses, `face_pixel_values` [B, 3, P, 512, 512] faces, -1..1."""

    def __init__(self, config: WanAnimateConfig) -> None:
        super().__init__(config)
        width = config.width
        self.pose_patch_embedding = nn.Conv3d(config.pose_channels, width, self.patch_size, stride=self.patch_size)
        self.motion_encoder = MotionEncoder()
        fusers = (FaceAttention(width) for _ in range(config.num_blocks // BLOCKS_PER_FACE))
        self.face_adapter = nn.ModuleDict({"fuser_blocks": nn.ModuleList(fusers)})
        self.face_encoder = FaceEncoder(width)

    def embedded(self, x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        cells = super().embedded(x, inputs)
        poses: torch.Tensor | None = inputs.get("pose_latents")
        if poses is None:
            return cells
        added = self.pose_patch_embedding(poses)[:, :, : cells.shape[2] - 1]
        first, last = 1, 1 + added.shape[2]  # the first frame is the reference image
        return torch.cat([cells[:, :, :first], cells[:, :, first:last] + added, cells[:, :, last:]], dim=2)

    def beside_blocks(self, tokens: VideoTokens, shared: dict[str, Any], inputs: Inputs) -> torch.Tensor | None:
        """Return the tokens of faces [B, F, N, D]; zeros for the reference image and behind the last face."""
        images: torch.Tensor | None = inputs.get("face_pixel_values")
        if images is None:
            return None
        flat = images.transpose(1, 2).flatten(0, 1)
        motions = torch.cat([self.motion_encoder(part) for part in torch.split(flat, IMAGES_AT_ONCE)])
        faces = self.face_encoder(motions.view(images.shape[0], images.shape[2], -1))
        frames = tokens.grid[0]
        return functional.pad(faces, (0, 0, 0, 0, 1, max(0, frames - 1 - faces.shape[1])))[:, :frames]

    def after_block(
        self, index: int, img: torch.Tensor, tokens: VideoTokens, memory: torch.Tensor | None
    ) -> torch.Tensor:
        if memory is None or index % BLOCKS_PER_FACE:
            return img
        fusers: Any = self.face_adapter["fuser_blocks"]
        out: torch.Tensor = img + fusers[index // BLOCKS_PER_FACE](img, memory)
        return out
