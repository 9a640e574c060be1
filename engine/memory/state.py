"""How much of the device models may take for good."""

from __future__ import annotations

from enum import Enum

from engine.memory.device_facts import DeviceFacts
from engine.settings import VramChoice


class VramState(Enum):
    """ComfyUI's states. `GPU_ONLY` is its HIGH_VRAM with `--gpu-only`, which also keeps pictures on the device."""

    DISABLED = "cpu"  # there is no device memory: models live where they compute
    NO_VRAM = "novram"  # as little as possible at any time
    LOW_VRAM = "lowvram"  # as NORMAL_VRAM, and text encoders compute on the CPU
    NORMAL_VRAM = "normalvram"  # models come when they are used, whole or in part, and leave for others
    HIGH_VRAM = "highvram"  # models come whole and stay on the device after use
    GPU_ONLY = "gpu_only"  # nothing ever leaves the device
    SHARED = "shared"  # the device has the machine's memory: models come whole, and leave for others

    @property
    def keeps_on_device(self) -> bool:
        """Whether some models stay on the device for good."""
        return self in (VramState.HIGH_VRAM, VramState.GPU_ONLY)

    @property
    def loads_in_part(self) -> bool:
        """Whether a model may be on the device in part, the rest of it being brought over block by block."""
        return self in (VramState.NO_VRAM, VramState.LOW_VRAM, VramState.NORMAL_VRAM)


NEED_OF_PARTS_BYTES = 2 << 30  # below it hardly any model fits whole


def choose_state(choice: VramChoice, facts: DeviceFacts) -> tuple[VramState, str]:
    """The state for a device, and why. A flag decides wherever it can mean something."""
    if not facts.has_own_memory:
        return VramState.DISABLED, "models compute on the CPU"
    if facts.is_shared and choice in ("auto", "normalvram"):
        return VramState.SHARED, f"{facts.name} has no memory of its own"
    if choice != "auto":
        return VramState(choice), "asked for by flag"
    if facts.free_bytes < NEED_OF_PARTS_BYTES:
        return VramState.LOW_VRAM, f"{facts.free_bytes >> 20} MiB are free on {facts.name}"
    return VramState.NORMAL_VRAM, f"{facts.free_bytes >> 20} MiB are free on {facts.name}"
