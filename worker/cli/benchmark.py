"""Benchmark on the command line: run by a worker that is up, or by one that is started for it and stopped again."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from darkroom.worker.cli.worker_alone import worker_alone
from darkroom.worker.cli.worker_client import worker_client
from darkroom.worker.errors import EngineStartFailed

LOOK_SECONDS = 0.1


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a report as lines of text: speed, seconds an image, and the verdict with its reason."""
    workload = (
        f"{report.get('model')} at {report.get('width_px')}x{report.get('height_px')}, {report.get('steps')} steps"
    )
    if report.get("its_per_second") is not None:
        yield f"speed          {report['its_per_second']:.2f} it/s ({workload})"
    if report.get("seconds_per_picture") is not None:
        yield f"an image       {report['seconds_per_picture']:.2f} s"
    if report.get("shrunk"):
        yield f"smaller        {report['shrunk']}"
    for warning in report.get("warnings") or ():
        yield f"warning        {warning}"
    reasons = "; ".join(str(report[name]) for name in ("reason", "error") if report.get(name))
    yield f"verdict        {report['verdict']}{f': {reasons}' if reasons else ''}"


def run_benchmark(url: str, api_key: str = "", verify: ssl.SSLContext | bool = True) -> dict[str, object]:
    """Return the report of a fresh run. Raises httpx.TransportError without a reply, HTTPStatusError for a refusal."""
    with worker_client(api_key=api_key, timeout=httpx.Timeout(5.0, read=None), verify=verify) as http:
        return _object(http.post(f"{url}/benchmark"))


def last_benchmark(url: str, verify: ssl.SSLContext | bool = True) -> dict[str, object]:
    """Return the last report. Raises as `run_benchmark`."""
    with worker_client(verify=verify) as http:
        return _object(http.get(f"{url}/benchmark"))


def run_benchmark_alone() -> dict[str, object]:
    """Return the report of a worker with this environment's settings that takes no job and reports to no autoscaler.

    Raises EngineStartFailed when it ends without one.
    """
    changes = {"BENCHMARK": "auto", "BENCHMARK_TTL": "0", "BENCHMARK_ON_FAIL": "error", "WARMUP_ON_FAIL": "serve"}
    with worker_alone(changes) as (process, url):
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
            try:
                report = last_benchmark(url)
            except httpx.HTTPError:
                continue
            if report["verdict"] != "pending" and not report["is_running"]:
                return report
    raise EngineStartFailed(f"The worker ended with code {process.returncode}; its log has the reason")


def _object(response: httpx.Response) -> dict[str, object]:
    response.raise_for_status()
    body: dict[str, Any] = response.json()
    return body
