"""VAE of audio whose network works on stretches of time by itself, so that its memory is bounded for any length.

Audio is `[B, S, C]` at 44.1 kHz where it is encoded, latents `[B, C, T, F]` with time before rows.
"""

from __future__ import annotations

from functools import partial

import torch

from darkroom.engine.diffusion.sampling_run import SamplingRun, sampling_run
from darkroom.engine.media.resample import resample
from darkroom.engine.models.audio_vae import AudioVae
from darkroom.engine.models.weight_handle import Network

# Rate at which ComfyUI's nodes give audio to be encoded, and the samples to a multiple of which they cut it.
INPUT_RATE_HZ, CUT_SAMPLES = 44100, 4096
TILE_CELLS = 32  # after memory ran out


class StretchedAudioVae(AudioVae):
    """VAE of audio with ComfyUI's members. Tiles are stretches whose results are those of the whole."""

    @property
    def input_rate_hz(self) -> int:
        return INPUT_RATE_HZ

    @property
    def downscale_ratio(self) -> int:
        return CUT_SAMPLES

    @property
    def upscale_ratio(self) -> int:
        return CUT_SAMPLES

    def _items_of(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return audio [B, S, C] as waveforms [B, C, S] at the network's rate; channels that it has not are left out.

        Raises ValueError for audio that is too short.
        """
        waveform = super()._items_of(pixels[..., : self.output_channels])
        return resample(waveform, INPUT_RATE_HZ, self.first_stage_model.input_rate_hz)

    def _decoded_in_small_tiles(self, samples: torch.Tensor) -> torch.Tensor:
        return self.decode_tiled(samples, tile_x=TILE_CELLS)

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
        """Decode latents to audio [B, S, C] on the CPU, `tile_x` cells of time at once; None: 32."""
        samples, stretch = self._latents_of(samples), max(1, tile_x or TILE_CELLS)
        item_bytes = self.decode_item_bytes((1, samples.shape[1], min(stretch, samples.shape[2]), samples.shape[3]))

        def decode(run: SamplingRun) -> torch.Tensor:
            with self.patcher.in_use(working_bytes=item_bytes) as network, run.tuned_decoder(self.patcher, network):
                decoded = [
                    self._on_cpu(partial(network.decode, stretch=stretch), item) for item in torch.split(samples, 1)
                ]
            return torch.cat(decoded)

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
        """Encode audio [B, S, C] to latents on the CPU, `tile_x` of its samples at once; None: 32 cells."""
        waveform = self._items_of(pixel_samples)
        cells_per_sample = self.first_stage_model.cells_per_second / INPUT_RATE_HZ
        stretch = TILE_CELLS if not tile_x else max(1, int(tile_x * cells_per_sample))
        with self.patcher.in_use(working_bytes=self._encode_bytes(tuple(waveform.shape))) as network:
            encoded = [
                self._on_cpu(partial(network.encode, stretch=stretch), item) for item in torch.split(waveform, 1)
            ]
        return torch.cat(encoded)

    def _on_cpu(self, compute: Network, item: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = compute(item.to(self.device, self.vae_dtype))
        return result.to(self.output_device).float()
