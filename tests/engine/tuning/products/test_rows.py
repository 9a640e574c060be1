"""Rows quantised in one pass: by torch's operations, and by the kernel in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.tuning.products.rows import LARGEST, quantise_rows, scale_integers

ROOT = Path(__file__).resolve().parents[4]
# Relative L2 errors of normally distributed numbers: a float8 number is off by up to 2^-4 (3 bits of mantissa) or 2^-3
# (2 bits) of itself, an int8 number by half a step of which a row's largest magnitude has 127.
MOST_ERROR = {torch.float8_e4m3fn: 0.03, torch.float8_e5m2: 0.06, torch.int8: 0.01}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_near_and_rows_do_not_disturb_each_other(dtype: torch.dtype, given: torch.dtype) -> None:
    x = drawn(9, 300).to(given)
    x[3] *= 1000.0  # an outlier's row
    x[5] = 0.0
    found = quantise_rows(x, dtype)
    assert found.codes.dtype == dtype and found.scales.dtype == torch.float32 and found.scales.shape == (9, 1)
    values = found.codes.float() * found.scales
    for row in (0, 3, 8):
        assert relative_error(values[row], x[row].float()) < MOST_ERROR[dtype]
    assert not values[5].any()
    assert float(found.codes.float().abs().max()) == LARGEST[dtype], "the whole range is used"


def test_integers_are_rounded_to_the_nearest() -> None:
    x = torch.tensor([[127.0, 1.4, 1.6, -2.5, -126.9]])
    assert quantise_rows(x, torch.int8).codes.tolist() == [[127, 1, 2, -2, -127]]


def test_integer_products_are_scaled_by_rows_and_columns() -> None:
    product = torch.tensor([[100, -200], [300, 0]], dtype=torch.int32)
    rows, columns, bias = torch.tensor([[0.5], [2.0]]), torch.tensor([1.0, 0.1]), torch.tensor([1.0, -1.0])
    found = scale_integers(product, rows, columns, bias, torch.float16)
    assert found.dtype == torch.float16 and found.tolist() == [[51.0, -11.0], [601.0, -1.0]]
    assert scale_integers(product, rows, columns, None, torch.float32).tolist() == [[50.0, -10.0], [600.0, 0.0]]


KERNELS = """
import torch
from darkroom.engine.tuning.kernels import quantise
from darkroom.engine.tuning.products import rows
generator = torch.Generator().manual_seed(0)
for shape, given in (
    ((5, 100), torch.bfloat16), ((5, 100), torch.float16), ((1, 5000), torch.float32), ((1, 1), torch.float32),
    ((0, 8), torch.float32),
):
    wide = torch.randn(shape[0], shape[1] + 3, generator=generator).mul_(3).to(given)
    x = wide[:, :-3]  # rows that do not follow each other
    for dtype, largest in rows.LARGEST.items():
        codes, scales = quantise.quantise_rows(x, dtype, largest, rows.LEAST_SCALE)
        plain = rows.quantise_rows(x, dtype)
        assert codes.dtype == dtype and torch.equal(scales, plain.scales), (shape, given, dtype)
        if dtype == torch.int8:
            assert torch.equal(codes, plain.codes), (shape, given)
        elif x.numel() > 1:  # the interpreter's own float8 numbers lack the subnormal ones and some ties
            is_same = (codes.float() == plain.codes.float()).float().mean()
            assert is_same > 0.9, (shape, given, dtype, is_same)
product = torch.randint(-(10**6), 10**6, (5, 1500), generator=generator, dtype=torch.int32)
row, column = torch.rand(5, 1, generator=generator), torch.rand(1500, generator=generator)
for bias in (None, torch.randn(1500, generator=generator).bfloat16()):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = quantise.scale_integers(product, row, column * 1e-3, bias, dtype)
        plain = rows.scale_integers(product, row, column * 1e-3, bias, dtype)
        assert found.dtype == dtype
        step = 2**-7 if dtype == torch.bfloat16 else 1e-3
        assert torch.allclose(found.float(), plain.float(), rtol=step, atol=1e-5), (bias is None, dtype)
from darkroom.engine.tuning.products import block_scaled as blocks
for shape in ((3, 96), (34, 160)):
    x = torch.randn(shape, generator=generator)
    codes, scales = quantise.quantise_mxfp8(x, 448.0, blocks.LEAST_SCALE)
    plain = blocks.quantise_mxfp8(x)
    assert torch.equal(scales, plain.scales), shape
    assert (codes.float() == plain.codes.float()).float().mean() > 0.9
    codes, scales = quantise.quantise_nvfp4(x, blocks.tensor_scale(x), 6.0, blocks.LEAST_SCALE)
    plain = blocks.quantise_nvfp4(x)
    same_scales = (scales == plain.scales).float().mean()
    assert same_scales > 0.8 and (codes == plain.codes).float().mean() > 0.8, (shape, same_scales)
"""


def test_the_kernels_compute_what_the_plain_forms_do() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", KERNELS], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
