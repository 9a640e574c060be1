"""Expected performance of a machine: the operator's settings, else the fleet's history, else the table of GPUs."""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from darkroom.worker.qualification.verdict import BenchmarkReport, Expectation, Verdict
from darkroom.worker.qualification.workload import DeviceFact, Workload

REFERENCE = Path(__file__).with_name("gpu_reference.toml")
MIN_HISTORY = 3
COUNTED = frozenset({Verdict.PASS, Verdict.SLOW, Verdict.UNSTABLE})
"""Verdicts that count in a fleet's history: a machine that computed wrongly, or was too hot, is no reference."""


class Limits(Protocol):
    """Limits set by the operator; `BenchmarkConfig` implements it."""

    @property
    def max_seconds(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class PastRun:
    key: str
    its_per_second: float | None
    seconds_per_picture: float


@dataclass(frozen=True, slots=True)
class ReferenceGpu:
    its_per_second: float
    source: str


def expect(
    limits: Limits,
    workload: Workload,
    device: DeviceFact,
    history: Sequence[PastRun],
    reference: Mapping[str, ReferenceGpu],
) -> Expectation:
    """Return the first expectation for this device and workload. For a CPU only the operator's own limits apply."""
    if limits.max_seconds is not None:
        return Expectation(max_seconds=limits.max_seconds, source="BENCHMARK_MAX_SECONDS")
    if device.is_cpu:
        return Expectation()
    alike = [run for run in history if run.key == history_key(device, workload)]
    if len(alike) >= MIN_HISTORY:
        rates = [run.its_per_second for run in alike if run.its_per_second is not None]
        return Expectation(
            expected_its=statistics.median(rates) if rates else None,
            expected_seconds=None if rates else statistics.median(run.seconds_per_picture for run in alike),
            source=f"median of {len(alike)} runs in BENCHMARK_HISTORY",
        )
    known = reference.get(plain_name(device.product)) if workload.is_standard else None
    return Expectation(expected_its=known.its_per_second, source=known.source) if known else Expectation()


def history_key(device: DeviceFact, workload: Workload) -> str:
    return f"{plain_name(device.product)}|{workload.model}|{workload.size}"


def plain_name(product: str) -> str:
    """Return a GPU's name without the manufacturer's, in lower case."""
    return " ".join(product.lower().replace("nvidia", "").split())


def read_reference(path: Path = REFERENCE) -> dict[str, ReferenceGpu]:
    """Return the published data of each GPU, by its plain name."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["gpu"]
    return {plain_name(entry["name"]): ReferenceGpu(entry["its_per_second"], entry["source"]) for entry in entries}


def read_history(path: Path | None) -> list[PastRun]:
    """Return the runs of the fleet, oldest first. Invalid lines (cut off, of a later version) are skipped."""
    if path is None or not path.is_file():
        return []
    runs = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            its = entry["its_per_second"]
            run = PastRun(str(entry["key"]), None if its is None else float(its), float(entry["seconds_per_picture"]))
            if entry["verdict"] in COUNTED:
                runs.append(run)
        except (ValueError, KeyError, TypeError):
            continue
    return runs


def history_line(report: BenchmarkReport, device: DeviceFact, workload: Workload, now_seconds: float) -> str:
    entry: dict[str, Any] = {
        "key": history_key(device, workload),
        "measured_at": round(now_seconds, 3),
        "verdict": report.verdict.value,
        "its_per_second": report.its_per_second,
        "seconds_per_picture": report.seconds_per_picture,
        "versions": report.versions,
    }
    return json.dumps(entry) + "\n"


def append_history(path: Path, line: str) -> None:
    """Append one line in a single write, so that workers that share the file do not interleave."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(line.encode())
