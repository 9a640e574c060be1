"""Figures of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from darkroom.engine.memory.durations import DurationHistogram

MODEL_ROLES = ("unet", "text_encoder", "vae", "other")  # by which loads are counted; any further role is `other`
WeightsLevel = Literal["device", "ram", "file"]


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Figures of one model: all its weights, those loaded, what more it takes there, and its host weights in RAM.

    `on_device`: it computes on a device with memory of its own.
    """

    name: str
    role: str
    on_device: bool
    size_bytes: int
    loaded_bytes: int
    more_bytes: int
    ram_bytes: int
    is_kept: bool
    in_use: bool


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Figures of the pool for metrics. Those that start with `num_` are counters since the engine's start.

    `load_seconds` has the durations of loads by role, `uses` the uses of models by where their weights were.
    """

    models: tuple[ModelReport, ...]
    num_loads: int
    num_evictions: int
    evicted_bytes: int
    num_dropped: int
    num_leaks: int
    load_seconds: Mapping[str, DurationHistogram] = field(default_factory=dict)
    uses: Mapping[WeightsLevel, int] = field(default_factory=dict)

    @property
    def num_models(self) -> int:
        return len(self.models)

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.models)

    @property
    def loaded_bytes(self) -> int:
        return sum(item.loaded_bytes for item in self.models)

    @property
    def device_bytes(self) -> int:
        """Bytes of models on a device with memory of its own."""
        return sum(item.loaded_bytes + item.more_bytes for item in self.models if item.on_device)

    @property
    def ram_bytes(self) -> int:
        return sum(item.ram_bytes for item in self.models)


@dataclass
class PoolCounters:
    loads: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    dropped: int = 0
    leaks: int = 0
    load_seconds: dict[str, DurationHistogram] = field(
        default_factory=lambda: {role: DurationHistogram() for role in MODEL_ROLES}
    )
    uses: dict[WeightsLevel, int] = field(default_factory=lambda: {"device": 0, "ram": 0, "file": 0})
