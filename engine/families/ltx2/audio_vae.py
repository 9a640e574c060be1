"""The audio VAE of LTX-2: waveforms to latents by way of log-mel spectrograms, and back through a vocoder.

`B` batch, `C` channels of audio, `S` samples, `N` frames of the spectrogram, `M` mel bands, `T` latent cells in time,
`F` latent rows. Latents are `[B, c, T, F]`, standardised by statistics that the file holds. Both ways work on stretches
of time with what their layers look back and ahead to, so that memory is bounded and results are those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ltx2.bandwidth_extension import ExtendedVocoder, ExtendedVocoderConfig
from darkroom.engine.families.ltx2.spectrogram_autoencoder import (
    SpectrogramDecoder,
    SpectrogramEncoder,
    SpectrogramHalfConfig,
)
from darkroom.engine.families.ltx2.vocoder import NUM_BANDS, Ltx2Vocoder, VocoderConfig
from darkroom.engine.layers.mel_spectrogram import mel_bands

FRAMES_PER_CELL, BANDS_PER_ROW = 4, 4
LEAST_MAGNITUDE = 1e-5
STRETCH_CELLS = 256  # computed at once: ten seconds of published models
# Values in memory for a latent cell and row that is decoded, for a frame that is encoded, with 128 channels.
DECODE_VALUES, ENCODE_VALUES = 87000, 140000
MEASURED_CHANNELS = 128


@dataclass(frozen=True, slots=True)
class Ltx2AudioVaeConfig:
    """Configuration of the network. `window` and `hop` are those of the spectrogram, in samples."""

    encoder: SpectrogramHalfConfig = SpectrogramHalfConfig()
    decoder: SpectrogramHalfConfig = SpectrogramHalfConfig()
    vocoder: VocoderConfig | ExtendedVocoderConfig = VocoderConfig()
    input_rate_hz: int = 16000
    window: int = 1024
    hop: int = 160

    @property
    def out_rate_hz(self) -> int:
        """Sample rate of decoded audio."""
        if self.vocoder.sample_rate_hz is not None:
            return self.vocoder.sample_rate_hz
        return self.input_rate_hz * self.vocoder.samples_per_frame // self.hop


class SpectrogramAutoencoder(nn.Module):
    def __init__(self, config: Ltx2AudioVaeConfig) -> None:
        super().__init__()
        self.encoder, self.decoder = SpectrogramEncoder(config.encoder), SpectrogramDecoder(config.decoder)
        self.per_channel_statistics = LatentStatistics(config.decoder.latent_channels)


class LatentStatistics(nn.Module):
    """Means and deviations of latents, of each channel and row."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("std-of-means", "mean-of-means"):
            values = torch.empty(channels * NUM_BANDS // BANDS_PER_ROW)
            self.register_parameter(name, nn.Parameter(values, requires_grad=False))

    def _of(self, name: str, latents: torch.Tensor) -> torch.Tensor:
        return self.get_parameter(name).to(latents).view(latents.shape[1], 1, latents.shape[3])

    def normalised(self, latents: torch.Tensor) -> torch.Tensor:
        return (latents - self._of("mean-of-means", latents)) / self._of("std-of-means", latents)

    def restored(self, latents: torch.Tensor) -> torch.Tensor:
        return latents * self._of("std-of-means", latents) + self._of("mean-of-means", latents)


class Ltx2AudioVae(nn.Module):
    """`encode` and `decode` between waveforms and latents."""

    is_of_audio = works_in_stretches = True
    latent_dim = 2
    latent_height = NUM_BANDS // BANDS_PER_ROW  # rows of a latent

    def __init__(self, config: Ltx2AudioVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.latent_channels = config.decoder.latent_channels
        self.audio_channels = config.encoder.audio_channels
        self.input_rate_hz, self.sample_rate_hz = config.input_rate_hz, config.out_rate_hz
        self.autoencoder = SpectrogramAutoencoder(config)
        self.vocoder = (
            ExtendedVocoder(config.vocoder)
            if isinstance(config.vocoder, ExtendedVocoderConfig)
            else Ltx2Vocoder(config.vocoder)
        )

    @property
    def cells_per_second(self) -> float:
        """Latent cells of a second of audio."""
        return self.input_rate_hz / self.config.hop / FRAMES_PER_CELL

    def num_cells(self, frames: int, frame_rate: float) -> int:
        """Return the number of latent cells of the audio of a video."""
        return round(frames / frame_rate * self.cells_per_second)

    def encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one waveform of the shape [B, C, S], for each byte of the dtype."""
        num_frames = min(
            shape[2] // self.config.hop + 1, FRAMES_PER_CELL * (STRETCH_CELLS + self.config.encoder.reach_cells)
        )
        values = ENCODE_VALUES * num_frames * self.config.encoder.channels // MEASURED_CHANNELS
        return values + 2 * self.audio_channels * shape[2]

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one latent of the shape [B, c, T, F], for each byte of the dtype."""
        reach = max(self.config.decoder.reach_cells, 2 * self.config.vocoder.reach_frames // FRAMES_PER_CELL)
        samples = FRAMES_PER_CELL * shape[2] * self.config.vocoder.samples_per_frame
        return DECODE_VALUES * min(shape[2], STRETCH_CELLS + reach) * shape[3] + self.audio_channels * samples

    def encode(self, waveform: torch.Tensor, stretch: int = STRETCH_CELLS) -> torch.Tensor:
        """Return the means of the posterior [B, c, T, F] of waveforms [B, C, S] at `input_rate_hz`."""
        means = torch.cat([*self._encoded_stretches(waveform, stretch)], dim=2)
        return self.autoencoder.per_channel_statistics.normalised(means)

    def _encoded_stretches(self, waveform: torch.Tensor, stretch: int) -> Iterator[torch.Tensor]:
        """Yield the means [B, c, t, F] of waveforms [B, C, S], whose ends are mirrored, `stretch` cells at once."""
        half = self.config.window // 2
        padded = functional.pad(waveform, (half, half), mode="reflect")
        num_frames = waveform.shape[2] // self.config.hop + 1
        num_cells = -(-num_frames // FRAMES_PER_CELL)
        for start in range(0, num_cells, stretch):
            first = max(0, start - self.config.encoder.reach_cells)
            end = min(num_cells, start + stretch)
            end_frame = num_frames if end == num_cells else FRAMES_PER_CELL * (end - 1) + 1
            moments = self.autoencoder.encoder(self._mel(padded, FRAMES_PER_CELL * first, end_frame))
            yield moments[:, : self.latent_channels, start - first :]

    def _mel(self, padded: torch.Tensor, first: int, end: int) -> torch.Tensor:
        """Return frames of the log-mel spectrograms [B, C, N, M] of waveforms [B, C, S] that are padded."""
        config = self.config
        samples = padded[..., first * config.hop : (end - 1) * config.hop + config.window]
        shape = torch.hann_window(config.window, device=padded.device)
        spectrum = torch.stft(
            samples.flatten(0, 1).float(), config.window, config.hop, window=shape, center=False, return_complex=True
        )
        num_bins = config.window // 2 + 1
        bands = mel_bands(num_bins, NUM_BANDS, 0.0, config.input_rate_hz / 2, config.input_rate_hz).to(spectrum.device)
        mel = (spectrum.abs().transpose(1, 2) @ bands).clamp(min=LEAST_MAGNITUDE).log()
        return mel.to(padded.dtype).reshape(*padded.shape[:2], *mel.shape[1:])

    def decode(self, latents: torch.Tensor, stretch: int = STRETCH_CELLS) -> torch.Tensor:
        """Return the waveforms [B, C, S] of latents [B, c, T, F], at `sample_rate_hz`."""
        restored = self.autoencoder.per_channel_statistics.restored(latents)
        mel = torch.cat([*self._decoded_stretches(restored, stretch)], dim=2).transpose(2, 3)  # [B, C, M, N]
        if self.audio_channels == 1:
            mel = mel[:, 0]
        return torch.cat([*self._heard_stretches(mel, FRAMES_PER_CELL * stretch)], dim=2)

    def _decoded_stretches(self, latents: torch.Tensor, stretch: int) -> Iterator[torch.Tensor]:
        """Yield the spectrogram [B, C, n, M] of latents [B, c, T, F], `stretch` cells of time at once."""
        for start in range(0, latents.shape[2], stretch):
            first = max(0, start - self.config.decoder.reach_cells)
            mel = self.autoencoder.decoder(latents[:, :, first : start + stretch])
            yield mel[:, :, max(0, FRAMES_PER_CELL * (start - first) - (FRAMES_PER_CELL - 1)) :]

    def _heard_stretches(self, mel: torch.Tensor, stretch: int) -> Iterator[torch.Tensor]:
        """Yield the waveform [B, C, s] of a spectrogram [B, C, M, N] or [B, M, N], `stretch` frames at once."""
        config, num_frames = self.config.vocoder, mel.shape[-1]
        if not config.is_even:
            yield self.vocoder(mel)
            return
        reach, ratio = config.reach_frames, config.samples_per_frame
        for start in range(0, num_frames, stretch):
            first, end = max(0, start - reach), min(num_frames, start + stretch)
            waveform = self.vocoder(mel[..., first : min(num_frames, end + reach)])
            yield waveform[..., (start - first) * ratio : (end - first) * ratio]
