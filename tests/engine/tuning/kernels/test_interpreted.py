"""Each kernel against the plain form of its layer, on a CPU in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.layers.small_transformers import TRANSFORMERS

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


def interpreted(program: str, argument: str) -> dict[str, Any]:
    """Run a program of this folder in a process of its own, in which kernels are interpreted; return its report."""
    command = [sys.executable, "-m", f"{__package__}.{program}", argument]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(
    "dtype", ["float16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float32", "bfloat16"))]
)
def test_kernels_compute_what_the_plain_layers_do(dtype: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    errors = interpreted("interpreted", dtype)
    assert {name: found for name, found in errors.items() if not max(found) <= tolerance(name, dtype)} == {}
    assert len(errors) > 40


WITH_NORMS_OF_ITS_OWN = {"stable_audio": ["ResidualNorm"]}
"""Networks with a norm that no kernel knows, and the layers that call it."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_computes_the_same_with_all_layers_fused(name: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    report = interpreted("interpreted_network", name)
    assert report["error"] < 5e-6 and report["num_calls"] > 0, report
    assert report["plain"] == WITH_NORMS_OF_ITS_OWN.get(name, [])
