"""Linear layers, convolutions and norms that are faster than torch's on a CPU; on other devices they are torch's own.

Two things cost most of a float32 step of a UNet on a CPU, and neither is arithmetic. torch multiplies float32 matrices
by Intel's MKL, whose widest kernels are not used on other makers' processors; oneDNN, which torch includes as well,
selects its kernels by the features of the processor. And a convolution first reorders its weights at every call, which
for many channels over few cells (8x8, 4x4) takes longer than the convolution. There, gathering the cells under the
kernel and multiplying once is faster, because it uses the weights in their stored order. In small images a third adds
up: group normalisation with channels innermost is one scalar at a time where a group has few channels.
"""

from __future__ import annotations

import platform
from functools import cache

import torch
from torch import nn
from torch.nn import functional

# torch normalises channels-last images of fewer cells group by group, with vectors as wide as a group has channels.
FEW_CELLS, FEW_CHANNELS = 1024, 16


@cache
def has_onednn_linear() -> bool:
    """Return True if oneDNN multiplies float32 matrices here: on x86, where torch itself would use MKL."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def rows_for_mkl() -> int | None:
    """Return the rows from which MKL is the faster one: 256 with 256-bit vectors, which it uses on every processor."""
    return 256 if torch.backends.cpu.get_cpu_capability() == "AVX2" else None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute `functional.linear`: `x` [..., I], `weight` [O, I], `bias` [O] -> [..., O]."""
    if not (_is_plain(x, weight, bias, (torch.float32,)) and x.numel() and has_onednn_linear()):
        return functional.linear(x, weight, bias)
    least = rows_for_mkl()
    if least is not None and x.numel() >= least * x.shape[-1]:
        return functional.linear(x, weight, bias)
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")
    return out


def _is_plain(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtypes: tuple[torch.dtype, ...]
) -> bool:
    """Return True if all are CPU tensors of one of these types that require no gradient.

    Never while a network is compiled: compilers choose kernels themselves, and Inductor refuses oneDNN's operator with
    weights that are not frozen.
    """
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return (
        all(tensor.device.type == "cpu" and tensor.dtype == x.dtype for tensor in tensors)
        and x.dtype in dtypes
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class Linear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not input.is_cpu:  # asked first: on a fast card every microsecond before a kernel counts
            return functional.linear(input, self.weight, self.bias)
        return linear(input, self.weight, self.bias)


class Conv2d(nn.Conv2d):
    """A convolution computed as a matrix product where there are more weights than cells.

    Custom nodes replace `_conv_forward` of existing layers (seamless images), so that method is overridden here.
    """

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not (input.is_cpu and self._is_matrix(input, weight, bias)):
            out: torch.Tensor = super()._conv_forward(input, weight, bias)
            return out
        above, left = _both(self.padding)
        padded = functional.pad(input, (left, left, above, above))
        (high, wide), (down, right) = self.kernel_size, self.stride
        cells = padded.unfold(2, high, down).unfold(3, wide, right)  # [B, I, h, w, kernel height, kernel width]
        batch, _, height, width = cells.shape[:4]
        is_last = weight.is_contiguous(memory_format=torch.channels_last)
        rows = cells.permute(0, 2, 3, 4, 5, 1) if is_last else cells.permute(0, 2, 3, 1, 4, 5)
        columns = weight.permute(0, 2, 3, 1) if is_last else weight
        out = linear(rows.reshape(batch * height * width, -1), columns.reshape(self.out_channels, -1), bias)
        out = out.view(batch, height, width, self.out_channels).permute(0, 3, 1, 2)
        return out if is_last else out.contiguous()

    def _is_matrix(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        if (
            x.ndim != 4
            or isinstance(self.padding, str)
            or (self.padding_mode, self.groups, self.dilation) != ("zeros", 1, (1, 1))
            or not _is_plain(x, weight, bias, (torch.float32, torch.bfloat16))
        ):
            return False
        height, width = (
            (size + 2 * pad - kernel) // step + 1
            for size, pad, kernel, step in zip(
                x.shape[2:], _both(self.padding), self.kernel_size, self.stride, strict=True
            )
        )
        return height > 0 and width > 0 and 0 < x.shape[0] * height * width <= self.out_channels


class GroupNorm(nn.GroupNorm):
    """A group normalisation of planes where groups have few channels and images few cells: up to 30 times as fast."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.is_cpu and input.ndim == 4 and self.num_channels // self.num_groups < FEW_CHANNELS:
            is_small = input.shape[2] * input.shape[3] < FEW_CELLS
            input = input.contiguous() if is_small else input
        return super().forward(input)


def _both(padding: object) -> tuple[int, int]:
    """Return the padding above and left. Custom nodes set it to one number, which torch accepts too."""
    return padding if isinstance(padding, tuple) else (padding, padding)
