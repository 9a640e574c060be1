"""The decoder of TripoSplat (VAST AI Research 2026): points chosen level by level of an octree, and their Gaussians.

A network gives the shares of points in the eight children of each cell of an octree, by which a number of points is
distributed; another one gives 32 Gaussians around each point. `B` batch, `N` tokens of a latent, `P` points, `R` cells
of a level, `D` hidden size, `H` heads, `W` channels of a head. Module names are those of the original checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.triposplat.positions import point_sinusoids
from darkroom.engine.families.triposplat.transformer import LATENT_CHANNELS, NORM_EPS, HeadRmsNorm, SplatMlp
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children

MARK, OCTREE = "gs.base_offset_scale", "octree.out_proj.weight"
NUM_CHILDREN: Final = 8
NUM_LEVELS: Final = 8
GAUSSIANS_PER_POINT: Final = 32
LEVEL_FREQUENCIES, SLOWEST_LEVEL = 256, 1024
VALUES: Final = {"xyz": 3, "color": 3, "scaling": 3, "rotation": 4, "opacity": 1, "offset_scale": 1}
"""Outputs of the network for each Gaussian, in this order, with their number of values."""
OFFSET_SIZE: Final = 1.5
LEAST_SCALE: Final = 0.0009
SCALE_BIAS: Final = 0.004 + math.log(-math.expm1(-0.004))  # of which softplus makes 0.004
OPACITY_BIAS: Final = math.log(0.1 / 0.9)
ROTATION_RATE: Final = 0.1
LARGEST_SHARE: Final = 1.0 - 1e-12
# Numbers of working memory for each token of a latent and for each point, a hidden size (ComfyUI's).
NUMBERS_PER_TOKEN, NUMBERS_PER_POINT = 4, 10


@dataclass(frozen=True, slots=True)
class SplatVaeConfig:
    """Configuration of both networks."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_heads: int = 16
    num_octree_layers: int = 4
    num_layers: int = 16
    latent_channels: int = LATENT_CHANNELS


def splat_vae_config(shapes: Shapes) -> SplatVaeConfig:
    """Return the configuration of the networks with these tensors. Raises LookupError for a missing one."""
    return SplatVaeConfig(
        hidden_size=shapes["gs.input_layer.weight"][0],
        intermediate_size=shapes["gs.blocks.0.mlp.mlp.0.weight"][0],
        num_heads=shapes["gs.blocks.0.cross_attn.q_rms_norm.gamma"][0],
        num_octree_layers=count_children(shapes, "octree.blocks"),
        num_layers=count_children(shapes, "gs.blocks"),
        latent_channels=shapes["gs.blocks.0.cross_attn.to_kv.weight"][1],
    )


@dataclass(frozen=True, slots=True)
class Gaussians:
    """Gaussians with upright z axes, float32; `G` of them."""

    positions: torch.Tensor  # [B, G, 3], -0.5..0.5
    scales: torch.Tensor  # [B, G, 3], standard deviations along the axes
    rotations: torch.Tensor  # [B, G, 4], quaternions of any length, w first
    opacities: torch.Tensor  # [B, G, 1], 0..1
    colors: torch.Tensor  # [B, G, 3], the constant spherical harmonic


class PointAttention(nn.Module):
    """Attention of points to each other or, with `context_dim`, to the tokens of a latent."""

    def __init__(self, config: SplatVaeConfig, context_dim: int | None = None) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_heads
        self.num_heads = heads
        if context_dim is None:
            self.to_qkv = Linear(width, 3 * width)
        else:
            self.to_q, self.to_kv = Linear(width, width), Linear(context_dim, 2 * width)
        self.q_rms_norm, self.k_rms_norm = (HeadRmsNorm(heads, width // heads) for _ in range(2))
        self.to_out = Linear(width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        """Return [B, P, D]."""
        if context is None:
            q, k, v = self.to_qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        else:
            q = self.to_q(x).unflatten(-1, (self.num_heads, -1))
            k, v = self.to_kv(context).unflatten(-1, (2, self.num_heads, -1)).unbind(2)
        q, k, v = (item.transpose(1, 2) for item in (self.q_rms_norm(q), self.k_rms_norm(k), v))
        out: torch.Tensor = self.to_out(optimized_attention(q, k, v, self.num_heads, skip_reshape=True))
        return out


class OctreeBlock(nn.Module):
    def __init__(self, config: SplatVaeConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.cross_attn = PointAttention(config, config.latent_channels)
        self.mlp = SplatMlp(width, config.intermediate_size, width)

    def forward(self, x: torch.Tensor, modulation: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Return [B, R, D]. `modulation` is [B, 6 D]."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation[:, None].chunk(6, dim=-1)
        normed = torch.addcmul(shift, _layer_norm(x, NORM_EPS), 1 + scale)
        x = torch.addcmul(x, self.cross_attn(normed, latent), gate)
        normed = torch.addcmul(mlp_shift, _layer_norm(x, NORM_EPS), 1 + mlp_scale)
        return torch.addcmul(x, self.mlp(normed), mlp_gate)


class LevelEmbedder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(LEVEL_FREQUENCIES, width), nn.SiLU(), Linear(width, width))

    def forward(self, cells: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return [B, D] of the numbers of a level's cells a side [B]."""
        half = LEVEL_FREQUENCIES // 2
        steps = torch.arange(half, dtype=torch.float32, device=cells.device)
        angles = cells.float()[:, None] * torch.exp(-math.log(SLOWEST_LEVEL) * steps / half) * 2 * math.pi
        out: torch.Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype))
        return out


class Octree(nn.Module):
    """The network that gives the shares of points in the children of each cell."""

    def __init__(self, config: SplatVaeConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.width = width
        self.input_layer, self.in_proj = Linear(width, width), Linear(3, width)
        self.l_embedder = LevelEmbedder(width)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(width, 6 * width))
        self.blocks = nn.ModuleList(OctreeBlock(config) for _ in range(config.num_octree_layers))
        self.out_proj = Linear(width, NUM_CHILDREN)

    def forward(self, centres: torch.Tensor, num_cells: int, latent: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, R, 8] of the children of cells with these centres [B, R, 3], 0..1.

        `num_cells` is the number of the children's cells a side.
        """
        dtype = latent.dtype
        x = self.in_proj(centres.to(dtype)) + point_sinusoids(centres, self.width).to(dtype)
        x = self.input_layer(x)
        level = torch.full((len(latent),), num_cells, device=latent.device)
        modulation = self.adaLN_modulation(self.l_embedder(level, dtype))
        for block in self.blocks:
            x = block(x, modulation, latent)
        out: torch.Tensor = self.out_proj(_layer_norm(x.float()).to(dtype))
        return out

    def points(self, latent: torch.Tensor, num_points: int, num_levels: int, draw: torch.Generator) -> torch.Tensor:
        """Return points [B, P, 3], float32, 0..1, of latents [B, N, C], drawn on the CPU."""
        batch, device = len(latent), latent.device
        bits = torch.arange(NUM_CHILDREN, device=device)
        children = torch.stack([bits & 1, bits >> 1 & 1, bits >> 2 & 1], dim=-1)  # [8, 3]
        cells = torch.zeros(batch, 1, 3, dtype=torch.long, device=device)
        counts = torch.full((batch, 1), num_points, dtype=torch.long, device=device)
        for level in range(1, num_levels + 1):
            logits = self((cells.float() + 0.5) / (1 << level - 1), 1 << level, latent)
            found = distributed(torch.softmax(logits, dim=-1), counts, draw).flatten(1)  # [B, 8 R]
            finer = (cells[:, :, None] * 2 + children).flatten(1, 2)
            is_used = found > 0
            slots = is_used.cumsum(dim=1)[is_used] - 1
            items = torch.arange(batch, device=device)[:, None].expand_as(is_used)[is_used]
            num_used = int(is_used.sum(dim=1).max())
            cells, counts = finer.new_zeros(batch, num_used, 3), found.new_zeros(batch, num_used)
            cells[items, slots], counts[items, slots] = finer[is_used], found[is_used]
        corners = torch.repeat_interleave(cells.flatten(0, 1), counts.flatten(), dim=0).view(batch, num_points, 3)
        inside = torch.rand(corners.shape, dtype=torch.float32, generator=draw).to(device)
        return (corners.float() + inside) / (1 << num_levels)


def distributed(shares: torch.Tensor, counts: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Return how many of the `counts` [B, R] of cells fall in each child [B, R, 8], by shares [B, R, 8].

    Of every cell evenly spaced places, behind one drawn at random, are looked up in the sum of its shares (systematic
    resampling). Memory grows with the number of points.
    """
    rows = shares.flatten(0, 1).float().clamp_min(0)
    totals = rows.sum(dim=1, keepdim=True)
    rows = torch.where(totals == 0, rows.new_tensor(1.0 / NUM_CHILDREN), rows / totals.clamp_min(1))
    limits = rows.cumsum(dim=1).clamp(max=LARGEST_SHARE)  # [B R, 8]
    of_row = counts.flatten()
    first = torch.rand(len(rows), 1, generator=draw).to(rows.device)[:, 0]
    row = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), of_row)  # [points]
    rank = torch.arange(len(row), device=rows.device) - (of_row.cumsum(0) - of_row)[row]
    places = ((first[row] + rank) / of_row[row]).clamp(max=LARGEST_SHARE)
    child = (limits[row] < places[:, None]).sum(dim=1).clamp_max(NUM_CHILDREN - 1)
    found = torch.bincount(row * NUM_CHILDREN + child, minlength=len(rows) * NUM_CHILDREN)
    return found.view(*counts.shape, NUM_CHILDREN)


class GaussianBlock(nn.Module):
    def __init__(self, config: SplatVaeConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm2 = nn.LayerNorm(width, eps=NORM_EPS)
        self.self_attn, self.cross_attn = PointAttention(config), PointAttention(config, config.latent_channels)
        self.mlp = SplatMlp(width, config.intermediate_size, width)

    def forward(self, x: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Return [B, P, D]."""
        x = x + self.self_attn(_layer_norm(x, NORM_EPS))
        x = x + self.cross_attn(self.norm2(x), latent)
        out: torch.Tensor = x + self.mlp(_layer_norm(x, NORM_EPS))
        return out


class GaussianNetwork(nn.Module):
    """The network that gives 32 Gaussians around each point."""

    def __init__(self, config: SplatVaeConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.width = width
        self.input_layer, self.in_proj = Linear(width, width), Linear(3, width)
        self.blocks = nn.ModuleList(GaussianBlock(config) for _ in range(config.num_layers))
        self.out_proj = Linear(width, GAUSSIANS_PER_POINT * sum(VALUES.values()))
        self.points_offset_perturbation = nn.Parameter(torch.empty(GAUSSIANS_PER_POINT, 3))
        self.base_offset_scale = nn.Parameter(torch.empty(()))

    def forward(self, points: torch.Tensor, latent: torch.Tensor) -> Gaussians:
        """Return the Gaussians of points [B, P, 3], 0..1, float32, around the origin."""
        dtype = latent.dtype
        x = self.in_proj(points.to(dtype)) + point_sinusoids(points, self.width).to(dtype)
        x = self.input_layer(x)
        for block in self.blocks:
            x = block(x, latent)
        values = self.out_proj(_layer_norm(x.float()).to(dtype))
        parts = torch.split(values, [GAUSSIANS_PER_POINT * size for size in VALUES.values()], dim=-1)
        shaped = (
            part.view(*part.shape[:2], GAUSSIANS_PER_POINT, size)
            for part, size in zip(parts, VALUES.values(), strict=True)
        )
        xyz, color, scaling, rotation, opacity, offset_scale = shaped  # [B, P, 32, size]
        reach = functional.softplus(offset_scale + self.base_offset_scale.to(dtype))
        offsets = torch.tanh(xyz + self.points_offset_perturbation.to(dtype)) * 0.5 * OFFSET_SIZE * reach
        positions = (offsets + points[:, :, None]).flatten(1, 2).float() - 0.5
        scales = torch.sqrt(torch.square(functional.softplus(scaling + SCALE_BIAS)) + LEAST_SCALE**2)
        upright = torch.tensor([1.0, 0.0, 0.0, 0.0], device=x.device)
        return Gaussians(
            positions=positions,
            scales=scales.flatten(1, 2).float(),
            rotations=(rotation * ROTATION_RATE + upright).flatten(1, 2).float(),
            opacities=torch.sigmoid(opacity + OPACITY_BIAS).flatten(1, 2).float(),
            colors=color.flatten(1, 2).float(),
        )


class SplatVaeNetwork(nn.Module):
    """`decode_splat(latent [B, N, C], num_gaussians, num_levels, generator)` -> Gaussians."""

    is_of_splats = True
    latent_dim = 1
    downscale_ratio = 1

    def __init__(self, config: SplatVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.latent_channels
        self.octree, self.gs = Octree(config), GaussianNetwork(config)

    def splat_bytes(self, num_tokens: int, num_gaussians: int) -> int:
        """Return the working memory for decoding latents of so many tokens, for each byte of the dtype."""
        num_points = num_gaussians // GAUSSIANS_PER_POINT
        return (num_tokens * NUMBERS_PER_TOKEN + num_points * NUMBERS_PER_POINT) * self.config.hidden_size

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return 0: nothing is encoded."""
        return 0

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for one latent [B, N, C] with as many Gaussians as its tokens have points."""
        return self.splat_bytes(shape[1], shape[1] * GAUSSIANS_PER_POINT)

    def decode_splat(
        self, latent: torch.Tensor, num_gaussians: int, num_levels: int, draw: torch.Generator
    ) -> Gaussians:
        """Return the Gaussians of latents, 32 for each of the points, which a generator of the CPU draws."""
        points = self.octree.points(latent, max(1, num_gaussians // GAUSSIANS_PER_POINT), num_levels, draw)
        found: Gaussians = self.gs(points, latent)
        return found


def _layer_norm(x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=eps)
