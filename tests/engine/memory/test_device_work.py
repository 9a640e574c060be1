"""Memory of a device for work without a model."""

from __future__ import annotations

import torch

from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.settings import EngineSettings, MemorySettings

MIB = 1 << 20


def test_weights_leave_the_device_for_work_without_a_model() -> None:
    memory = ModelMemory(EngineSettings(memory=MemorySettings(simulate_vram_gb=0.1)))
    residency = memory.keep("vae", torch.nn.Linear(1024, 4096).requires_grad_(False), role="vae")
    with residency.in_use():
        pass
    before = memory.pool.report().device_bytes
    available = memory.free_device_bytes()
    assert before >= 16 * MIB and available >= memory.device.free_bytes() + before
    memory.make_device_room(memory.device.free_bytes())
    assert memory.pool.report().device_bytes == before  # there was room
    memory.make_device_room(available)
    assert memory.pool.report().device_bytes == 0
    assert memory.device.free_bytes() == memory.free_device_bytes()


def test_a_processor_keeps_its_models() -> None:
    memory = ModelMemory(EngineSettings(cpu=True))
    residency = memory.keep("vae", torch.nn.Linear(64, 64).requires_grad_(False), role="vae")
    with residency.in_use():
        pass
    before = memory.pool.report()
    memory.make_device_room(1 << 50)
    assert memory.pool.report() == before
