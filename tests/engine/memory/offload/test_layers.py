"""Layers on another device than the CPU, as far as torch's device without memory (`meta`) can show them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.transfer_streams import TransferStreams
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from tests.engine.memory.simulated import Card, ElsewhereDevice


def test_rows_of_a_table_that_is_away_are_asked_for_where_the_table_goes() -> None:
    difference = [(1.0, ("diff", (torch.ones(10, 4),)), 1.0, None, None)]
    for patches in ({}, {"weight": difference}):
        device = ElsewhereDevice("meta")
        table = nn.Embedding(10, 4).requires_grad_(False)
        weights = ModuleWeights("m", table, device=device, streams=TransferStreams(device, 0))
        weights.patches.patch(patches, "some")
        weights.load(0)
        seen: list[tuple[str, str]] = []
        table.register_forward_pre_hook(
            lambda module, args, seen=seen: seen.append((args[0].device.type, module.weight.device.type))
        )
        table(torch.tensor([1, 2, 2]))
        assert seen == [("meta", "meta")]


def test_of_a_table_that_is_cast_only_the_rows_asked_for_are() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(1000, 16).half().requires_grad_(False)
    expected = table.weight.clone().float()[[5, 7, 5]]
    for budget in (1 << 20, 20_000):
        card = Card(budget)
        module = nn.Sequential(nn.Embedding(1000, 16, _weight=table.weight.clone()), nn.Linear(16, 16).half())
        handle = card.add("text", module.requires_grad_(False), compute_dtype=torch.float32)
        with handle.in_use() as used:
            assert (handle.loaded_bytes == handle.size_bytes) == (budget > 100_000)
            assert torch.equal(used[0](torch.tensor([5, 7, 5])), expected)
            assert card.streams.buffers_bytes < 10_000, "no buffer for the whole table"
        card.pool.check_integrity()


@pytest.mark.parametrize("room", [0, None])
def test_networks_in_a_cards_types_mix_nothing_of_the_card_with_the_cpu(room: int | None) -> None:
    types = LoadTypes(unet=torch.float16, text_encoder=torch.float16, vae=torch.bfloat16)
    unet, text, vae = random_networks("small", 0, types)
    device = ElsewhereDevice("meta")
    for network, computed in ((unet, None), (text, torch.float32), (vae, None)):
        ModuleWeights("m", network, device=device, streams=TransferStreams(device, 0), compute_dtype=computed).load(
            room
        )
    with torch.inference_mode():
        latent, context = (
            torch.zeros(shape, dtype=torch.float16, device="meta")
            for shape in ((2, 4, 8, 8), (2, 77, unet.config.context_dim))
        )
        outputs = [unet(latent, torch.zeros(2, device="meta"), context=context)]
        outputs += [
            vae.decode(latent.bfloat16()),
            vae.encode(torch.zeros(1, 3, 64, 64, dtype=torch.bfloat16, device="meta")),
        ]
        outputs += [text.encoders()["l"]._embed([49406, *[49407] * 76])[0]]
        if room is None:  # indices made on this device cannot be looked up in RAM
            outputs += [text.encoders()["l"].encode([[49406, *[49407] * 76]], -2, project_pooled=False)[0]]
    assert all(output.device.type == "meta" for output in outputs)
    assert outputs[-1].dtype is torch.float32
