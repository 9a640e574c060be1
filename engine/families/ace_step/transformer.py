"""The transformer of ACE-Step (Gong et al. 2025, arXiv 2506.00045), of any width and depth.

A column of a song's latent is a token. Blocks are Sana's (Xie et al. 2024, arXiv 2410.10629): linear attention, then
attention to the tags and lyrics, then convolutions along time. Places are rotations (Su et al. 2021, arXiv 2104.09864).
`B` batch, `C` channels, `h` rows, `L` columns of the latent, `T` tokens of text, `D` width, `H` heads. Module names are
those of the original checkpoints, of which layers without a use in the network are left out.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ace_step.lyric_encoder import LyricEncoder, LyricEncoderConfig, lyric_encoder_config
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
)
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

HEAD_WIDTH = 128
TIME_WIDTH = 256  # of the sinusoids of the time
THETA = 1_000_000.0
NORM_EPS = 1e-6
ATTENTION_EPS = 1e-15
ROWS = 16  # of the latent, all in one token
INNER_RATIO = 2.5
EARLY_CHANNELS = 256  # of the first layer, for each channel of the latent
EARLY_GROUPS = 32

MARK = "genre_embedder.weight"
FIRST = "proj_in.early_conv_layers.0.weight"


@dataclass(frozen=True, slots=True)
class AceStepConfig:
    """Configuration of the network. `num_lyric_tokens` is the size of the vocabulary of lyrics."""

    width: int
    num_blocks: int
    context_dim: int = 768
    in_channels: int = 8
    speaker_dim: int = 512
    num_lyric_tokens: int = 6693
    lyrics: LyricEncoderConfig = field(default_factory=LyricEncoderConfig)


def ace_step_config(shapes: Shapes) -> AceStepConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    width, context_dim = shapes[MARK]
    return AceStepConfig(
        width=width,
        num_blocks=count_children(shapes, "transformer_blocks"),
        context_dim=context_dim,
        in_channels=shapes[FIRST][1],
        speaker_dim=shapes["speaker_embedder.weight"][1],
        num_lyric_tokens=shapes["lyric_embs.weight"][0],
        lyrics=lyric_encoder_config(shapes, "lyric_encoder."),
    )


def rotations_of(length: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [length, 128] of the angles of so many places."""
    channels = torch.arange(0, HEAD_WIDTH, 2, dtype=torch.int64, device=device).float()
    steps = 1.0 / (THETA ** (channels / HEAD_WIDTH))
    angles = torch.outer(torch.arange(length, device=device).float(), steps)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def as_heads(x: torch.Tensor) -> torch.Tensor:
    """Return tokens [B, T, D] as heads of 128 channels [B, H, T, 128]."""
    return x.view(*x.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)


class MusicAttention(nn.Module):
    """Projections of both kinds of attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([Linear(width, width)])
        self.rotary_heads = RotaryHeads(RotaryLayout.CHANNELS, is_float32=True)


class LinearAttention(MusicAttention):
    """Attention whose scores are products of rectified queries and keys, computed in float32."""

    def forward(self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        q, k = self.rotary_heads([(as_heads(self.to_q(x)), None)], [(as_heads(self.to_k(x)), None)], rotation)
        q, k = functional.relu(q).float(), functional.relu(k).float()
        v = as_heads(self.to_v(x)).transpose(-1, -2).float()
        weighted = (functional.pad(v, (0, 0, 0, 1), value=1.0) @ k) @ q.transpose(-1, -2)  # [B, H, 129, L]
        mixed = weighted[:, :, :-1] / (weighted[:, :, -1:] + ATTENTION_EPS)
        out: torch.Tensor = self.to_out[0](mixed.flatten(1, 2).transpose(1, 2).to(x.dtype))
        return out


class TextAttention(MusicAttention):
    def forward(
        self,
        x: torch.Tensor,
        text: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        text_rotation: tuple[torch.Tensor, torch.Tensor],
        options: Options,
    ) -> torch.Tensor:
        q = self.rotary_heads.plain([(as_heads(self.to_q(x)), None)], rotation)
        k = self.rotary_heads.plain([(as_heads(self.to_k(text)), None)], text_rotation)
        v = as_heads(self.to_v(text))
        out: torch.Tensor = self.to_out[0](
            optimized_attention(q, k, v, q.shape[1], skip_reshape=True, transformer_options=options)
        )
        return out


class NamedConv(nn.Module):
    def __init__(self, in_width: int, width: int, kernel: int = 1, *, groups: int = 1, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_width, width, kernel, padding=kernel // 2, groups=groups, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(x)
        return out


class GatedConvolutions(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        inner = int(width * INNER_RATIO)
        self.inverted_conv = NamedConv(width, 2 * inner)
        self.depth_conv = NamedConv(2 * inner, 2 * inner, 3, groups=2 * inner)
        self.point_conv = NamedConv(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, gate = self.depth_conv(functional.silu(self.inverted_conv(x.transpose(1, 2)))).chunk(2, dim=1)
        out: torch.Tensor = self.point_conv(x * functional.silu(gate))
        return out.transpose(1, 2)


class AceStepBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn, self.cross_attn, self.ff = LinearAttention(width), TextAttention(width), GatedConvolutions(width)
        self.scale_shift_table = nn.Parameter(torch.empty(6, width))
        self.adaptive_norm, self.residual = AdaptiveNorm("rms", NORM_EPS), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self,
        x: torch.Tensor,
        text: torch.Tensor,
        modulation: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        text_rotation: tuple[torch.Tensor, torch.Tensor],
        options: Options,
    ) -> torch.Tensor:
        shift, scale, gate, shift_ff, scale_ff, gate_ff = (
            self.scale_shift_table[None].to(modulation) + modulation.view(x.shape[0], 6, -1)
        ).chunk(6, dim=1)
        x = self.residual(x, self.attn(self.adaptive_norm(x, scale, shift), rotation), gate)
        read = self.cross_attn(x, text, rotation, text_rotation, options)
        x, normed = self.residual_norm(x, read, None, scale_ff, shift_ff)
        out: torch.Tensor = self.residual(x, self.ff(normed), gate_ff)
        return out


class ColumnEmbedder(nn.Module):
    def __init__(self, config: AceStepConfig) -> None:
        super().__init__()
        inner = config.in_channels * EARLY_CHANNELS
        self.early_conv_layers = nn.Sequential(
            Conv2d(config.in_channels, inner, (ROWS, 1), stride=(ROWS, 1)),
            nn.GroupNorm(EARLY_GROUPS, inner, eps=NORM_EPS),
            Conv2d(inner, config.width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the columns of a latent [B, C, h, L] as tokens [B, L, D]."""
        out: torch.Tensor = self.early_conv_layers(x)
        return out.flatten(2).transpose(1, 2).contiguous()


class ColumnLayer(nn.Module):
    """The last layer: tokens [B, L, D] -> columns of a latent [B, C, h, L]."""

    def __init__(self, config: AceStepConfig) -> None:
        super().__init__()
        self.channels = config.in_channels
        self.linear = Linear(config.width, ROWS * config.in_channels)
        self.scale_shift_table = nn.Parameter(torch.empty(2, config.width))
        self.adaptive_norm = AdaptiveNorm("rms", NORM_EPS)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        shift, scale = (self.scale_shift_table[None].to(time) + time[:, None]).chunk(2, dim=1)
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift))
        return out.view(*x.shape[:2], ROWS, self.channels).permute(0, 3, 2, 1).contiguous()


class TimeEmbedder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = Linear(TIME_WIDTH, width), Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear_2(functional.silu(self.linear_1(x)))
        return out


class AceStepTransformer(nn.Module):
    """`forward(x [B, C, h, L], timesteps [B], context [B, T, D])` -> `[B, C, h, L]`.

    `lyric_token_idx` [B, T] are the tokens of the lyrics, `lyrics_strength` is what their encoding is multiplied with.
    The voice has no embedding: it is the network's own. Built without weights being drawn when a
    `torch.device("meta")` context is open.
    """

    def __init__(self, config: AceStepConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width = config.width
        self.transformer_blocks = nn.ModuleList(AceStepBlock(width) for _ in range(config.num_blocks))
        self.timestep_embedder = TimeEmbedder(width)
        self.t_block = nn.Sequential(nn.SiLU(), Linear(width, 6 * width))
        self.speaker_embedder = Linear(config.speaker_dim, width)
        self.genre_embedder = Linear(config.context_dim, width)
        self.lyric_embs = nn.Embedding(config.num_lyric_tokens, config.lyrics.width)
        self.lyric_encoder = LyricEncoder(config.lyrics)
        self.lyric_proj = Linear(config.lyrics.width, width)
        self.proj_in = ColumnEmbedder(config)
        self.final_layer = ColumnLayer(config)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.genre_embedder.weight.dtype

    def text(self, context: torch.Tensor, lyrics: torch.Tensor, strength: float) -> torch.Tensor:
        """Return the tokens [B, T, D] of the voice, the tags and the lyrics behind each other."""
        voice = self.speaker_embedder(context.new_zeros(context.shape[0], 1, self.config.speaker_dim))
        words = self.lyric_proj(self.lyric_encoder(self.lyric_embs(lyrics).to(context.dtype))) * strength
        return torch.cat([voice, self.genre_embedder(context), words], dim=1)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        lyric_token_idx: torch.Tensor,
        lyrics_strength: float = 1.0,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        text = self.text(context, lyric_token_idx, lyrics_strength)
        time = self.timestep_embedder(timestep_embedding(timesteps, TIME_WIDTH).to(x.dtype))
        modulation = self.t_block(time)
        tokens = self.proj_in(x)
        rotation, text_rotation = (rotations_of(item.shape[1], x.device, x.dtype) for item in (tokens, text))
        for block in self.transformer_blocks:
            tokens = block(tokens, text, modulation, rotation, text_rotation, options)
        drawn: torch.Tensor = self.final_layer(tokens, time)
        return drawn
