"""Verdict on the times of the start-up benchmark. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from darkroom.worker.qualification.workload import MIN_RUNS, Data, DeviceFact

MAX_RUNS: Final = 8
ENOUGH_SECONDS: Final = 2.0
"""After three runs more are made only while they took less than this together, or do not agree."""

MAX_SPREAD: Final = 0.20
SLOW_BELOW: Final = 0.7
"""A GPU slower than this part of what its kind is expected to do is slow."""


class Verdict(StrEnum):
    """`pass` and `skipped` let the worker serve; `failed` means that there is no figure to judge by."""

    PENDING = "pending"
    PASS = "pass"
    SLOW = "slow"
    UNSTABLE = "unstable"
    THROTTLED = "throttled"
    FAULTY = "faulty"
    SKIPPED = "skipped"
    FAILED = "failed"

    @property
    def is_good(self) -> bool:
        return self in (Verdict.PASS, Verdict.SKIPPED)


class RunTiming(Data):
    """One timed prompt: from the submission to its end, and of that the sampling (None where it was not seen).

    `num_steps` are the sampler's steps that were seen; `first_step_seconds` counts from the submission to the end of
    the first; `num_executed` are the nodes that ran and were not answered from the cache (`is_from_cache`: none ran).
    """

    total_seconds: float = Field(gt=0)
    sampling_seconds: float | None = Field(default=None, gt=0)
    num_steps: int = 0
    first_step_seconds: float | None = None
    num_executed: int = 0
    is_from_cache: bool = False

    @property
    def its_per_second(self) -> float | None:
        return self.num_steps / self.sampling_seconds if self.sampling_seconds and self.num_steps else None


class Speed(Data):
    """Speed of the timed runs. `spread` is (most - least) / median, of it/s where steps were seen, else of seconds."""

    its_per_second: float | None = None
    best_its_per_second: float | None = None
    seconds_per_picture: float
    best_seconds_per_picture: float
    seconds_to_first_step: float | None = None
    spread: float
    num_runs: int


def wants_another(timings: Sequence[RunTiming], *, is_cpu: bool = False) -> bool:
    """Return True while another run is wanted: three at least, more while they are short or the last three differ.

    Those of a CPU need not agree.
    """
    if len(timings) < MIN_RUNS:
        return True
    if len(timings) >= MAX_RUNS:
        return False
    is_short = sum(timing.total_seconds for timing in timings) < ENOUGH_SECONDS
    return is_short or (not is_cpu and spread_of(timings[-MIN_RUNS:]) > MAX_SPREAD)


def counted(timings: Sequence[RunTiming]) -> Sequence[RunTiming]:
    """Return the runs that count: all if they agree, else the last three (a machine may take a moment to settle)."""
    return timings if spread_of(timings) <= MAX_SPREAD else timings[-MIN_RUNS:]


def spread_of(timings: Sequence[RunTiming]) -> float:
    rates = [timing.its_per_second for timing in timings]
    figures = [rate for rate in rates if rate is not None]
    if len(figures) < len(timings):
        figures = [timing.total_seconds for timing in timings]
    return (max(figures) - min(figures)) / statistics.median(figures) if figures else 0.0


def speed_of(timings: Sequence[RunTiming]) -> Speed:
    """Return the speed that the runs show. Raises ValueError without a single run."""
    if not timings:
        raise ValueError("no run to judge by")
    runs = counted(timings)
    rates = [timing.its_per_second for timing in runs if timing.its_per_second is not None]
    firsts = [timing.first_step_seconds for timing in runs if timing.first_step_seconds is not None]
    seconds = [timing.total_seconds for timing in runs]
    return Speed(
        its_per_second=statistics.median(rates) if rates else None,
        best_its_per_second=max(rates) if rates else None,
        seconds_per_picture=statistics.median(seconds),
        best_seconds_per_picture=min(seconds),
        seconds_to_first_step=statistics.median(firsts) if firsts else None,
        spread=spread_of(runs),
        num_runs=len(timings),
    )


class Expectation(Data):
    """Expected speed of the machine, and its source. `max_seconds` is hard, `expected_its` is met at `SLOW_BELOW`."""

    max_seconds: float | None = None
    expected_its: float | None = None
    expected_seconds: float | None = None
    source: str | None = None

    @property
    def is_known(self) -> bool:
        return any(value is not None for value in (self.max_seconds, self.expected_its, self.expected_seconds))


class Evidence(Data):
    """Further findings: the fault of the fixed computation, and the reasons for which the clocks were held back."""

    is_cpu: bool = False
    fault: str | None = None
    throttle_reasons: tuple[str, ...] = ()


class Judgement(Data):
    verdict: Verdict
    reason: str | None = None
    warnings: tuple[str, ...] = ()


def judge(speed: Speed, expectation: Expectation, evidence: Evidence) -> Judgement:
    """Return the verdict and its reason; the worst that holds.

    What holds the clocks back is a verdict only where the speed suffers or nothing is known of what it should be: a
    card that meets its mark is not broken. A CPU shares its cores with whatever else runs, so there runs that differ
    are only told.
    """
    if evidence.fault is not None:
        return Judgement(verdict=Verdict.FAULTY, reason=evidence.fault)
    slow = _why_slow(speed, expectation)
    differ = None
    if speed.spread > MAX_SPREAD:
        differ = f"Runs differ by {speed.spread:.0%}, more than {MAX_SPREAD:.0%}"
    held = f"The clocks were held back: {', '.join(evidence.throttle_reasons)}" if evidence.throttle_reasons else None
    is_steady = differ is None or evidence.is_cpu
    if held and (slow or not is_steady or not expectation.is_known):
        return Judgement(verdict=Verdict.THROTTLED, reason="; ".join(filter(None, (held, slow, differ))))
    if slow:
        return Judgement(verdict=Verdict.SLOW, reason=slow, warnings=tuple(filter(None, (differ,))))
    if differ and not is_steady:
        return Judgement(verdict=Verdict.UNSTABLE, reason=differ)
    return Judgement(verdict=Verdict.PASS, warnings=tuple(filter(None, (held, differ))))


def _why_slow(speed: Speed, expectation: Expectation) -> str | None:
    its, seconds = speed.its_per_second, speed.seconds_per_picture
    expected = expectation.expected_its
    if its is not None and expected is not None and its < expected * SLOW_BELOW:
        return f"{its:.3g} it/s, less than {SLOW_BELOW:.0%} of {expected:.3g} ({expectation.source})"
    for most, share in ((expectation.max_seconds, 1.0), (expectation.expected_seconds, 1 / SLOW_BELOW)):
        if most is not None and seconds > most * share:
            return f"{seconds:.3g} s an image, more than {most * share:.3g} s ({expectation.source})"
    return None


class BenchmarkReport(Data):
    """Report of `GET /benchmark` on one engine. A figure that could not be measured is null, `missing` says why."""

    verdict: Verdict
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    its_per_second: float | None = None
    best_its_per_second: float | None = None
    spread: float | None = None
    seconds_per_picture: float | None = None
    best_seconds_per_picture: float | None = None
    seconds_to_first_step: float | None = None
    model_load_gb_per_second: float | None = Field(
        default=None, description="A checkpoint's bytes by the time from its file to the first step that it adds."
    )
    first_run_seconds: float | None = Field(default=None, description="The warm-up: the model is loaded in it.")
    workload: float | None = Field(default=None, description="Work of one run; 100 is one 512x512 image of 20 steps.")
    workload_per_second: float | None = None
    workload_is_estimate: bool = False
    num_runs: int = 0
    run_seconds: tuple[float, ...] = ()
    total_seconds: float | None = Field(default=None, description="From the first prompt to the verdict.")
    model: str | None = None
    width_px: int | None = None
    height_px: int | None = None
    steps: int | None = None
    shrunk: str | None = None
    prompts: tuple[str, ...] = ()
    device: DeviceFact | None = None
    expectation: Expectation | None = None
    probe: dict[str, Any] | None = None
    sensors: dict[str, Any] | None = None
    tuning: dict[str, Any] | None = None
    versions: dict[str, str | None] | None = None
    missing: dict[str, str] = {}
    cache_key: str | None = None


def skipped(reason: str, device: DeviceFact | None = None) -> BenchmarkReport:
    """None was run, and the worker may serve: switched off, or a foreign engine that has nothing to run it on."""
    return BenchmarkReport(verdict=Verdict.SKIPPED, reason=reason, device=device)


def failed(reason: str, device: DeviceFact | None = None) -> BenchmarkReport:
    return BenchmarkReport(verdict=Verdict.FAILED, reason=reason, device=device)
