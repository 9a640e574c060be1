"""Originals that no file can give again: made on one device, wanted on another."""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.offload.weight_state import HostState
from darkroom.engine.memory.transfer_streams import TransferStreams
from tests.engine.memory.simulated import ElsewhereDevice


def test_patched_weights_made_on_the_device_itself_leave_it_without_their_patches() -> None:
    layer = nn.Linear(4, 4, device="meta").requires_grad_(False)
    device = ElsewhereDevice("meta")
    weights = ModuleWeights("random", layer, device=device, streams=TransferStreams(device, 0))
    original = torch.ones(4, 4)
    weight = weights._weights["weight"]
    weight.put_host(original, HostState.IN_RAM)
    weight.begin_load(original.clone())
    weight.end_load()
    weight.patch(original + 1, ((1.0, (original,), 1.0, None, None),))
    copied = weights._host_weights.copy_in_ram(weight)
    assert copied is not None and torch.equal(copied, original)


def test_weights_made_on_another_device_come_to_the_cpu_when_their_place_is_there() -> None:
    weights = ModuleWeights("random", nn.Linear(4, 4, device="meta").requires_grad_(False))
    assert not any(weights.device.holds(weight.in_module) for weight in weights._weights.values())
