"""The transformers of TRELLIS 2 (Microsoft 2025, https://github.com/microsoft/TRELLIS.2) and of Pixal3D, of any size.

One file holds up to four networks of the same kind: of a coarse structure on a dense grid, of shapes at two
resolutions and of textures on the occupied cells of a grid. Each attends to its own tokens, then to those of an image.
Those of Pixal3D add features of the image that each cell is projected onto.

`B` batch, `N` cells, `T` tokens of the image, `D` hidden size, `H` heads, `W` channels of a head, `P` pairs of them,
`S` cells a side of the dense grid. Module names are those of the checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.call_options import CallOptions
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    Gelu,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
)
from darkroom.engine.layers.unet_layers import timestep_embedding

NORM_EPS = 1e-6
FREQUENCY_DIM = 256  # of the sinusoids of time
THETA = 10000.0
NUM_AXES = 3
GRID_SIDE = 16  # cells of the structure
STRUCTURE_CHANNELS = 8
MARKS = ("img2shape.t_embedder.mlp.0.weight", "shape2txt.t_embedder.mlp.0.weight")


class Stage(StrEnum):
    """The networks of a file, by the names of their modules."""

    STRUCTURE = "structure_model"
    """The occupied cells of a coarse grid."""
    SHAPE_512 = "img2shape_512"
    """The shape within the cells of a grid of 32."""
    SHAPE = "img2shape"
    """The shape within the cells of a finer grid."""
    TEXTURE = "shape2txt"
    """Colour and material of a shape."""


@dataclass(frozen=True, slots=True)
class Trellis2Config:
    """Configuration of the networks, all of the same size."""

    stages: tuple[Stage, ...] = tuple(Stage)
    """Networks that the file has."""
    hidden_size: int = 1536
    num_blocks: int = 30
    num_heads: int = 12
    intermediate_size: int = 8192
    context_dim: int = 1024
    latent_channels: int = 32
    structure_channels: int = STRUCTURE_CHANNELS
    projected_dims: tuple[int, ...] = ()
    """Channels of the projected features that each of `stages` reads, 0 for none; empty where none does."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def projected_dim(self, stage: Stage) -> int:
        """Return the channels of the projected features that a stage reads, 0 for none."""
        return self.projected_dims[self.stages.index(stage)] if self.projected_dims else 0


def trellis2_config(shapes: Shapes) -> Trellis2Config:
    """Return the configuration of the networks with these tensors.

    Raises LookupError for a missing tensor, ValueError for sizes that do not belong together.
    """
    stages = tuple(stage for stage in Stage if f"{stage}.input_layer.weight" in shapes)
    if not stages:
        raise KeyError(f"{Stage.SHAPE}.input_layer.weight")
    first = stages[-1]
    projected = tuple(
        shapes.get(f"{stage}.blocks.0.cross_attn.proj_linear.weight", (0, 0))[1] for stage in stages
    )  # fmt: skip
    cross = f"{first}.blocks.0.cross_attn." + ("cross_attn_block." if projected[-1] else "")
    hidden_size, in_channels = shapes[f"{first}.input_layer.weight"]
    num_heads = shapes[f"{first}.blocks.0.self_attn.q_rms_norm.gamma"][0]
    if not num_heads or hidden_size % num_heads or hidden_size // num_heads % 2:
        raise ValueError(f"hidden size: got {hidden_size} for {num_heads} heads, expected an even number for each")
    structure = shapes.get(f"{Stage.STRUCTURE}.input_layer.weight")
    return Trellis2Config(
        stages=stages,
        hidden_size=hidden_size,
        num_blocks=count_children(shapes, f"{first}.blocks"),
        num_heads=num_heads,
        intermediate_size=shapes[f"{first}.blocks.0.mlp.mlp.0.weight"][0],
        context_dim=shapes[f"{cross}to_kv.weight"][1],
        latent_channels=in_channels // 2 if first is Stage.TEXTURE else in_channels,
        structure_channels=STRUCTURE_CHANNELS if structure is None else structure[1],
        projected_dims=projected if any(projected) else (),
    )


def turns_of(cells: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return the cosines and sines [B, N, 2, P] of the rotary positions of cells [B, N, 3], float32.

    Each axis turns a third of the pairs; those that are left over do not turn.
    """
    num_pairs, per_axis = head_dim // 2, head_dim // 2 // NUM_AXES
    steps = torch.arange(per_axis, dtype=torch.float32, device=cells.device) / max(per_axis, 1)
    angles = (cells.float()[..., None] / THETA**steps).flatten(-2)  # [B, N, 3 P / 3]
    angles = functional.pad(angles, (0, num_pairs - angles.shape[-1]))
    return torch.stack([angles.cos(), angles.sin()], dim=2)


def grid_cells(device: torch.device) -> torch.Tensor:
    """Return the cells [1, S ** 3, 3] of the structure's grid, the last axis innermost."""
    side = torch.arange(GRID_SIDE, device=device)
    return torch.cartesian_prod(side, side, side)[None]


class HeadRmsNorm(nn.Module):
    """RMSNorm of each head, with factors of its own. `x` [B, N, H, W]."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(num_heads, head_dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:]) * self.gamma.to(x)


class Attention(nn.Module):
    """Norms, rotations and the last layer of attention among cells and of that to an image."""

    def __init__(self, config: Trellis2Config) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.q_rms_norm, self.k_rms_norm = (HeadRmsNorm(config.num_heads, config.head_dim) for _ in range(2))
        self.to_out = Linear(config.hidden_size, config.hidden_size)
        self.rotary_heads = RotaryHeads(RotaryLayout.PAIRS, token_dim=1, is_float32=True)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor] | None,
        mask: torch.Tensor | None,
        options: CallOptions,
    ) -> torch.Tensor:
        """Attend with heads [B, T, H, W] -> [B, N, D]."""
        q, k = self.rotary_heads([(q, self.q_rms_norm)], [(k, self.k_rms_norm)], turns)
        q, k, v = (item.flatten(2) for item in (q, k, v))
        out: torch.Tensor = self.to_out(
            optimized_attention(q, k, v, self.num_heads, mask=mask, transformer_options=options)
        )
        return out


class SelfAttention(Attention):
    """Attention among the cells."""

    def __init__(self, config: Trellis2Config) -> None:
        super().__init__(config)
        self.to_qkv = Linear(config.hidden_size, 3 * config.hidden_size)

    def forward(
        self,
        x: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        options: CallOptions,
    ) -> torch.Tensor:
        """Attend from cells [B, N, D] to those that the mask [B, 1, 1, N] leaves, rotated by `turns` [B, N, 1, P]."""
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        return self.attend(q, k, v, turns, mask, options)


class CrossAttention(Attention):
    """Attention to the tokens of an image."""

    def __init__(self, config: Trellis2Config) -> None:
        super().__init__(config)
        self.to_q = Linear(config.hidden_size, config.hidden_size)
        self.to_kv = Linear(config.context_dim, 2 * config.hidden_size)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, projected: torch.Tensor | None, options: CallOptions
    ) -> torch.Tensor:
        """Attend from cells [B, N, D] to tokens [B, T, D']. It reads no projected features."""
        q = self.to_q(x).unflatten(-1, (self.num_heads, -1))
        k, v = self.to_kv(context).unflatten(-1, (2, self.num_heads, -1)).unbind(2)
        return self.attend(q, k, v, None, None, options)


class ProjectedAttention(nn.Module):
    """Attention to an image, with what each cell is projected onto added to it."""

    def __init__(self, config: Trellis2Config, projected_dim: int) -> None:
        super().__init__()
        self.cross_attn_block = CrossAttention(config)
        self.proj_linear = Linear(projected_dim, config.hidden_size)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, projected: torch.Tensor | None, options: CallOptions
    ) -> torch.Tensor:
        """Return the attention of cells [B, N, D] with their projected features [B, N, C] added."""
        attended: torch.Tensor = self.cross_attn_block(x, context, None, options)
        out: torch.Tensor = attended + self.proj_linear(projected)
        return out


class FeedForward(nn.Module):
    def __init__(self, config: Trellis2Config) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            Linear(config.hidden_size, config.intermediate_size),
            Gelu(),
            Linear(config.intermediate_size, config.hidden_size),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(x)
        return out


class Block(nn.Module):
    """Attention among the cells, then to the image, then a feed-forward layer; the first and last modulated by time."""

    def __init__(self, config: Trellis2Config, projected_dim: int) -> None:
        super().__init__()
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.self_attn = SelfAttention(config)
        self.cross_attn = ProjectedAttention(config, projected_dim) if projected_dim else CrossAttention(config)
        self.mlp = FeedForward(config)
        self.modulation = nn.Parameter(torch.empty(6 * config.hidden_size))
        self.adaptive_norm, self.residual = AdaptiveNorm(eps=NORM_EPS, is_joined=True), GatedResidual(is_joined=True)
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self,
        x: torch.Tensor,
        shared: torch.Tensor,
        context: torch.Tensor,
        projected: torch.Tensor | None,
        turns: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        options: CallOptions,
    ) -> torch.Tensor:
        """Return cells [B, N, D] after the block; `shared` [B, 6 D] is the modulation of all blocks."""
        modulation = (self.modulation.to(shared) + shared)[:, None].chunk(6, dim=-1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        attended = self.self_attn(self.adaptive_norm(x, scale, shift), turns, mask, options)
        x, normed = self.residual_norm(x, attended, gate, None, None, norm=self.norm2)
        read = self.cross_attn(normed, context, projected, options)
        x, normed = self.residual_norm(x, read, None, mlp_scale, mlp_shift)
        out: torch.Tensor = self.residual(x, self.mlp(normed), mlp_gate)
        return out


class TimeEmbedder(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(FREQUENCY_DIM, hidden_size), nn.SiLU(), Linear(hidden_size, hidden_size))

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out: torch.Tensor = self.mlp(timestep_embedding(times, FREQUENCY_DIM).to(dtype))
        return out


class FlowTransformer(nn.Module):
    """One of the networks: channels of cells [B, N, C] -> their prediction [B, N, C']."""

    def __init__(self, config: Trellis2Config, in_channels: int, out_channels: int, projected_dim: int) -> None:
        super().__init__()
        hidden_size = config.hidden_size
        self.t_embedder = TimeEmbedder(hidden_size)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(hidden_size, 6 * hidden_size))
        self.input_layer = Linear(in_channels, hidden_size)
        self.blocks = nn.ModuleList(Block(config, projected_dim) for _ in range(config.num_blocks))
        self.out_layer = Linear(hidden_size, out_channels)

    def forward(
        self,
        cells: torch.Tensor,
        times: torch.Tensor,
        context: torch.Tensor,
        projected: torch.Tensor | None,
        turns: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        options: CallOptions,
    ) -> torch.Tensor:
        x = self.input_layer(cells)
        shared = self.adaLN_modulation(self.t_embedder(times, cells.dtype))
        for block in self.blocks:
            x = block(x, shared, context, projected, turns, mask, options)
        out: torch.Tensor = self.out_layer(functional.layer_norm(x, x.shape[-1:]))
        return out


class Trellis2Transformer(nn.Module):
    """All networks of a file; each call computes the one of its stage.

    A structure [B, 32, S, S, S], of whose channels the first 8 are used, or a latent of cells [B, 32, N, 1], times,
    tokens of an image [B, T, D'] -> a prediction of the latent's shape.
    """

    is_wrapped = False

    def __init__(self, config: Trellis2Config) -> None:
        super().__init__()
        self.config = config
        for stage in config.stages:
            is_structure = stage is Stage.STRUCTURE
            channels = config.structure_channels if is_structure else config.latent_channels
            given = channels * (2 if stage is Stage.TEXTURE else 1)
            self.add_module(stage, FlowTransformer(config, given, channels, config.projected_dim(stage)))

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: CallOptions | None = None,
        *,
        stage: str,
        turns: torch.Tensor,
        occupied: torch.Tensor | None = None,
        projected: torch.Tensor | None = None,
        shape_latent: torch.Tensor | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Predict by the network of a stage; there is no `y` and no `control` for it.

        `turns` [B, N, 2, P] are the cosines and sines of the cells' positions, float32. `occupied` [B, N] is True for
        cells, False for what pads items of fewer, None where no item is padded; predictions of those are 0. `projected`
        [B, N, C] are features of the image by cell, `shape_latent` [B, N, 32] the latent of a shape to be textured.
        """
        options: CallOptions = {} if transformer_options is None else transformer_options
        cos, sin = turns[..., None, :].unbind(2)  # [B, N, 1, P] each
        cells = x[:, : self.config.structure_channels] if stage == Stage.STRUCTURE else x
        cells = cells.flatten(2).transpose(1, 2)  # [B, N, C]
        if shape_latent is not None:
            cells = torch.cat([cells, shape_latent], dim=-1)
        mask = None
        if occupied is not None:
            mask = torch.zeros(occupied.shape, dtype=x.dtype, device=x.device)
            mask = mask.masked_fill(~occupied, torch.finfo(x.dtype).min)[:, None, None]
        network = self.get_submodule(stage)
        out: torch.Tensor = network(cells, timesteps.to(x.dtype), context, projected, (cos, sin), mask, options)
        if occupied is not None:
            out = out * occupied[..., None]
        out = functional.pad(out.transpose(1, 2), (0, 0, 0, x.shape[1] - out.shape[-1]))
        return out.reshape(x.shape)
