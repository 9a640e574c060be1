"""The autoencoder of Stable Audio 3 ("SAME", Stability AI 2026, arXiv 2605.17991), of any width.

Waveforms `[B, 2, S]` in -1..1 at 44.1 kHz, latents `[B, C, L]` of a cell for 4096 samples, unscaled. Stretches of 256
samples are tokens; 16 of them and a learned one become a latent cell, and back. The larger autoencoder attends to a
window around each token, the smaller one to chunks of tokens, half of its layers to chunks that begin in the middle of
the others' ones. Attention is the difference of two attentions over the same values (Ye et al. 2024, arXiv 2410.05258);
norms are hyperbolic tangents (Zhu et al. 2025, arXiv 2503.10622). `T` tokens, `D` hidden size, `H` heads. Module names
are those of the original checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.stable_audio.transformer import AudioFeedForward, GatedProjection, RotaryFrequencies
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import DynamicTanh
from darkroom.engine.layers.rotary import rotated_halves
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.weight_norm import NormedConv1d

MARK = "decoder.layers.3.transformers.0.pre_norm.alpha"
PATCH_SAMPLES, STRIDE = 256, 16
SAMPLES_PER_CELL = PATCH_SAMPLES * STRIDE
AUDIO_CHANNELS = 2
SAMPLE_RATE_HZ = 44100
HEAD_DIM = 64
FEWEST_WINDOWED_LAYERS = 12  # networks of fewer layers attend to chunks
CHUNK_TOKENS = 32  # of the smaller autoencoder, without the learned ones
WINDOW_TOKENS = STRIDE + 1  # on either side of a token
QUERIES_AT_ONCE = 1024  # of a window: keys outside of it are not computed
NUM_SINE_LAYERS = 8  # of the larger autoencoder's decoder, less one: feed-forward layers with sines at its end
NOISE_SEED, NOISE_SHARE = 0, 1e-3
PI = 3.14159265359
# Bytes of working memory per sample and byte of the dtype (ComfyUI's).
WINDOWED_BYTES_PER_SAMPLE, CHUNKED_BYTES_PER_SAMPLE = 1500, 72


@dataclass(frozen=True, slots=True)
class SameVaeConfig:
    """Configuration of the network. `kernel` is that of the convolution behind the decoder's layers."""

    hidden_size: int = 1536
    num_layers: int = 12
    intermediate_size: int = 4608
    latent_channels: int = 256
    kernel: int = 1

    @property
    def is_windowed(self) -> bool:
        """True for the larger autoencoder, whose tokens attend to a window around each."""
        return self.num_layers >= FEWEST_WINDOWED_LAYERS


def same_vae_config(shapes: Shapes) -> SameVaeConfig:
    """Return the configuration of the network with these tensors. Raises LookupError for a missing one."""
    _, hidden_size, kernel = shapes["decoder.layers.3.mapping.weight_v"]
    return SameVaeConfig(
        hidden_size=hidden_size,
        num_layers=count_children(shapes, "decoder.layers.3.transformers"),
        intermediate_size=shapes["decoder.layers.3.transformers.0.ff.ff.2.weight"][1],
        latent_channels=shapes["decoder.layers.1.weight"][1],
        kernel=kernel,
    )


class SameAttention(nn.Module):
    def __init__(self, width: int, head_dim: int, *, is_windowed: bool) -> None:
        super().__init__()
        self.head_dim, self.is_windowed = head_dim, is_windowed
        self.to_qkv, self.to_out = Linear(width, 5 * width, bias=False), Linear(width, width, bias=False)
        self.q_norm, self.k_norm = DynamicTanh(head_dim), DynamicTanh(head_dim)

    def forward(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return [B, T, D]: the difference of two attentions over the same values."""
        parts = self.to_qkv(x).chunk(5, dim=-1)
        q, k, v, other_q, other_k = (part.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2) for part in parts)
        attend = attended_in_window if self.is_windowed else _attended
        attended = attend(self._turned(q, self.q_norm, tables), self._turned(k, self.k_norm, tables), v)
        attended = attended - attend(
            self._turned(other_q, self.q_norm, tables), self._turned(other_k, self.k_norm, tables), v
        )
        out: torch.Tensor = self.to_out(attended)
        return out

    def _turned(self, x: torch.Tensor, norm: nn.Module, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return rotated_halves(norm(x), tables, is_float32=True)


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return attention [B, T, D] of heads [B, H, T, W] over all keys, or those that a mask adds nothing to."""
    out: torch.Tensor = optimized_attention(q, k, v, q.shape[1], mask=mask, skip_reshape=True)
    return out


def attended_in_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return attention [B, T, D] of heads [B, H, T, W] over the keys within a window around each query.

    Memory grows with the number of tokens alone: queries come in stretches, each with the keys around it.
    """
    length = q.shape[2]
    attended = []
    masks: dict[tuple[int, int, int], torch.Tensor] = {}  # all stretches but those at the ends share one
    for start in range(0, length, QUERIES_AT_ONCE):
        end = min(start + QUERIES_AT_ONCE, length)
        first, last = max(0, start - WINDOW_TOKENS), min(length, end + WINDOW_TOKENS)
        place = end - start, start - first, last - first
        if place not in masks:
            masks[place] = _window_mask(q, *place)
        attended.append(_attended(q[:, :, start:end], k[:, :, first:last], v[:, :, first:last], masks[place]))
    return torch.cat(attended, dim=1)


def _window_mask(q: torch.Tensor, num_queries: int, offset: int, num_keys: int) -> torch.Tensor:
    """Return the mask [Q, K] of queries of which the first stands at the key of this number."""
    queries, keys = torch.arange(num_queries, device=q.device) + offset, torch.arange(num_keys, device=q.device)
    is_outside = (keys[None] - queries[:, None]).abs() > WINDOW_TOKENS
    mask = torch.zeros(is_outside.shape, dtype=q.dtype, device=q.device)
    return mask.masked_fill(is_outside, torch.finfo(q.dtype).min / 4)


class SineProjection(nn.Module):
    """Values times the sines of their gates."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.proj = Linear(width, 2 * inner_width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        out: torch.Tensor = value * torch.sin(PI * gate)
        return out


class SameBlock(nn.Module):
    def __init__(self, config: SameVaeConfig, *, has_sines: bool) -> None:
        super().__init__()
        width = config.hidden_size
        head_dim = min(HEAD_DIM, width)
        self.pre_norm, self.ff_norm = DynamicTanh(width), DynamicTanh(width)
        self.self_attn = SameAttention(width, head_dim, is_windowed=config.is_windowed)
        projection = SineProjection if has_sines else GatedProjection
        self.ff = AudioFeedForward(width, config.intermediate_size, projection)
        self.rope = RotaryFrequencies(head_dim // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, D]."""
        angles = self.rope(x.shape[1]).chunk(2, dim=-1)[0]
        x = x + self.self_attn(self.pre_norm(x), (angles.cos(), angles.sin()))
        out: torch.Tensor = x + self.ff(self.ff_norm(x))
        return out


class ResamplingBlock(nn.Module):
    """Layers over tokens of which 16 and a learned one belong together, or one and 16 learned ones."""

    def __init__(self, config: SameVaeConfig, num_sine_layers: int = 0) -> None:
        super().__init__()
        self.is_windowed = config.is_windowed
        first_sine = config.num_layers - num_sine_layers + 1 if num_sine_layers else config.num_layers
        self.new_tokens = nn.Parameter(torch.empty(1, 1, config.hidden_size))
        self.transformers = nn.ModuleList(
            SameBlock(config, has_sines=index >= first_sine) for index in range(config.num_layers)
        )

    def resampled(self, x: torch.Tensor, num_given: int, num_new: int) -> torch.Tensor:
        """Return the new tokens [B, N * num_new, D] behind every `num_given` of tokens [B, N * num_given, D]."""
        batch, _, width = x.shape
        groups = x.reshape(-1, num_given, width)
        new = self.new_tokens.to(x.dtype).expand(groups.shape[0], num_new, -1)
        tokens = torch.cat([groups, new], dim=1).reshape(batch, -1, width)
        tokens = self._in_window(tokens) if self.is_windowed else self._in_chunks(tokens)
        groups = tokens.reshape(-1, num_given + num_new, width)
        return groups[:, -num_new:].reshape(batch, -1, width)

    def _in_window(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.transformers:
            x = layer(x)
        return x

    def _in_chunks(self, x: torch.Tensor) -> torch.Tensor:
        """Pass tokens [B, T, D] through half of the layers in chunks, and through the others in shifted ones.

        The first and last half of a chunk stand before and behind the shifted ones a second time.
        """
        batch, _, width = x.shape
        chunk = CHUNK_TOKENS + CHUNK_TOKENS // STRIDE
        num_first, shift = len(self.transformers) // 2, chunk // 2
        x = x.reshape(-1, chunk, width)
        for layer in self.transformers[:num_first]:
            x = layer(x)
        x = x.reshape(batch, -1, width)
        x = torch.cat([x[:, :shift], x, x[:, -shift:]], dim=1).reshape(-1, chunk, width)
        for layer in self.transformers[num_first:]:
            x = layer(x)
        return x.reshape(batch, -1, width)[:, shift:-shift]


class EncoderBlock(ResamplingBlock):
    """`forward(x [B, C, N * 16])` -> `[B, D, N]`, of whole chunks."""

    def __init__(self, in_channels: int, config: SameVaeConfig) -> None:
        super().__init__(config)
        self.mapping = NormedConv1d(in_channels, config.hidden_size, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mapping(_padded(x, STRIDE if self.is_windowed else CHUNK_TOKENS))
        return self.resampled(x.transpose(1, 2), STRIDE, 1).transpose(1, 2)


class DecoderBlock(ResamplingBlock):
    """`forward(x [B, D, N])` -> `[B, C, N * 16]`, of whole chunks."""

    def __init__(self, out_channels: int, config: SameVaeConfig) -> None:
        super().__init__(config, NUM_SINE_LAYERS if config.is_windowed else 0)
        self.mapping = NormedConv1d(config.hidden_size, out_channels, config.kernel, padding=config.kernel // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _padded(x, 1 if self.is_windowed else CHUNK_TOKENS // STRIDE)
        tokens = self.resampled(x.transpose(1, 2), 1, STRIDE).transpose(1, 2)
        out: torch.Tensor = self.mapping(tokens)
        return out


def _padded(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Return [B, C, N] with zeros behind, up to a multiple."""
    return functional.pad(x, (0, -x.shape[-1] % multiple))


class Bottleneck(nn.Module):
    """Scale and offset of each channel of a latent, and the deviation by which all are divided."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scaling_factor, self.bias = (nn.Parameter(torch.empty(1, channels, 1)) for _ in range(2))
        self.running_std = nn.Parameter(torch.empty(1))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        factor, bias, deviation = (item.to(x.dtype) for item in (self.scaling_factor, self.bias, self.running_std))
        return (x * factor + bias) / deviation

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        """Return the latent with a thousandth of noise, with which decoders were trained: the same every time."""
        deviation = self.running_std.to(x.dtype)
        generator = torch.Generator("cpu").manual_seed(NOISE_SEED)
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x)
        return x * deviation + noise * deviation * NOISE_SHARE


class SameHalf(nn.Module):
    """Layers by the numbers that files have for them; the others transpose."""

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)


class SameVae(nn.Module):
    """`encode` and `decode` between waveforms and latents."""

    is_of_audio = True
    latent_dim = 1

    def __init__(self, config: SameVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels, self.audio_channels = config.latent_channels, AUDIO_CHANNELS
        self.downscale_ratio, self.sample_rate_hz = SAMPLES_PER_CELL, SAMPLE_RATE_HZ
        patch = AUDIO_CHANNELS * PATCH_SAMPLES
        width, channels = config.hidden_size, config.latent_channels
        self.encoder = SameHalf({"0": EncoderBlock(patch, config), "2": Linear(width, channels)})
        self.decoder = SameHalf({"1": Linear(channels, width), "3": DecoderBlock(patch, config)})
        self.bottleneck = Bottleneck(config.latent_channels)

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one waveform of the shape [B, 2, S], for each byte of the dtype."""
        return self._bytes_per_sample * shape[2]

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, C, L], for each byte of the dtype."""
        return self._bytes_per_sample * shape[2] * self.downscale_ratio

    @property
    def _bytes_per_sample(self) -> int:
        return WINDOWED_BYTES_PER_SAMPLE if self.config.is_windowed else CHUNKED_BYTES_PER_SAMPLE

    def encode(self, waveform: torch.Tensor) -> torch.Tensor:
        """Encode a waveform [B, 2, S] to a latent [B, C, L]; the smaller autoencoder's has an even number of cells."""
        x = _padded(waveform, PATCH_SAMPLES)
        batch, channels, length = x.shape
        x = x.reshape(batch, channels, length // PATCH_SAMPLES, PATCH_SAMPLES).transpose(2, 3)
        x = self.encoder.layers["0"](x.reshape(batch, channels * PATCH_SAMPLES, -1))  # [B, D, L]
        latent: torch.Tensor = self.encoder.layers["2"](x.transpose(1, 2)).transpose(1, 2)
        return self.bottleneck.encode(latent)

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        """Decode a latent [B, C, L] to a waveform [B, 2, S]; the smaller autoencoder's has an even number of cells."""
        x = self.bottleneck.decode(latent).transpose(1, 2)
        stretches: torch.Tensor = self.decoder.layers["3"](self.decoder.layers["1"](x).transpose(1, 2))
        batch, _, length = stretches.shape  # [B, 2 * 256, 16 L]
        stretches = stretches.reshape(batch, AUDIO_CHANNELS, PATCH_SAMPLES, length).transpose(2, 3)
        return stretches.reshape(batch, AUDIO_CHANNELS, -1)
