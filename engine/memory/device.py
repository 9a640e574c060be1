"""The only file that calls `torch.cuda`: which device there is, what is free on it, and its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from engine.errors import DeviceLost, OutOfMemory
from engine.memory import machine_memory
from engine.settings import DtypeName, EngineSettings, ResolvedSettings

# CUDA's words for a context that no later call can use. Torch gives them no type of their own.
LOST_DEVICE_WORDS = (
    "illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address",
    "hardware stack error", "ecc uncorrectable", "device is lost", "gpu has fallen off", "no longer available",
)  # fmt: skip
OUT_OF_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory")


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device, as `/system_stats` shows it. `torch_*` is the part torch's allocator has reserved."""

    name: str
    type: str
    index: int | None
    vram_total_bytes: int
    vram_free_bytes: int
    torch_vram_total_bytes: int
    torch_vram_free_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Which device it is, and what torch speaks to it with. `uuid` as NVML has it, without its `GPU-`."""

    name: str
    kind: str
    uuid: str | None
    torch: str
    cuda: str | None


def has_cuda() -> bool:
    return torch.cuda.is_available()


def resolve_settings(settings: EngineSettings) -> ResolvedSettings:
    """What is asked, decided for the device that is there: ComfyUI's types on each kind of device.

    Without a usable GPU the engine runs on the CPU, in float32 unless flags say otherwise.
    """
    on_cpu = settings.cpu or not has_cuda()
    dtypes = settings.dtypes
    unet: DtypeName = "float32" if on_cpu else "float16"
    vae: DtypeName = "float32" if on_cpu or not torch.cuda.is_bf16_supported() else "bfloat16"
    if dtypes.force_fp32:
        unet = vae = "float32"
    elif dtypes.force_fp16:
        unet = "float16"
    choice = settings.memory.vram
    return ResolvedSettings(
        device="cpu" if on_cpu else "cuda:0",
        vram="cpu" if on_cpu else ("normalvram" if choice == "auto" else choice),
        unet_dtype=dtypes.unet or unet,
        vae_dtype=dtypes.vae or vae,
        text_encoder_dtype=dtypes.text_encoder or "float32",
    )


def dtype_of(name: DtypeName) -> torch.dtype:
    """Torch's type of that name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def free_bytes(device: str) -> int:
    """Bytes that new tensors may take on the device: what the system has free, and torch's own reserve."""
    kind = torch.device(device).type
    if kind != "cuda":
        return machine_memory.available_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    stats = torch.cuda.memory_stats(device)
    reserved, active = (int(stats.get(f"{name}_bytes.all.current", 0)) for name in ("reserved", "active"))
    return int(free) + reserved - active


def total_bytes(device: str) -> int:
    if torch.device(device).type != "cuda":
        return machine_memory.meminfo_bytes("MemTotal") or 0
    return int(torch.cuda.mem_get_info(device)[1])


def empty_cache(device: str) -> None:
    """Give memory that torch holds without using back to the system."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def wait_for(device: str) -> None:
    """Until the device has done all it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def identity(device: str) -> DeviceIdentity:
    kind = torch.device(device).type
    if kind != "cuda":
        return DeviceIdentity("cpu", kind, None, torch.__version__, None)
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)  # since torch 2.5
    return DeviceIdentity(
        properties.name, kind, None if uuid is None else str(uuid), torch.__version__, torch.version.cuda
    )


def report(device: str) -> DeviceReport:
    kind = torch.device(device)
    total, free = total_bytes(device), free_bytes(device)
    if kind.type != "cuda":
        return DeviceReport("cpu", "cpu", None, total, free, total, free)
    reserved = torch.cuda.memory_reserved(device)
    unused = reserved - torch.cuda.memory_allocated(device)
    name = f"{device} {torch.cuda.get_device_name(device)}"
    return DeviceReport(name, kind.type, kind.index, total, free, reserved, unused)


@contextmanager
def translate_device_error() -> Iterator[None]:
    """Torch's errors about memory and lost devices, raised as `OutOfMemory` and `DeviceLost`; others pass."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(str(error)) from error
    except RuntimeError as error:
        text = str(error).lower()
        if any(words in text for words in LOST_DEVICE_WORDS):
            raise DeviceLost(str(error)) from error
        if any(words in text for words in OUT_OF_MEMORY_WORDS):
            raise OutOfMemory(str(error)) from error
        raise
    except MemoryError as error:
        raise OutOfMemory(str(error) or "the machine is out of memory") from error
