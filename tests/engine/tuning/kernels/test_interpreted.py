"""Each kernel against the plain form of its layer, on a CPU in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]

# Kernels round where the plain path does: float16 results differ in the few numbers that stand between two of them.
# Triton's interpreter cuts bfloat16 numbers where cards round them.
TOLERANCES = {"float32": 3e-7, "float16": 5e-6, "bfloat16": 2e-2}
ROUNDED_ONCE = 1e-3  # group norms, against what was computed in float64 and then rounded
FAR_FROM_ZERO = 2e-5  # a hundred times the rounding of float32: the mean is a hundred times the deviation


def tolerance(name: str, dtype: str) -> float:
    """Return the largest relative error of a case."""
    least = FAR_FROM_ZERO if name.endswith("far from zero") else 0.0
    if name.startswith("group norm") and dtype == "float16":
        least = ROUNDED_ONCE
    return max(TOLERANCES[dtype], least)


def errors_of(dtype: str) -> dict[str, list[float]]:
    """Run all cases of one type in a process of its own."""
    command = [sys.executable, "-m", "tests.engine.tuning.kernels.interpreted", dtype]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    errors: dict[str, list[float]] = json.loads(done.stdout)
    return errors


@pytest.mark.parametrize(
    "dtype", ["float16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float32", "bfloat16"))]
)
def test_kernels_compute_what_the_plain_layers_do(dtype: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    errors = errors_of(dtype)
    assert {name: found for name, found in errors.items() if not max(found) <= tolerance(name, dtype)} == {}
    assert len(errors) > 40
