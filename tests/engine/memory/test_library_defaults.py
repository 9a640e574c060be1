"""Variables of libraries that an engine sets for itself, where the operator has not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from darkroom.engine.__main__ import set_up_libraries
from darkroom.engine.memory.library_defaults import library_defaults, openmp_defaults

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = """
import torch
held = torch.ones(64 * 1024 * 1024)
lines = open("/proc/self/smaps_rollup").read().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("AnonHugePages")))
"""


def setting_of(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.exists() else "[never]"


@pytest.mark.parametrize(
    ("quota", "threads"), [(None, None), (8.0, None), (4.0, "4"), (3.9, "3"), (1.5, "1"), (0.2, "1")]
)
def test_no_more_threads_than_the_quota_gives(quota: float | None, threads: str | None) -> None:
    assert openmp_defaults(8, quota).get("OMP_NUM_THREADS") == threads


def test_threads_spin_shortly() -> None:
    assert int(library_defaults()["GOMP_SPINCOUNT"]) < 300_000


def test_what_the_operator_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    set_up_libraries()
    names = ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "THP_MEM_ALLOC_ENABLE", "PYTORCH_CUDA_ALLOC_CONF")
    assert [os.environ[name] for name in names] == ["7", "16", "0", "backend:cudaMallocAsync"]


def test_memory_of_a_gpu_comes_in_segments_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    set_up_libraries()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.skipif("[never]" in setting_of(HUGE_PAGES), reason="this machine has no transparent huge pages")
def test_large_tensors_lie_on_large_pages() -> None:
    """The kernel may be short of them at times, so that some of the memory counts, not all."""
    environment = {**os.environ, **library_defaults()}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0 and not done.stderr
