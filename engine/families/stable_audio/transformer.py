"""The transformer of Stable Audio Open (Evans et al. 2024, arXiv 2407.14358), of any width and depth.

Audio's latent is a sequence of cells. One token before them holds the time and the length of the audio; text and
length are attended to by each block. Half of a head's channels rotate by place (Su et al. 2021, arXiv 2104.09864), at
the frequencies that files have. `B` batch, `C` channels, `L` latent cells, `T` tokens of text, `D` width, `H` heads.
Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.filled import filled
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
)
from darkroom.engine.layers.unet_layers import Options

HEAD_WIDTH = 64
ROTARY_WIDTH = HEAD_WIDTH // 2
TIME_WIDTH = 256  # of the sinusoids of the time
NUMBER_WIDTH = 256  # of those of a number of seconds
MAX_SECONDS = 512.0
START, TOTAL = "seconds_start", "seconds_total"  # ComfyUI's names in a conditioning

MARK = "transformer.rotary_pos_emb.inv_freq"
FIRST = "transformer.project_in.weight"
TEXT = "to_cond_embed.0.weight"
HEAD_NORM = "transformer.layers.0.self_attn.q_norm.gamma"  # of later networks
SECONDS = "conditioner.conditioners."  # where files have the layers that read seconds


@dataclass(frozen=True, slots=True)
class StableAudioConfig:
    """Configuration of the network. Its attention to the text has as many heads of 64 channels as the text is wide."""

    width: int
    num_blocks: int
    context_dim: int = 768
    in_channels: int = 64


def stable_audio_config(shapes: Shapes) -> StableAudioConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    width, in_channels = shapes[FIRST]
    return StableAudioConfig(
        width=width,
        num_blocks=count_children(shapes, "transformer.layers"),
        context_dim=shapes[TEXT][1],
        in_channels=in_channels,
    )


class GammaNorm(nn.Module):
    """A layer norm with a factor for each channel, called `gamma`, and no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.gamma.to(x.dtype))


class Sinusoids(nn.Module):
    """Sinusoids of a number at learned frequencies."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width // 2, 1))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the cosines and sines [B, width] of numbers [B]."""
        angles = 2 * math.pi * numbers[:, None] @ self.weight.T.to(numbers.dtype)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


class NumberSinusoids(nn.Module):
    """A number and sinusoids of it at learned frequencies."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.empty(width // 2))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return [B, 1 + width] of numbers [B]."""
        angles = numbers[:, None] * self.weights.to(numbers.dtype)[None] * 2 * math.pi
        return torch.cat([numbers[:, None], angles.sin(), angles.cos()], dim=-1)


class Float32Linear(nn.Module):
    """A linear layer that computes in float32 from weights of any type, which stay where they are meanwhile."""

    def __init__(self, in_width: int, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(width, in_width)), nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.float(), self.bias.float())


class SecondsEmbedder(nn.Module):
    """A token [1, D] of a number of seconds, float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = nn.Sequential(NumberSinusoids(NUMBER_WIDTH), Float32Linear(NUMBER_WIDTH + 1, width))
        self.embedder = nn.ModuleDict({"embedding": layers})

    def forward(self, seconds: float, device: torch.device) -> torch.Tensor:
        number = filled([seconds], device=device).clamp(0.0, MAX_SECONDS) / MAX_SECONDS
        out: torch.Tensor = self.embedder["embedding"](number)
        return out


def as_heads(x: torch.Tensor) -> torch.Tensor:
    """Return tokens [B, T, D] as heads of 64 channels [B, H, T, 64]."""
    return x.view(*x.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)


class AudioSelfAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_qkv, self.to_out = Linear(width, 3 * width, bias=False), Linear(width, width, bias=False)
        self.rotary_heads = RotaryHeads(RotaryLayout.HALVES, is_float32=True)

    def forward(self, x: torch.Tensor, angles: torch.Tensor, options: Options) -> torch.Tensor:
        """Return [B, T, D]. `angles` [T, R], the same twice, turn channel n of a head with channel n + R / 2."""
        q, k, v = (as_heads(item) for item in self.to_qkv(x).chunk(3, dim=-1))
        num_pairs = angles.shape[-1] // 2
        tables = angles.cos()[:, :num_pairs], angles.sin()[:, :num_pairs]
        q, k = self.rotary_heads([(q, None)], [(k, None)], tables)
        out: torch.Tensor = self.to_out(
            optimized_attention(q, k, v, q.shape[1], skip_reshape=True, transformer_options=options)
        )
        return out


class AudioTextAttention(nn.Module):
    """Attention to text whose heads are fewer than those of the queries: several share one."""

    def __init__(self, width: int, context_dim: int) -> None:
        super().__init__()
        self.to_q, self.to_out = Linear(width, width, bias=False), Linear(width, width, bias=False)
        self.to_kv = Linear(context_dim, 2 * context_dim, bias=False)

    def forward(self, x: torch.Tensor, text: torch.Tensor, options: Options) -> torch.Tensor:
        q = as_heads(self.to_q(x))
        k, v = (as_heads(item) for item in self.to_kv(text).chunk(2, dim=-1))
        heads = q.shape[1]
        k, v = (item.repeat_interleave(heads // item.shape[1], dim=1) for item in (k, v))
        out: torch.Tensor = self.to_out(
            optimized_attention(q, k, v, heads, skip_reshape=True, transformer_options=options)
        )
        return out


class GatedProjection(nn.Module):
    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.proj = Linear(width, 2 * inner_width)
        self.activation = GatedActivation(is_gate_first=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.activation(self.proj(x))
        return out


class AudioFeedForward(nn.Module):
    """Two layers, of which `projection` is the first with its activation. `inner_width` channels between them."""

    def __init__(
        self, width: int, inner_width: int, projection: Callable[[int, int], nn.Module] = GatedProjection
    ) -> None:
        super().__init__()
        self.ff = nn.ModuleDict({"0": projection(width, inner_width), "2": Linear(inner_width, width)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.ff["2"](self.ff["0"](x))
        return out


class AudioBlock(nn.Module):
    def __init__(self, config: StableAudioConfig) -> None:
        super().__init__()
        width = config.width
        self.pre_norm, self.cross_attend_norm, self.ff_norm = (GammaNorm(width) for _ in range(3))
        self.self_attn = AudioSelfAttention(width)
        self.cross_attn = AudioTextAttention(width, config.context_dim)
        self.ff = AudioFeedForward(width, 4 * width)
        self.residual = GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, AdaptiveNorm("none"))

    def forward(self, x: torch.Tensor, text: torch.Tensor, angles: torch.Tensor, options: Options) -> torch.Tensor:
        attended = self.self_attn(self.pre_norm(x), angles, options)
        x, normed = self.residual_norm(x, attended, None, None, norm=self.cross_attend_norm)
        x, normed = self.residual_norm(x, self.cross_attn(normed, text, options), None, None, norm=self.ff_norm)
        out: torch.Tensor = self.residual(x, self.ff(normed))
        return out


class RotaryFrequencies(nn.Module):
    """Frequencies of rotary positions, as files have them."""

    def __init__(self, rotary_dim: int) -> None:
        super().__init__()
        self.inv_freq = nn.Parameter(torch.empty(rotary_dim // 2))

    def forward(self, length: int) -> torch.Tensor:
        """Return the angles [length, rotary_dim] of positions, float32, the same twice."""
        positions = torch.arange(length, dtype=torch.float32, device=self.inv_freq.device)
        angles = positions[:, None] * self.inv_freq.float()[None]
        return torch.cat([angles, angles], dim=-1)


class AudioTransformer(nn.Module):
    def __init__(self, config: StableAudioConfig) -> None:
        super().__init__()
        self.project_in = Linear(config.in_channels, config.width, bias=False)
        self.project_out = Linear(config.width, config.in_channels, bias=False)
        self.rotary_pos_emb = RotaryFrequencies(ROTARY_WIDTH)
        self.layers = nn.ModuleList(AudioBlock(config) for _ in range(config.num_blocks))

    def forward(self, x: torch.Tensor, first: torch.Tensor, text: torch.Tensor, options: Options) -> torch.Tensor:
        """Return [B, L, C] of cells [B, L, C] behind the token `first` [B, D]."""
        x = torch.cat([first[:, None], self.project_in(x)], dim=1)
        angles = self.rotary_pos_emb(x.shape[1])
        replaced = options.get("patches_replace", {}).get("dit", {})
        for index, block in enumerate(self.layers):
            replacement = replaced.get(("double_block", index))
            if replacement is None:
                x = block(x, text, angles, options)
                continue
            args = {"img": x, "txt": text, "vec": None, "pe": angles, "transformer_options": options}
            x = replacement(args, {"original_block": _block_function(block)})["img"]
        out: torch.Tensor = self.project_out(x)
        return out[:, 1:]


class StableAudioTransformer(nn.Module):
    """`forward(x [B, C, L], timesteps [B], context [B, T, D])` -> `[B, C, L]`.

    The audio starts at `seconds_start` of a longer one, whose length is `seconds_total`. Built without weights being
    drawn when a `torch.device("meta")` context is open.
    """

    is_wrapped = False

    def __init__(self, config: StableAudioConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width, text = config.width, config.context_dim
        self.timestep_features = Sinusoids(TIME_WIDTH)
        self.to_timestep_embed = nn.Sequential(Linear(TIME_WIDTH, width), nn.SiLU(), Linear(width, width))
        self.to_cond_embed = _without_bias(text, text)
        self.to_global_embed = _without_bias(2 * text, width)
        self.transformer = AudioTransformer(config)
        self.preprocess_conv, self.postprocess_conv = (
            nn.Conv1d(config.in_channels, config.in_channels, 1, bias=False) for _ in range(2)
        )
        seconds = nn.ModuleDict({name: SecondsEmbedder(text) for name in (START, TOTAL)})
        self.conditioner = nn.ModuleDict({"conditioners": seconds})

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.preprocess_conv.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        seconds_start: float,
        seconds_total: float,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        embedders: Any = self.conditioner["conditioners"]
        seconds = {START: seconds_start, TOTAL: seconds_total}
        tokens = [embedders[name](number, x.device).to(x.dtype) for name, number in seconds.items()]
        batch = x.shape[0]
        text = torch.cat([context, *(token[None].expand(context.shape[0], -1, -1) for token in tokens)], dim=1)
        time = self.to_timestep_embed(self.timestep_features(timesteps).to(x.dtype))
        first = self.to_global_embed(torch.cat(tokens, dim=-1)).expand(batch, -1) + time
        cells = (self.preprocess_conv(x) + x).transpose(1, 2)
        out = self.transformer(cells, first, self.to_cond_embed(text), options).transpose(1, 2)
        drawn: torch.Tensor = self.postprocess_conv(out) + out
        return drawn


def _without_bias(in_width: int, width: int) -> nn.Sequential:
    return nn.Sequential(Linear(in_width, width, bias=False), nn.SiLU(), Linear(width, width, bias=False))


def _block_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"img": block(args["img"], args["txt"], args["pe"], args["transformer_options"])}

    return original
