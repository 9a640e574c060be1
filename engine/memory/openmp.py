"""Variables of OpenMP in an engine: number of threads, and how long they spin at a barrier."""

from __future__ import annotations

from machine.cores import allowed_processors, cpu_quota

SPIN_COUNT = 3000
"""Checks of a barrier before a thread sleeps. The GNU library's default of 300,000 (some 10 ms) burns the time of the
thread that is waited for where others keep the processor busy. 3,000 is as fast on a quiet processor and 2.8 times as
fast beside another process for each core; 1,000 and none slow a quiet one by a quarter:
`benchmark/results/processor_waiting.json`."""


def openmp_defaults() -> dict[str, str]:
    """Return the variables of OpenMP that fit this machine. The library reads them once, when torch loads it."""
    return defaults_for(len(allowed_processors()), cpu_quota())


def defaults_for(num_processors: int, quota: float | None) -> dict[str, str]:
    """Return the variables for never more threads than the quota of processor time gives, and for short spinning.

    `num_processors` are those that the process may run on, `quota` the processors' worth of time that its cgroups
    allow, None without a limit.
    """
    found = {"GOMP_SPINCOUNT": str(SPIN_COUNT)}
    if quota is not None and quota < num_processors:
        found["OMP_NUM_THREADS"] = str(max(1, int(quota)))
    return found
