"""The operations behind the GPU benchmark's floors, counted on networks without memory."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmark.gpu_floors import TFLOP, floor_seconds
from benchmark.gpu_parts.networks import FULL
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.unfilled import unfilled


def counted_tflop(work: str, rows: int) -> float:
    """The operations of one evaluation of so many rows, in 1e12."""
    shape = FULL[work]
    family = family_named(shape.family)
    with unfilled():
        network = family.denoiser.build(family.scales["full"].denoiser).to(torch.bfloat16).eval()

    def empty(*sides: int) -> torch.Tensor:
        return torch.empty(*sides, dtype=torch.bfloat16, device="meta")

    given = {}
    if shape.family == "sdxl":
        given["y"] = empty(rows, 2816)
    if shape.family == "flux":
        given = {"y": empty(rows, shape.pooled), "guidance": empty(rows)}
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(
            empty(rows, *shape.latent[1:]), torch.empty(rows, device="meta"),
            context=empty(rows, shape.tokens, shape.width), **given,
        )  # fmt: skip
    return float(counter.get_total_flops()) / 1e12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "rows", "name"),
    [
        ("sd15_512", 2, "sd15_512"),
        ("sd15_512", 8, "sd15_512_batch_4"),
        ("sdxl_1024", 2, "sdxl_1024"),
        ("flux_1024", 1, "flux_1024"),
        ("wan_480p_33", 2, "wan_480p_33"),
        ("wan22_720p_25", 2, "wan22_720p_25"),
    ],
)
def test_the_operations_of_a_step_are_those_that_the_floor_counts(work: str, rows: int, name: str) -> None:
    assert counted_tflop(work, rows) == pytest.approx(TFLOP[name], rel=0.02)


def test_a_floor_is_operations_by_rate() -> None:
    assert floor_seconds("sd15_512", 790.0) == pytest.approx(0.00203, rel=0.01)
