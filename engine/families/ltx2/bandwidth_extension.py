"""The vocoder of LTX-2.3: a second one extends the band of the first one's waveform.

It reads a log-mel spectrogram of the waveform, by a Fourier transform whose bases are in the file and that looks only
backwards, and adds to the interpolated waveform. `B` batch, `C` channels, `S` samples, `N` frames, `M` bands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ltx2.vocoder import Ltx2Vocoder, VocoderConfig

LEAST_MAGNITUDE = 1e-5
ZERO_CROSSINGS, ROLL_OFF = 6, 0.99  # of the sinc on either side; its cut-off as a share of the Nyquist frequency


@dataclass(frozen=True, slots=True)
class ExtendedVocoderConfig:
    """Configuration of the two vocoders, and of the spectrogram between them."""

    vocoder: VocoderConfig = VocoderConfig()
    extension: VocoderConfig = field(default_factory=lambda: VocoderConfig(ending="none"))
    window: int = 512
    hop: int = 80
    num_bands: int = 64
    in_rate_hz: int = 16000
    out_rate_hz: int = 48000

    @property
    def ratio(self) -> int:
        return self.out_rate_hz // self.in_rate_hz

    @property
    def sample_rate_hz(self) -> int:
        return self.out_rate_hz

    @property
    def samples_per_frame(self) -> int:
        return self.vocoder.samples_per_frame * self.ratio

    @property
    def is_even(self) -> bool:
        """True if every frame becomes as many samples."""
        return (
            self.vocoder.is_even
            and self.extension.is_even
            and self.out_rate_hz % self.in_rate_hz == 0
            and self.vocoder.samples_per_frame % self.hop == 0
        )

    @property
    def reach_frames(self) -> int:
        """Frames on either side that a sample depends on, at most."""
        samples = self.window + (1 + self.extension.reach_frames) * self.hop
        return self.vocoder.reach_frames + math.ceil(samples / self.vocoder.samples_per_frame)


class FourierBases(nn.Module):
    """The real parts of a windowed Fourier transform, then the imaginary ones, as filters."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.forward_basis = nn.Parameter(torch.empty(window // 2 * 2 + 2, 1, window))


class BackwardMel(nn.Module):
    """Log-mel spectrograms [B, M, N] of waveforms [B, S], in which no frame depends on later samples than its own."""

    def __init__(self, config: ExtendedVocoderConfig) -> None:
        super().__init__()
        self.hop, self.padding = config.hop, max(0, config.window - config.hop)
        self.mel_basis = nn.Parameter(torch.empty(config.num_bands, config.window // 2 + 1))
        self.stft_fn = FourierBases(config.window)

    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(waveform[:, None], (self.padding, 0))
        spectrum = functional.conv1d(padded, self.stft_fn.forward_basis.to(waveform), stride=self.hop)
        real, imaginary = spectrum.chunk(2, dim=1)
        magnitudes = torch.sqrt(real**2 + imaginary**2)
        return torch.matmul(self.mel_basis.to(waveform), magnitudes).clamp(min=LEAST_MAGNITUDE).log()


def interpolated(waveform: torch.Tensor, ratio: int) -> torch.Tensor:
    """Return waveforms [B, C, S] at `ratio` times the rate, by a Hann-windowed sinc, their ends held."""
    half_width = math.ceil(ZERO_CROSSINGS / ROLL_OFF)
    taps = 2 * half_width * ratio + 1
    times = (torch.arange(taps) / ratio - half_width) * ROLL_OFF
    window = torch.cos(times.clamp(-ZERO_CROSSINGS, ZERO_CROSSINGS) * math.pi / ZERO_CROSSINGS / 2) ** 2
    filters = (torch.sinc(times) * window * ROLL_OFF / ratio).to(waveform).expand(waveform.shape[1], 1, -1)
    padded = functional.pad(waveform, (half_width, half_width), mode="replicate")
    filtered = functional.conv_transpose1d(padded, filters, stride=ratio, groups=waveform.shape[1])
    return (ratio * filtered)[..., 2 * half_width * ratio : -(taps - ratio)]


class ExtendedVocoder(nn.Module):
    """`forward(mel [B, 2, M, N] or [B, M, N])` -> waveform [B, 2 or 1, N * samples_per_frame] of -1..1."""

    def __init__(self, config: ExtendedVocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.vocoder, self.bwe_generator = Ltx2Vocoder(config.vocoder), Ltx2Vocoder(config.extension)
        self.mel_stft = BackwardMel(config)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        waveform: torch.Tensor = self.vocoder(mel)
        num_samples = waveform.shape[-1] * self.config.out_rate_hz // self.config.in_rate_hz
        waveform = functional.pad(waveform, (0, -waveform.shape[-1] % self.config.hop))
        spectra = self.mel_stft(waveform.flatten(0, 1)).unflatten(0, waveform.shape[:2])  # [B, C, M, N]
        added: torch.Tensor = self.bwe_generator(spectra)
        return (added + interpolated(waveform, self.config.ratio)).clamp(-1, 1)[..., :num_samples]
