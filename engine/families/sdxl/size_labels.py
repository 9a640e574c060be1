"""Labels of networks that were trained with the size of their images (Podell et al. 2023, arXiv 2307.01952, 2.2).

`B` batch, `D` width of the text's pooled output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.families.sd2.unclip import unclip_labels
from darkroom.engine.layers.unet_layers import timestep_embedding
from darkroom.engine.layers.unet_shapes import UnetTraits

EMBEDDED_WIDTH = 256  # of the sinusoids of a number
SEED_OFFSET = -10  # ComfyUI's, of the noise on an image's embedding


class SizeLabelledDenoiser(Denoiser, ABC):
    """A network whose labels are the text's pooled output and numbers, each as sinusoids.

    Nodes set the numbers as options of the conditioning (`width`, `crop_h`...).
    """

    @abstractmethod
    def numbers(self, options: Mapping[str, Any]) -> list[float]:
        """Return the numbers in their order. A family's own network says which they are."""

    def encode_adm(self, **kwargs: Any) -> torch.Tensor:
        """Return the labels [B, label_dim]. Raises ValueError for a conditioning without pooled output."""
        pooled = _pooled(kwargs)  # [B, D]
        numbers = torch.tensor(self.numbers(kwargs), dtype=torch.float32)
        embedded = timestep_embedding(numbers, EMBEDDED_WIDTH).flatten()
        return torch.cat([pooled.to(embedded.device), embedded.expand(pooled.shape[0], -1)], dim=1)


def _pooled(options: Mapping[str, Any]) -> torch.Tensor:
    """Return the text's pooled output, or the embedding of images in its place, as wide as that."""
    if "unclip_conditioning" in options:
        labels = unclip_labels(options["unclip_conditioning"], seed=(options.get("seed") or 0) + SEED_OFFSET)
        return labels[:, : labels.shape[1] // 2]
    pooled: torch.Tensor | None = options.get("pooled_output")
    if pooled is None:
        raise ValueError(
            "conditioning: its text encoder gave no pooled output; got None, expected that of a model of this family"
        )
    return pooled


def may_have_sizes(traits: UnetTraits) -> bool:
    """Return True for the shape of such networks: those with a transformer on their first level have other labels."""
    return (
        traits.label_dim > 0 and traits.uses_linear and not traits.has_first_attention and not traits.has_time_attention
    )


def pooled_width(traits: UnetTraits, num_numbers: int) -> int:
    """Return the width that is left for the pooled output beside so many numbers, negative for too many."""
    return traits.label_dim - num_numbers * EMBEDDED_WIDTH
