"""Properties of a device as plain data, so that decisions need no device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda", "rocm", "xpu", "mps", "simulated"]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of one device. Bytes as of the engine's start; `free_bytes` counts torch's unused cache.

    `is_shared`: its memory is the machine's (integrated graphics, Apple's chips). `computes_float16` and
    `computes_bfloat16` mean at full speed; `convolves_bfloat16_slowly`, that its large convolutions are slower in
    bfloat16 than in float32 all the same. `keeps_float8`: weights may be stored there as float8 and cast from it.
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
    convolves_bfloat16_slowly: bool = False

    @property
    def has_own_memory(self) -> bool:
        """True where weights have to be copied to the device."""
        return self.kind != "cpu"
