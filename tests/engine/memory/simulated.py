"""Small networks, and a pool over a simulated device, for tests of model memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from darkroom.engine.memory.device import Device
from darkroom.engine.memory.model_pool import ModelPool
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.plan import Limits
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.state import VramState
from darkroom.engine.memory.transfer_streams import PinnedMemory, TransferStreams

WIDTH = 16


def network(seed: int, num_layers: int = 12, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Layers of a few kinds, none of which takes more than a fortieth of the whole."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for index in range(num_layers):
        layers += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=index % 2 == 0)]
        layers += [nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Flatten(1)]
    return nn.Sequential(*layers).to(dtype).requires_grad_(False).eval()


def patch(model: nn.Module, seed: int, strength: float = 0.5) -> dict[str, list[tuple[Any, ...]]]:
    """A difference for every other weight."""
    torch.manual_seed(seed)
    return {
        name: [(strength, ("diff", (torch.randn(weight.shape),)), 1.0, None, None)]
        for index, (name, weight) in enumerate(model.state_dict().items())
        if index % 2 == seed % 2
    }


class ElsewhereDevice(Device):
    """A device whose tensors cannot be mixed with the CPU's."""

    has_own_memory = True


class Card:
    """A simulated device with the pool over it."""

    def __init__(
        self,
        budget_bytes: int,
        state: VramState = VramState.NORMAL_VRAM,
        *,
        streams: int = 2,
        pinned_bytes: int = 1 << 30,
        smart_memory: bool = True,
    ) -> None:
        self.device = SimulatedDevice(budget_bytes)
        self.streams = TransferStreams(self.device, streams)
        self.pinned = PinnedMemory(self.device, pinned_bytes, lambda: 1 << 40)
        limits = Limits(reserve_bytes=0, minimum_inference_bytes=0)
        self.pool = ModelPool(state, limits=limits, smart_memory=smart_memory, ram_bytes=lambda: (1 << 40, 1 << 40))

    def add(self, name: str, module: nn.Module, **options: Any) -> Residency:
        weights = ModuleWeights(name, module, device=self.device, streams=self.streams, pinned=self.pinned, **options)
        return self.pool.add(weights, "unet")
