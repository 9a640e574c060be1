"""Attention by the kernel that is fastest on this machine for its head size and lengths.

Which one that is depends on both, and torch's own order of preference is the same for all. A kernel is used for a size
where it is about as exact as torch's choice. Kernels are called by their own operators: torch's switches between them
(`sdpa_kernel`) are the whole process's, and would change the attention of a VAE that decodes on another thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.diffusion.options import Options
from darkroom.engine.layers.attention import KERNEL_OPTION, AttentionKernel
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import SamplingUse, Strategy

ROUNDS = 3  # in which the kernels are timed in turns
LEAST_GAIN = 1.05
MAX_ERROR_RATIO = 1.5  # against float32, of the error of torch's choice
MIN_ERROR = 1e-6
DEFAULT = "default"
MAX_SCORES_BYTES = 256 << 20
"""Float32 scores of one item of a batch that a kernel may hold at once: at the lengths of videos all of them take tens
of gigabytes."""
HOLDS_SCORES = frozenset({"math", "products"})

log = logging.getLogger(__name__)


class AttentionKernels(Strategy):
    """The fastest kernel of attention for each head size and length."""

    name = "attention_kernels"
    quality = Quality.SAME
    about = "attention by the fastest kernel for its head size and lengths"
    is_size_sensitive = True

    def __init__(self, kernels: Mapping[str, AttentionKernel] | None = None) -> None:
        self._kernels = _kernels() if kernels is None else kernels
        self._chosen: dict[Hashable, AttentionKernel] = {}

    def unfit(self, use: SamplingUse) -> str | None:
        if use.options.get("transformer_options", {}).get("optimized_attention_override") is not None:
            return "a node has replaced attention"
        return None

    def options(self, use: SamplingUse) -> Options:
        return {"transformer_options": {KERNEL_OPTION: self.attend}}

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Compute attention [B, H, T, d], with the kernel chosen at the first call of such sizes.

        The choice is for any `B`, so that a row of a batch has the bits that it has alone.
        """
        key = (q.device.type, q.dtype, *q.shape[1:], k.shape[2])
        kernel = self._chosen.get(key)
        if kernel is None:
            kernel = self._chosen[key] = self._fastest(q, k, v)
        return kernel(q, k, v)

    def _fastest(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> AttentionKernel:
        exact = scaled_dot_product_attention(q.float(), k.float(), v.float())
        seconds: dict[str, float] = {}
        allowed = max(relative_error(scaled_dot_product_attention(q, k, v).float(), exact), MIN_ERROR) * MAX_ERROR_RATIO
        scores_bytes = q.shape[1] * q.shape[2] * k.shape[2] * torch.float32.itemsize
        for name, kernel in self._kernels.items():
            if name in HOLDS_SCORES and scores_bytes > MAX_SCORES_BYTES:
                continue
            try:
                if relative_error(kernel(q, k, v).float(), exact) <= allowed:
                    seconds[name] = float("inf")
            except RuntimeError:  # it has no code for such sizes, types or devices
                continue
        for _ in range(ROUNDS):
            for name in seconds:
                seconds[name] = min(seconds[name], _seconds(partial(self._kernels[name], q, k, v)))
        best = min(seconds, key=seconds.__getitem__, default=DEFAULT)
        if seconds.get(DEFAULT, 0.0) < seconds.get(best, 0.0) * LEAST_GAIN:
            best = DEFAULT
        shape = [*q.shape[1:3], k.shape[2], q.shape[3]]
        log.info("attention kernel chosen: heads_queries_keys_size=%s kernel=%s seconds=%s", shape, best, seconds)
        return self._kernels[best]


def _seconds(work: Callable[[], torch.Tensor]) -> float:
    """Return the seconds of a computation: on a processor of its own time, else until the device is done."""
    out = work()
    clock = time.process_time if out.device.type == "cpu" else time.perf_counter
    out.flatten()[0].item()  # waits for the device
    began = clock()
    work().flatten()[0].item()
    return clock() - began


def _kernels() -> dict[str, AttentionKernel]:
    """Return the kernels by name; those that a device lacks raise RuntimeError."""
    return {
        DEFAULT: scaled_dot_product_attention,
        "flash": _by_flash,
        "efficient": _by_efficient,
        "cudnn": _by_cudnn,
        "math": _by_math,
        "products": _by_products,
    }


def _by_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    operator = torch.ops.aten._scaled_dot_product_flash_attention
    if q.device.type == "cpu":
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return _first(operator(q, k, v))


def _by_efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _first(torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, False))


def _by_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _first(torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, False))


def _by_math(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _first(torch.ops.aten._scaled_dot_product_attention_math(q, k, v))


def _first(results: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the attention [B, H, T, d] of an operator's results; the others are for gradients."""
    return results[0]


def _by_products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute attention by two matrix products, which holds all scores [B, H, T, S]."""
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    return torch.matmul(torch.softmax(scores, -1), v)
