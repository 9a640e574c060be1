"""Arithmetic of kernels that compute in float32 and round where torch's own functions do."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def rounded(values, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Round float32 numbers to a type, and return them as float32."""
    return values.to(dtype).to(tl.float32)


@triton.jit
def finite_half(values):  # type: ignore[no-untyped-def]
    """Replace NaN by 0 and what float16 cannot hold by its largest number."""
    values = tl.where(values == values, values, 0.0)
    return tl.minimum(tl.maximum(values, -65504.0), 65504.0)
