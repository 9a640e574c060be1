"""The encoder of Whisper (Radford et al. 2022, arXiv 2212.04356): features of every layer of 30 s of audio.

`B` batch, `S` samples at 16 kHz, `M` bands, `N` frames of a spectrogram, `T` tokens, 50 a second, `D` width. Module
names are those of the transformers library's files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.mel_spectrogram import mel_bands
from darkroom.engine.layers.shapes import Shapes, count_children

HEAD_WIDTH = 64
RATE_HZ, WINDOW, HOP = 16000, 400, 160
HIGHEST_HZ = 8000.0
LEAST_POWER = 1e-10
RANGE = 8.0  # powers of ten below the loudest that are told apart
STRIDE = 2  # frames of the spectrogram a token

MARK = "encoder.embed_positions.weight"


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """Configuration of the encoder; defaults are those of large v3. `num_tokens` are those of 30 s."""

    width: int = 1280
    num_layers: int = 32
    inner_width: int = 5120
    num_bands: int = 128
    num_tokens: int = 1500


def whisper_config(shapes: Shapes) -> WhisperConfig:
    """Return the configuration of the encoder with these tensors. Raises LookupError for a missing one."""
    num_tokens, width = shapes[MARK]
    return WhisperConfig(
        width=width,
        num_layers=count_children(shapes, "encoder.layers"),
        inner_width=shapes["encoder.layers.0.fc1.weight"][0],
        num_bands=shapes["encoder.conv1.weight"][1],
        num_tokens=num_tokens,
    )


def log_mel_spectrogram(waveform: torch.Tensor, num_bands: int) -> torch.Tensor:
    """Return logarithms of power [B, M, S / 160] of waveforms [B, S], shifted and scaled as Whisper reads them."""
    window = torch.hann_window(WINDOW, device=waveform.device)
    spectrum = torch.stft(waveform, WINDOW, HOP, window=window, center=True, pad_mode="reflect", return_complex=True)
    power = spectrum[..., :-1].abs().square()  # [B, WINDOW / 2 + 1, N]
    bands = mel_bands(power.shape[1], num_bands, 0.0, HIGHEST_HZ, RATE_HZ).to(power)
    mels = (power.transpose(1, 2) @ bands).transpose(1, 2).clamp(min=LEAST_POWER).log10()
    return (torch.maximum(mels, mels.max() - RANGE) + 4.0) / 4.0


class SpeechAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.q_proj, self.v_proj, self.out_proj = (Linear(width, width) for _ in range(3))
        self.k_proj = Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out_proj(attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads))
        return out


class SpeechLayer(nn.Module):
    """Transformer layer, [B, T, D] -> [B, T, D]."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.self_attn = SpeechAttention(config.width)
        self.self_attn_layer_norm = nn.LayerNorm(config.width)
        self.fc1, self.fc2 = Linear(config.width, config.inner_width), Linear(config.inner_width, config.width)
        self.final_layer_norm = nn.LayerNorm(config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        out: torch.Tensor = x + self.fc2(functional.gelu(self.fc1(self.final_layer_norm(x))))
        return out


class SpeechEncoder(nn.Module):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.num_bands, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=STRIDE, padding=1)
        self.embed_positions = nn.Embedding(config.num_tokens, config.width)
        self.layers = nn.ModuleList(SpeechLayer(config) for _ in range(config.num_layers))
        self.layer_norm = nn.LayerNorm(config.width)

    def forward(self, mels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the input of each layer, and the output, of spectrograms [B, M, N]."""
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(mels)))).transpose(1, 2)
        x = x + self.embed_positions(torch.arange(x.shape[1], device=x.device))
        states = []
        for layer in self.layers:
            states.append(x)
            x = layer(x)
        return (*states, self.layer_norm(x))


class Whisper(nn.Module):
    """The encoder, for 30 s of audio at a time: longer audio is cut. It computes in float32."""

    least_samples = 1

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = SpeechEncoder(config)

    @property
    def num_samples(self) -> int:
        """Samples of 30 s."""
        return self.config.num_tokens * STRIDE * HOP

    def forward(self, waveform: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the input of each layer and the output, each [B, T, D], of waveforms [B, S] at 16 kHz."""
        missing = max(0, self.num_samples - waveform.shape[-1])
        whole = functional.pad(waveform[..., : self.num_samples], (0, missing))
        states: tuple[torch.Tensor, ...] = self.encoder(log_mel_spectrogram(whole, self.config.num_bands))
        return states

    def working_bytes(self, num_samples: int) -> int:
        """Return the bytes of working memory for so many samples of all waveforms: one layer's inner values."""
        num_waveforms = max(1, -(-num_samples // self.num_samples))
        return num_waveforms * self.config.num_tokens * (self.config.inner_width + self.config.width) * 2 * 4
