"""Settings of OpenMP in an engine's process: number of threads, and how they wait for one another.

The libraries read these variables once, when they are loaded, so they are set before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping

SPIN_COUNT = 1000
"""Checks of a barrier before a thread sleeps. The GNU library's default of 300,000 (some 10 ms) gains nothing
measurable on a quiet processor, and on a busy one it burns the time of the thread that is waited for:
`benchmark/results/processor_waiting.json`."""

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def openmp_defaults(environment: Mapping[str, str], num_processors: int, quota: float | None) -> dict[str, str]:
    """Return the variables to set: never more threads than the quota of processor time gives, and short spinning.

    `num_processors` are those that the process may run on, `quota` the processors' worth of time that its cgroups
    allow, None without a limit. What the operator has set stays.
    """
    found: dict[str, str] = {}
    if quota is not None and quota < num_processors and "OMP_NUM_THREADS" not in environment:
        found["OMP_NUM_THREADS"] = str(max(1, int(quota)))
    if not any(name in environment for name in WAITING):
        found["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    return found
