"""A transformer of the patches of a video, steered by text in cross-attention and by time in low-rank modulations.

That of Cosmos-Predict2 (NVIDIA 2025, https://github.com/nvidia-cosmos/cosmos-predict2). `B` batch, `C` channels, `F`
frames, `h w` latent cells, `P` patches of all frames, `T` tokens, `D` width. Module names are those of the checkpoints.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.call_options import CallOptions
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import pad_to_patches
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    Gelu,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
)

HEAD_WIDTH = 128
PATCH = 2  # cells along both sides; one frame
NORM_EPS = 1e-6
THETA = 10000.0
MAX_PERIOD = 10000
MARK = "blocks.0.mlp.layer1.weight"
PATCHES = "x_embedder.proj.1.weight"
LARGE_WIDTH = 5120
IMAGE_CHANNELS = 16

Turns = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of the angles of patches' positions


@dataclass(frozen=True, slots=True)
class CosmosPredict2Config:
    """Configuration of the network.

    `in_channels` are those of the latent and what is concatenated to it, without the network's own mask of padding.
    `stretch` is how many times larger videos than those of the first training stage it knows: frames, rows, columns.
    """

    width: int
    num_blocks: int
    context_dim: int
    inner_width: int
    rank: int
    in_channels: int = 16
    out_channels: int = 16
    stretch: tuple[float, float, float] = (1.0, 4.0, 4.0)

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def cosmos_predict2_config(shapes: Shapes) -> CosmosPredict2Config:
    """Return the configuration of the network with these tensors (names without prefix).

    Networks that continue images see the mask of what is given, and were trained at other sizes. Raises LookupError
    for a missing tensor.
    """
    width, patch_width = shapes[PATCHES]
    in_channels = patch_width // PATCH**2 - 1
    stretch = (1.0, 4.0, 4.0)
    if in_channels != IMAGE_CHANNELS:
        stretch = (5 / 6, 2.0, 2.0) if width == LARGE_WIDTH else (1.0, 3.0, 3.0)
    return CosmosPredict2Config(
        width=width,
        num_blocks=count_children(shapes, "blocks"),
        context_dim=shapes["blocks.0.cross_attn.k_proj.weight"][1],
        inner_width=shapes[MARK][0],
        rank=shapes["blocks.0.adaln_modulation_mlp.1.weight"][0],
        in_channels=in_channels,
        out_channels=shapes["final_layer.linear.weight"][0] // PATCH**2,
        stretch=stretch,
    )


def time_waves(times: torch.Tensor, width: int) -> torch.Tensor:
    """Return cosines, then sines, of times [B, F] as [B, F, D], float32."""
    half = width // 2
    frequencies = torch.exp(-math.log(MAX_PERIOD) * torch.arange(half, dtype=torch.float32, device=times.device) / half)
    angles = times.float()[..., None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def place_angles(
    sizes: Sequence[int], stretch: Sequence[float], device: torch.device, *, frame_step: float = 1.0
) -> torch.Tensor:
    """Return the angles [P, HEAD_WIDTH / 2] of rotary places: frame, row, column (Su et al. 2021, arXiv 2104.09864).

    The base is stretched for larger videos than those of training ("NTK-aware" scaling). Frames are `frame_step` apart.
    """
    side = HEAD_WIDTH // 6 * 2
    parts = []
    for axis, (size, factor) in enumerate(zip(sizes, stretch, strict=True)):
        width = side if axis else HEAD_WIDTH - 2 * side
        base = THETA * factor ** (width / (width - 2))
        frequencies = 1.0 / base ** (torch.arange(0, width, 2, device=device).float() / width)
        places = torch.arange(size, dtype=torch.float32, device=device) * (1.0 if axis else frame_step)
        angles = torch.outer(places, frequencies)
        shape = [1, 1, 1, -1]
        shape[axis] = size
        parts.append(angles.view(shape).expand(*sizes, -1))
    return torch.cat(parts, dim=-1).flatten(0, 2)


def place_turns(
    sizes: Sequence[int], stretch: Sequence[float], device: torch.device, *, frame_step: float = 1.0
) -> Turns:
    """Return the cosines and sines [1, P, 1, HEAD_WIDTH / 2] of `place_angles`."""
    angles = place_angles(sizes, stretch, device, frame_step=frame_step)[None, :, None]
    return angles.cos(), angles.sin()


def takes_positions(patch: object) -> bool:
    """Return True for a function of an attention's inputs that transformers call; those of UNets have no effect."""
    return getattr(patch, "takes_positions", False) or "pe" in inspect.signature(patch).parameters  # type: ignore[arg-type]


def cosmos_heads() -> RotaryHeads:
    """Return the layer that rotates the halves of heads [B, P, heads, width], in float32."""
    return RotaryHeads(RotaryLayout.HALVES, token_dim=1, is_float32=True)


def patched(x: torch.Tensor) -> torch.Tensor:
    """Return the patches [B, F, h/2, w/2, 4 (C + 1)] of a video, with the mask of its padding, of which there is none.

    Raises ValueError for a latent that is not of whole patches.
    """
    height, width = x.shape[3:]
    if height % PATCH or width % PATCH:
        raise ValueError(f"latent: {width} x {height} cells; expected multiples of {PATCH} (16 pixels)")
    x = torch.cat([x, x.new_zeros(x.shape[0], 1, *x.shape[2:])], dim=1)
    batch, channels, frames = x.shape[:3]
    x = x.view(batch, channels, frames, height // PATCH, PATCH, width // PATCH, PATCH)
    return x.permute(0, 2, 3, 5, 1, 4, 6).flatten(4)


def unpatched(patches: torch.Tensor, channels: int) -> torch.Tensor:
    """Put patches [B, F, h/2, w/2, 4 C] together to [B, C, F, h, w]."""
    batch, frames, height, width, _ = patches.shape
    cells = patches.view(batch, frames, height, width, PATCH, PATCH, channels)
    return cells.permute(0, 6, 1, 2, 4, 3, 5).reshape(batch, -1, frames, height * PATCH, width * PATCH)


class CosmosAttention(nn.Module, ABC):
    """Attention of a Cosmos network. A subclass has its layers under the names of its checkpoints."""

    def __init__(self, config: CosmosPredict2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.rotary_heads = cosmos_heads()

    @abstractmethod
    def projections(self) -> tuple[tuple[nn.Module, nn.Module], tuple[nn.Module, nn.Module], nn.Module, nn.Module]:
        """Return the layers of queries and of keys with their norms, that of values, and the last one."""

    def patched_inputs(
        self, x: torch.Tensor, context: torch.Tensor, turns: Turns | None, options: CallOptions
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the inputs of queries, keys and values."""
        return x, context, context

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, turns: Turns | None, options: CallOptions
    ) -> torch.Tensor:
        """Attend from patches [B, P, D] to a context [B, T, D'] -> [B, P, D]."""
        (queries, query_norm), (keys, key_norm), values, last = self.projections()
        inputs = self.patched_inputs(x, context, turns, options)
        q, k, v = (layer(given) for layer, given in zip((queries, keys, values), inputs, strict=True))
        q, k, v = (item.view(*item.shape[:2], -1, HEAD_WIDTH) for item in (q, k, v))
        q, k = self.rotary_heads([(q, query_norm)], [(k, key_norm)], turns)
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))
        out: torch.Tensor = last(
            optimized_attention(q, k, v, self.heads, skip_reshape=True, transformer_options=options)
        )
        return out


class Attention(CosmosAttention):
    """Attention whose inputs functions among the options may change: `attn1_patch`, `attn2_patch` of the text's."""

    def patched_inputs(
        self, x: torch.Tensor, context: torch.Tensor, turns: Turns | None, options: CallOptions
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = x, context, context
        name = "attn2_patch" if turns is None else "attn1_patch"
        extra = {**options, "n_heads": self.heads, "dim_head": HEAD_WIDTH}
        for patch in options.get("patches", {}).get(name, ()):
            if takes_positions(patch):
                found = patch(q, k, v, pe=turns, attn_mask=None, extra_options=extra)
                q, k, v = (found.get(key, given) for key, given in (("q", q), ("k", k), ("v", v)))
        return q, k, v

    def __init__(self, config: CosmosPredict2Config, context_dim: int) -> None:
        super().__init__(config)
        width = config.width
        self.q_proj = Linear(width, width, bias=False)
        self.k_proj = Linear(context_dim, width, bias=False)
        self.v_proj = Linear(context_dim, width, bias=False)
        self.q_norm, self.k_norm = RmsNorm(HEAD_WIDTH, NORM_EPS), RmsNorm(HEAD_WIDTH, NORM_EPS)
        self.output_proj = Linear(width, width, bias=False)

    def projections(self) -> tuple[tuple[nn.Module, nn.Module], tuple[nn.Module, nn.Module], nn.Module, nn.Module]:
        return (self.q_proj, self.q_norm), (self.k_proj, self.k_norm), self.v_proj, self.output_proj


class FeedForward(nn.Module):
    def __init__(self, config: CosmosPredict2Config) -> None:
        super().__init__()
        self.layer1 = Linear(config.width, config.inner_width, bias=False)
        self.layer2 = Linear(config.inner_width, config.width, bias=False)
        self.activation = Gelu("none")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer2(self.activation(self.layer1(x)))
        return out


def modulation(config: CosmosPredict2Config, num_parts: int) -> nn.Sequential:
    return nn.Sequential(
        nn.SiLU(),
        Linear(config.width, config.rank, bias=False),
        Linear(config.rank, num_parts * config.width, bias=False),
    )


class CosmosBlock(nn.Module, ABC):
    """Attention among the patches, then to the text, then a feed-forward layer; each modulated and gated by time.

    A subclass has the layers under the names of its checkpoints.
    """

    def __init__(self) -> None:
        super().__init__()
        self.adaptive_norm, self.residual = AdaptiveNorm(eps=NORM_EPS), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    @abstractmethod
    def layers(self) -> tuple[tuple[nn.Module, nn.Module], ...]:
        """Return the three layers, each with its modulation."""

    def forward(
        self,
        x: torch.Tensor,
        time: torch.Tensor,
        shared: torch.Tensor,
        context: torch.Tensor,
        turns: Turns,
        options: CallOptions,
    ) -> torch.Tensor:
        """Return `x` [B, F, h, w, D] after the block. `time` [B, F, D]; `shared` [B, F, 3 D] is of all blocks."""
        (attend, _), (read, _), (feed_forward, _) = layers = self.layers()
        own, text, inner = (
            (modulate(time) + shared)[:, :, None, None].chunk(3, dim=-1)  # shift, scale and gate [B, F, 1, 1, D]
            for _, modulate in layers
        )
        patches = self.adaptive_norm(x, own[1], own[0]).flatten(1, 3)
        attended = attend(patches, patches, turns, options).view(x.shape)
        x, normed = self.residual_norm(x, attended, own[2], text[1], text[0])
        of_text = read(normed.flatten(1, 3), context, None, options).view(x.shape)
        x, normed = self.residual_norm(x, of_text, text[2], inner[1], inner[0])
        for patch in options.get("patches", {}).get("mlp_patch", ()):
            normed = patch({"x": normed, "transformer_options": options})["x"]
        out: torch.Tensor = self.residual(x, feed_forward(normed), inner[2])
        return out


class Block(CosmosBlock):
    def __init__(self, config: CosmosPredict2Config) -> None:
        super().__init__()
        self.self_attn = Attention(config, config.width)
        self.cross_attn = Attention(config, config.context_dim)
        self.mlp = FeedForward(config)
        self.adaln_modulation_self_attn = modulation(config, 3)
        self.adaln_modulation_cross_attn = modulation(config, 3)
        self.adaln_modulation_mlp = modulation(config, 3)

    def layers(self) -> tuple[tuple[nn.Module, nn.Module], ...]:
        return (
            (self.self_attn, self.adaln_modulation_self_attn),
            (self.cross_attn, self.adaln_modulation_cross_attn),
            (self.mlp, self.adaln_modulation_mlp),
        )


class TimeLayers(nn.Module):
    """Turn the waves of the time into the part of the modulations that all blocks share."""

    def __init__(self, config: CosmosPredict2Config) -> None:
        super().__init__()
        self.linear_1 = Linear(config.width, config.width, bias=False)
        self.linear_2 = Linear(config.width, 3 * config.width, bias=False)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_2(functional.silu(self.linear_1(waves)))
        return out


class FinalLayer(nn.Module):
    """The last layer, with its modulation under the name `MODULATION`."""

    MODULATION: ClassVar[str] = "adaln_modulation"

    def __init__(self, config: CosmosPredict2Config) -> None:
        super().__init__()
        self.width = config.width
        self.linear = Linear(config.width, PATCH * PATCH * config.out_channels, bias=False)
        self.add_module(self.MODULATION, modulation(config, 2))
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS)

    def forward(self, x: torch.Tensor, time: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """Return the patches [B, F, h, w, 4 C] of `x` [B, F, h, w, D]."""
        parts = self.get_submodule(self.MODULATION)(time) + shared[..., : 2 * self.width]
        shift, scale = parts[:, :, None, None].chunk(2, dim=-1)
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift))
        return out


class CosmosPredict2Transformer(nn.Module):
    """The network: a noisy video [B, C, F, h, w], times, text [B, T, D'] -> its prediction [B, C, F, h, w]."""

    def __init__(self, config: CosmosPredict2Config) -> None:
        super().__init__()
        self.config = config
        channels = (config.in_channels + 1) * PATCH * PATCH
        self.x_embedder = nn.ModuleDict({"proj": nn.ModuleDict({"1": Linear(channels, config.width, bias=False)})})
        self.t_embedder = nn.ModuleDict({"1": TimeLayers(config)})
        self.t_embedding_norm = RmsNorm(config.width, NORM_EPS)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_blocks))
        self.final_layer = FinalLayer(config)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: CallOptions | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` and no `control` for it. `timesteps` is [B], or [B, F] where frames differ.

        `transformer_options` may hold `patches` (ComfyUI's): `post_input` has functions of the embedded patches before
        the blocks, `attn1_patch` and `attn2_patch` of an attention's inputs, `mlp_patch` of a feed-forward layer's.
        """
        height, width = x.shape[3:]
        x = pad_to_patches(x, PATCH)
        options: CallOptions = {} if transformer_options is None else transformer_options
        patches: torch.Tensor = self.x_embedder["proj"]["1"](patched(x))  # type: ignore[index]
        if options.get("patches", {}).get("post_input"):
            options = {**options, "model_patch_data": {}}
            for patch in options["patches"]["post_input"]:
                patches = patch({"img": patches, "x": x, "transformer_options": options})["img"]
        turns = place_turns(patches.shape[1:4], self.config.stretch, x.device)
        times = timesteps[:, None] if timesteps.ndim == 1 else timesteps
        waves = time_waves(times, self.config.width).to(x.dtype)
        shared = self.t_embedder["1"](waves)
        time = self.t_embedding_norm(waves)
        for index, block in enumerate(self.blocks):
            own = {**options, "block_index": index} if options.get("patches") else options
            patches = block(patches, time, shared, context, turns, own)
        out = unpatched(self.final_layer(patches, time, shared), self.config.out_channels)
        return out[..., :height, :width]
