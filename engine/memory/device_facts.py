"""What is known of a device before anything is decided for it: plain data, so that the decisions need no device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda", "rocm", "xpu", "mps", "simulated"]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device. Bytes as of the engine's start; `free_bytes` counts what torch holds without using.

    `is_shared`: its memory is the machine's (integrated graphics, Apple's chips). `computes_float16` and
    `computes_bfloat16` mean at full speed. `keeps_float8`: weights may lie there as float8 and be cast from it.
    """

    kind: DeviceKind
    torch_name: str  # what torch calls it: cpu, cuda:0, xpu:0, mps
    name: str
    total_bytes: int
    free_bytes: int
    computes_float16: bool = False
    computes_bfloat16: bool = False
    keeps_float8: bool = False
    is_shared: bool = False

    @property
    def has_own_memory(self) -> bool:
        """Whether weights have to be brought there at all."""
        return self.kind != "cpu"
