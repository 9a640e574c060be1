"""VAE of audio: waveforms to latents and back.

Audio is `[B, S, C]` at the VAE's rate, as ComfyUI's nodes give them, latents `[B, C, L]` or `[B, C, h, L]`, unscaled.
"""

from __future__ import annotations

from functools import partial

import torch

from darkroom.engine.diffusion.sampling_run import SamplingRun, sampling_run
from darkroom.engine.layers.tiles import AxisScale, even_scale, run_in_tiles
from darkroom.engine.models.vae import TILE_SHARE, Vae
from darkroom.engine.models.weight_handle import Network

TILE_CELLS, OVERLAP_CELLS, LEAST_CELLS = 128, 32, 2  # after memory ran out
ENCODED_TILE_CELLS, ENCODED_OVERLAP_CELLS = 256, 64


class AudioVae(Vae):
    """VAE of audio with ComfyUI's members."""

    @property
    def latent_dim(self) -> int:  # type: ignore[override]
        """Axes of a latent beside batch and channels."""
        dim: int = self.first_stage_model.latent_dim
        return dim

    @property
    def output_channels(self) -> int:
        channels: int = self.first_stage_model.audio_channels
        return channels

    @property
    def sample_rate_hz(self) -> int:
        """The sample rate of the audio that it decodes."""
        rate: int = self.first_stage_model.sample_rate_hz
        return rate

    @property
    def input_rate_hz(self) -> int:
        """The sample rate of the audio that it encodes."""
        return self.sample_rate_hz

    def process_input(self, image: torch.Tensor) -> torch.Tensor:
        return image

    def process_output(self, image: torch.Tensor) -> torch.Tensor:
        return image

    def vae_encode_crop_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Cut audio [B, S, C] to whole latent cells, evenly at both ends."""
        num_samples, ratio = pixels.shape[1], self.downscale_ratio
        extra = num_samples % ratio
        return pixels if extra == 0 else pixels.narrow(1, extra // 2, num_samples - extra)

    def _latents_of(self, samples: torch.Tensor) -> torch.Tensor:
        checked = super()._latents_of(samples)
        self._check_axes(checked)
        return checked

    def _decoded_in_small_tiles(self, samples: torch.Tensor) -> torch.Tensor:
        return self.decode_tiled(samples, tile_x=self._fitting_cells(tuple(samples.shape[:-1])))

    def decode_item_bytes(self, shape: tuple[int, ...]) -> int:
        num_values: int = self.first_stage_model.decode_bytes(shape)
        return num_values * self.vae_dtype.itemsize

    def _encoded_in_small_tiles(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.encode_tiled(pixels)

    def _encode_bytes(self, shape: tuple[int, ...]) -> int:
        num_values: int = self.first_stage_model.encode_bytes(shape)
        return num_values * self.vae_dtype.itemsize

    @torch.no_grad()
    def decode_tiled(
        self,
        samples: torch.Tensor,
        tile_x: int | None = None,
        tile_y: int | None = None,
        overlap: int | None = None,
        tile_t: int | None = None,
        overlap_t: int | None = None,
    ) -> torch.Tensor:
        """Decode latents to audio on the CPU by stretches along time. Sizes are in cells; 0 and None: the usual."""
        samples = self._latents_of(samples)
        tile = tile_x or TILE_CELLS
        shared = min(OVERLAP_CELLS if overlap is None else overlap, tile // 2)
        longest = (*samples.shape[:-1], min(tile, samples.shape[-1]))
        item_bytes = self.decode_item_bytes(longest)
        height, ratio = samples.shape[2:-1], self.upscale_ratio
        flat = samples.flatten(1, -2) if height else samples  # one axis of time

        def decode(run: SamplingRun) -> torch.Tensor:
            with self.patcher.in_use(working_bytes=item_bytes) as network, run.tuned_decoder(self.patcher, network):
                return run_in_tiles(
                    flat, partial(self._decode_stretch, network, samples.shape[1:-1]), tile=(tile,), overlap=shared,
                    scale=ratio, out_channels=self.output_channels, output_device=self.output_device,
                )  # fmt: skip

        return sampling_run().attempt(self.patcher, decode).movedim(1, -1)

    @torch.no_grad()
    def encode_tiled(
        self,
        pixel_samples: torch.Tensor,
        tile_x: int | None = None,
        tile_y: int | None = None,
        overlap: int | None = None,
        tile_t: int | None = None,
        overlap_t: int | None = None,
    ) -> torch.Tensor:
        """Encode audio [B, S, C] to latents on the CPU by stretches along time. Sizes are in samples."""
        waveform = self._items_of(pixel_samples)
        ratio = self.downscale_ratio
        tile = max(1, (tile_x or ENCODED_TILE_CELLS * ratio) // ratio) * ratio
        wanted = ENCODED_OVERLAP_CELLS * ratio if overlap is None else overlap
        shared = min(wanted, tile // 2) // ratio * ratio
        longest = (*waveform.shape[:-1], min(tile, waveform.shape[-1]))
        item_bytes = self._encode_bytes(longest)
        height = getattr(self.first_stage_model, "latent_height", 1)
        scale: list[AxisScale] = [even_scale(1 / ratio)]
        with self.patcher.in_use(working_bytes=item_bytes) as network:
            latents = run_in_tiles(
                waveform, partial(self._encode_stretch, network), tile=(tile,), overlap=shared, scale=scale,
                out_channels=self.latent_channels * height, output_device=self.output_device,
            )  # fmt: skip
        if self.latent_dim == 1:
            return latents
        return latents.view(latents.shape[0], self.latent_channels, height, latents.shape[-1])

    def _fitting_cells(self, shape: tuple[int, ...]) -> int:
        """Return the cells of the longest stretch whose working memory fits the device; 128 at most."""
        room = (self.patcher.free_bytes() + self.patcher.loaded_size()) * TILE_SHARE
        cells = TILE_CELLS
        while cells > LEAST_CELLS and self.decode_item_bytes((*shape, cells)) > room:
            cells //= 2
        return cells

    def _decode_stretch(self, network: Network, shape: torch.Size, stretch: torch.Tensor) -> torch.Tensor:
        """Return the audio of a stretch, without what networks of whole chunks decode behind it."""
        decoded = self._decode_tile(network, stretch.reshape(1, *shape, stretch.shape[-1]))
        return decoded[..., : stretch.shape[-1] * self.upscale_ratio]

    def _encode_stretch(self, network: Network, stretch: torch.Tensor) -> torch.Tensor:
        latent = self._encode_tile(network, stretch)
        return latent.flatten(1, -2) if latent.ndim == 4 else latent

    def _items_of(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return audio [B, S, C] as waveforms [B, C, S] of whole cells and the VAE's channels.

        Raises ValueError for audio that is shorter than a latent cell, or of another number of channels.
        """
        if pixels.ndim != 3:
            raise ValueError(f"audio: not audio; got shape {list(pixels.shape)}, expected [batch, samples, channels]")
        if pixels.shape[1] < self.downscale_ratio:
            least = self.downscale_ratio / self.input_rate_hz
            found = f"{pixels.shape[1] / self.input_rate_hz:g} s"
            raise ValueError(f"audio: shorter than one latent cell; got {found}, expected at least {least:.3g} s")
        waveform = super()._items_of(pixels)
        if waveform.shape[1] == 1:
            return waveform.expand(-1, self.output_channels, -1)
        if waveform.shape[1] != self.output_channels:
            raise ValueError(
                f"audio: another number of channels than the VAE has; got {waveform.shape[1]}, expected "
                f"{self.output_channels} or 1"
            )
        return waveform
