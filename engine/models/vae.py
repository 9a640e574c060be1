"""VAE: images to latents and back. Images are IMAGE `[B, H, W, C]` 0..1, latents `[B, C, h, w]` unscaled."""

from __future__ import annotations

from functools import partial

import torch

from darkroom.engine.diffusion.options import OptionDict
from darkroom.engine.diffusion.sampling_run import SamplingRun, sampling_run
from darkroom.engine.layers.tiles import run_in_tiles
from darkroom.engine.models.vae_description import DescribedVae
from darkroom.engine.models.weight_handle import Network

LARGEST_TILE_CELLS, SMALLEST_TILE_CELLS = 64, 8
TILE_SHARE = 0.75  # of the device's room: the rest is for weights


class Vae(DescribedVae):
    """VAE with ComfyUI's members: decoding and encoding, whole or in tiles."""

    @torch.no_grad()
    def decode(self, samples_in: torch.Tensor, vae_options: OptionDict | None = None) -> torch.Tensor:
        """Decode latents to images on the CPU, as many at once as memory allows.

        In tiles when memory ran out before. Raises ValueError for latents of another VAE.
        """
        samples = self._latents_of(samples_in)
        if self._is_decoded_in_tiles(samples):
            return self._decoded_in_small_tiles(samples)
        return self._decoded(samples, self.decode_item_bytes(tuple(samples.shape)))

    def _latents_of(self, samples: torch.Tensor) -> torch.Tensor:
        """Return latents as the network takes them. Raises ValueError for those of another VAE."""
        self._check_channels(samples)
        return samples

    def _is_decoded_in_tiles(self, samples: torch.Tensor) -> bool:
        """Return True for latents that are decoded in tiles unasked: after memory ran out."""
        return bool(self.patcher.memory_savings.tiles)

    def _decoded_in_small_tiles(self, samples: torch.Tensor) -> torch.Tensor:
        """Decode latents in tiles that fit the memory."""
        tile = self._tile_cells(self._decode_bytes_per_cell())
        return self.decode_tiled(samples, tile_x=tile, tile_y=tile, overlap=tile // 4)

    def decode_item_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for decoding one of the latents of the shape [B, C, h, w], in bytes."""
        _, _, height, width = shape
        itemsize: int = self.vae_dtype.itemsize
        return self._decode_bytes_per_cell() * height * width * itemsize

    def _decoded(self, samples: torch.Tensor, item_bytes: int) -> torch.Tensor:
        """Decode latents that take `item_bytes` of working memory each, as many at once as memory allows."""
        return sampling_run().attempt(self.patcher, lambda run: self._decoded_once(run, samples, item_bytes))

    def _decoded_once(self, run: SamplingRun, samples: torch.Tensor, item_bytes: int) -> torch.Tensor:
        with self.patcher.in_use(working_bytes=item_bytes) as network, run.tuned_decoder(self.patcher, network):
            images = [
                self.process_output(self._decoded_beside(run, network, part).to(self.output_device).float())
                for part in self._batches(samples, item_bytes)
            ]
        return torch.cat(images).movedim(1, -1)

    def _decoded_beside(self, run: SamplingRun, network: Network, samples: torch.Tensor) -> torch.Tensor:
        """Decode latents on their device, where all weights are there beside other requests' sampling."""

        def work() -> torch.Tensor:
            images: torch.Tensor = network.decode(samples.to(self.device, self.vae_dtype))
            return images

        return run.beside_others(work) if self.patcher.loaded_size() >= self.patcher.model_size() else work()

    def _check_channels(self, samples: torch.Tensor) -> None:
        expected: int | None = getattr(self.first_stage_model, "latent_channels", None)
        if expected is not None and samples.shape[1] != expected:
            raise ValueError(
                f"samples: they are latents of another VAE than this one; got {samples.shape[1]} channels, expected "
                f"{expected}"
            )

    def _check_axes(self, samples: torch.Tensor) -> None:
        expected = self.latent_dim + 2
        if samples.ndim != expected:
            raise ValueError(
                f"samples: they are latents of another VAE than this one; got {samples.ndim} axes, expected {expected}"
            )

    @torch.no_grad()
    def encode(self, pixel_samples: torch.Tensor) -> torch.Tensor:
        """Encode images to latents on the CPU: the mean of the posterior, as in ComfyUI.

        In tiles when memory ran out before.
        """
        items = self._items_of(pixel_samples)
        if self.patcher.memory_savings.tiles:
            return self._encoded_in_small_tiles(pixel_samples)
        return self._encoded(items, self._encode_bytes(tuple(items.shape)))

    def _items_of(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return images as the network takes them, [B, C, H, W], their sides cut to whole cells."""
        return self.vae_encode_crop_pixels(pixels).movedim(-1, 1)

    def _encoded_in_small_tiles(self, pixels: torch.Tensor) -> torch.Tensor:
        """Encode images in tiles that fit the memory."""
        tile = self._tile_cells(self._encode_bytes_per_pixel() * self.downscale_ratio**2) * self.downscale_ratio
        return self.encode_tiled(pixels, tile_x=tile, tile_y=tile, overlap=tile // 8)

    def _encode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the working memory for encoding one of the images of the shape [B, C, H, W], in bytes."""
        _, _, height, width = shape
        itemsize: int = self.vae_dtype.itemsize
        return self._encode_bytes_per_pixel() * height * width * itemsize

    def _encoded(self, pixels: torch.Tensor, item_bytes: int) -> torch.Tensor:
        """Encode images that take `item_bytes` of working memory each, as many at once as memory allows."""
        with self.patcher.in_use(working_bytes=item_bytes) as network:
            latents = [
                self._encode_on_device(network, part).to(self.output_device).float()
                for part in self._batches(pixels, item_bytes)
            ]
        return torch.cat(latents).contiguous()  # whatever the network computes in: draws like it follow its memory

    def _encode_on_device(self, network: Network, pixels: torch.Tensor) -> torch.Tensor:
        """Return the latents of images that the network takes at once."""
        latents: torch.Tensor = network.encode(self.process_input(pixels).to(self.device, self.vae_dtype))
        return latents

    @torch.no_grad()
    def decode_tiled(
        self,
        samples: torch.Tensor,
        tile_x: int = 64,
        tile_y: int = 64,
        overlap: int = 16,
        tile_t: int | None = None,
        overlap_t: int | None = None,
    ) -> torch.Tensor:
        """Decode latents to images on the CPU: the mean of three passes over tiles of different shapes.

        Sizes are in cells. `tile_t` and `overlap_t` are for videos.
        """
        item_bytes = self._decode_bytes_per_cell() * _tile_area(samples, tile_x, tile_y) * self.vae_dtype.itemsize
        with self.patcher.in_use(working_bytes=item_bytes) as network:
            passes = [
                run_in_tiles(
                    samples, partial(self._decode_tile, network), tile=shape, overlap=overlap,
                    scale=self.upscale_ratio, out_channels=self.output_channels, output_device=self.output_device,
                )
                for shape in _tile_shapes(tile_x, tile_y)
            ]  # fmt: skip
        return self.process_output(sum(passes[1:], start=passes[0]) / len(passes)).movedim(1, -1)

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
        """Encode images to latents on the CPU as `decode_tiled` does, sizes in pixels."""
        pixels = self._items_of(pixel_samples)
        item_bytes = self._encode_bytes_per_pixel() * _tile_area(pixels, tile_x, tile_y) * self.vae_dtype.itemsize
        with self.patcher.in_use(working_bytes=item_bytes) as network:
            passes = [
                run_in_tiles(
                    pixels, partial(self._encode_tile, network), tile=shape, overlap=overlap,
                    scale=1 / self.downscale_ratio, out_channels=self.latent_channels,
                    output_device=self.output_device,
                )
                for shape in _tile_shapes(tile_x, tile_y)
            ]  # fmt: skip
        return sum(passes[1:], start=passes[0]) / len(passes)

    def decode_tiled_(
        self, samples: torch.Tensor, tile_x: int = 64, tile_y: int = 64, overlap: int = 16
    ) -> torch.Tensor:
        """Decode latents in tiles to images with their channels first, [B, C, H, W]."""
        return self.decode_tiled(samples, tile_x, tile_y, overlap).movedim(-1, 1)

    def encode_tiled_(
        self, pixel_samples: torch.Tensor, tile_x: int = 512, tile_y: int = 512, overlap: int = 64
    ) -> torch.Tensor:
        """Encode images with their channels first, [B, C, H, W], in tiles."""
        return self.encode_tiled(pixel_samples.movedim(1, -1), tile_x, tile_y, overlap)

    def _decode_tile(self, network: Network, tile: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = network.decode(tile.to(self.device, self.vae_dtype)).float()
        return images

    def _encode_tile(self, network: Network, tile: torch.Tensor) -> torch.Tensor:
        return self._encode_on_device(network, tile).float()

    def _tile_cells(self, bytes_per_cell: int) -> int:
        """Return the side of the largest tiles whose working memory fits beside the smallest part of the weights.

        64 cells as in ComfyUI, or less on a small device.
        """
        room = self.patcher.free_bytes() + self.patcher.loaded_size()
        tile = LARGEST_TILE_CELLS
        while tile > SMALLEST_TILE_CELLS and bytes_per_cell * tile**2 * self.vae_dtype.itemsize > room * TILE_SHARE:
            tile //= 2
        return tile

    def _batches(self, items: torch.Tensor, item_bytes: int) -> tuple[torch.Tensor, ...]:
        """Split the items into parts of as many as memory allows, and reserve it for one part. Only while in use."""
        fitting = max(1, int(min(self.patcher.free_bytes() // max(1, item_bytes), items.shape[0])))
        self.patcher.weights.begin_work(fitting * item_bytes)
        return torch.split(items, fitting)


def _tile_area(items: torch.Tensor, tile_x: int, tile_y: int) -> int:
    """Return the area of the largest tile, cut at the edges."""
    height, width = items.shape[2:]
    return max(min(shape[0], height) * min(shape[1], width) for shape in _tile_shapes(tile_x, tile_y))


def _tile_shapes(tile_x: int, tile_y: int) -> list[tuple[int, int]]:
    """Return (height, width) of three kinds of tile, so that no seam of one lies on a seam of another."""
    return [(tile_y * 2, tile_x // 2), (tile_y // 2, tile_x * 2), (tile_y, tile_x)]
