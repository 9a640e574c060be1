"""Noise that moves with a flow: where it goes, that it stays Gaussian, and that it follows the global seed."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.families.cogvideox.noise_warp import WarpedNoise

CPU = torch.device("cpu")
SIDE = 64


def warped(*flows: torch.Tensor, channels: int = 8, side: int = SIDE) -> WarpedNoise:
    torch.manual_seed(0)
    noise = WarpedNoise(channels, side, side, CPU)
    for flow in flows:
        noise.move(flow)
    return noise


def flow_of(right: float, down: float, side: int = SIDE) -> torch.Tensor:
    return torch.stack([torch.full((side, side), right), torch.full((side, side), down)])


def test_the_seed_decides() -> None:
    first, second = (warped(flow_of(1.3, 0.0)).pooled(4) for _ in range(2))
    assert torch.equal(first, second)
    torch.manual_seed(1)
    assert not torch.equal(WarpedNoise(8, SIDE, SIDE, CPU).pooled(4), warped().pooled(4))


def test_without_motion_it_stays() -> None:
    assert torch.allclose(warped(flow_of(0.0, 0.0)).pooled(1), warped().pooled(1), atol=1e-4)


def test_it_moves_with_the_flow() -> None:
    start, moved = warped().pooled(1), warped(flow_of(3.0, -2.0)).pooled(1)
    inner, source = moved[:, 2 : SIDE - 2, 3 : SIDE - 3], start[:, 4:, : SIDE - 6]  # cells that leave stay at the edge
    assert torch.allclose(inner, source, atol=1e-4)


@pytest.mark.parametrize("scale", [0.4, 1.7])
def test_it_stays_gaussian_where_cells_meet_or_part(scale: float) -> None:
    across = (torch.arange(SIDE) - SIDE / 2) * (scale - 1)
    flow = torch.stack([across.expand(SIDE, SIDE), across[:, None].expand(SIDE, SIDE)])
    noise = warped(flow, flow, channels=16).pooled(1)
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.0, abs=0.03)
    assert noise.std().item() == pytest.approx(1.0, abs=0.1)


def test_pooled_cells_have_a_deviation_of_one() -> None:
    pooled = warped(flow_of(1.0, 1.0), channels=16).pooled(8)
    assert pooled.shape == (16, SIDE // 8, SIDE // 8)
    assert pooled.std().item() == pytest.approx(1.0, abs=0.1)
