"""Environment variables that an engine sets for the libraries under torch, where the operator has not."""

from __future__ import annotations

from typing import Final

from darkroom.host.cores import allowed_processors, cpu_quota

SPIN_COUNT: Final = 3000
"""Checks of a barrier before a thread sleeps. The GNU library's default of 300,000 (some 10 ms) burns the time of the
thread that is waited for where others keep the processor busy. 3,000 is as fast on a quiet processor and 2.8 times as
fast beside another process for each core; 1,000 and none slow a quiet one by a quarter:
`benchmark/results/processor_waiting.json`."""

LARGE_PAGES: Final = {"THP_MEM_ALLOC_ENABLE": "1"}
"""Tensors of 2 MB and more lie on pages of 2 MB, where the kernel has some: giving out new memory is a tenth of the
time from an engine's start to its first image otherwise: `benchmark/results/large_pages.json`."""

GROWING_SEGMENTS: Final = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Memory of a GPU is mapped in small pieces, which fit a tensor of any size: else each new image size leaves blocks
that no other size can use. The name is the older of two: torch 2.9.1 takes the setting under no other, later versions
under both, the newer one first; those up to 2.11 log that it is deprecated."""


def library_defaults() -> dict[str, str]:
    """Return the variables that fit this machine. The libraries read them once, when torch loads them."""
    return openmp_defaults(len(allowed_processors()), cpu_quota()) | LARGE_PAGES | GROWING_SEGMENTS


def openmp_defaults(num_processors: int, quota: float | None) -> dict[str, str]:
    """Return the variables for never more threads than the quota of processor time gives, and for short spinning.

    `num_processors` are those that the process may run on, `quota` the processors' worth of time that its cgroups
    allow, None without a limit.
    """
    found = {"GOMP_SPINCOUNT": str(SPIN_COUNT)}
    if quota is not None and quota < num_processors:
        found["OMP_NUM_THREADS"] = str(max(1, int(quota)))
    return found
