"""The transformer of TripoSplat (VAST AI Research 2026), of any width and depth.

A latent of 8192 tokens and a token of the camera are generated together. Tokens of an image (DINOv3's, and cells of
Flux.2's VAE added to its patches) are refined and stand between them. Every token's rotary position of each head is
predicted from it. `B` batch, `N` tokens of the latent, `T` tokens of the image, `D` hidden size, `H` heads, `W`
channels of a head. Module names are those of the original checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.triposplat.positions import NUM_AXES, anchor_sinusoids
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.rotary import rotated_pairs
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, ResidualNorm
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

NUM_TOKENS, LATENT_CHANNELS, CAMERA_CHANNELS = 8192, 16, 5
NUM_FREQUENCIES = 256
NORM_EPS, LAST_NORM_EPS = 1e-6, 1e-5
FIRST, CAMERA, POSITIONS = "input_layer.weight", "cam_out_layer.weight", "repo_layers.0.final_map.weight"
HEADS = "blocks.0.attn.q_norm.gamma"


@dataclass(frozen=True, slots=True)
class TripoSplatConfig:
    """Configuration of the network. `context_dim` is the width of the image's tokens, `cell_dim` that of cells."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_layers: int = 24
    num_refiner_layers: int = 2
    num_heads: int = 16
    position_dim: int = 128
    context_dim: int = 1280
    cell_dim: int = 128

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


def triposplat_config(shapes: Shapes) -> TripoSplatConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    return TripoSplatConfig(
        hidden_size=shapes[FIRST][0],
        intermediate_size=shapes["blocks.0.mlp.mlp.0.weight"][0],
        num_layers=count_children(shapes, "blocks"),
        num_refiner_layers=count_children(shapes, "noise_refiner"),
        num_heads=shapes[HEADS][0],
        position_dim=shapes[POSITIONS][1],
        context_dim=shapes["cond_embedder.weight"][1],
        cell_dim=shapes["cond_embedder2.weight"][1],
    )


class HeadRmsNorm(nn.Module):
    """RMSNorm of each head, with factors of its own. `x` [B, T, H, W]."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(num_heads, head_dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], eps=NORM_EPS) * self.gamma.to(x)


class PredictedPositions(nn.Module):
    """Rotary positions of tokens that a small network predicts for each head, on three axes."""

    def __init__(self, config: TripoSplatConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.num_heads = config.num_heads
        self.norm = nn.LayerNorm(width)
        self.gate_map, self.content_map = (Linear(width, config.position_dim, bias=False) for _ in range(2))
        self.final_map = Linear(config.position_dim, NUM_AXES * config.num_heads, bias=False)
        per_axis = config.head_dim // 6
        self.freqs_0, self.freqs_1 = (nn.Parameter(torch.empty(per_axis)) for _ in range(2))
        self.freqs_2 = nn.Parameter(torch.empty(config.head_dim // 2 - 2 * per_axis))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines [B, T, H, W / 2], float32, of tokens [B, T, D]."""
        x = self.norm(x)
        positions = self.final_map(functional.silu(self.gate_map(x)) * self.content_map(x))
        places = positions.unflatten(-1, (self.num_heads, NUM_AXES)).unbind(-1)  # [B, T, H] of each axis
        frequencies = (self.freqs_0, self.freqs_1, self.freqs_2)
        angles = torch.cat(
            [place[..., None] * own.float() * math.pi for place, own in zip(places, frequencies, strict=True)], dim=-1
        )
        return angles.cos(), angles.sin()


class SplatMlp(nn.Module):
    def __init__(self, in_width: int, inner_width: int, width: int) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"0": Linear(in_width, inner_width), "2": Linear(inner_width, width)})
        self.activation = Gelu("tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp["2"](self.activation(self.mlp["0"](x)))
        return out


class SelfAttention(nn.Module):
    """Attention among tokens, whose queries and keys are rotated before they are normalised."""

    def __init__(self, config: TripoSplatConfig) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_heads
        self.num_heads = heads
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.q_norm, self.k_norm = HeadRmsNorm(heads, config.head_dim), HeadRmsNorm(heads, config.head_dim)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], options: Options) -> torch.Tensor:
        """Return [B, T, D]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # [B, T, H, W]
        q = self.q_norm(rotated_pairs(q, turns, is_float32=True))
        k = self.k_norm(rotated_pairs(k, turns, is_float32=True))
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))
        attended = optimized_attention(q, k, v, self.num_heads, skip_reshape=True, transformer_options=options)
        out: torch.Tensor = self.out(attended)
        return out


class ModulatedBlock(nn.Module):
    """A block whose scales, shifts and gates are those of the time and an offset of its own."""

    def __init__(self, config: TripoSplatConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.attn = SelfAttention(config)
        self.mlp = SplatMlp(width, config.intermediate_size, width)
        self.shift_table = nn.Parameter(torch.empty(1, 6 * width))
        self.norm = AdaptiveNorm(eps=NORM_EPS, is_joined=True)
        self.residual = GatedResidual(is_joined=True)
        self.residual_norm = ResidualNorm(self.residual, self.norm)

    def forward(
        self, x: torch.Tensor, modulation: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], options: Options
    ) -> torch.Tensor:
        """Return [B, T, D]. `modulation` is [B, 6 D]."""
        own = (modulation + self.shift_table.to(modulation.dtype))[:, None]
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = own.chunk(6, dim=-1)
        attended = self.attn(self.norm(x, scale, shift), turns, options)
        x, normed = self.residual_norm(x, attended, gate, mlp_scale, mlp_shift)
        out: torch.Tensor = self.residual(x, self.mlp(normed), mlp_gate)
        return out


class PlainBlock(nn.Module):
    """A block for the image's tokens, which the time does not change."""

    def __init__(self, config: TripoSplatConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=NORM_EPS), nn.LayerNorm(width, eps=NORM_EPS)
        self.attn = SelfAttention(config)
        self.mlp = SplatMlp(width, config.intermediate_size, width)
        self.residual = GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, AdaptiveNorm("none"))

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], options: Options) -> torch.Tensor:
        """Return [B, T, D]."""
        attended = self.attn(self.norm1(x), turns, options)
        x, normed = self.residual_norm(x, attended, None, None, norm=self.norm2)
        out: torch.Tensor = self.residual(x, self.mlp(normed))
        return out


class TimeEmbedder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(NUM_FREQUENCIES, width), nn.SiLU(), Linear(width, width))

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return [B, D] of times [B]."""
        out: torch.Tensor = self.mlp(timestep_embedding(times, NUM_FREQUENCIES).to(dtype))
        return out


class TripoSplatTransformer(nn.Module):
    """`forward([latent [B, N, 16], camera [B, 1, 5]], timesteps [B], context [B, T, context_dim])` -> the same shapes.

    The first of `ref_latents` is the image's latent [B, cell_dim, h, w], of which the last tokens of the context have
    a cell each.
    """

    def __init__(self, config: TripoSplatConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = LATENT_CHANNELS
        self.q_token_length = NUM_TOKENS
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width = config.hidden_size
        self.t_embedder = TimeEmbedder(width)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(width, 6 * width))
        self.input_layer = Linear(LATENT_CHANNELS, width)
        self.cond_embedder, self.cond_embedder2 = Linear(config.context_dim, width), Linear(config.cell_dim, width)
        refiners, layers = range(config.num_refiner_layers), range(config.num_layers)
        self.noise_repo_layers = nn.ModuleList(PredictedPositions(config) for _ in refiners)
        self.context_repo_layers = nn.ModuleList(PredictedPositions(config) for _ in refiners)
        self.repo_layers = nn.ModuleList(PredictedPositions(config) for _ in layers)
        self.noise_refiner = nn.ModuleList(ModulatedBlock(config) for _ in refiners)
        self.context_refiner = nn.ModuleList(PlainBlock(config) for _ in refiners)
        self.cam_refiner = SplatMlp(CAMERA_CHANNELS, width, width)
        self.blocks = nn.ModuleList(ModulatedBlock(config) for _ in layers)
        self.shift_table = nn.Parameter(torch.empty(1, 2, width))
        self.out_layer, self.cam_out_layer = Linear(width, LATENT_CHANNELS), Linear(width, CAMERA_CHANNELS)
        self.last_norm = AdaptiveNorm(eps=LAST_NORM_EPS, is_joined=True)
        self._anchors: dict[tuple[int, str, int], torch.Tensor] = {}  # by their number, and the device

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.input_layer.weight.dtype

    def forward(
        self,
        x: Sequence[torch.Tensor],
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        ref_latents: Sequence[torch.Tensor] = (),
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        options = {} if transformer_options is None else transformer_options
        latent, camera = x
        image = self.cond_embedder(context)
        if ref_latents:
            cells = ref_latents[0].flatten(2).transpose(1, 2)
            cells = functional.pad(cells, (0, 0, context.shape[1] - cells.shape[1], 0))
            image = image + self.cond_embedder2(cells.to(image.dtype))
        time = self.t_embedder(timesteps, latent.dtype)
        modulation = self.adaLN_modulation(time)
        tokens = self.input_layer(latent) + self.anchors(latent.shape[1], latent.device).to(latent.dtype)
        for block, positions in zip(self.noise_refiner, self.noise_repo_layers, strict=True):
            tokens = block(tokens, modulation, positions(tokens), options)
        for block, positions in zip(self.context_refiner, self.context_repo_layers, strict=True):
            image = block(image, positions(image), options)
        tokens = torch.cat([tokens, image, self.cam_refiner(camera.to(latent.dtype))], dim=1)
        for block, positions in zip(self.blocks, self.repo_layers, strict=True):
            tokens = block(tokens, modulation, positions(tokens), options)
        shift, scale = (self.shift_table.to(time.dtype) + time[:, None]).chunk(2, dim=1)
        first, last = (
            self.last_norm(part, scale, shift) for part in (tokens[:, : latent.shape[1]], tokens[:, -camera.shape[1] :])
        )
        return self.out_layer(first), self.cam_out_layer(last)

    def anchors(self, num_tokens: int, device: torch.device) -> torch.Tensor:
        """Return the sinusoids [1, N, D], float32, of the points that a latent's tokens stand for, made once.

        A run asks for them before its steps, so that no step makes or moves them.
        """
        key = num_tokens, device.type, device.index or 0
        if key not in self._anchors:
            with torch.device("cpu"):
                self._anchors = {key: anchor_sinusoids(num_tokens, self.config.hidden_size).to(device)}
        return self._anchors[key]
