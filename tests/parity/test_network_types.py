"""Cases of Wan recorded in float32, drawn with networks of 16 bits: every variant, by its own inputs.

Wan's first layers compute in float32 whatever the type of the others, so that each of its networks mixes types where
its further inputs (controls, cameras, audio, faces) meet the patches. A few cases run with `./test.sh`, all with
`-m slow`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from darkroom.engine.engine import Engine
from darkroom.engine.settings import DtypeName, DtypeSettings, EngineSettings
from tests.parity.in_process import run_case
from tests.parity.recorded import case_named, find_cases

pytestmark = pytest.mark.timeout(900)

# Relative L2 distance from the latents of float32: measured at most 0.027 and 0.0035.
DISTANCES: dict[DtypeName, float] = {"bfloat16": 0.04, "float16": 0.006}
FAST = (
    "wan/wan22_s2v_bare", "wan/wan_humo_17b_batch", "wan/wan_vace_text_alone", "wan/wan22_camera_still",
    "wan/wan_i2v_no_picture", "wan22/wan22_5b_cfg1",
)  # fmt: skip
ALL = sorted(str(case) for family in ("wan", "wan22") for case in find_cases(family=family) if "fp8" not in case.name)


def distances(base: Path, dtype: DtypeName, cases: tuple[str, ...] | list[str]) -> dict[str, float]:
    """Return how far each latent is from the recorded one, by case and output."""
    found = {}
    with Engine(EngineSettings(base_directory=base, cpu=True, dtypes=DtypeSettings(unet=dtype))) as engine:
        for case in map(case_named, cases):
            expected = case.expected()
            for output, drawn in run_case(engine, case).items():
                if output.endswith(".latent"):
                    ours, theirs = (load(data)["latent_tensor"].double() for data in (drawn, expected[output]))
                    found[f"{case.name} {output}"] = (torch.dist(ours, theirs) / theirs.norm()).item()
    return found


@pytest.mark.slow
def test_variants_draw_in_bfloat16(base: Path) -> None:
    found = distances(base, "bfloat16", FAST)
    assert len(found) == len(FAST)
    assert {name: value for name, value in found.items() if not 1e-5 < value < DISTANCES["bfloat16"]} == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DISTANCES)
def test_all_cases_draw_in_16_bits(base: Path, dtype: DtypeName) -> None:
    found = distances(base, dtype, ALL)
    drawn = {name: value for name, value in found.items() if "vae_encode" not in name and "wan_img2img 9" not in name}
    assert {name: value for name, value in drawn.items() if not 1e-5 < value < DISTANCES[dtype]} == {}
