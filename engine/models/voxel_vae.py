"""VAE of voxels: structures, shapes and textures, decoded from latents of the cells of a grid.

`N` cells of a latent, `M` smaller ones that they are decoded to, `S` cells a side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from darkroom.engine.diffusion.options import OptionDict
from darkroom.engine.models.vae import Vae

OnLevel = Callable[[int, int], None]
NODES = "VaeDecodeStructureTrellis2, VaeDecodeShapeTrellis or VaeDecodeTextureTrellis"


class VoxelVae(Vae):
    """VAE of voxels with ComfyUI's members. A file has decoders of structures and shapes, or one of textures."""

    latent_dim = 3

    def decode(self, samples_in: torch.Tensor, vae_options: OptionDict | None = None) -> torch.Tensor:
        """Raise ValueError: latents are not decoded to images."""
        raise ValueError(f"vae: one of voxels; its latents are no images, expected to be decoded by {NODES}")

    def encode(self, pixel_samples: torch.Tensor) -> torch.Tensor:
        """Raise ValueError: images cannot be encoded."""
        raise ValueError("vae: one of voxels; got images, expected a VAE of those")

    def decode_tiled(self, samples: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """Raise ValueError, as `decode` does."""
        return self.decode(samples)

    def encode_tiled(self, pixel_samples: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """Raise ValueError, as `encode` does."""
        return self.encode(pixel_samples)

    @torch.no_grad()
    def decode_structure(self, samples: torch.Tensor) -> torch.Tensor:
        """Decode structures [B, 32, S, S, S] to what is occupied [B, 4 S, 4 S, 4 S], bool on the CPU, one by one.

        Raises ValueError for latents of another VAE, and for a VAE of textures.
        """
        self._check_decoder("decode_shape", "structures")
        self._check_channels(samples)
        self._check_axes(samples)
        grids = []
        for item in torch.split(samples, 1):
            with self.patcher.in_use(working_bytes=self._working_bytes(tuple(item.shape))) as network:
                grid = network.decode(item.to(self.device, self.vae_dtype))
                grids.append((grid[:, 0] > 0).to(self.output_device))
        return torch.cat(grids)

    @torch.no_grad()
    def decode_shape(
        self, latent: torch.Tensor, cells: torch.Tensor, resolution: int, on_level: OnLevel
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Decode a latent [N, 32] of cells [N, 3] to corners [V, 3], float32, and triangles [F, 3], int32, on the CPU.

        The last of the result tells by level which of the eight children of each cell are occupied, bool [N, 8].
        Raises ValueError for a VAE of textures, and for a shape of too many voxels.
        """
        self._check_decoder("decode_shape", "shapes")
        with self.patcher.in_use(working_bytes=self._working_bytes(tuple(latent.shape))) as network:
            given = latent.to(self.device, self.vae_dtype), cells.to(self.device)
            corners, triangles, occupied = network.decode_shape(*given, resolution, on_level)
            out = self.output_device
            return corners.to(out), triangles.to(out), [level.to(out) for level in occupied]

    @torch.no_grad()
    def finest_cells(self, latent: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """Return the cells [M, 3] that a latent [N, 32] of cells [N, 3] is decoded to, on the CPU.

        Raises ValueError as `decode_shape` does.
        """
        self._check_decoder("decode_shape", "shapes")
        with self.patcher.in_use(working_bytes=self._working_bytes(tuple(latent.shape))) as network:
            finest: torch.Tensor = network.shape_dec.finest_cells(
                latent.to(self.device, self.vae_dtype), cells.to(self.device)
            )
            return finest.to(self.output_device)

    @torch.no_grad()
    def decode_texture(
        self, latent: torch.Tensor, cells: torch.Tensor, occupied: Sequence[torch.Tensor], on_level: OnLevel
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode a latent [N, 32] of cells [N, 3] to colours [M, 6], float32, and their cells [M, 3], on the CPU.

        `occupied` is that of the same shape's decoding. Raises ValueError for a VAE of shapes, and for another shape's.
        """
        self._check_decoder("decode_texture", "textures")
        with self.patcher.in_use(working_bytes=self._working_bytes(tuple(latent.shape))) as network:
            given = latent.to(self.device, self.vae_dtype), cells.to(self.device)
            colors, finest = network.decode_texture(*given, [level.to(self.device) for level in occupied], on_level)
            return colors.to(self.output_device).float(), finest.to(self.output_device)

    def _check_decoder(self, name: str, kind: str) -> None:
        if not hasattr(self.first_stage_model, name):
            raise ValueError(f"vae: its file has no decoder of {kind}; expected the other VAE of TRELLIS 2")

    def _working_bytes(self, shape: tuple[int, ...]) -> int:
        return int(self.memory_used_decode(shape, self.vae_dtype))
