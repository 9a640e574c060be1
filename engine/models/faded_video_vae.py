"""VAE of videos whose tiles are parts of the image's sides alone, and fade into each other along a cosine.

Time is not cut: the network takes a video in pieces with the same result. Latents are `[B, C, f, h, w]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from darkroom.engine.layers.faded_tiles import FadedSum, FadedTiling, run_in_faded_tiles
from darkroom.engine.models.video_vae import TimeTiling, VideoVae
from darkroom.engine.models.weight_handle import Network

FLOAT32_BYTES = 4


class FadedVideoVae(VideoVae):
    """VAE of videos that is evaluated in such tiles."""

    def _decoding(self, tiling: TimeTiling) -> FadedTiling:
        shared = tiling.overlap
        return FadedTiling((tiling.tile_y, tiling.tile_x), (shared, shared), enlarges=self.upscale_ratio)

    def _tile_decode_bytes(self, samples: torch.Tensor, tiling: TimeTiling) -> int:
        sides = (min(pair) for pair in zip((tiling.tile_y, tiling.tile_x), samples.shape[3:], strict=True))
        return self._decode_bytes_at_once((1, *samples.shape[1:3], *sides))

    def _decoded_in_tiles(self, samples: torch.Tensor, tiling: TimeTiling) -> torch.Tensor:
        frames = self._tiled_stream(samples, tiling).whole()
        return frames.view(samples.shape[0], -1, *frames.shape[1:])

    @torch.no_grad()
    def _tiled_frames(self, samples: torch.Tensor, tiling: TimeTiling) -> Iterator[torch.Tensor]:
        """Yield the frames [f, H, W, 3] of one video after the other.

        Videos that take more memory than what the layers remember of them between pieces are decoded stretch by
        stretch, of which each takes as much.
        """
        faded = self._decoding(tiling)
        with self.patcher.in_use(working_bytes=self._tile_decode_bytes(samples, tiling)) as network:
            for item in torch.split(samples, 1):
                sides = (item.shape[3], item.shape[4])
                places = faded.places(sides)
                tiles = [network.decoding_memory() for _ in places]
                at_once = self._stretch_frames()
                for start in range(0, item.shape[2], at_once):
                    stretch, is_last = item[:, :, start : start + at_once], start + at_once >= item.shape[2]
                    total = FadedSum(faded, sides)
                    for place, memory in zip(places, tiles, strict=True):
                        (top, height), (left, width) = place
                        cells = stretch[..., top : top + height, left : left + width]
                        memory.move(self.device)
                        total.add(place, self._decoded_stretch(network, cells, memory))
                        if is_last:
                            memory.forget()
                        else:
                            memory.move(self.output_device)
                    yield self._as_frames(total.result())

    def _decoded_stretch(self, network: Network, cells: torch.Tensor, memory: object) -> torch.Tensor:
        """Return the next frames [1, 3, F, H, W] of a tile, float32 on the CPU."""
        pieces = network.decoded_pieces(cells.to(self.device, self.vae_dtype), memory)
        return torch.cat([piece.to(self.output_device).float() for piece in pieces], dim=2)

    def _stretch_frames(self) -> int:
        """Return the number of latent frames of a stretch, which as frames take what layers remember."""
        remembered: int = self.first_stage_model.remembered_values_per_pixel * self.vae_dtype.itemsize
        frames = remembered // (self.output_channels * FLOAT32_BYTES)
        return max(1, frames // self.frames_ratio)

    @torch.no_grad()
    def encode_tiled(
        self,
        pixel_samples: torch.Tensor,
        tile_x: int = 512,
        tile_y: int = 512,
        overlap: int = 64,
        tile_t: int | None = None,
        overlap_t: int | None = None,
    ) -> torch.Tensor:
        """Encode the frames of a video on the CPU by tiles, sizes in pixels. `tile_t` and `overlap_t` are not used."""
        pixels = self._items_of(pixel_samples)
        least = self.downscale_ratio
        shared = tuple(min(overlap, max(0, side - least)) for side in (tile_y, tile_x))
        tiling = FadedTiling((tile_y, tile_x), (shared[0], shared[1]), reduces=least)
        sides = (min(pair) for pair in zip((tile_y, tile_x), pixels.shape[3:], strict=True))
        with self.patcher.in_use(working_bytes=self._encode_bytes((1, *pixels.shape[1:3], *sides))) as network:
            encode: Callable[[torch.Tensor], torch.Tensor] = partial(self._encode_tile, network)
            return torch.cat([run_in_faded_tiles(item, encode, tiling) for item in torch.split(pixels, 1)])
