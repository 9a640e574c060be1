"""Facts about an engine that the choice of a benchmark requires."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.contract.graph.facts import Facts
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.families import Family
from darkroom.worker.prompts.modifier_defaults import checkpoints_of
from darkroom.worker.qualification.workload import CheckpointFact, DeviceFact, FamilyFact


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts about an engine.

    `uuid` is the GPU's, where the engine reports it. `address` is a foreign engine's, which may be on any machine.
    `families` has the default one first; empty for an engine that reports none. `versions` has engine, torch, cuda,
    precision, and the processor of an engine without a GPU.
    """

    device: DeviceFact
    uuid: str | None
    address: str | None
    families: tuple[Family, ...]
    checkpoints: tuple[CheckpointFact, ...]
    has_random_checkpoint: bool
    has_probe: bool
    versions: Mapping[str, str | None]

    def families_by_checkpoint(self) -> dict[str, Family | None]:
        """Return the family of each checkpoint, None where it is unknown."""
        families = {family.name: family for family in self.families}
        return {fact.name: families.get(fact.family or "") for fact in self.checkpoints}


async def read_facts(engine: EngineClient, models: Path) -> EngineFacts:
    """Read the facts of an engine. Raises EngineUnreachable.

    `models` is the folder in which an engine on this machine finds its models.
    """
    info = await engine.object_info()
    facts = Facts(info)
    stats = await engine.calls.system_stats()
    device = (stats.get("devices") or [{}])[0]
    system = stats.get("system") or {}
    probed = await _read_device(engine)
    families = await engine.families.families()
    return EngineFacts(
        device=DeviceFact(name=str(device.get("name", "unknown")), kind=str(device.get("type", "cpu"))),
        uuid=probed.get("uuid"),
        address=None if probed else engine.url,
        families=families,
        checkpoints=await _checkpoints(engine, families, checkpoints_of(info), models / "checkpoints"),
        has_random_checkpoint=bool(families) and any(facts.of(name).random_family for name in info),
        has_probe=bool(probed),
        versions={
            "engine": f"darkroom {probed['darkroom'] or 'from source'}" if probed else foreign_version(system),
            "torch": probed.get("torch") or system.get("pytorch_version"),
            "cuda": probed.get("cuda"),
            "precision": probed.get("unet_dtype"),
            "processor": probed.get("processor"),
        },
    )


async def _read_device(engine: EngineClient) -> dict[str, Any]:
    """Return the device facts that only our own engine reports; empty for a foreign one."""
    if not engine.has_check:
        return {}
    status, body = await engine.calls.ask("GET", "/api/v1/device")
    return body if status == 200 else {}


def foreign_version(system: Mapping[str, Any]) -> str | None:
    return f"comfyui {system['comfyui_version']}" if system.get("comfyui_version") else None


async def _checkpoints(
    engine: EngineClient, families: Sequence[Family], names: Sequence[str], folder: Path
) -> tuple[CheckpointFact, ...]:
    """Return the engine's facts of its checkpoints; of one that reports none, the sizes of those on this machine."""
    if families:
        return tuple(
            CheckpointFact(name=item.name, family=item.family, scale=item.scale, size_bytes=item.size_bytes)
            for item in await engine.families.checkpoints()
        )
    return await asyncio.to_thread(
        lambda: tuple(CheckpointFact(name=name, size_bytes=_size_of(folder / name)) for name in names)
    )


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def fact_of(family: Family) -> FamilyFact:
    """Return the facts of a family that the benchmark needs."""
    return FamilyFact(
        name=family.name,
        is_default=family.is_default,
        width_px=family.default.width,
        height_px=family.default.height,
        num_steps=family.default.steps,
        cfg=family.default.cfg,
        sampler_name=family.default.sampler_name,
        scheduler=family.default.scheduler,
        pixel_cost=family.pixel_cost,
    )
