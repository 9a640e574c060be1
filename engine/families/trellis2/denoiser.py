"""The inputs of TRELLIS 2's networks: which of them a conditioning is for, its image tokens, and its cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.denoiser import TEXT, Denoiser
from darkroom.engine.families.trellis2.cells import CellLists, cell_lists
from darkroom.engine.families.trellis2.transformer import GRID_SIDE, Stage, Trellis2Config, grid_cells, turns_of

# Keys of a condition, as ComfyUI's nodes name them.
LARGE_IMAGE = "embeds"  # tokens of the image at 1024 pixels, beside those at 512
COORDS = "trellis2_coords"
MODE = "trellis2_generation_mode"
SHAPE_LATENT = "trellis2_shape_slat"
PROJECTED = "trellis2_proj_feats"
STAGES = {
    "shape_generation_512": Stage.SHAPE_512,
    "shape_generation": Stage.SHAPE,
    "texture_generation": Stage.TEXTURE,
}
LABELS = {
    Stage.STRUCTURE: "structures",
    Stage.SHAPE_512: "shapes at 512",
    Stage.SHAPE: "shapes at 1024 and more",
    Stage.TEXTURE: "textures",
}


class Trellis2Denoiser(Denoiser):
    """Networks of several stages, of which the latent and the conditioning choose one."""

    comfy_name = "Trellis2"
    uncast_inputs = ("turns",)

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs of a condition's stage. Raises ValueError for a latent or a conditioning of another."""
        noise, device = kwargs["noise"], kwargs["device"]
        stage = Stage.STRUCTURE if noise.ndim == 5 else STAGES.get(kwargs.get(MODE, ""))
        config: Trellis2Config = self.diffusion_model.config  # type: ignore[assignment]
        if stage is None:
            raise ValueError(
                "positive: it is not of a stage of cells, as the latent is; expected that of Trellis2ShapeStage, "
                "Trellis2UpsampleStage or Trellis2TextureStage"
            )
        if stage not in config.stages:
            raise ValueError(
                f"model: its file has no network of {LABELS[stage]}; expected a file with '{stage}', got one with "
                f"{', '.join(config.stages)}"
            )
        if stage in (Stage.SHAPE, Stage.TEXTURE):
            kwargs[TEXT] = self._large_image(kwargs)
        if stage is Stage.STRUCTURE:
            self._check_structure(noise)
        inputs = super().extra_conds(**kwargs)
        inputs["stage"] = ConstantInput(str(stage))
        cells = None if stage is Stage.STRUCTURE else self._cells(noise, kwargs)
        positions = grid_cells(device) if cells is None else cells.padded(cells.coords[:, 1:].to(device))
        inputs["turns"] = RegularInput(turns_of(positions, config.head_dim))
        occupied = None if cells is None else cells.occupied(device)
        if occupied is not None:
            inputs["occupied"] = RegularInput(occupied)
        if cells is not None and stage is Stage.TEXTURE:
            inputs["shape_latent"] = self._of_cells(kwargs[SHAPE_LATENT], cells, device)
        projected_dim = config.projected_dim(stage)
        if projected_dim:
            inputs["projected"] = self._projected(kwargs, cells, projected_dim)
        return inputs

    def _large_image(self, condition: Mapping[str, Any]) -> torch.Tensor:
        tokens: torch.Tensor | None = condition.get(LARGE_IMAGE)
        if tokens is None:
            raise ValueError(
                "positive: it has no image tokens at 1024 pixels; expected that of Trellis2Conditioning or "
                "Pixal3DConditioning"
            )
        return tokens

    def _check_structure(self, noise: torch.Tensor) -> None:
        """Raise ValueError for a latent that is no structure."""
        expected = [self.latent_format.latent_channels, *[GRID_SIDE] * 3]
        if list(noise.shape[1:]) != expected:
            raise ValueError(
                f"latent_image: no structure of this family; got {list(noise.shape[1:])}, expected {expected}, as "
                "EmptyTrellis2LatentStructure makes it"
            )

    def _cells(self, noise: torch.Tensor, condition: Mapping[str, Any]) -> CellLists:
        """Return the cells of a condition. Raises ValueError for a latent of others."""
        cells = cell_lists(condition[COORDS])
        expected = [len(cells.counts), self.latent_format.latent_channels, cells.longest, 1]
        if list(noise.shape) != expected:
            raise ValueError(
                f"latent_image: it has other cells than positive and negative; got {list(noise.shape)}, expected "
                f"{expected}, the latent of the same stage node"
            )
        return cells

    def _of_cells(self, rows: torch.Tensor, cells: CellLists, device: torch.device) -> RegularInput:
        """Return values [M, C] of all cells by item, in the type that the network computes in."""
        if rows.shape[0] != cells.coords.shape[0]:
            raise ValueError(
                f"shape_latent: it has other cells than the conditioning; got {rows.shape[0]}, expected "
                f"{cells.coords.shape[0]}"
            )
        return RegularInput(cells.padded(rows.to(device, self.compute_dtype)))

    def _projected(self, condition: Mapping[str, Any], cells: CellLists | None, expected: int) -> RegularInput:
        """Return projected features of the image, zeros on the negative side. Raises ValueError without them."""
        features: torch.Tensor | None = condition.get(PROJECTED)
        if features is None:
            raise ValueError("positive: the model reads projected features; expected that of Pixal3DConditioning")
        if features.shape[-1] != expected:
            raise ValueError(
                f"clip_vision_model: its features do not fit the model; got {features.shape[-1]} channels, expected "
                f"{expected}, as a file of DINOv3 with 'naf.' weights gives them to stages of cells"
            )
        device: torch.device = condition["device"]
        kept = torch.zeros_like(features) if condition.get("prompt_type") == "negative" else features
        if cells is not None:
            return self._of_cells(kept, cells, device)
        return RegularInput(kept.to(device, self.compute_dtype))
