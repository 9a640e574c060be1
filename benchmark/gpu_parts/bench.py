"""Context of every part of `benchmark/gpu.py`: the device, its time, and the report that it writes figure by figure."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmark.gpu_files import read_object, write_whole

ROOT = Path(__file__).resolve().parents[2]
MIB, GIB, GB = 1 << 20, 1 << 30, 10**9
REASON_CHARACTERS = 600
DIGITS = 6


class DeviceSpoilt(Exception):  # noqa: N818 - no error of ours
    """The device answers no more after a failure; nothing of this process can be measured."""


class Report:
    """The figures and failures of a part, written to its file whenever one is added."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self._path = path
        self.figures: dict[str, Any] = {}
        self.failures: dict[str, str] = {}
        self._head = head
        self.write(is_complete=False)

    def note(self, name: str, value: Any) -> None:
        """Add a figure; dots in the name are levels."""
        *levels, last = name.split(".")
        into = self.figures
        for level in levels:
            into = into.setdefault(level, {})
        into[last] = rounded(value)
        self.write(is_complete=False)
        print(f"{name}: {json.dumps(rounded(value))[:400]}", flush=True)

    def fail(self, name: str, reason: str) -> None:
        self.failures[name] = reason[:REASON_CHARACTERS]
        self.write(is_complete=False)
        print(f"{name} FAILED: {reason}", flush=True)

    def write(self, *, is_complete: bool) -> None:
        found = {**self._head, "figures": self.figures, "failures": self.failures, "is_complete": is_complete}
        write_whole(self._path, json.dumps(found))


@dataclass(frozen=True, slots=True)
class Bench:
    """A part's surroundings.

    `base` is shared by the parts of a call, `own` is this process's alone. `ends` is on the clock of `time.monotonic`.
    """

    device: str
    is_toy: bool
    ends: float
    base: Path
    own: Path
    peers: Path | None
    report: Report

    @classmethod
    def of(cls, *, out: Path, seconds: float, base: Path, own: Path, peers: Path | None, is_toy: bool) -> Bench:
        """Make the bench of this process; without a GPU it is a toy's."""
        is_gpu = torch.cuda.is_available()
        device = "cuda:0" if is_gpu else "cpu"
        is_toy = is_toy or not is_gpu
        name = torch.cuda.get_device_name(0) if is_gpu else "cpu"
        report = Report(out, {"device": name, "is_toy": is_toy})
        ends = time.monotonic() - seconds_since_start() + seconds  # imports are of the part's time, too
        return cls(device, is_toy, ends, base, own, peers, report)

    @property
    def is_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def scale(self) -> str:
        return "small" if self.is_toy else "full"

    @property
    def left_seconds(self) -> float:
        return self.ends - time.monotonic()

    def note(self, name: str, value: Any) -> None:
        self.report.note(name, value)

    def wait(self) -> None:
        """Block until the device has computed everything."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def attempt(self, name: str, work: Callable[..., Any], *given: Any, least_seconds: float = 2.0) -> Any:
        """Call the work with what is given and return its result.

        None where it fails or too little time is left: that is a figure, too.

        Raises `DeviceSpoilt` where the device computes no more after it.
        """
        if self.left_seconds < least_seconds:
            self.report.fail(name, f"not begun: {max(0.0, self.left_seconds):.0f} s were left")
            return None
        try:
            return work(*given)
        except Exception as error:  # noqa: BLE001 - one figure of the benchmark
            traceback.print_exc()
            self.report.fail(name, f"{type(error).__name__}: {error}")
            del error
        self.check_device()
        return None

    def check_device(self) -> None:
        """Raise `DeviceSpoilt` unless the device still computes."""
        if not self.is_gpu:
            return
        try:
            ones = torch.ones(64, device=self.device)
            torch.cuda.synchronize()
            if float(ones.sum()) == 64.0:
                return
        except RuntimeError as error:
            raise DeviceSpoilt(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
        raise DeviceSpoilt("a sum of ones is wrong")

    def free(self) -> None:
        """Return unused memory to the device."""
        import gc

        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()


def run_part(bench: Bench, work: Callable[[Bench], None]) -> int:
    """Run a part to its end, whatever fails. Return the exit code."""
    try:
        work(bench)
    except DeviceSpoilt as error:
        bench.report.fail("device", f"no more after a failure: {error}")
    except Exception as error:  # noqa: BLE001 - the part
        traceback.print_exc()
        bench.report.fail("part", f"{type(error).__name__}: {error}")
    bench.report.write(is_complete=True)
    return 0


def seconds_since_start() -> float:
    """Return the seconds since this process was started, its interpreter and imports included."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


def is_installed(module: str) -> bool:
    """Return True where a module could be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def rounded(value: Any) -> Any:
    """Return a figure with few digits, for JSON."""
    if isinstance(value, dict):
        return {str(name): rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if value == value and abs(value) != float("inf") else str(value)
    return value


def seconds_of(work: Callable[[], object], bench: Bench) -> float:
    """Return the seconds of one call, with the device's work."""
    bench.wait()
    began = time.perf_counter()
    work()
    bench.wait()
    return time.perf_counter() - began


def median_seconds(
    work: Callable[[], object], bench: Bench, *, budget_seconds: float = 1.0, least: int = 3, warm_ups: int = 2
) -> float:
    """Return the median seconds of a call, by events on the device where it has them."""
    for _ in range(1 if bench.is_toy else warm_ups):
        work()
    bench.wait()
    found: list[float] = []
    began = time.monotonic()
    while len(found) < least or (time.monotonic() - began < budget_seconds and len(found) < 200 and not bench.is_toy):
        found.append(_timed(work, bench))
    return statistics.median(found)


def _timed(work: Callable[[], object], bench: Bench) -> float:
    if not bench.is_gpu:
        return seconds_of(work, bench)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000


@contextmanager
def peak_memory(bench: Bench, name: str) -> Iterator[None]:
    """Note the most memory that torch had at once while the context was open."""
    if bench.is_gpu:
        torch.cuda.reset_peak_memory_stats()
    yield
    if bench.is_gpu:
        bench.note(name, torch.cuda.max_memory_allocated() / GIB)


@dataclass(frozen=True, slots=True)
class Case:
    """A case of a part in a process of its own: how it ended and what it noted."""

    name: str
    reason: str | None
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def run_cases(bench: Bench, part: str, names: Sequence[str], *, at_once: int, each_seconds: float) -> Iterator[Case]:
    """Run cases in processes of their own, a few at a time, within this part's time; yield each as it ends.

    They are of this part's process group: whoever kills that kills them.
    """
    with ThreadPoolExecutor(at_once) as threads:
        begun = [threads.submit(_run_case, bench, part, each_seconds, name) for name in names]
        for ended in as_completed(begun):
            yield ended.result()


def _run_case(bench: Bench, part: str, each_seconds: float, name: str) -> Case:
    limit = min(each_seconds, bench.left_seconds - 1.0)
    if limit < 2.0:
        return Case(name, "not begun: no time was left", 0.0)
    file = bench.own / f"{''.join(letter if letter.isalnum() else '_' for letter in name)}.json"
    command = [sys.executable, "-u", "-m", "benchmark.gpu_parts", part, "--case", name, "--out", str(file)]
    command += ["--seconds", f"{limit - 0.5:.1f}", "--base", str(bench.base), *(["--toy"] if bench.is_toy else [])]
    if bench.peers is not None:
        command += ["--peers", str(bench.peers)]
    began = time.monotonic()
    reason: str | None = None
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=limit, check=False)
        if done.returncode:
            reason = f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"killed after {limit:.0f} s"
    found = read_object(file)
    if reason is None and not found.get("is_complete"):
        reason = "it ended without a report"
    return Case(name, reason, time.monotonic() - began, found.get("figures", {}), found.get("failures", {}))
