"""Empty latents in the cells of the model that samples them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.comfy.names.comfy import latent_formats
from darkroom.engine.diffusion.ksampler import fix_empty_latent_channels
from darkroom.engine.families import registry

# Of ComfyUI 0.33.0's classes: pixels a side of a cell, and frames or samples at 44.1 kHz of one.
RATIOS = {
    "SD15": (8, 1), "SDXL": (8, 1), "SC_Prior": (42, 1), "SD3": (8, 1), "Flux": (8, 1),
    "StableAudio1": (8, 2048), "StableAudio3": (8, 4096), "Flux2": (16, 1), "Mochi": (8, 6), "LTXV": (32, 8),
    "LTXAV": (32, 8), "HunyuanVideo": (8, 4), "Cosmos1CV8x8x8": (8, 8), "Wan21": (8, 4), "Wan22": (16, 4),
    "HunyuanImage21": (32, 1), "HunyuanImage21Refiner": (8, 1), "HunyuanVideo15": (16, 4), "ACEAudio15": (8, 1764),
    "MiniMaxMusic3": (8, 512), "MiniMaxH3AV": (16, 4), "ChromaRadiance": (1, 1), "ZImagePixelSpace": (1, 1),
    "PixelDiTPixel": (1, 1), "CogVideoX1_5": (8, 4), "HiDreamO1Pixel": (1, 1),
}  # fmt: skip


class Model:
    """A model of which the latent format alone is asked."""

    def __init__(self, family: str) -> None:
        self.latent_format = registry.family_named(family).latent_format()

    def get_model_object(self, name: str) -> Any:
        return getattr(self, name)


def fixed(family: str, shape: tuple[int, ...], *ratios: float | None) -> tuple[int, ...]:
    model: Any = Model(family)
    return tuple(fix_empty_latent_channels(model, torch.zeros(shape), *ratios).shape)


def test_formats_have_the_cells_that_comfyui_says() -> None:
    kinds = {name: getattr(latent_formats, name) for name in RATIOS}
    found = {name: (kind.spacial_downscale_ratio, kind.temporal_downscale_ratio) for name, kind in kinds.items()}
    assert found == RATIOS


@pytest.mark.parametrize(
    ("family", "given", "expected"),
    [
        ("ltx_video", (1, 4, 16, 24), (1, 128, 1, 4, 6)),
        ("wan22", (2, 16, 3, 16, 24), (2, 48, 3, 8, 12)),
        ("flux2", (2, 128, 10, 8), (2, 128, 5, 4)),
        ("chroma_radiance", (1, 4, 2, 3), (1, 3, 16, 24)),
        ("sd15", (1, 16, 2, 3), (1, 4, 2, 3)),
        ("cascade", (1, 4, 2, 3), (1, 16, 1, 1)),
    ],
)
def test_an_empty_latent_that_says_its_cells_is_one_of_the_same_image(
    family: str, given: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert fixed(family, given, 8) == expected


def test_an_empty_latent_that_does_not_say_its_cells_keeps_its_size() -> None:
    assert fixed("flux2", (1, 4, 10, 8)) == (1, 128, 10, 8)


def test_a_latent_that_is_not_empty_keeps_its_size() -> None:
    model: Any = Model("flux2")
    latent = torch.ones(1, 128, 10, 8)
    assert fix_empty_latent_channels(model, latent, 8, 2048) is latent


def test_a_latent_of_images_has_no_samples_of_audio() -> None:
    assert fixed("sd15", (1, 4, 6, 8), None, 2048) == (1, 4, 6, 8)
