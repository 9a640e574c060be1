"""Flags of torch's libraries for CUDA that trade the choice of kernels, or digits, for speed.

They are the process's, so they are used only where no other request can compute at the same time: one that asks for
equal bits would get others.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.tuning.process_setting import ProcessSetting
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse, Strategy, Undo

ACCUMULATION = "allow_fp16_accumulation"
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class CudnnBenchmark(Strategy):
    """Convolutions by the algorithm that cuDNN has measured to be the fastest.

    cuDNN tries its algorithms in the first evaluation of each shape and remembers the choice in the process:
    https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.benchmark.
    """

    name = "cudnn_benchmark"
    quality = Quality.SAME
    about = "convolutions by the algorithm that cuDNN has measured to be the fastest for their shape"
    is_size_sensitive = True

    def __init__(self) -> None:
        self._setting = ProcessSetting(_benchmark, _set_benchmark)

    def missing(self, machine: MachineFacts) -> str | None:
        return None if machine.device_type == "cuda" else "needs a CUDA device"

    def unfit(self, use: SamplingUse) -> str | None:
        if not any(isinstance(layer, CONVOLUTIONS) for layer in use.network.modules()):
            return "the network has no convolutions"
        return _shared(use)

    def apply(self, use: SamplingUse) -> Undo:
        return self._setting.hold(True)


class Fp16Accumulation(Strategy):
    """Matrix products of float16 numbers with sums in float16.

    Doubles the speed of products on cards whose tensor cores add in float32 at half speed, as ComfyUI's
    `--fast fp16_accumulation`. Which quality it is of depends on the network: its error is measured.
    """

    name = "fp16_accumulation"
    quality = Quality.SAME
    is_graded = True
    about = "matrix products of float16 numbers add in float16"
    is_size_sensitive = True
    conflicts = frozenset({"compiled_blocks"})  # whose code is made for one state of the flag

    def __init__(self) -> None:
        self._setting = ProcessSetting(_accumulates_in_float16, _set_accumulation)

    def missing(self, machine: MachineFacts) -> str | None:
        if machine.device_type != "cuda":
            return "needs a CUDA device"
        return None if hasattr(torch.backends.cuda.matmul, ACCUMULATION) else "needs torch 2.7 or later"

    def unfit(self, use: SamplingUse) -> str | None:
        if use.denoiser.compute_dtype != torch.float16:
            return f"the network computes in {str(use.denoiser.compute_dtype).removeprefix('torch.')}"
        return _shared(use)

    def apply(self, use: SamplingUse) -> Undo:
        return self._setting.hold(True)


def _shared(use: SamplingUse) -> str | None:
    return "other requests may compute at the same time" if use.may_share else None


def _benchmark() -> bool:
    return torch.backends.cudnn.benchmark


def _set_benchmark(value: bool) -> None:
    torch.backends.cudnn.benchmark = value


def _accumulates_in_float16() -> bool:
    value: bool = getattr(torch.backends.cuda.matmul, ACCUMULATION)
    return value


def _set_accumulation(value: bool) -> None:
    setattr(torch.backends.cuda.matmul, ACCUMULATION, value)
