"""The transformer of Stable Audio 3 (Stability AI 2026, arXiv 2605.17991), of any width and depth.

Audio's latent is a sequence of cells behind learned memory tokens. Time and length of the audio modulate every block
by one projection and an offset of the block; text and length are attended to; a mask and the audio around it are added
to the cells. Attention is the difference of two attentions over the same values where the projections have queries and
keys for both (Ye et al. 2024, arXiv 2410.05258). Half of a head's channels rotate by position (Su et al. 2021,
arXiv 2104.09864), at the frequencies that files have. `B` batch, `C` channels, `L` latent cells, `M` memory tokens, `T`
tokens of text, `D` hidden size, `H` heads. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.stable_audio.transformer import AudioFeedForward, Float32Linear, RotaryFrequencies
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.filled import filled
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
)
from darkroom.engine.layers.unet_layers import Options

NUM_FREQUENCIES = 256  # sinusoids of the time, and of a number of seconds
LOWEST_FREQUENCY, HIGHEST_FREQUENCY = 0.5, 10000.0
LEAST_ROTARY_DIM = 32
MAX_SECONDS = 384.0
TOTAL = "seconds_total"  # ComfyUI's name in a conditioning

MARK = "transformer.rotary_pos_emb.inv_freq"
SHARED = "transformer.global_cond_embedder.0.weight"
FIRST = "transformer.project_in.weight"
MEMORY = "transformer.memory_tokens"
TEXT = "to_cond_embed.0.weight"
BLOCK = "transformer.layers.0."
HEAD_NORM, QUERIES, GATES = (
    f"{BLOCK}self_attn.q_norm.gamma",
    f"{BLOCK}self_attn.to_qkv.weight",
    f"{BLOCK}ff.ff.2.weight",
)
LOCAL = f"{BLOCK}to_local_embed.0.weight"
LEARNED_TIME = "timestep_features.weight"
SECONDS = "conditioner.conditioners.seconds_total.embedder.embedding.1."
PADDING = "conditioner.conditioners.prompt.padding_embedding"


@dataclass(frozen=True, slots=True)
class StableAudio3Config:
    """Configuration of the network.

    `context_dim` is the width of the text and of the embedding of seconds, `text_dim` that of their projection.
    `local_dim` is the number of channels of the mask and the audio around it; 0 for a network that is not given them.
    With `has_padding` rows behind the text are a learned embedding.
    """

    hidden_size: int = 1536
    num_layers: int = 24
    head_dim: int = 64
    intermediate_size: int = 6144
    context_dim: int = 768
    text_dim: int = 1536
    in_channels: int = 256
    local_dim: int = 257
    num_memory_tokens: int = 64
    is_differential: bool = True
    has_padding: bool = True


def stable_audio3_config(shapes: Shapes) -> StableAudio3Config:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    hidden_size, in_channels = shapes[FIRST]
    text_dim, context_dim = shapes[TEXT]
    return StableAudio3Config(
        hidden_size=hidden_size,
        num_layers=count_children(shapes, "transformer.layers"),
        head_dim=shapes[HEAD_NORM][0],
        intermediate_size=shapes[GATES][1],
        context_dim=context_dim,
        text_dim=text_dim,
        in_channels=in_channels,
        local_dim=shapes[LOCAL][1] if LOCAL in shapes else 0,
        num_memory_tokens=shapes[MEMORY][0] if MEMORY in shapes else 0,
        is_differential=shapes[QUERIES][0] == 5 * hidden_size,
        has_padding=PADDING in shapes,
    )


class GammaRmsNorm(nn.Module):
    """A norm by the root mean square with a factor for each channel, called `gamma`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.gamma.to(x.dtype))


def exponential_features(numbers: torch.Tensor) -> torch.Tensor:
    """Return the cosines and sines [B, 256], float32, of numbers [B] at frequencies from 0.5 to 10000."""
    steps = torch.linspace(0, 1, NUM_FREQUENCIES // 2, device=numbers.device, dtype=torch.float32)
    lowest = math.log(LOWEST_FREQUENCY)
    frequencies = torch.exp(steps * (math.log(HIGHEST_FREQUENCY) - lowest) + lowest)
    angles = numbers.float()[:, None] * frequencies * 2 * math.pi
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Conditioners(nn.Module):
    """Embedding of the seconds, and of the rows behind a text, by the names that checkpoints have for them."""

    def __init__(self, config: StableAudio3Config) -> None:
        super().__init__()
        embedding = nn.ModuleDict({"1": Float32Linear(NUM_FREQUENCIES, config.context_dim)})
        seconds = nn.ModuleDict({"embedder": nn.ModuleDict({"embedding": embedding})})
        prompt = nn.Module()
        if config.has_padding:
            prompt.padding_embedding = nn.Parameter(torch.empty(config.context_dim))
        self.conditioners = nn.ModuleDict({TOTAL: seconds, "prompt": prompt})

    def seconds(self, number: float, device: torch.device) -> torch.Tensor:
        """Return the embedding [1, context_dim] of a number of seconds, float32."""
        share = filled([number], device=device).clamp(0.0, MAX_SECONDS) / MAX_SECONDS
        embedder: Any = self.conditioners[TOTAL]
        out: torch.Tensor = embedder["embedder"]["embedding"]["1"](exponential_features(share))
        return out

    def padded(self, text: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return texts [B, T, D] with the embedding of padding in the rows behind their `lengths` [B]."""
        prompt: Any = self.conditioners["prompt"]
        is_text = torch.arange(text.shape[1], device=text.device)[None] < lengths[:, None]
        return torch.where(is_text[..., None], text, prompt.padding_embedding.to(text.dtype))


class AudioAttention(nn.Module):
    """Attention to cells or, with `text_dim`, to a text, whose heads may be fewer: several queries' share one."""

    def __init__(self, config: StableAudio3Config, text_dim: int | None = None) -> None:
        super().__init__()
        width, parts = config.hidden_size, 2 if config.is_differential else 1
        self.is_differential, self.head_dim = config.is_differential, config.head_dim
        if text_dim is None:
            self.to_qkv = Linear(width, (2 * parts + 1) * width, bias=False)
        else:
            self.to_q = Linear(width, parts * width, bias=False)
            self.to_kv = Linear(text_dim, (parts + 1) * text_dim, bias=False)
        self.to_out = Linear(width, width, bias=False)
        self.q_norm, self.k_norm = GammaRmsNorm(config.head_dim), GammaRmsNorm(config.head_dim)
        self.rotary_heads = RotaryHeads(RotaryLayout.HALVES, is_float32=True)

    def forward(
        self,
        x: torch.Tensor,
        options: Options,
        *,
        angles: torch.Tensor | None = None,
        text: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [B, T, D]. `angles` [T, R], the same twice, turn channel n of a head with channel n + R / 2."""
        queries, keys, v = self._projected(x, text)
        tables = None
        if angles is not None:
            num_pairs = angles.shape[-1] // 2
            tables = angles.cos()[:, :num_pairs], angles.sin()[:, :num_pairs]
        heads = queries[0].shape[1]
        v = v.repeat_interleave(heads // v.shape[1], dim=1)
        attended = []
        for q, k in zip(queries, keys, strict=True):
            q, k = self.rotary_heads([(q, self.q_norm)], [(k, self.k_norm)], tables)
            k = k.repeat_interleave(heads // k.shape[1], dim=1)
            attended.append(optimized_attention(q, k, v, heads, skip_reshape=True, transformer_options=options))
        total = attended[0] - attended[1] if self.is_differential else attended[0]
        out: torch.Tensor = self.to_out(total)
        return out

    def _projected(
        self, x: torch.Tensor, text: torch.Tensor | None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
        """Return queries and keys of each attention, and the values that they share, as heads [B, H, T, W]."""
        if text is not None:
            queries = self.to_q(x).chunk(2 if self.is_differential else 1, dim=-1)
            *keys, v = self.to_kv(text).chunk(3 if self.is_differential else 2, dim=-1)
        elif self.is_differential:
            q, k, v, other_q, other_k = self.to_qkv(x).chunk(5, dim=-1)
            queries, keys = (q, other_q), [k, other_k]
        else:
            q, k, v = self.to_qkv(x).chunk(3, dim=-1)
            queries, keys = (q,), [k]
        return [self._heads(q) for q in queries], [self._heads(k) for k in keys], self._heads(v)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class AudioBlock(nn.Module):
    def __init__(self, config: StableAudio3Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.pre_norm, self.cross_attend_norm, self.ff_norm = (GammaRmsNorm(width) for _ in range(3))
        self.self_attn = AudioAttention(config)
        self.cross_attn = AudioAttention(config, config.text_dim)
        self.ff = AudioFeedForward(width, config.intermediate_size)
        self.to_scale_shift_gate = nn.Parameter(torch.empty(6 * width))
        self.to_local_embed = _two_layers(config.local_dim, width, width) if config.local_dim else None
        self.norm, self.residual = AdaptiveNorm("none"), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.norm)

    def forward(
        self,
        x: torch.Tensor,
        text: torch.Tensor,
        modulation: torch.Tensor,
        angles: torch.Tensor,
        options: Options,
        local: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return tokens [B, M + L, D]. `modulation` is [B, 6 D], `local` [B, L, local_dim]."""
        own = (self.to_scale_shift_gate.to(modulation.dtype) + modulation)[:, None]
        scale, shift, gate, ff_scale, ff_shift, ff_gate = own.chunk(6, dim=-1)
        attended = self.self_attn(self.norm(x, scale, shift, norm=self.pre_norm), options, angles=angles)
        x, normed = self.residual_norm(x, attended, torch.sigmoid(1 - gate), None, None, norm=self.cross_attend_norm)
        change = self.cross_attn(normed, options, text=text)
        if local is not None and self.to_local_embed is not None:
            x, change = self.residual(x, change), self.to_local_embed(local)
            change = functional.pad(change, (0, 0, x.shape[1] - change.shape[1], 0))
        x, normed = self.residual_norm(x, change, None, ff_scale, ff_shift, norm=self.ff_norm)
        out: torch.Tensor = self.residual(x, self.ff(normed), torch.sigmoid(1 - ff_gate))
        return out


class AudioTransformer(nn.Module):
    def __init__(self, config: StableAudio3Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.project_in = Linear(config.in_channels, width, bias=False)
        self.project_out = Linear(width, config.in_channels, bias=False)
        self.rotary_pos_emb = RotaryFrequencies(max(config.head_dim // 2, LEAST_ROTARY_DIM))
        self.num_memory_tokens = config.num_memory_tokens
        if config.num_memory_tokens:
            self.memory_tokens = nn.Parameter(torch.empty(config.num_memory_tokens, width))
        self.global_cond_embedder = _two_layers(width, width, 6 * width)
        self.layers = nn.ModuleList(AudioBlock(config) for _ in range(config.num_layers))

    def forward(
        self,
        x: torch.Tensor,
        condition: torch.Tensor,
        text: torch.Tensor,
        options: Options,
        local: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [B, L, C] of cells [B, L, C]. `condition` is [B, D], `local` [B, L, local_dim]."""
        x = self.project_in(x)
        if self.num_memory_tokens:
            x = torch.cat([self.memory_tokens.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)
        angles = self.rotary_pos_emb(x.shape[1])
        modulation = self.global_cond_embedder(condition)
        replaced = options.get("patches_replace", {}).get("dit", {})
        for index, block in enumerate(self.layers):
            replacement = replaced.get(("double_block", index))
            if replacement is None:
                x = block(x, text, modulation, angles, options, local)
                continue
            args = {"img": x, "txt": text, "vec": modulation, "pe": angles, "transformer_options": options}
            x = replacement(args, {"original_block": _block_function(block)})["img"]
        out: torch.Tensor = self.project_out(x[:, self.num_memory_tokens :])
        return out


class StableAudio3Transformer(nn.Module):
    """`forward(x [B, C, L], timesteps [B], context [B, T, context_dim])` -> `[B, C, L]`.

    The audio is `seconds_total` long. `text_lengths` [B] are the rows of `context` that are text, all where it is None.
    `local_add_cond` [B, local_dim, L] is 1 where audio is kept, and that audio.
    """

    def __init__(self, config: StableAudio3Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width, text_dim = config.hidden_size, config.text_dim
        self.to_timestep_embed = _two_layers(NUM_FREQUENCIES, width, width)
        self.to_cond_embed = _two_layers(config.context_dim, text_dim, text_dim, has_bias=False)
        self.to_global_embed = _two_layers(config.context_dim, width, width, has_bias=False)
        self.transformer = AudioTransformer(config)
        self.preprocess_conv, self.postprocess_conv = (
            nn.Conv1d(config.in_channels, config.in_channels, 1, bias=False) for _ in range(2)
        )
        self.conditioner = Conditioners(config)

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
        seconds_total: float,
        text_lengths: torch.Tensor | None = None,
        local_add_cond: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        seconds = self.conditioner.seconds(seconds_total, x.device).to(x.dtype)  # [1, context_dim]
        text = context if text_lengths is None else self.conditioner.padded(context, text_lengths)
        text = torch.cat([text, seconds[None].expand(text.shape[0], -1, -1)], dim=1)
        time = self.to_timestep_embed(exponential_features(timesteps).to(x.dtype))
        condition = self.to_global_embed(seconds).expand(x.shape[0], -1) + time
        cells = (self.preprocess_conv(x) + x).transpose(1, 2)
        local = None if local_add_cond is None else local_add_cond.transpose(1, 2)
        out = self.transformer(cells, condition, self.to_cond_embed(text), options, local).transpose(1, 2)
        velocity: torch.Tensor = self.postprocess_conv(out) + out
        return velocity


def _two_layers(in_width: int, inner_width: int, width: int, *, has_bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        Linear(in_width, inner_width, bias=has_bias), nn.SiLU(), Linear(inner_width, width, bias=has_bias)
    )


def _block_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it: without kept audio, as ComfyUI's."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"img": block(args["img"], args["txt"], args["vec"], args["pe"], args["transformer_options"])}

    return original
