"""Facts about an engine that the choice of a benchmark requires."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.qualify.workload import CheckpointFact, DeviceFact
from worker.engines.client import EngineClient

FIRST_CONVOLUTION = "model.diffusion_model.input_blocks.0.0.weight"
FIRST_CROSS_ATTENTION = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"
SD15_TEXT_WIDTH = 768
MAX_HEADER_BYTES = 100 * 1024 * 1024
RANDOM_CHECKPOINT = "DarkroomRandomCheckpoint"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts about an engine.

    `uuid` is the GPU's, where the engine reports it. `address` is a foreign engine's, which may be on any machine.
    `versions` has engine, torch, cuda and precision.
    """

    device: DeviceFact
    uuid: str | None
    address: str | None
    checkpoints: tuple[CheckpointFact, ...]
    has_random_checkpoint: bool
    has_probe: bool
    versions: Mapping[str, str | None]


async def read_facts(engine: EngineClient, models: Path) -> EngineFacts:
    """Read the facts of an engine. Raises EngineUnreachable.

    `models` is the folder in which an engine on this machine finds its models.
    """
    info = await engine.object_info()
    stats = await engine.system_stats()
    device = (stats.get("devices") or [{}])[0]
    system = stats.get("system") or {}
    probed = await _read_device(engine)
    names, folder = checkpoint_names(info), models / "checkpoints"
    return EngineFacts(
        device=DeviceFact(name=str(device.get("name", "unknown")), kind=str(device.get("type", "cpu"))),
        uuid=probed.get("uuid"),
        address=None if probed else engine.url,
        checkpoints=await asyncio.to_thread(lambda: tuple(look_into(folder / name, name) for name in names)),
        has_random_checkpoint=RANDOM_CHECKPOINT in info,
        has_probe=bool(probed),
        versions={
            "engine": f"darkroom {probed['darkroom'] or 'from source'}" if probed else foreign_version(system),
            "torch": probed.get("torch") or system.get("pytorch_version"),
            "cuda": probed.get("cuda"),
            "precision": probed.get("unet_dtype"),
        },
    )


async def _read_device(engine: EngineClient) -> dict[str, Any]:
    """Return the device facts that only our own engine reports; empty for a foreign one."""
    if not engine.has_check:
        return {}
    status, body = await engine.ask("GET", "/api/v1/device")
    return body if status == 200 else {}


def foreign_version(system: Mapping[str, Any]) -> str | None:
    return f"comfyui {system['comfyui_version']}" if system.get("comfyui_version") else None


def checkpoint_names(object_info: Mapping[str, Any]) -> list[str]:
    inputs = object_info.get("CheckpointLoaderSimple", {}).get("input", {}).get("required", {})
    names, *more = inputs.get("ckpt_name") or [[]]
    if names == "COMBO" and more and isinstance(more[0], dict):  # the format of later versions of ComfyUI
        names = more[0].get("options")
    return [str(name) for name in names] if isinstance(names, list) else []


def look_into(path: Path, name: str) -> CheckpointFact:
    """Return a checkpoint's size, and the output channels of the UNet's first convolution from a safetensors header.

    The channels are 0 where the UNet is not SD1.5's. Both are None for a file that is not on this machine.
    """
    try:
        size_bytes = path.stat().st_size
    except OSError:
        return CheckpointFact(name=name)
    return CheckpointFact(name=name, base_channels=base_channels(path) or 0, size_bytes=size_bytes)


def base_channels(path: Path) -> int | None:
    """Return the base channels; None where the file has no UNet of SD1.5's kind, or is no safetensors file.

    SD2 and SDXL have 320 channels, too, and are slower or need more: the width of their text distinguishes them.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                return None
            header = json.loads(file.read(length))
            if int(header[FIRST_CROSS_ATTENTION]["shape"][1]) != SD15_TEXT_WIDTH:
                return None
            return int(header[FIRST_CONVOLUTION]["shape"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError, struct.error):
        return None
