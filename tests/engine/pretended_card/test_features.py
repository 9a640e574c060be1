"""Adapters, masks, hooks, packed weights and every way of keeping weights, each once on a pretended card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.settings import DtypeSettings, MemorySettings
from tests.engine.pretended_card.card import GIB
from tests.engine.pretended_card.runs import engine_on_card
from tests.engine.simulated_card import MIB, run, workflow, write_small_models
from tests.parity.in_process import run_case
from tests.parity.recorded import INPUTS, case_named

SMALL: dict[str, Any] = {"second": None, "steps": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base directory with two checkpoints, a LoRA and a ControlNet, and the inputs of recorded cases."""
    folder = tmp_path_factory.mktemp("features")
    write_small_models(folder / "models")
    shutil.copytree(INPUTS, folder / "input")
    return folder


@pytest.mark.parametrize(
    ("memory", "total_bytes"),
    [
        (MemorySettings(), 80 * GIB),
        pytest.param(MemorySettings("highvram"), 80 * GIB, marks=pytest.mark.slow),
        pytest.param(MemorySettings("gpu_only"), 80 * GIB, marks=pytest.mark.slow),
        pytest.param(MemorySettings("lowvram"), 80 * GIB, marks=pytest.mark.slow),
        (MemorySettings("novram"), 80 * GIB),
        pytest.param(
            MemorySettings("novram", async_offload_streams=0, pinned_memory=False), 80 * GIB, marks=pytest.mark.slow
        ),
        pytest.param(MemorySettings("normalvram", smart_memory=False, cpu_vae=True), 80 * GIB, marks=pytest.mark.slow),
        (MemorySettings("normalvram", reserve_vram_gb=0.0), 12 * MIB),
    ],
    ids=["usual", "highvram", "gpu only", "lowvram", "novram", "novram without streams", "cpu vae", "too small"],
)
def test_a_lora_and_a_controlnet_with_weights_kept_in_every_way(
    base: Path, memory: MemorySettings, total_bytes: int
) -> None:
    with engine_on_card(base, memory=memory, total_bytes=total_bytes) as (engine, card):
        run(engine, workflow(**SMALL))
        if memory.vram == "novram" or total_bytes < GIB:
            assert engine.memory.report().num_streamed > 100  # besides what is cast, such as image encoders
        assert not card.log.faults and card.log.num_transfers > 0


@pytest.mark.parametrize("first", ["a", pytest.param("b", marks=pytest.mark.slow)])
def test_a_second_checkpoint_takes_the_place_of_the_first(base: Path, first: str) -> None:
    with engine_on_card(base, total_bytes=40 * MIB) as (engine, card):
        run(engine, workflow(first=first, second="b" if first == "a" else "a", steps=1))
        assert not card.log.faults


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", pytest.param("float8_e5m2", marks=pytest.mark.slow)])
def test_a_network_kept_as_float8_is_cast_layer_by_layer_and_patched(base: Path, dtype: Any) -> None:
    with engine_on_card(base, dtypes=DtypeSettings(unet=dtype, text_encoder=dtype)) as (engine, card):
        assert engine.resolved.unet_dtype == dtype and engine.resolved.unet_compute_dtype == "float16"
        run(engine, workflow(**SMALL))
        assert not card.log.faults


@pytest.mark.parametrize(
    "case",
    [
        "sd15/lora_hook_cond", "quantised/gguf_flux_q5_lora_target",
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in (
                "sd15/img2img_basic", "sd15/custom_inpaint", "sd15/cond_two_masks", "quantised/gguf_flux_q8_lora",
                "quantised/flux_scaled_lora", "quantised/comfy_quant_flux_int8",
                "quantised/comfy_quant_flux_nvfp4", "quantised/comfy_quant_flux_mxfp8", "sdxl/tinyxl_inpaint_model",
            )
        ),
    ],
)  # fmt: skip
def test_a_recorded_workflow_of_each_kind(base: Path, case: str) -> None:
    with engine_on_card(base) as (engine, card):
        run_case(engine, case_named(case))
        assert not card.log.faults
