"""Runs of the engine whose weights are multiplied as they are stored: near the plain image, and nothing remains."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from darkroom.engine import Engine, EngineSettings
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.settings import DtypeSettings, MemorySettings, VramChoice
from darkroom.engine.tuning.products.float8 import ACTIVATIONS, Float8Products
from darkroom.engine.tuning.products.fused import row_quantiser
from darkroom.engine.tuning.products.times import ProductTimes
from darkroom.engine.tuning.strategies.packed_products import PackedProducts
from tests.engine.simulated_card import latent_of, run, workflow, write_small_models
from tests.engine.tuning.test_step_graph import choose

MOST_ERROR = 0.1  # relative L2 of the latents; two steps with activations of three bits of mantissa


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_small_models(folder / "models")
    return folder


def drawn(base: Path, names: tuple[str, ...], *, lora: float | None, vram: VramChoice) -> torch.Tensor:
    """Return a latent of an engine with a float8 UNet on a simulated card, where products are said to be faster."""
    turns = itertools.cycle((1.0, 2.0))
    memory = MemorySettings(vram, simulate_vram_gb=4.0)
    settings = EngineSettings(base_directory=base, dtypes=DtypeSettings(unet="float8_e4m3fn"), memory=memory)
    prompt = workflow(second=None, lora=lora, control=False)
    del prompt["21"], prompt["10"]
    with Engine(settings) as engine:
        engine.tuner.replace(PackedProducts(times=ProductTimes(lambda work, rows: next(turns))))
        choose(engine, *names)
        found = latent_of(engine, run(engine, prompt)[0])
        engine.tuner.check_integrity()
    return found


@pytest.mark.parametrize("lora", [0.7, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("vram", ["normalvram", pytest.param("novram", marks=pytest.mark.slow)])
def test_an_image_is_near_the_plain_one(base: Path, lora: float | None, vram: VramChoice) -> None:
    if Float8Products(row_quantiser).way(torch.device("cpu"), ACTIVATIONS, torch.float32) is None:
        pytest.skip("this processor multiplies no float8")
    plain = drawn(base, (), lora=lora, vram=vram)
    found = drawn(base, ("packed_products",), lora=lora, vram=vram)
    error = relative_error(found, plain)
    if vram == "novram":
        assert error == 0.0, "what is streamed for a call is unpacked"
    else:
        assert 0.0 < error < MOST_ERROR
