"""Placement of each kind of network by memory state: ComfyUI's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from darkroom.engine.memory.state import VramState

Role = Literal["unet", "controlnet", "text_encoder", "vision", "vae", "other"]  # other: upscalers, hypernetworks


@dataclass(frozen=True, slots=True)
class Place:
    """Placement of a network: it computes on the device or the CPU; when idle it stays or is offloaded to RAM."""

    on_device: bool
    stays: bool


ON_CPU = Place(on_device=False, stays=True)


def place_of(role: Role, state: VramState, *, cpu_vae: bool = False) -> Place:
    """Return the place of a network of that role.

    | state      | UNet, others          | text encoder, vision  | VAE                   |
    | ---------- | --------------------- | --------------------- | --------------------- |
    | DISABLED   | CPU                   | CPU                   | CPU                   |
    | NO_VRAM    | device, rests in RAM  | CPU                   | device, rests in RAM  |
    | LOW_VRAM   | device, rests in RAM  | CPU                   | device, rests in RAM  |
    | NORMAL     | device, rests in RAM  | device, rests in RAM  | device, rests in RAM  |
    | SHARED     | device, rests in RAM  | CPU                   | device, rests in RAM  |
    | HIGH_VRAM  | device, stays         | device, rests in RAM  | device, rests in RAM  |
    | GPU_ONLY   | device, stays         | device, stays         | device, stays         |

    `--cpu-vae` keeps VAEs on the CPU.
    """
    if state is VramState.DISABLED or (role == "vae" and cpu_vae):
        return ON_CPU
    if state is VramState.GPU_ONLY:
        return Place(on_device=True, stays=True)
    if role in ("text_encoder", "vision"):
        takes_text = state in (VramState.NORMAL_VRAM, VramState.HIGH_VRAM)
        return Place(on_device=True, stays=False) if takes_text else ON_CPU
    return Place(on_device=True, stays=state is VramState.HIGH_VRAM and role != "vae")
