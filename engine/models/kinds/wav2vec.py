"""wav2vec 2.0 (Baevski et al. 2020, arXiv 2006.11477): features of every layer of waveforms, of any width and depth.

Two kinds: of the larger one every convolution is normalised over its channels and each transformer layer normalises
what it reads; of the smaller one the first convolution alone is, each channel by itself, and each layer normalises what
it writes. `B` batch, `S` samples at 16 kHz, `T` tokens, 50 a second, `D` width. Module names are those of the
transformers library's files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children

HEAD_WIDTH = 64
STEPS = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))  # kernel and stride of the convolutions
LEAST_SAMPLES = 400  # that become one token
PLACE_GROUPS = 16
LEAST_VARIANCE = 1e-7

MARK = "encoder.pos_conv_embed.conv.bias"
FIRST = "feature_extractor.conv_layers.0.conv"
SECOND_NORM = "feature_extractor.conv_layers.1.layer_norm.weight"  # of the larger kind alone
INNER = "encoder.layers.0.feed_forward.intermediate_dense.weight"
PLACES = "encoder.pos_conv_embed.conv"


@dataclass(frozen=True, slots=True)
class Wav2VecConfig:
    """Configuration of the encoder; defaults are those of the large one. `is_large` tells the two kinds apart."""

    width: int = 1024
    num_layers: int = 24
    inner_width: int = 4096
    conv_width: int = 512
    place_kernel: int = 128
    has_conv_bias: bool = True
    is_large: bool = True


def wav2vec_config(shapes: Shapes) -> Wav2VecConfig:
    """Return the configuration of the encoder with these tensors. Raises LookupError for a missing one."""
    inner_width, width = shapes[INNER]
    return Wav2VecConfig(
        width=width,
        num_layers=count_children(shapes, "encoder.layers"),
        inner_width=inner_width,
        conv_width=shapes[f"{FIRST}.weight"][0],
        place_kernel=shapes[f"{PLACES}.weight_v"][2],
        has_conv_bias=f"{FIRST}.bias" in shapes,
        is_large=SECOND_NORM in shapes,
    )


class WaveConv(nn.Module):
    """A convolution [B, C, S] -> [B, D, S / stride], normalised over its channels, each by itself, or not at all."""

    def __init__(self, config: Wav2VecConfig, index: int) -> None:
        super().__init__()
        width, (kernel, stride) = config.conv_width, STEPS[index]
        self.conv = nn.Conv1d(width if index else 1, width, kernel, stride=stride, bias=config.has_conv_bias)
        self.layer_norm: nn.Module | None = None
        if config.is_large:
            self.layer_norm = nn.LayerNorm(width)
        elif index == 0:
            self.layer_norm = nn.GroupNorm(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        if isinstance(self.layer_norm, nn.LayerNorm):
            x = self.layer_norm(x.transpose(1, 2)).transpose(1, 2)
        elif self.layer_norm is not None:
            x = self.layer_norm(x)
        return functional.gelu(x)


class WaveFeatures(nn.Module):
    def __init__(self, config: Wav2VecConfig) -> None:
        super().__init__()
        self.conv_layers = nn.ModuleList(WaveConv(config, index) for index in range(len(STEPS)))

    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        """Return features [B, T, C] of waveforms [B, S]."""
        x = waveform[:, None]
        for layer in self.conv_layers:
            x = layer(x)
        return x.transpose(1, 2)


class FeatureProjection(nn.Module):
    def __init__(self, config: Wav2VecConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.conv_width)
        self.projection = Linear(config.conv_width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.projection(self.layer_norm(x))
        return projected


class PlaceConv(nn.Module):
    """A grouped convolution whose weight is a direction and a length for each place of its kernel."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.empty(1, 1, kernel))
        self.weight_v = nn.Parameter(torch.empty(width, width // PLACE_GROUPS, kernel))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch._weight_norm(self.weight_v, self.weight_g, 2)
        return functional.conv1d(x, weight, self.bias, padding=weight.shape[2] // 2, groups=PLACE_GROUPS)


class PlaceEmbedding(nn.Module):
    """Embedding of places: a convolution over the neighbours of tokens [B, T, D]."""

    def __init__(self, config: Wav2VecConfig) -> None:
        super().__init__()
        self.conv = PlaceConv(config.width, config.place_kernel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.conv(x.transpose(1, 2))[:, :, :-1]).transpose(1, 2)


class WaveAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out_proj(attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads))
        return out


class WaveFeedForward(nn.Module):
    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.intermediate_dense, self.output_dense = Linear(width, inner_width), Linear(inner_width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.output_dense(functional.gelu(self.intermediate_dense(x)))
        return out


class WaveLayer(nn.Module):
    """Transformer layer, [B, T, D] -> [B, T, D]."""

    def __init__(self, config: Wav2VecConfig) -> None:
        super().__init__()
        self.is_large = config.is_large
        self.attention = WaveAttention(config.width)
        self.layer_norm = nn.LayerNorm(config.width)
        self.feed_forward = WaveFeedForward(config.width, config.inner_width)
        self.final_layer_norm = nn.LayerNorm(config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_large:
            x = x + self.attention(self.layer_norm(x))
            out: torch.Tensor = x + self.feed_forward(self.final_layer_norm(x))
            return out
        x = self.layer_norm(x + self.attention(x))
        out = self.final_layer_norm(x + self.feed_forward(x))
        return out


class WaveEncoder(nn.Module):
    def __init__(self, config: Wav2VecConfig) -> None:
        super().__init__()
        self.is_large = config.is_large
        self.pos_conv_embed = PlaceEmbedding(config)
        self.layers = nn.ModuleList(WaveLayer(config) for _ in range(config.num_layers))
        self.layer_norm = nn.LayerNorm(config.width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the input of each layer, and the output."""
        x = x + self.pos_conv_embed(x)
        if not self.is_large:
            x = self.layer_norm(x)
        states = []
        for layer in self.layers:
            states.append(x)
            x = layer(x)
        return (*states, self.layer_norm(x) if self.is_large else x)


class Wav2Vec(nn.Module):
    """The encoder. It computes in float32, whatever type its weights have."""

    least_samples = LEAST_SAMPLES

    def __init__(self, config: Wav2VecConfig) -> None:
        super().__init__()
        self.config = config
        self.feature_extractor = WaveFeatures(config)
        self.feature_projection = FeatureProjection(config)
        self.encoder = WaveEncoder(config)

    def forward(self, waveform: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the input of each layer and the output, each [B, T, D], of waveforms [B, S] at 16 kHz."""
        if self.config.is_large:
            waveform = (waveform - waveform.mean()) / torch.sqrt(waveform.var() + LEAST_VARIANCE)
        states: tuple[torch.Tensor, ...] = self.encoder(self.feature_projection(self.feature_extractor(waveform)))
        return states

    def working_bytes(self, num_samples: int) -> int:
        """Return the bytes of working memory for so many samples of all waveforms: the first convolution's."""
        return num_samples // STEPS[0][1] * self.config.conv_width * 3 * 4
