"""The transformer of ACE-Step 1.5 (Gong et al. 2026, the ACE-Step 1.5 technical report), of any width and depth.

Two frames of a latent are a token. Every other layer attends to near tokens alone. The condition is what the encoder
makes of tags, lyrics and reference audio; a draft of the song, from codes, from reference audio or silent, comes in the
channels before the noisy ones. `B` batch, `C` channels, `L` frames of the latent, `T` tokens, `D` hidden size. Module
names are those of the published files.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ace_step15.attention import (
    NORM_EPS,
    Attention,
    FeedForward,
    Width,
    turns_of,
    width_of,
    window_mask,
)
from darkroom.engine.families.ace_step15.audio_codes import (
    FRAMES_PER_CODE,
    SILENT_CODE,
    AudioDetokenizer,
    AudioTokenizer,
)
from darkroom.engine.families.ace_step15.condition_encoder import ConditionEncoder
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.rotary import Turns
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, ResidualNorm
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

TIME_DIM, TIME_FACTOR = 256, 1000.0  # sinusoids of the time, and what it is multiplied with
PATCH_FRAMES = 2
WINDOW = 128  # tokens on both sides

KEY = "encoder.lyric_encoder.layers.0.input_layernorm.weight"
FIRST = "decoder.proj_in.1.weight"


@dataclass(frozen=True, slots=True)
class AceStep15Config:
    """Configuration of the network: sizes of its tokens and of its encoders' tokens, and numbers of layers."""

    width: Width = Width(2048, 6144, 16, 8)
    encoder_width: Width = Width(2048, 6144, 16, 8)
    num_layers: int = 24
    num_lyric_layers: int = 8
    num_timbre_layers: int = 4
    num_tokenizer_layers: int = 2
    num_detokenizer_layers: int = 2
    context_dim: int = 1024
    in_channels: int = 64


def ace_step15_config(shapes: Shapes) -> AceStep15Config:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    return AceStep15Config(
        width=width_of(shapes, "decoder.layers.0"),
        encoder_width=width_of(shapes, "encoder.lyric_encoder.layers.0"),
        num_layers=count_children(shapes, "decoder.layers"),
        num_lyric_layers=count_children(shapes, "encoder.lyric_encoder.layers"),
        num_timbre_layers=count_children(shapes, "encoder.timbre_encoder.layers"),
        num_tokenizer_layers=count_children(shapes, "tokenizer.attention_pooler.layers"),
        num_detokenizer_layers=count_children(shapes, "detokenizer.layers"),
        context_dim=shapes["encoder.text_projector.weight"][1],
        in_channels=shapes["decoder.proj_out.1.weight"][1],
    )


class TimeEmbedder(nn.Module):
    """`forward(times [B])` -> an embedding `[B, D]` and the modulation of layers `[B, 6, D]`."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = Linear(TIME_DIM, hidden_size), Linear(hidden_size, hidden_size)
        self.time_proj = Linear(hidden_size, 6 * hidden_size)

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        waves = timestep_embedding(TIME_FACTOR * times.float(), TIME_DIM).to(dtype)
        embedded = self.linear_2(functional.silu(self.linear_1(waves)))
        return embedded, self.time_proj(functional.silu(embedded)).unflatten(1, (6, -1))


class SongLayer(nn.Module):
    """Attention to the song's tokens, attention to the condition, then a feed-forward layer."""

    def __init__(self, width: Width) -> None:
        super().__init__()
        self.self_attn_norm, self.cross_attn_norm, self.mlp_norm = (
            RmsNorm(width.hidden_size, NORM_EPS) for _ in range(3)
        )
        self.self_attn, self.cross_attn, self.mlp = Attention(width), Attention(width), FeedForward(width)
        self.scale_shift_table = nn.Parameter(torch.empty(1, 6, width.hidden_size))
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)

    def forward(
        self,
        x: torch.Tensor,
        modulation: torch.Tensor,
        condition: torch.Tensor,
        turns: Turns,
        mask: torch.Tensor | None,
        options: Options,
    ) -> torch.Tensor:
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = (
            self.scale_shift_table.to(modulation.dtype) + modulation
        ).chunk(6, dim=1)
        normed = self.adaptive_norm(x, scale, shift, self.self_attn_norm)
        attended = self.self_attn(normed, turns, mask=mask, options=options)
        x, normed = self.residual_norm(x, attended, gate, None, norm=self.cross_attn_norm)
        conditioned = self.cross_attn(normed, None, condition, options=options)
        x, normed = self.residual_norm(x, conditioned, None, mlp_scale, mlp_shift, norm=self.mlp_norm)
        out: torch.Tensor = self.residual(x, self.mlp(normed), mlp_gate)
        return out


class SongDecoder(nn.Module):
    """`forward(x [B, L, 3 C], times [B], condition [B, T, encoder D])` -> `[B, L, C]`."""

    def __init__(self, config: AceStep15Config) -> None:
        super().__init__()
        hidden_size, channels = config.width.hidden_size, config.in_channels
        # Files number these layers behind one that only turns axes.
        self.proj_in = nn.Sequential(
            nn.Identity(), nn.Conv1d(3 * channels, hidden_size, PATCH_FRAMES, stride=PATCH_FRAMES)
        )
        self.proj_out = nn.Sequential(
            nn.Identity(), nn.ConvTranspose1d(hidden_size, channels, PATCH_FRAMES, stride=PATCH_FRAMES)
        )
        self.time_embed, self.time_embed_r = TimeEmbedder(hidden_size), TimeEmbedder(hidden_size)
        self.condition_embedder = Linear(config.encoder_width.hidden_size, hidden_size)
        self.layers = nn.ModuleList(SongLayer(config.width) for _ in range(config.num_layers))
        self.norm_out = RmsNorm(hidden_size, NORM_EPS)
        self.scale_shift_table = nn.Parameter(torch.empty(1, 2, hidden_size))
        self.adaptive_norm = AdaptiveNorm("none")

    def forward(self, x: torch.Tensor, times: torch.Tensor, condition: torch.Tensor, options: Options) -> torch.Tensor:
        # The network was trained with steps from one time to another; those of zero length are plain flow matching.
        (time, modulation), (rest, rest_modulation) = (
            embed(item, x.dtype)
            for embed, item in ((self.time_embed, times), (self.time_embed_r, torch.zeros_like(times)))
        )
        time, modulation = time + rest, modulation + rest_modulation
        length = x.shape[1]
        padded = functional.pad(x, (0, 0, 0, -length % PATCH_FRAMES))
        tokens = self.proj_in(padded.transpose(1, 2)).transpose(1, 2)
        condition = self.condition_embedder(condition)
        turns = turns_of(tokens.shape[1], x.device, x.dtype)
        near = window_mask(tokens.shape[1], WINDOW, tokens)
        for index, layer in enumerate(self.layers):
            tokens = layer(tokens, modulation, condition, turns, near if index % 2 == 0 else None, options)
        shift, scale = (self.scale_shift_table.to(time.dtype) + time[:, None]).chunk(2, dim=1)
        tokens = self.adaptive_norm(tokens, scale, shift, self.norm_out)
        out: torch.Tensor = self.proj_out(tokens.transpose(1, 2)).transpose(1, 2)
        return out[:, :length]


class AceStep15Transformer(nn.Module):
    """`forward(x [B, C, L], timesteps [B], context [B, T, text width])` -> `[B, C, L]`.

    `lyric_embed` [B, T, text width] are embedded lyrics, `refer_audio` [B, C, L] latents of reference audio, or silent
    ones. The draft is that of `audio_codes` [B, N], else that of the reference audio's codes, or with `is_covers` False
    the reference audio itself. With `replace_with_null_embeds` the condition is the network's empty one. Built without
    weights being drawn when a `torch.device("meta")` context is open.
    """

    is_wrapped = False

    def __init__(self, config: AceStep15Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        inner = config.encoder_width.hidden_size
        self.decoder = SongDecoder(config)
        self.encoder = ConditionEncoder(
            config.context_dim, config.in_channels, config.encoder_width, config.num_lyric_layers,
            config.num_timbre_layers,
        )  # fmt: skip
        self.tokenizer = AudioTokenizer(config.in_channels, inner, config.num_tokenizer_layers)
        self.detokenizer = AudioDetokenizer(config.in_channels, inner, config.num_detokenizer_layers)
        self.null_condition_emb = nn.Parameter(torch.empty(1, 1, inner))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.decoder.condition_embedder.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        lyric_embed: torch.Tensor,
        refer_audio: torch.Tensor,
        audio_codes: torch.Tensor | None = None,
        is_covers: bool = True,
        replace_with_null_embeds: bool = False,
        **kwargs: object,
    ) -> torch.Tensor:
        noisy, audio = x.transpose(1, 2), refer_audio.transpose(1, 2)
        condition = self.encoder(context, lyric_embed, audio)
        if replace_with_null_embeds:
            condition = self.null_condition_emb.to(condition.dtype).expand_as(condition)
        draft = self.draft(audio, audio_codes, noisy.shape[1]) if is_covers else audio
        channels = torch.cat([draft, torch.ones_like(noisy), noisy], dim=2)
        drawn: torch.Tensor = self.decoder(channels, timesteps, condition, transformer_options or {})
        return drawn.transpose(1, 2)

    def draft(self, audio: torch.Tensor, codes: torch.Tensor | None, length: int) -> torch.Tensor:
        """Return the draft [B, L, C] of codes, or of those of reference audio [B, L, C]."""
        if codes is None:
            tokens = self.tokenizer(audio)
        else:
            missing = max(0, -(-length // FRAMES_PER_CODE) - codes.shape[1])
            codes = functional.pad(codes, (0, missing), value=SILENT_CODE)
            tokens = self.tokenizer.quantizer.tokens_of(codes, audio.dtype)
        frames: torch.Tensor = self.detokenizer(tokens)
        return frames[:, :length]
