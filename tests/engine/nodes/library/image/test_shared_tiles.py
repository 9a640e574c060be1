"""An upscale by several engines has the bits of one, whatever becomes of the helpers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from engine.cancel import CancelToken
from engine.layers.tiles import num_tiles, run_in_tiles
from engine.nodes import exchange as exchanges
from engine.nodes.exchange import Exchange
from engine.nodes.library.image.shared_tiles import OwnersNetwork, help_with_tiles

TILE_PX, OVERLAP_PX = 8, 2


def twice(tile: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.interpolate(tile, scale_factor=2.0) * 1.1


def enlarged(pixels: torch.Tensor, network: object = twice) -> torch.Tensor:
    return run_in_tiles(pixels, network, tile=(8, 8), overlap=OVERLAP_PX, scale=2, out_channels=3)  # type: ignore[arg-type]


def helped(pixels: torch.Tensor, exchange: Exchange) -> int:
    return help_with_tiles(pixels, twice, exchange, tile_px=TILE_PX, overlap_px=OVERLAP_PX, cancel=CancelToken())


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    made = Exchange(tmp_path, "job-1")
    made.open()
    return made


@pytest.mark.parametrize("shape", [(1, 3, 20, 30), (2, 3, 20, 7), (1, 3, 5, 5)])
def test_with_two_helpers_the_bits_are_those_of_one_engine(shape: tuple[int, ...], exchange: Exchange) -> None:
    pixels, counts = torch.rand(shape), list[int]()
    helpers = [threading.Thread(target=lambda: counts.append(helped(pixels, exchange))) for _ in range(2)]
    for helper in helpers:
        helper.start()
    found = enlarged(pixels, OwnersNetwork(twice, exchange, CancelToken()))
    for helper in helpers:
        helper.join()
    assert torch.equal(found, enlarged(pixels))
    assert sum(counts) <= num_tiles(pixels, (TILE_PX, TILE_PX), OVERLAP_PX)


def test_tiles_of_helpers_are_taken_and_not_computed_again(exchange: Exchange) -> None:
    pixels, num_calls = torch.rand(1, 3, 20, 30), 0

    def counting(tile: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return twice(tile)

    assert helped(pixels, exchange) == num_tiles(pixels, (TILE_PX, TILE_PX), OVERLAP_PX)
    assert torch.equal(enlarged(pixels, OwnersNetwork(counting, exchange, CancelToken())), enlarged(pixels))
    assert num_calls == 0


def test_a_tile_that_was_claimed_and_does_not_come_or_is_broken_is_computed_by_the_owner(
    exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "LEAST_WAIT_SECONDS", 0.05)
    pixels = torch.rand(1, 3, 20, 30)
    assert exchange.claim("3") and exchange.claim("5")
    next(tmp_path.rglob("5.claim")).with_name("5.npy").write_bytes(b"half a file")
    assert torch.equal(enlarged(pixels, OwnersNetwork(twice, exchange, CancelToken())), enlarged(pixels))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_tile_keeps_its_type_and_bits(dtype: torch.dtype, exchange: Exchange) -> None:
    tile = torch.rand(1, 3, 4, 4).to(dtype)
    exchange.put("0", tile)
    taken = exchange.take("0")
    assert taken is not None and taken.dtype == dtype and torch.equal(taken, tile)
    assert exchange.take("0") is None


def test_a_helper_that_comes_too_late_does_nothing(tmp_path: Path) -> None:
    assert helped(torch.rand(1, 3, 20, 30), Exchange(tmp_path, "over")) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a..b", ".hidden"])
def test_names_lead_to_no_other_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exchange: not a name"):
        Exchange(tmp_path, name)
