"""Memory states: how much of the device models may keep."""

from __future__ import annotations

from enum import Enum

from darkroom.engine.memory.device_facts import DeviceFacts
from darkroom.engine.settings import VramChoice


class VramState(Enum):
    """Memory states of ComfyUI. `GPU_ONLY` is its HIGH_VRAM with `--gpu-only`: images stay on the device too."""

    DISABLED = "cpu"  # there is no device memory: models are in RAM and compute on the CPU
    NO_VRAM = "novram"  # as little as possible at any time
    LOW_VRAM = "lowvram"  # as NORMAL_VRAM, and text encoders compute on the CPU
    NORMAL_VRAM = "normalvram"  # models are loaded for use, whole or in part, and evicted for others
    HIGH_VRAM = "highvram"  # models are loaded whole and stay on the device after use
    GPU_ONLY = "gpu_only"  # nothing is ever offloaded
    SHARED = "shared"  # the device has the machine's memory: models are loaded whole and evicted for others

    @property
    def keeps_on_device(self) -> bool:
        """True where some models stay on the device for good."""
        return self in (VramState.HIGH_VRAM, VramState.GPU_ONLY)

    @property
    def loads_in_part(self) -> bool:
        """True where a model may be on the device in part, with the rest of it streamed block by block."""
        return self in (VramState.NO_VRAM, VramState.LOW_VRAM, VramState.NORMAL_VRAM)


PARTIAL_LOAD_BELOW_BYTES = 2 << 30  # with less free than this hardly any model fits whole


def choose_state(choice: VramChoice, facts: DeviceFacts) -> tuple[VramState, str]:
    """Return the state for a device and the reason. A flag decides wherever it applies."""
    if not facts.has_own_memory:
        return VramState.DISABLED, "models compute on the CPU"
    if facts.is_shared and choice in ("auto", "normalvram"):
        return VramState.SHARED, f"{facts.name} has no memory of its own"
    if choice != "auto":
        return VramState(choice), "asked for by flag"
    if facts.free_bytes < PARTIAL_LOAD_BELOW_BYTES:
        return VramState.LOW_VRAM, f"{facts.free_bytes >> 20} MiB are free on {facts.name}"
    return VramState.NORMAL_VRAM, f"{facts.free_bytes >> 20} MiB are free on {facts.name}"
