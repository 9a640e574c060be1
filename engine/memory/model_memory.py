"""Model memory of one engine: its device, its pool and the transport between RAM and device."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from darkroom.engine.memory import machine_memory
from darkroom.engine.memory.device import Device, DeviceReport, dtype_of, find_device
from darkroom.engine.memory.device_facts import DeviceFacts
from darkroom.engine.memory.durations import DurationHistogram
from darkroom.engine.memory.model_pool import ModelPool
from darkroom.engine.memory.offload.host_weights import WeightSource
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.offload.packing import needs_casting
from darkroom.engine.memory.placement import Role, place_of
from darkroom.engine.memory.plan import Limits, limits_of
from darkroom.engine.memory.pool_report import PoolReport
from darkroom.engine.memory.relief import MemorySavings, ReliefStep, savings_by_step
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.resolve import resolve_settings, state_of
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.transfer_streams import (
    PINNED_SHARE_ELSEWHERE,
    PINNED_SHARE_LINUX,
    PinnedMemory,
    TransferStreams,
)
from darkroom.engine.settings import DtypeName, DtypePolicies, EngineSettings, MemorySettings, ResolvedSettings

GIB = 1 << 30
DEFAULT_STREAMS = 2
VISION_COMPUTED: DtypeName = "float32"  # image encoders, as in ComfyUI, whatever they are kept in
# Roles whose networks may say themselves what they are cast to, and the attribute.
OWN_COMPUTE_DTYPE: dict[Role, str] = {
    "unet": "manual_cast_dtype", "controlnet": "compute_dtype", "text_encoder": "compute_dtype",
}  # fmt: skip
ROOM_SHARE = 0.88  # of a device's memory that weights may take, as in ComfyUI
MAX_GROWTH = 2  # of a file when it is read: float16 stored as float32

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Relief:
    """Relief step that was taken, with the bytes it freed on the device.

    `changes_arithmetic`: results may differ in their last digits from here on.
    """

    step: str
    freed_bytes: int
    changes_arithmetic: bool


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """All figures of model memory.

    `allocated_bytes` (None where the device does not count) are those of all tensors on the device,
    `unaccounted_bytes` the same without the models and their buffers.
    """

    device: DeviceReport
    state: str
    pool: PoolReport
    allocated_bytes: int | None
    peak_bytes: int | None
    buffers_bytes: int
    num_streamed: int
    streamed_bytes: int
    pinned_bytes: int
    pinned_limit_bytes: int
    ram_available_bytes: int
    ram_total_bytes: int
    relief_steps: dict[str, int]
    read_seconds: DurationHistogram
    num_failed_reads: int

    @property
    def unaccounted_bytes(self) -> int | None:
        if self.allocated_bytes is None:
            return None
        return self.allocated_bytes - self.pool.device_bytes - self.buffers_bytes


class ModelMemory:
    """Device, pool and transport of one engine. Used on the GPU thread, except `report`."""

    def __init__(self, settings: EngineSettings, device: Device | None = None) -> None:
        self.device = device or _device(settings)
        self.facts = self.device.facts()
        self._settings = settings
        self.resolved: ResolvedSettings
        self.resolved, lines = resolve_settings(settings, self.facts)
        for line in lines:
            log.info("%s", line)
        self.limits = _limits(settings.memory, self.facts)
        self.pool = ModelPool(state_of(self.resolved), limits=self.limits, smart_memory=settings.memory.smart_memory)
        self._cpu_vae = settings.memory.cpu_vae
        self._cpu = Device()
        self._cpu_streams = TransferStreams(self._cpu, 0)
        self.streams = (
            TransferStreams(self.device, _num_streams(settings.memory))
            if self.device.has_own_memory
            else self._cpu_streams
        )
        self._read_seconds = DurationHistogram()
        self._num_failed_reads = 0
        self._pinned = PinnedMemory(self.device, _pinned_limit(settings.memory, self.device))
        self._steps = {step.value: 0 for step in ReliefStep}

    def keep(
        self,
        name: str,
        module: Any,
        *,
        role: Role = "other",
        on_cpu: bool = False,
        source: WeightSource | None = None,
        is_borrowed: bool = False,
    ) -> Residency:
        """Add a network to the pool, placed by its role; `on_cpu` keeps it off the device.

        `is_borrowed`: the module belongs to others (a pack of custom nodes), and may exist longer than the handle.
        """
        place = place_of(role, self.pool.state, cpu_vae=self._cpu_vae)
        on_device = place.on_device and not on_cpu
        weights = ModuleWeights(
            name,
            module,
            device=self.device if on_device else self._cpu,
            streams=self.streams if on_device else self._cpu_streams,
            pinned=self._pinned if on_device else None,
            rests_in_ram=not place.stays,
            source=source,
            compute_dtype=self._compute_dtype(role, module),
        )
        return self.pool.add(weights, role, is_borrowed=is_borrowed)

    def file_read(self, seconds: float | None) -> None:
        """Count a model file that was read and built, by its duration; None: it could not be."""
        if seconds is None:
            self._num_failed_reads += 1
        else:
            self._read_seconds.add(seconds)

    def make_room_to_read(self, file_bytes: int) -> None:
        """Drop idle models from RAM, where models compute there, until a file of that size can be read."""
        if not self.device.has_own_memory:
            self.pool.make_room_in_ram(MAX_GROWTH * file_bytes)

    def relief(self) -> Iterator[Relief]:
        """Take one relief step per iteration, for the node that ran out of memory.

        The caller frees what it can before each. The memory savings of a step hold until `relieved` is called.
        """
        for step, memory_savings in savings_by_step(self.pool.oom_context()):
            before = self.device.free_bytes()
            gc.collect()
            if step is ReliefStep.OTHER_MODELS:
                self.pool.unload_all()
                if not self.device.has_own_memory:
                    self.pool.drop_all()
            self.device.empty_cache()
            self.pool.memory_savings = memory_savings
            self._steps[step.value] += 1
            yield Relief(step.value, max(0, self.device.free_bytes() - before), step.changes_arithmetic)

    def taken_by_node(self) -> list[Relief]:
        """Return the steps that the current node has taken by itself. Each is reported once."""
        if not self.pool.notes:
            return []
        taken = [Relief(step.value, 0, step.changes_arithmetic) for step in self.pool.notes]
        self.pool.notes.clear()
        for relief in taken:
            self._steps[relief.step] += 1
        return taken

    def relieved(self) -> None:
        """End the memory savings of a node that has finished or failed."""
        self.pool.memory_savings = MemorySavings()

    def unload(self, *, also_kept: bool = True) -> None:
        self.pool.unload_all(also_kept=also_kept)
        self.device.empty_cache()

    def report(self) -> MemoryReport:
        return MemoryReport(
            device=self.device.report(),
            state=self.pool.state.name,
            pool=self.pool.report(),
            allocated_bytes=self.device.allocated_bytes(),
            peak_bytes=self.pool.peak_bytes(self.device),
            buffers_bytes=self.streams.buffers_bytes + self._cpu_streams.buffers_bytes,
            num_streamed=self.streams.num_streamed,
            streamed_bytes=self.streams.streamed_bytes,
            pinned_bytes=self._pinned.pinned_bytes,
            pinned_limit_bytes=self._pinned.limit_bytes,
            ram_available_bytes=machine_memory.available_bytes(),
            ram_total_bytes=machine_memory.total_bytes(),
            relief_steps=dict(self._steps),
            read_seconds=self._read_seconds,
            num_failed_reads=self._num_failed_reads,
        )

    def weights_room_bytes(self) -> int:
        """Return the bytes that the weights of a model may take where it computes, whole and with nothing beside it."""
        total = self.facts.total_bytes if self.device.has_own_memory else machine_memory.total_bytes()
        return max(0, int(total * ROOM_SHARE) - self.limits.reserve_bytes - self.limits.minimum_inference_bytes)

    def free_device_bytes(self) -> int:
        """Return the bytes of the device that are free, or are those of weights that may leave it."""
        return self.device.free_bytes() + self.pool.report().device_bytes

    def make_device_room(self, num_bytes: int) -> None:
        """Have weights leave the device until so many bytes of it are free, for work without a model."""
        if self.device.has_own_memory:
            self.pool.make_room(self.device, num_bytes, num_bytes)

    def types_for(self, policies: DtypePolicies) -> ResolvedSettings:
        """Return the decisions for a family's networks, which differ from `resolved` in the types alone."""
        return resolve_settings(self._settings, self.facts, policies)[0]

    def _compute_dtype(self, role: Role, module: Any) -> Any:
        """Return the network's own choice, which may depend on its family, or that of the process for the role.

        None where weights compute as they are kept.
        """
        own = getattr(module, OWN_COMPUTE_DTYPE.get(role, ""), None)
        if own is not None:
            return own
        if role in ("unet", "controlnet") and self.resolved.unet_compute_dtype != self.resolved.unet_dtype:
            return dtype_of(self.resolved.unet_compute_dtype)
        if role == "text_encoder" and self.resolved.text_encoder_compute_dtype != self.resolved.text_encoder_dtype:
            return dtype_of(self.resolved.text_encoder_compute_dtype)
        if role == "vision":
            return dtype_of(VISION_COMPUTED)
        return self._unpacked_dtype(role) if needs_casting(module) else None

    def _unpacked_dtype(self, role: Role) -> Any:
        """Return the type that packed and float8 weights compute in where all others compute as they are kept."""
        resolved = self.resolved
        kept = {"vae": resolved.vae_dtype, "text_encoder": resolved.text_encoder_compute_dtype}
        return dtype_of(kept.get(role, resolved.unet_compute_dtype))


def _device(settings: EngineSettings) -> Device:
    asked = settings.memory.simulate_vram_gb
    return find_device(settings) if asked is None else SimulatedDevice(round(asked * GIB))


def _limits(settings: MemorySettings, facts: DeviceFacts) -> Limits:
    asked = settings.reserve_vram_gb
    limits = limits_of(facts.total_bytes)
    return limits if asked is None else replace(limits, reserve_bytes=round(asked * GIB))


def _num_streams(settings: MemorySettings) -> int:
    asked = settings.async_offload_streams
    return DEFAULT_STREAMS if asked is None else asked


def _pinned_limit(settings: MemorySettings, device: Device) -> int:
    if not settings.pinned_memory or not device.has_own_memory:
        return 0
    share = PINNED_SHARE_LINUX if sys.platform == "linux" else PINNED_SHARE_ELSEWHERE
    return int(machine_memory.total_bytes() * share)
