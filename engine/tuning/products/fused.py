"""Choice between the kernels in Triton for rows and integer products, and their plain forms."""

from __future__ import annotations

import logging
from functools import cache

import torch

from darkroom.engine.tuning.products.int8 import ScaleIntegers
from darkroom.engine.tuning.products.rows import (
    LARGEST,
    LEAST_SCALE,
    QuantisedRows,
    QuantiseRows,
    quantise_rows,
    scale_integers,
)
from darkroom.engine.tuning.triton_compiler import has_triton

log = logging.getLogger(__name__)


@cache
def has_kernels(device: torch.device) -> bool:
    """Return True where the kernels run on a device. They are tried once: their first launch needs a C compiler."""
    if not has_triton(device):
        return False
    x = torch.ones(2, 16, device=device)
    try:
        rows = _by_kernel(x, torch.int8)
        _scaled_by_kernel(rows.codes.int(), rows.scales, torch.ones(16, device=device), None, x.dtype)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises: the plain forms do the same
        log.warning("kernels for quantised rows not used: reason=%s: %s", type(error).__name__, error)
        return False
    return True


def row_quantiser(device: torch.device) -> QuantiseRows:
    """Return the fastest way to quantise rows on a device."""
    return _by_kernel if has_kernels(device) else quantise_rows


def integer_scaler(device: torch.device) -> ScaleIntegers:
    """Return the fastest way to scale integer products on a device."""
    return _scaled_by_kernel if has_kernels(device) else scale_integers


def _by_kernel(x: torch.Tensor, dtype: torch.dtype) -> QuantisedRows:
    from darkroom.engine.tuning.kernels import quantise  # Triton is there on GPU machines alone

    return QuantisedRows(*quantise.quantise_rows(x, dtype, LARGEST[dtype], LEAST_SCALE))


def _scaled_by_kernel(
    product: torch.Tensor,
    row_scales: torch.Tensor,
    column_scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    from darkroom.engine.tuning.kernels import quantise

    return quantise.scale_integers(product, row_scales, column_scales, bias, dtype)
