"""How much of the device models may take for good."""

from __future__ import annotations

from enum import Enum

from engine.settings import ResolvedSettings


class VramState(Enum):
    DISABLED = "cpu"  # there is no device memory: models live where they compute
    NO_VRAM = "novram"  # as little as possible at any time
    LOW_VRAM = "lowvram"  # models may be on the device in part
    NORMAL_VRAM = "normalvram"  # whole models come when they are used and leave for others
    HIGH_VRAM = "highvram"  # models stay on the device after use
    GPU_ONLY = "gpu_only"  # nothing ever leaves the device

    @property
    def offloads_to_cpu(self) -> bool:
        return self in (VramState.NO_VRAM, VramState.LOW_VRAM, VramState.NORMAL_VRAM)


def vram_state(settings: ResolvedSettings) -> VramState:
    return VramState(settings.vram)
