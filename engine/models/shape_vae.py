"""VAE of shapes: latents `[B, C, N]` to grids of voxels, and VOXEL and MESH values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from darkroom.engine.diffusion.options import OptionDict
from darkroom.engine.models.vae import Vae

CHUNK_POINTS, RESOLUTION = 8000, 256  # ComfyUI's, where nothing else is asked for


@dataclass
class Voxel:
    """VOXEL: `data` [B, z, y, x], 0..1, of which more than about a half lies inside a shape. Float32 on the CPU.

    With `voxel_colors` [N, C] the voxels are a sparse list instead: `data` [N, 3] are cells (x, y, z) of a cube of
    `resolution` cells a side around the origin, [N, 4] with the index in a batch of meshes first. C is 3 for a base
    color, or 6 for base color, metallic, roughness and alpha.
    """

    data: torch.Tensor
    voxel_colors: torch.Tensor | None = None
    resolution: int | None = None


class ShapeVae(Vae):
    """VAE of shapes with ComfyUI's members. It decodes alone: its encoder reads clouds of points."""

    latent_dim = 1

    @torch.no_grad()
    def decode(self, samples_in: torch.Tensor, vae_options: OptionDict | None = None) -> torch.Tensor:
        """Decode latents [B, C, N] to grids [B, z, y, x] of 0..1 on the CPU, one after the other.

        `vae_options` are those of the network (`engine/families/hunyuan3d/vae.py`): `octree_resolution`, the cells of
        a side, `num_chunks`, the points computed at once, and `on_chunk`. Raises ValueError for latents of another VAE.
        """
        self._check_channels(samples_in)
        self._check_axes(samples_in)
        options = {"num_chunks": CHUNK_POINTS, "octree_resolution": RESOLUTION, **(vae_options or {})}
        shape = (1, *samples_in.shape[1:])
        values = self.first_stage_model.decode_bytes(shape, options["num_chunks"], options["octree_resolution"])
        grids = []
        with self.patcher.in_use(working_bytes=values * self.vae_dtype.itemsize) as network:
            for item in torch.split(samples_in, 1):
                grid = network.decode(item.to(self.device, self.vae_dtype), **options)
                grids.append(self.process_output(grid.to(self.output_device)))
        return torch.cat(grids).movedim(1, -1)

    def encode(self, pixel_samples: torch.Tensor) -> torch.Tensor:
        """Raise ValueError: images cannot be encoded."""
        raise ValueError("vae: one of shapes; got images or videos, expected a VAE of those")

    def decode_tiled(self, samples: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """Decode latents as `decode` does: points are computed in parts anyway."""
        return self.decode(samples)

    def encode_tiled(self, pixel_samples: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """Raise ValueError: images cannot be encoded."""
        return self.encode(pixel_samples)
