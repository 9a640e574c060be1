"""Devices: their memory, the copies to and from them, and the translation of their errors.

`Device` is the CPU, `AcceleratorDevice` whatever torch reaches by one of its modules with CUDA's calls: CUDA and ROCm
(`torch.cuda`), Intel's (`torch.xpu`), Apple's (`torch.mps`, which has fewer of them). A `SimulatedDevice`
(`simulated_device.py`) has the CPU's arithmetic and a budget. This is the only file that calls `torch.cuda`.
"""

from __future__ import annotations

import logging
import platform
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from darkroom.engine.errors import DeviceLost, OutOfMemory
from darkroom.engine.memory import machine_memory
from darkroom.engine.memory.device_facts import DeviceFacts, DeviceKind
from darkroom.engine.settings import DtypeName, EngineSettings

# CUDA's messages for a context that no later call can use. Torch has no exception type for them.
LOST_DEVICE_WORDS = (
    "illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address",
    "hardware stack error", "uncorrectable ecc error", "uncorrectable nvlink error", "illegal instruction",
    "invalid program counter", "launch timed out", "device is lost", "gpu has fallen off", "no longer available",
    "cuda error: unknown error", "driver error: unknown error", "hip error: unknown error", "context is destroyed",
    "not supported on global/shared address space", "hardware error", "no cuda-capable device",
    "devices are busy or unavailable",
)  # fmt: skip
# cuBLAS says "not initialized" when there is no memory for its handle. Of cuDNN, the first is what it says when no
# convolution fits into the memory that is left for its workspace, the second when the allocation itself fails inside.
OUT_OF_MEMORY_WORDS = (
    "out of memory", "can't allocate memory", "not enough memory", "status_alloc_failed", "out_of_device_memory",
    "cublas_status_not_initialized", "unable to find an engine to execute this computation",
    "cudnn_status_internal_error", "cudnn_status_not_initialized",
)  # fmt: skip

# Cards as ComfyUI distinguishes them: of compute capability 7.5 without tensor cores, and AMD's up to RDNA 2.
WITHOUT_TENSOR_CORES = (
    "GTX 16", "T500", "T550", "T600", "MX550", "MX450", "CMP 30HX", "T1000", "T1200", "T2000",
)  # fmt: skip
AMD_FAST_CONVOLUTIONS = re.compile(r"gfx1[2-9]\d\d$")  # RDNA 4 and later: ComfyUI's rule
FIRST_MACOS_WITH_BFLOAT16 = 14
AMD_WITHOUT_BFLOAT16 = ("gfx1030", "gfx1031", "gfx1010", "gfx1011", "gfx1012", "gfx906", "gfx900", "gfx803")

ATTENTION_KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]

Tensor = torch.Tensor  # for the files of this package that see tensors without importing torch
Dtype = torch.dtype
Stream = Any  # a `torch.cuda.Stream`, or a simulated device's
Mark = Any  # an event on such a stream

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """Figures of one device for `/system_stats`. `torch_*` is the part that torch's allocator has reserved."""

    name: str
    type: str
    index: int | None
    vram_total_bytes: int
    vram_free_bytes: int
    torch_vram_total_bytes: int
    torch_vram_free_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Identity of a device and the versions of torch and CUDA. `uuid` is NVML's, without its `GPU-`."""

    name: str
    kind: str
    uuid: str | None
    torch: str
    cuda: str | None


class Device:
    """Device as model memory uses it; this one is the CPU, where nothing has to be copied.

    Transfer streams (`transfer_streams.py`) use `new_stream`, `mark` and what follows: copies run on a stream of their
    own, a mark is an event on a stream (None: the computing one), and a stream waits for an event. On a CPU all of it
    does nothing.
    """

    has_own_memory = False
    charges_blocks = False  # True where `begin_block` has to be called before each block computes

    def __init__(self, torch_name: str = "cpu") -> None:
        self.torch_name = torch_name

    def facts(self) -> DeviceFacts:
        return DeviceFacts("cpu", "cpu", "the CPU", self.total_bytes(), self.free_bytes())

    def report(self) -> DeviceReport:
        total, free = self.total_bytes(), self.free_bytes()
        return DeviceReport("cpu", "cpu", None, total, free, total, free)

    def total_bytes(self) -> int:
        return machine_memory.total_bytes()

    def free_bytes(self) -> int:
        """Return the bytes that new tensors may take: those free in the system, and torch's unused cache."""
        return machine_memory.available_bytes()

    def peak_bytes(self) -> int | None:
        """Return the most that was allocated at once since `reset_peak`; None where the device does not count."""
        return None

    def reset_peak(self) -> None:
        """Begin to count the peak anew."""

    def allocated_bytes(self) -> int | None:
        """Return the bytes of this process's tensors on the device; None where it does not count."""
        return None

    def empty_cache(self) -> None:
        """Return torch's unused cache to the system."""

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == torch.device(self.torch_name).type

    def empty_like(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Allocate uninitialised memory of that shape and layout on the device. Raises `OutOfMemory`."""
        with translate_device_error():
            return torch.empty_like(tensor, device=self.torch_name, dtype=dtype)

    def empty_bytes(self, num_bytes: int) -> torch.Tensor:
        """Allocate uninitialised bytes `[num_bytes]`, uint8, on the device. Raises `OutOfMemory`."""
        with translate_device_error():
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_name)

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a copy of a CPU tensor in pinned memory; None where there is none."""
        return None

    def pinned_cost(self, num_bytes: int) -> int:
        """Return the bytes that `pinned_like` allocates for a tensor of `num_bytes`."""
        return num_bytes

    def empty_host_cache(self) -> None:
        """Return torch's unused pinned memory to the system."""

    def staging_bytes(self, num_bytes: int) -> torch.Tensor:
        """Allocate bytes `[num_bytes]`, uint8, in RAM, pinned where the system allows that."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocate uninitialised contiguous memory on the device. Raises `OutOfMemory`."""
        with translate_device_error():
            return torch.empty(tuple(shape), dtype=dtype, device=self.torch_name)

    # --- streams -----------------------------------------------------------------------------------------------------

    def new_stream(self) -> object:
        return None

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy `source` asynchronously on `stream` to `target` (on the device), in `target`'s type and layout."""
        target.copy_(source)

    def mark(self, stream: Stream) -> Mark:
        """Return an event after everything launched on the stream until now."""
        return None

    def wait(self, stream: object, mark: object) -> None:
        """Make the stream wait for the event before what is launched on it from here on."""

    def wait_on_host(self, mark: object) -> None:
        """Block until the event has happened."""

    def on_stream(self, stream: Stream) -> AbstractContextManager[object]:
        """Return the context in which this thread computes on the stream; None changes nothing."""
        return nullcontext()

    def synchronize(self) -> None:
        """Block until the device has done everything."""

    def computing(self) -> AbstractContextManager[None]:
        """Prefer the best kernels of this device until the context ends; entered for as long as models compute."""
        return nullcontext()

    # --- only where the device counts --------------------------------------------------------------------------------

    def begin_block(self, working_bytes: int) -> None:
        """Charge the working memory, besides weights and buffers, of the block about to compute."""

    def uses(self, tensor: torch.Tensor) -> None:
        """Record that the computing stream is about to read the tensor."""


def macos_major() -> int:
    """Return the major version of macOS, 0 on other systems."""
    return int(platform.mac_ver()[0].partition(".")[0] or 0)


class AcceleratorDevice(Device):
    """Device that torch reaches by `torch.cuda`, `torch.xpu` or `torch.mps`."""

    has_own_memory = True

    def __init__(self, torch_name: str, kind: DeviceKind) -> None:
        super().__init__(torch_name)
        self._kind = kind
        self._computing = ExitStack()
        self._num_computing = 0
        self._computing_lock = threading.Lock()
        self._calls: ModuleType = getattr(torch, {"rocm": "cuda"}.get(kind, kind))

    def facts(self) -> DeviceFacts:
        report = self.report()
        return DeviceFacts(
            self._kind,
            self.torch_name,
            report.name,
            report.vram_total_bytes,
            report.vram_free_bytes,
            computes_float16=self._computes_float16(),
            computes_bfloat16=self._computes_bfloat16(),
            convolves_bfloat16_slowly=self._kind == "rocm" and not AMD_FAST_CONVOLUTIONS.match(self._chip()),
            keeps_float8=self._kind in ("cuda", "rocm", "xpu"),
            is_shared=self._kind == "mps" or bool(getattr(self._properties(), "is_integrated", False)),
        )

    def _computes_float16(self) -> bool:
        """Refuse float16 on NVIDIA's cards before Volta (slow) and on Turing without tensor cores (wrong values)."""
        if self._kind != "cuda":
            return True
        major, _ = self._calls.get_device_capability(self.torch_name)
        name = self._calls.get_device_name(self.torch_name)
        return major >= 7 and not any(words in name for words in WITHOUT_TENSOR_CORES)

    def _computes_bfloat16(self) -> bool:
        if self._kind == "rocm":  # torch reports True for all of them
            return not any(name in self._chip() for name in AMD_WITHOUT_BFLOAT16)
        if self._kind == "mps":
            return macos_major() >= FIRST_MACOS_WITH_BFLOAT16
        # Emulated, float32 is faster.
        return self._kind in ("cuda", "xpu") and bool(self._calls.is_bf16_supported(including_emulation=False))

    def _chip(self) -> str:
        """Return the name of an AMD chip, such as gfx942, empty for others."""
        return str(getattr(self._properties(), "gcnArchName", ""))

    def _properties(self) -> Any:
        return None if self._kind == "mps" else self._calls.get_device_properties(self.torch_name)

    def report(self) -> DeviceReport:
        total, free = self.total_bytes(), self.free_bytes()
        device = torch.device(self.torch_name)
        if self._kind == "mps":
            return DeviceReport("mps", "mps", None, total, free, total, free)
        reserved = self._calls.memory_reserved(self.torch_name)
        unused = reserved - self._calls.memory_allocated(self.torch_name)
        name = f"{self.torch_name} {self._calls.get_device_name(self.torch_name)}"
        return DeviceReport(name, device.type, device.index, total, free, reserved, unused)

    def total_bytes(self) -> int:
        if self._kind == "mps":
            return super().total_bytes()
        if self._kind == "xpu":
            return int(self._properties().total_memory)
        return int(self._calls.mem_get_info(self.torch_name)[1])

    def free_bytes(self) -> int:
        if self._kind == "mps":
            return super().free_bytes()
        # Not torch's "active": that counts freed memory that another stream may still use, until the next
        # allocation checks; it is free by then.
        allocated = int(self._calls.memory_allocated(self.torch_name))
        if self._kind == "xpu":
            return self.total_bytes() - allocated
        free, _ = self._calls.mem_get_info(self.torch_name)
        return int(free) + int(self._calls.memory_reserved(self.torch_name)) - allocated

    def peak_bytes(self) -> int | None:
        return None if self._kind == "mps" else int(self._calls.max_memory_allocated(self.torch_name))

    def reset_peak(self) -> None:
        if self._kind != "mps":
            self._calls.reset_peak_memory_stats(self.torch_name)

    def allocated_bytes(self) -> int | None:
        if self._kind == "mps":
            return int(self._calls.current_allocated_memory())
        return int(self._calls.memory_allocated(self.torch_name))

    def empty_cache(self) -> None:
        self._calls.empty_cache()

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if self._kind == "mps":
            return None
        try:
            return torch.empty_like(tensor, pin_memory=True).copy_(tensor)
        except RuntimeError as error:  # the system allows no more of it
            log.warning("no pinned memory of %d bytes: %s", tensor.nbytes, error)
            return None

    def pinned_cost(self, num_bytes: int) -> int:
        """Round up to a power of two, as torch allocates pinned memory."""
        return 1 << max(0, num_bytes - 1).bit_length()

    def empty_host_cache(self) -> None:
        if self._kind != "mps" and hasattr(torch.accelerator, "empty_host_cache"):  # since torch 2.10
            torch.accelerator.empty_host_cache()

    def staging_bytes(self, num_bytes: int) -> torch.Tensor:
        if self._kind == "mps":
            return super().staging_bytes(num_bytes)
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:  # the system allows no more of it
            log.warning("no pinned memory of %d bytes: %s", num_bytes, error)
            return super().staging_bytes(num_bytes)

    def new_stream(self) -> object:
        return None if self._kind == "mps" else self._calls.Stream(self.torch_name)

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        if stream is None:
            # From pinned memory the copy is asynchronous; torch keeps such memory until it is done.
            target.copy_(source, non_blocking=self._kind != "mps" and source.is_pinned())
            return
        with self._calls.stream(stream):
            target.copy_(source, non_blocking=True)
        target.record_stream(stream)

    def mark(self, stream: Stream) -> Mark:
        if self._kind == "mps":
            return None
        event = self._calls.Event()
        event.record(self._calls.current_stream(self.torch_name) if stream is None else stream)
        return event

    def wait(self, stream: Stream, mark: Mark) -> None:
        if mark is not None:
            (self._calls.current_stream(self.torch_name) if stream is None else stream).wait_event(mark)

    def wait_on_host(self, mark: Mark) -> None:
        if mark is not None:
            mark.synchronize()

    def on_stream(self, stream: Stream) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = nullcontext() if stream is None else self._calls.stream(stream)
        return context

    def synchronize(self) -> None:
        self._calls.synchronize()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Prefer cuDNN for attention on NVIDIA's cards, as ComfyUI does; other kernels do what it does not.

        The choice is the process's: of several at the same time the first makes it, and the last takes it back.
        """
        with self._computing_lock:
            if not self._num_computing and self._kind == "cuda":
                self._computing.enter_context(sdpa_kernel(ATTENTION_KERNELS, set_priority=True))
            self._num_computing += 1
        try:
            yield
        finally:
            with self._computing_lock:
                self._num_computing -= 1
                if not self._num_computing:
                    self._computing.close()


def find_device(settings: EngineSettings) -> Device:
    """Return the first accelerator that torch can use; the CPU without one or when it is asked for."""
    if settings.cpu:
        return Device()
    if has_cuda():
        return device_of("cuda:0")
    if torch.xpu.is_available():
        return device_of("xpu:0")
    return device_of("mps" if torch.backends.mps.is_available() else "cpu")


def device_of(torch_name: str) -> Device:
    """Return the device of that name (`cpu`, `cuda:0`, `xpu:0`, `mps`)."""
    kind = torch.device(torch_name).type
    if kind == "cuda":
        return AcceleratorDevice(torch_name, "rocm" if torch.version.hip else "cuda")
    if kind == "xpu":
        return AcceleratorDevice(torch_name, "xpu")
    return AcceleratorDevice(torch_name, "mps") if kind == "mps" else Device()


def empty_cache(device: str) -> None:
    """Return torch's unused cache to the system."""
    device_of(device).empty_cache()


def wait_for(device: str) -> None:
    """Block until the device has done everything."""
    device_of(device).synchronize()


def capability(torch_name: str) -> tuple[int, int] | None:
    """Return the compute capability of a CUDA device, None for other devices."""
    if torch.device(torch_name).type != "cuda" or torch.version.cuda is None:
        return None
    major, minor = torch.cuda.get_device_capability(torch_name)
    return major, minor


def identity(device: str) -> DeviceIdentity:
    kind = torch.device(device).type
    if kind != "cuda":
        return DeviceIdentity(kind, kind, None, torch.__version__, None)
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)  # since torch 2.5
    return DeviceIdentity(
        properties.name, kind, None if uuid is None else str(uuid), torch.__version__, torch.version.cuda
    )


def has_cuda() -> bool:
    return torch.cuda.is_available()


def dtype_of(name: DtypeName) -> torch.dtype:
    """Return torch's type of that name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor, `[nbytes]`, uint8, sharing its memory."""
    return tensor.reshape(-1).view(torch.uint8)


@contextmanager
def translate_device_error() -> Iterator[None]:
    """Translate torch's errors about memory and lost devices to `OutOfMemory` and `DeviceLost`; let others pass."""
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
