"""Image embeddings as labels of a network (unCLIP: Ramesh et al. 2022, arXiv 2204.06125), with noise added to them.

`D` is the width of an embedding. What `unCLIPConditioning` puts into a conditioning: `clip_vision_output`, `strength`,
`noise_augmentation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from darkroom.engine.layers.unet_layers import timestep_embedding

SEED_OFFSET = -10  # ComfyUI's, of the noise on an image's embedding
NUM_LEVELS = 1000
LARGEST_BETA = 0.999
COSINE_OFFSET = 0.008


@cache
def alphas_cumprod() -> tuple[float, ...]:
    """Return the share of the signal's variance at each noise level.

    Cosine schedule of Nichol and Dhariwal 2021, arXiv 2102.09672, eq. 17.
    """

    def signal(time: float) -> float:
        return math.cos((time + COSINE_OFFSET) / (1 + COSINE_OFFSET) * math.pi / 2) ** 2

    products, product = [], 1.0
    for level in range(NUM_LEVELS):
        ratio = signal((level + 1) / NUM_LEVELS) / signal(level / NUM_LEVELS)
        product *= 1 - min(1 - ratio, LARGEST_BETA)
        products.append(product)
    return tuple(products)


def unclip_labels(images: Sequence[Mapping[str, Any]], *, seed: int, merged_augmentation: float = 0.0) -> torch.Tensor:
    """Return the labels [1, 2 * D] of images: the embedding with noise, and its noise level as sinusoids.

    Each is multiplied by the image's strength. Several are added up and get noise once more, of
    `merged_augmentation` (0..1). The noise is drawn on the CPU from torch's global generator, which is seeded.
    """
    labels: list[torch.Tensor] = []
    for image in images:
        for embedding in image["clip_vision_output"].image_embeds:
            generator = torch.manual_seed(seed)
            noised = _noised(embedding.to("cpu").unsqueeze(0), image["noise_augmentation"], generator)
            labels.append(noised * image["strength"])
    if len(labels) == 1:
        return labels[0]
    total: torch.Tensor = torch.stack(labels).sum(0)
    return _noised(total[:, : total.shape[1] // 2], merged_augmentation, torch.default_generator)


def _noised(embedding: torch.Tensor, augmentation: float, generator: torch.Generator) -> torch.Tensor:
    """Return an embedding [1, D] at a noise level, with the sinusoids of the level behind it: [1, 2 * D]."""
    level = round((NUM_LEVELS - 1) * augmentation)
    signal = torch.tensor(alphas_cumprod()[level], dtype=torch.float64)
    noise = torch.randn(embedding.shape, dtype=embedding.dtype, generator=generator)
    noised: torch.Tensor = signal.sqrt().float() * embedding + (1 - signal).sqrt().float() * noise
    return torch.cat([noised, timestep_embedding(torch.tensor([level]), embedding.shape[1])], dim=1)
