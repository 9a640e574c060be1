"""The decoder of shapes of Hunyuan3D 2 (Tencent 2025, arXiv 2501.12202, section 3.1), of any width and depth.

Latents are sets of tokens `[B, C, N]`, unscaled. Decoded, they tell of any point in space how far inside a shape it
lies: above 0 inside, below outside. `B` batch, `N` tokens, `P` points, `D` width, `R` cells of a grid along each side.
Module names are those of the original checkpoints. Their encoder, which reads clouds of points, is not built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children

NUM_WAVES = 8  # frequencies of a coordinate
NORM_EPS = 1e-6
BOUND = 1.01  # the grid's sides reach from minus to plus
MARK = "geo_decoder.cross_attn_decoder.ln_1.bias"
POINT_BYTES = 16  # of working memory for a point, a channel and a byte of the dtype: its feed-forward layer's


@dataclass(frozen=True, slots=True)
class Hunyuan3dVaeConfig:
    """Configuration of the network."""

    width: int = 1024
    num_layers: int = 16
    latent_channels: int = 64
    head_width: int = 64

    @property
    def heads(self) -> int:
        return self.width // self.head_width


def hunyuan3d_vae_config(shapes: Shapes) -> Hunyuan3dVaeConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    width, latent_channels = shapes["post_kl.weight"]
    return Hunyuan3dVaeConfig(
        width=width,
        num_layers=count_children(shapes, "transformer.resblocks"),
        latent_channels=latent_channels,
        head_width=shapes["geo_decoder.cross_attn_decoder.attn.attention.q_norm.weight"][0],
    )


class HeadNorms(nn.Module):
    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.q_norm, self.k_norm = (nn.LayerNorm(head_width, eps=NORM_EPS) for _ in range(2))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Compute attention of heads [B, T, H, D / H] -> [B, T, D]."""
        q, k, v = (item.transpose(1, 2) for item in (self.q_norm(q), self.k_norm(k), v))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class SetAttention(nn.Module):
    """Attention among the tokens of a shape."""

    def __init__(self, config: Hunyuan3dVaeConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.c_qkv = Linear(config.width, 3 * config.width, bias=False)
        self.c_proj = Linear(config.width, config.width)
        self.attention = HeadNorms(config.head_width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.c_qkv(x).unflatten(-1, (self.heads, -1)).chunk(3, dim=-1)
        out: torch.Tensor = self.c_proj(self.attention.attend(q, k, v))
        return out


class PointAttention(nn.Module):
    """Attention of points to the tokens of a shape."""

    def __init__(self, config: Hunyuan3dVaeConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.c_q = Linear(config.width, config.width, bias=False)
        self.c_kv = Linear(config.width, 2 * config.width, bias=False)
        self.c_proj = Linear(config.width, config.width)
        self.attention = HeadNorms(config.head_width)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        q = self.c_q(x).unflatten(-1, (self.heads, -1))
        k, v = self.c_kv(tokens).unflatten(-1, (self.heads, -1)).chunk(2, dim=-1)
        out: torch.Tensor = self.c_proj(self.attention.attend(q, k, v))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Linear(width, 4 * width), Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.c_proj(functional.gelu(self.c_fc(x)))
        return out


class SetLayer(nn.Module):
    def __init__(self, config: Hunyuan3dVaeConfig) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(config.width, eps=NORM_EPS) for _ in range(2))
        self.attn, self.mlp = SetAttention(config), FeedForward(config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


class SetTransformer(nn.Module):
    def __init__(self, config: Hunyuan3dVaeConfig) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(SetLayer(config) for _ in range(config.num_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.resblocks:
            x = layer(x)
        return x


class PointLayer(nn.Module):
    def __init__(self, config: Hunyuan3dVaeConfig) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.ln_3 = (nn.LayerNorm(config.width, eps=NORM_EPS) for _ in range(3))
        self.attn, self.mlp = PointAttention(config), FeedForward(config.width)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x), self.ln_2(tokens))
        out: torch.Tensor = x + self.mlp(self.ln_3(x))
        return out


class PointDecoder(nn.Module):
    """Points [B, P, 3] and the tokens of a shape [B, N, D] -> how far inside they lie [B, P, 1]."""

    def __init__(self, config: Hunyuan3dVaeConfig) -> None:
        super().__init__()
        self.query_proj = Linear(3 * (1 + 2 * NUM_WAVES), config.width)
        self.cross_attn_decoder = PointLayer(config)
        self.ln_post = nn.LayerNorm(config.width)
        self.output_proj = Linear(config.width, 1)

    def forward(self, points: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.query_proj(with_waves(points))
        out: torch.Tensor = self.output_proj(self.ln_post(self.cross_attn_decoder(x, tokens)))
        return out


def with_waves(points: torch.Tensor) -> torch.Tensor:
    """Return points [B, P, 3] with sines and cosines of their coordinates behind them."""
    frequencies = 2.0 ** torch.arange(NUM_WAVES, dtype=torch.float32, device=points.device)
    angles = (points[..., None] * frequencies.to(points.dtype)).flatten(-2)
    return torch.cat([points, angles.sin(), angles.cos()], dim=-1)


def grid_points(resolution: int, device: torch.device | str) -> torch.Tensor:
    """Return the points [(R + 1) ** 3, 3] of a grid, x outermost. float32."""
    side = torch.linspace(-BOUND, BOUND, resolution + 1, dtype=torch.float32)
    return torch.cartesian_prod(side, side, side).to(device)


class Hunyuan3dVae(nn.Module):
    """The decoder of shapes."""

    latent_dim = 1
    is_of_shapes = True
    downscale_ratio = 1

    def __init__(self, config: Hunyuan3dVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.post_kl = Linear(config.latent_channels, config.width)
        self.transformer = SetTransformer(config)
        self.geo_decoder = PointDecoder(config)

    def decode(
        self,
        latents: torch.Tensor,
        *,
        octree_resolution: int = 256,
        num_chunks: int = 8000,
        on_chunk: Callable[[int, int], None] = lambda done, total: None,
    ) -> torch.Tensor:
        """Return the depths [B, x, z, y], float32, of grid points inside the shape, `octree_resolution` + 1 a side.

        `num_chunks` points are computed at once; `on_chunk(done, total)` is called behind each such number.
        """
        tokens = self.transformer(self.post_kl(latents.transpose(1, 2)))
        points = grid_points(octree_resolution, latents.device).to(latents.dtype)
        parts, done = [], 0
        for chunk in torch.split(points, num_chunks):
            parts.append(self.geo_decoder(chunk[None].expand(latents.shape[0], -1, -1), tokens))
            done += chunk.shape[0]
            on_chunk(done, points.shape[0])
        side = octree_resolution + 1
        return torch.cat(parts, dim=1).view(latents.shape[0], side, side, side).float().transpose(-2, -1)

    def decode_bytes(self, shape: tuple[int, ...], num_points: int, octree_resolution: int) -> int:
        """Return the bytes of working memory and byte of the dtype for latents of a shape [B, C, N]."""
        chunk = shape[0] * max(num_points, shape[2]) * self.config.width * POINT_BYTES
        return chunk + (octree_resolution + 1) ** 3 * (3 + 2 * shape[0])
