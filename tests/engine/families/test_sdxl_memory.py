"""Stable Diffusion XL and its refiner in one workflow, on cards of 4 to 24 GB and while they load.

The models are of the small scale, and the cards are smaller by the same factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.families.registry import family_named
from darkroom.engine.memory import machine_memory
from darkroom.engine.models.load import LoadTypes, load_checkpoint
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.models.test_load_memory import STATUS, watched
from tests.engine.simulated_card import GIB, engine_of, latent_of, node, run
from tools.models_table import parts

FAMILIES = (family_named("sdxl"), family_named("sdxl_refiner"))
CARDS_GB = (4, 6, 8, 12, 16, 24)
FEW_GB = (4, 24)  # where all is streamed, and where all fits
TAKES_TURNS_GB = 12  # from here on each network fits beside the shares that a small card keeps free


@pytest.fixture(autouse=True)
def _plenty_of_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs here."""
    monkeypatch.setattr(machine_memory, "total_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(machine_memory, "available_bytes", lambda: 48 * GIB)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    for family in FAMILIES:
        write_random_checkpoint(folder / "models" / "checkpoints" / f"{family.name}.safetensors", family=family)
    return folder


@pytest.fixture(scope="module")
def scale(base: Path) -> float:
    """Return the size of the models relative to the real ones: float32 instead of 16 bits."""
    real = sum(part.num_weights * 2 for family in FAMILIES for part in parts(family))
    files = (base / "models" / "checkpoints").glob("*.safetensors")
    small = sum(weights_bytes(load_checkpoint(path, LoadTypes())) for path in files)
    return small / real


def weights_bytes(loaded: Any) -> int:
    networks = (loaded.unet, loaded.text_encoder, loaded.vae)
    return sum(weight.nbytes for network in networks for weight in network.parameters())


def workflow() -> dict[str, Any]:
    """An image by the base model up to its last steps, which the refiner takes."""
    sampling = {
        "noise_seed": 5, "steps": 3, "cfg": 4.0, "sampler_name": "dpmpp_2m", "scheduler": "karras",
    }  # fmt: skip
    first = {"model": ["1", 0], "positive": ["3", 0], "negative": ["4", 0], "latent_image": ["5", 0]}
    then = {"model": ["2", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["8", 0]}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="sdxl.safetensors"),
        "2": node("CheckpointLoaderSimple", ckpt_name="sdxl_refiner.safetensors"),
        "3": node("CLIPTextEncode", clip=["1", 1], text="a (red:1.2) fox"),
        "4": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "5": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "6": node("CLIPTextEncodeSDXLRefiner", clip=["2", 1], text="a fox", ascore=6.0, width=64, height=64),
        "7": node("CLIPTextEncodeSDXLRefiner", clip=["2", 1], text="blurry", ascore=2.5, width=64, height=64),
        "8": node(
            "KSamplerAdvanced", add_noise="enable", start_at_step=0, end_at_step=2,
            return_with_leftover_noise="enable", **first, **sampling,
        ),
        "9": node(
            "KSamplerAdvanced", add_noise="disable", start_at_step=2, end_at_step=10000,
            return_with_leftover_noise="disable", **then, **sampling,
        ),
        "10": node("VAEDecode", samples=["9", 0], vae=["1", 2]),
        "20": node("SaveLatent", samples=["9", 0], filename_prefix="latent"),
        "21": node("SaveImage", images=["10", 0], filename_prefix="picture"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def expected(base: Path) -> Iterator[torch.Tensor]:
    with engine_of(base) as engine:
        yield latent_of(engine, run(engine, workflow())[0])


@pytest.mark.parametrize(
    "card_gb", [pytest.param(gb, marks=() if gb in FEW_GB else pytest.mark.slow) for gb in CARDS_GB]
)
def test_base_and_refiner_draw_the_same_bits_on_a_card_of_any_size(
    base: Path, expected: torch.Tensor, scale: float, card_gb: int
) -> None:
    card_bytes = int(card_gb * GIB * scale)
    with engine_of(base, card_bytes=card_bytes) as engine:
        assert torch.equal(latent_of(engine, run(engine, workflow())[0]), expected)
        report = engine.memory.report()
        assert (report.num_streamed > 0) == (card_gb < TAKES_TURNS_GB)
        assert report.peak_bytes is not None and report.peak_bytes <= card_bytes
        assert report.unaccounted_bytes == 0 and report.pool.num_leaks == 0


@pytest.mark.skipif(not STATUS.exists(), reason="needs Linux")
def test_loading_takes_little_more_ram_than_the_weights_that_stay(base: Path) -> None:
    folder = base / "models" / "checkpoints"
    load_checkpoint(folder / "sdxl_refiner.safetensors", LoadTypes())  # torch's own beginnings
    with watched() as most:
        loaded = load_checkpoint(folder / "sdxl.safetensors", LoadTypes())
    assert 0.5 * weights_bytes(loaded) < most() <= 1.15 * weights_bytes(loaded)
