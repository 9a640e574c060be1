"""Denoising networks of full size and random weights, made where they compute: no file, and no copy in RAM.

The structure is built without memory, then each weight is drawn on the device. Twelve thousand million numbers take a
few seconds there. Activations stay finite: norms are the identity, other weights have variance 1 / fan-in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from darkroom.engine import Engine
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.fill import wants_channels_last
from darkroom.engine.models.load import LoadedDenoiser
from darkroom.engine.models.model import Model
from darkroom.engine.models.random_weights import random_denoiser
from darkroom.engine.models.store import denoiser

SEED = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """Inputs that a network is measured with.

    `latent` is `[B, C, h, w]` or `[B, C, T, h, w]`, `tokens` and `width` are the conditioning's, `pooled` the width of
    its vector, 0 for none. `cfg` 1.0 is a single row for each image.
    """

    family: str
    latent: tuple[int, ...]
    tokens: int
    width: int
    pooled: int = 0
    cfg: float = 7.0
    scheduler: str = "normal"
    guidance: float | None = None

    def with_batch(self, batch: int) -> Shape:
        return replace(self, latent=(batch, *self.latent[1:]))


FULL = {
    "sd15_512": Shape("sd15", (1, 4, 64, 64), 77, 768),
    "sdxl_1024": Shape("sdxl", (1, 4, 128, 128), 77, 2048, 1280),
    "flux_1024": Shape("flux", (1, 16, 128, 128), 512, 4096, 768, 1.0, "simple", 3.5),
    "wan_480p_33": Shape("wan", (1, 16, 9, 60, 104), 512, 4096, 0, 5.0, "simple"),
    "wan22_720p_25": Shape("wan22", (1, 48, 7, 44, 80), 512, 4096, 0, 5.0, "simple"),
    "qwen_image_1024": Shape("qwen_image", (1, 16, 1, 128, 128), 512, 3584, 0, 2.5, "simple"),
}
TOY = {
    "sd15_512": Shape("sd15", (1, 4, 8, 8), 77, 64),
    "sdxl_1024": Shape("sdxl", (1, 4, 8, 8), 77, 128, 64),
    "flux_1024": Shape("flux", (1, 16, 8, 8), 32, 128, 64, 1.0, "simple", 3.5),
    "wan_480p_33": Shape("wan", (1, 16, 2, 8, 8), 32, 4096, 0, 5.0, "simple"),
    "wan22_720p_25": Shape("wan22", (1, 48, 2, 4, 4), 32, 4096, 0, 5.0, "simple"),
    "qwen_image_1024": Shape("qwen_image", (1, 16, 1, 8, 8), 32, 32, 0, 2.5, "simple"),
}


def shape_of(work: str, *, is_toy: bool) -> Shape:
    return (TOY if is_toy else FULL)[work]


def random_network(family: str, scale: str, dtype: torch.dtype, device: str) -> Any:
    """Return a family's denoising network with random weights of this type on the device."""
    described = family_named(family)
    drawn = torch.bfloat16 if dtype.itemsize == 1 else dtype  # torch draws no numbers in float8
    network = random_denoiser(described.scales[scale].denoiser, SEED, family=described, dtype=drawn, device=device)
    if drawn != dtype:
        network.to(dtype)
    if wants_channels_last(dtype, on_processor=device == "cpu"):  # as weights from files are laid out
        for weight in network.parameters():
            if weight.ndim == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return network


def model_of(engine: Engine, family: str, network: Any, computed: torch.dtype | None = None) -> Model:
    """Return a network as a MODEL of the engine, cast to `computed` where it is kept in another type."""
    described = family_named(family)
    whole = denoiser(LoadedDenoiser(described, "", described.parameterisation, network, computed))
    network.compute_dtype = whole.manual_cast_dtype = computed
    return Model(engine.memory.keep(f"random {family}", whole, role="unet"))


def conditioning(shape: Shape, seed: int, device: str = "cpu") -> Sequence[Any]:
    """Return a random CONDITIONING `[1, tokens, width]`, float32."""
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {}
    if shape.pooled:
        options["pooled_output"] = torch.randn(1, shape.pooled, generator=generator).to(device)
    if shape.guidance is not None:
        options["guidance"] = shape.guidance
    return [[torch.randn(1, shape.tokens, shape.width, generator=generator).to(device), options]]


def noise_of(shape: Shape, seed: int = SEED) -> torch.Tensor:
    """Return noise of the latent's shape, float32, on the CPU."""
    return torch.randn(shape.latent, generator=torch.Generator().manual_seed(seed))
