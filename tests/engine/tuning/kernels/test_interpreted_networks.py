"""Every transformer with its shared layers computed by kernels, on a CPU in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine.layers.small_transformers import TRANSFORMERS

ROOT = Path(__file__).resolve().parents[4]
NUM_AT_ONCE = 6
# Rounding errors of single layers (`test_interpreted.py`), through all blocks.
TOLERANCES = {"float32": 3e-6, "float16": 5e-3}

NAMES = list(TRANSFORMERS)
GROUPS = [NAMES[start : start + NUM_AT_ONCE] for start in range(0, len(NAMES), NUM_AT_ONCE)]


def results_of(dtype: str, names: Sequence[str]) -> dict[str, Any]:
    """Run the networks in a process of its own, whose kernels are interpreted."""
    command = [sys.executable, "-m", "tests.engine.tuning.kernels.interpreted_networks", dtype, *names]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        ("float32", ["pixart", "z_image control", "wan with faces"]),
        *(
            pytest.param(dtype, names, marks=[pytest.mark.slow, pytest.mark.timeout(900)])
            for dtype in TOLERANCES
            for names in GROUPS
        ),
    ],
    ids=lambda item: item if isinstance(item, str) else item[0],
)
def test_networks_compute_the_same_with_fused_layers(dtype: str, names: list[str]) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    results = results_of(dtype, names)
    assert [name for name in names if not results[name]["error"] <= TOLERANCES[dtype]] == []
    assert [name for name in names if not results[name]["fused"]] == []
    assert {name: results[name]["plain"] for name in names if results[name]["plain"]} == {}
