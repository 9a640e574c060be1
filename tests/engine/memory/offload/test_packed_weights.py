"""Packed weights on simulated cards: the same bits wherever the codes are, patched or not, and within the budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.formats.quantised import packed_layers
from darkroom.engine.formats.quantised.gguf_packing import GgufPacking
from darkroom.engine.formats.quantised.packing import Packing
from darkroom.engine.formats.quantised.scaled_float8 import ScaledFloat8Packing
from darkroom.engine.memory.offload import packing as in_memory
from darkroom.engine.memory.offload.packing import unpacked
from tests.engine.memory.simulated import Card
from tests.parity.quantised_models import random_blocks

WIDTH = 64
X = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH)


def layer(kind: str, seed: int) -> nn.Linear:
    """Return a linear layer with codes of that kind."""
    made = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    made.bias.copy_(torch.linspace(-0.1, 0.1, WIDTH))
    shape = made.weight.shape
    packing: Packing
    if kind == "float8":
        packing = ScaledFloat8Packing(shape, scale=0.003)
        codes = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(60).to(torch.float8_e4m3fn)
    else:
        packing = GgufPacking(shape, kind=kind)
        codes = random_blocks(kind, shape.numel() // 32, 0.2, str(seed)).view(WIDTH, -1)
    made.weight = nn.Parameter(codes, requires_grad=False)
    setattr(made, packed_layers.PACKINGS, {"weight": packing})
    return made


def network(kind: str) -> nn.Sequential:
    return nn.Sequential(*(layer(kind, seed) for seed in range(4)))


def patches(seed: int) -> dict[str, list[Any]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{index}.weight": [(0.5, ("diff", (torch.randn(WIDTH, WIDTH, generator=generator) * 0.1,)), 1.0, None, None)]
        for index in (0, 2)
    }


def values(kind: str, seed: int) -> torch.Tensor:
    made = layer(kind, seed)
    return unpacked(in_memory.packings_of(made)["weight"], made.weight, {})


def test_both_sides_have_the_same_name_for_the_packings_of_a_layer() -> None:
    assert packed_layers.PACKINGS == in_memory.PACKINGS
    assert packed_layers.has_packed_weights(network("Q8_0")) and not packed_layers.has_packed_weights(nn.Linear(2, 2))
    assert in_memory.needs_casting(network("Q8_0")) and in_memory.needs_casting(nn.Linear(2, 2).to(torch.float8_e5m2))
    assert not in_memory.needs_casting(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", ("float8", "Q8_0", "Q4_1"))
@pytest.mark.parametrize("state", ("plain", "patched", "hooked"))
def test_results_are_those_of_the_values_on_every_card(kind: str, state: str) -> None:
    size = sum(weight.nbytes for weight in network(kind).state_dict().values())
    least = 2 * WIDTH * WIDTH * 5 + WIDTH * WIDTH * 40
    found = []
    for budget in (100 * size + least, size // 2 + least, least):
        card = Card(budget)
        handle = card.add("packed", network(kind), compute_dtype=torch.float32)
        own = patches(1) if state != "plain" else {}
        with handle.in_use(working_bytes=64, patches=own, patches_id="one" if own else None) as used:
            if state == "hooked":
                handle.patch_hooks(patches(2), "hooks")
            found.append(used(X))
            assert handle.size_bytes == size, "codes are what is held"
        card.pool.check_integrity()
        assert card.device.most_charged_bytes <= card.device.budget_bytes
        with handle.in_use(working_bytes=64) as used:  # without patches again
            plain = X
            for seed in range(4):
                plain = plain @ values(kind, seed).T + torch.linspace(-0.1, 0.1, WIDTH)
            torch.testing.assert_close(used(X), plain)
        card.pool.unload_all()
        assert card.device.charged_bytes == 0
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert state == "plain" or not torch.allclose(found[0], plain, atol=1e-3)


@pytest.mark.parametrize("kind", ("float8", "Q8_0"))
def test_a_weight_is_given_as_values(kind: str) -> None:
    card = Card(1 << 24)
    handle = card.add("packed", network(kind), compute_dtype=torch.float32)
    assert torch.equal(handle.original_weight("1.weight"), values(kind, 1))
    with handle.in_use(patches=patches(1), patches_id="one"):
        expected = values(kind, 2) + patches(1)["2.weight"][0][1][1][0] * 0.5
        changed = handle.current_weight("2.weight")
        # float8 is rounded at random, to one of two neighbours an eighth apart at most
        torch.testing.assert_close(changed, expected, rtol=0.13 if kind == "float8" else 1e-5, atol=1e-4)
        assert torch.equal(handle.original_weight("2.weight"), values(kind, 2))


def test_rows_of_a_packed_table_are_unpacked_alone() -> None:
    for budget in (1 << 22, 60_000):
        card = Card(budget)
        table = nn.Embedding(500, WIDTH).requires_grad_(False)
        codes = random_blocks("Q8_0", 500 * WIDTH // 32, 1.0, "table").view(500, -1)
        packing = GgufPacking(torch.Size((500, WIDTH)), kind="Q8_0")
        table.weight = nn.Parameter(codes, requires_grad=False)
        setattr(table, packed_layers.PACKINGS, {"weight": packing})
        handle = card.add("text", nn.Sequential(table), compute_dtype=torch.float32)
        with handle.in_use() as used:
            rows = used[0](torch.tensor([5, 499, 5]))
        assert torch.equal(rows, unpacked(packing, codes, {})[[5, 499, 5]])


def test_large_weights_are_unpacked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_blocks("Q4_1", 64 * 2, 1.0, "parts").view(64, -1)
    packing = GgufPacking(torch.Size((64, WIDTH)), kind="Q4_1")
    whole = unpacked(packing, codes, {})
    monkeypatch.setattr("darkroom.engine.formats.quantised.packing.VALUES_AT_ONCE", 5 * WIDTH)
    assert torch.equal(unpacked(packing, codes, {}), whole)
    assert packing.working_bytes < whole.nbytes * 4
