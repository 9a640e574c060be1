"""`comfy.model_management`: devices, types and memory, as resolved by the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import torch

from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.comfy.torch_types import DeviceLike
from darkroom.engine.errors import Interrupted, OutOfMemory
from darkroom.engine.memory.device import Device, dtype_of
from darkroom.engine.memory.plan import MINIMUM_INFERENCE_BYTES
from darkroom.engine.nodes.running_call import running_context

InterruptProcessingException = Interrupted
OOM_EXCEPTION = torch.OutOfMemoryError
ACCELERATOR_ERROR = torch.AcceleratorError
OUT_OF_MEMORY_CODE = 2  # cudaErrorMemoryAllocation, hipErrorOutOfMemory
XFORMERS_IS_AVAILABLE = False
XFORMERS_ENABLED_VAE = False
DISABLE_SMART_MEMORY = False
in_training = False
lowvram_available = True
FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32)


class VRAMState(Enum):
    DISABLED = 0
    NO_VRAM = 1
    LOW_VRAM = 2
    NORMAL_VRAM = 3
    HIGH_VRAM = 4
    SHARED = 5


class CPUState(Enum):
    GPU = 0
    CPU = 1
    MPS = 2


_STATES = {
    "cpu": VRAMState.DISABLED,
    "novram": VRAMState.NO_VRAM,
    "lowvram": VRAMState.LOW_VRAM,
    "normalvram": VRAMState.NORMAL_VRAM,
    "highvram": VRAMState.HIGH_VRAM,
    "gpu_only": VRAMState.HIGH_VRAM,
    "shared": VRAMState.SHARED,
}


def __getattr__(name: str) -> Any:
    """Return a setting of the device at this moment."""
    if name == "vram_state":
        return _STATES[HOST.get().engine.resolved.vram]
    if name == "cpu_state":
        return CPUState.CPU if get_torch_device().type == "cpu" else CPUState.GPU
    if name == "total_vram":
        return _device().total_bytes() / 2**20
    if name == "current_loaded_models":  # as `loaded_models`
        return []
    if name == "MIN_WEIGHT_MEMORY_RATIO":
        return 0.0 if is_nvidia() else 0.4
    raise AttributeError(name)


# --- devices -----------------------------------------------------------------------------------------


def get_torch_device() -> torch.device:
    return torch.device(HOST.get().engine.resolved.device)


def get_torch_device_name(device: torch.device) -> str:
    return _device(device).report().name


def _device(device: DeviceLike | None = None) -> Device:
    """Return the engine's device, or the CPU if that is requested."""
    engine_device = HOST.get().engine.memory.device
    is_other = device is not None and torch.device(device).type != torch.device(engine_device.torch_name).type
    return Device() if is_other else engine_device


def _offload_device() -> torch.device:
    return get_torch_device() if HOST.get().engine.resolved.vram == "gpu_only" else torch.device("cpu")


def unet_offload_device() -> torch.device:
    return _offload_device()


def text_encoder_device() -> torch.device:
    return get_torch_device()


def text_encoder_offload_device() -> torch.device:
    return _offload_device()


def vae_device() -> torch.device:
    return get_torch_device()


def vae_offload_device() -> torch.device:
    return _offload_device()


def intermediate_device() -> torch.device:
    return _offload_device()


def unet_inital_load_device(parameters: int, dtype: torch.dtype) -> torch.device:
    return _offload_device()


def get_autocast_device(dev: object) -> str:
    """Return the type of a device as `torch.autocast` takes it."""
    return str(getattr(dev, "type", "cuda"))


def is_device_type(device: DeviceLike, type: str) -> bool:
    return torch.device(device).type == type


def is_device_cpu(device: DeviceLike) -> bool:
    return is_device_type(device, "cpu")


def is_device_mps(device: DeviceLike) -> bool:
    return is_device_type(device, "mps")


def is_device_cuda(device: DeviceLike) -> bool:
    return is_device_type(device, "cuda")


def cpu_mode() -> bool:
    return get_torch_device().type == "cpu"


def mps_mode() -> bool:
    return False


def is_intel_xpu() -> bool:
    return False


def is_nvidia() -> bool:
    return get_torch_device().type == "cuda" and torch.version.cuda is not None


def is_amd() -> bool:
    return get_torch_device().type == "cuda" and torch.version.hip is not None


def is_directml_enabled() -> bool:
    return False


def xformers_enabled() -> bool:
    return False


def xformers_enabled_vae() -> bool:
    return False


def pytorch_attention_enabled() -> bool:
    return True


def sage_attention_enabled() -> bool:
    return False


def flash_attention_enabled() -> bool:
    return False


# --- types -------------------------------------------------------------------------------------------


def unet_dtype(device: object = None, model_params: int = 0, **kwargs: object) -> torch.dtype:
    return dtype_of(HOST.get().engine.resolved.unet_dtype)


def unet_manual_cast(
    weight_dtype: torch.dtype, inference_device: DeviceLike, supported_dtypes: Sequence[torch.dtype] = FLOAT_TYPES
) -> torch.dtype | None:
    """Return the type that weights of another type are cast to for computing, or None if they compute as they are."""
    if weight_dtype in (torch.float32, torch.float64):
        return None
    has_float16 = should_use_fp16(inference_device, prioritize_performance=False)
    has_bfloat16 = should_use_bf16(inference_device)
    if (has_float16 and weight_dtype is torch.float16) or (has_bfloat16 and weight_dtype is torch.bfloat16):
        return None
    fast = {torch.float16: should_use_fp16(inference_device), torch.bfloat16: has_bfloat16}
    return next((dtype for dtype in supported_dtypes if fast.get(dtype)), torch.float32)


def vae_dtype(device: object = None, allowed_dtypes: Iterable[torch.dtype] = ()) -> torch.dtype:
    return dtype_of(HOST.get().engine.resolved.vae_dtype)


def text_encoder_dtype(device: object = None) -> torch.dtype:
    return dtype_of(HOST.get().engine.resolved.text_encoder_dtype)


def should_use_fp16(
    device: object = None, model_params: int = 0, prioritize_performance: bool = True, manual_cast: bool = False
) -> bool:
    return unet_dtype() is torch.float16


def should_use_bf16(
    device: DeviceLike | None = None,
    model_params: int = 0,
    prioritize_performance: bool = True,
    manual_cast: bool = False,
) -> bool:
    kind = torch.device(device) if device is not None else get_torch_device()
    return kind.type == "cuda" and vae_dtype() is torch.bfloat16


def intermediate_dtype() -> torch.dtype:
    """Return the type of images and latents between nodes."""
    return torch.float32


def pick_weight_dtype(
    dtype: torch.dtype | None, fallback_dtype: torch.dtype, device: DeviceLike = "cpu"
) -> torch.dtype:
    """Return the type to keep weights in: `dtype`, unless it is larger than the other or the device cannot cast it."""
    is_fitting = dtype is not None and dtype_size(dtype) <= dtype_size(fallback_dtype) and supports_cast(device, dtype)
    return dtype if is_fitting and dtype is not None else fallback_dtype


def dtype_size(dtype: torch.dtype) -> int:
    return dtype.itemsize


def supports_cast(device: DeviceLike, dtype: torch.dtype) -> bool:
    return torch.device(device).type != "cpu" or dtype in (torch.float32, torch.float16, torch.bfloat16)


def supports_fp8_compute(device: object = None) -> bool:
    return False


def force_upcast_attention_dtype() -> None:
    """Return None: attention has no forced type."""
    return None


def cast_to(
    weight: torch.Tensor,
    dtype: torch.dtype | None = None,
    device: DeviceLike | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    **_: object,
) -> torch.Tensor:
    return weight.to(device=device, dtype=dtype, non_blocking=non_blocking, copy=copy)


def cast_to_device(
    tensor: torch.Tensor, device: DeviceLike, dtype: torch.dtype | None, copy: bool = False
) -> torch.Tensor:
    return tensor.to(device=device, dtype=dtype, copy=copy)


def current_stream(device: DeviceLike | None) -> torch.Stream | None:
    """Return the stream on which a graphics card computes, None for another device."""
    return torch.accelerator.current_stream(device) if device is not None and is_device_cuda(device) else None


def device_supports_non_blocking(device: DeviceLike) -> bool:
    return torch.device(device).type == "cuda"


def device_should_use_non_blocking(device: object) -> bool:
    return False


# --- memory ------------------------------------------------------------------------------------------


def get_total_memory(dev: DeviceLike | None = None, torch_total_too: bool = False) -> int | tuple[int, int]:
    total = _device(dev).total_bytes()
    return (total, total) if torch_total_too else total


def get_free_memory(dev: DeviceLike | None = None, torch_free_too: bool = False) -> object:
    """Return the free memory in bytes."""
    report = _device(dev).report()
    return (report.vram_free_bytes, report.torch_vram_free_bytes) if torch_free_too else report.vram_free_bytes


def module_size(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.state_dict().values())


def minimum_inference_memory() -> float:
    return float(MINIMUM_INFERENCE_BYTES) + extra_reserved_memory()


def extra_reserved_memory() -> float:
    return float(HOST.get().engine.memory.limits.reserve_bytes)


def soft_empty_cache(force: bool = False) -> None:
    _device().empty_cache()


def unload_all_models() -> None:
    HOST.get().engine.memory.unload()


def cleanup_models() -> None:
    """Do nothing: models without references are freed already."""
    return


def cleanup_models_gc() -> None:
    """Do nothing, as `cleanup_models`."""
    return


def is_oom(e: BaseException) -> bool:
    """Return True for an error that says that the device has too little memory, the engine's own among them."""
    if isinstance(e, (OOM_EXCEPTION, OutOfMemory)):
        return True
    has_code = getattr(e, "error_code", None) == OUT_OF_MEMORY_CODE
    return isinstance(e, ACCELERATOR_ERROR) and (has_code or "out of memory" in str(e).lower())


def raise_non_oom(e: Exception) -> None:
    """Raise an error unless it says that the device has too little memory."""
    if not is_oom(e):
        raise e


def loaded_models(only_currently_used: bool = False) -> list[object]:
    """Return no models: packs load them again after work of their own, and the pool does that when they are used."""
    return []


def load_models_gpu(models: Iterable[object], *args: object, **kwargs: object) -> None:
    """Load models to the device.

    The pool otherwise loads a model when it is used (`Model.in_use`) and keeps it loaded.
    """
    for model in models:
        owner = getattr(model, "patcher", model)
        if not hasattr(owner, "in_use"):
            raise not_supported(f"comfy.model_management.load_models_gpu for a {type(model).__name__}")
        with owner.in_use():
            pass


def load_model_gpu(model: object) -> None:
    load_models_gpu([model])


def free_memory(memory_required: float, device: DeviceLike | None, keep_loaded: Iterable[object] = ()) -> list[object]:
    if _device(device).free_bytes() < memory_required:
        HOST.get().engine.memory.unload()
    return []


# --- interruption ------------------------------------------------------------------------------------


def interrupt_current_processing(value: bool = True) -> None:
    if value:
        HOST.get().engine.interrupt()


def processing_interrupted() -> bool:
    context = running_context()
    return context is not None and context.cancel.is_cancelled


def throw_exception_if_processing_interrupted() -> None:
    """Raise `Interrupted` when the run is to stop."""
    context = running_context()
    if context is not None:
        context.cancel.check()
