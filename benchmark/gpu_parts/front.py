"""The worker around the engine: how long the engine stands idle while jobs wait for uploads and downloads."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmark.gpu_parts.bench import ROOT, Bench, is_installed

# Of the worker, and of the benchmark; a bare GPU machine has few of them.
NEEDED = ("structlog", "fastapi", "pydantic", "pydantic_settings", "sqlalchemy", "uvicorn", "botocore", "rich", "httpx")
JOBS, TOY_JOBS = 6, 2


def measure(bench: Bench) -> None:
    missing = [name for name in NEEDED if not is_installed(name)]
    if missing:
        bench.note("front", f"not there: {', '.join(missing)}")
        return
    bench.attempt("idle", note_idle, bench)


def note_idle(bench: Bench) -> None:
    file = bench.own / "idle.json"
    command = [sys.executable, "-m", "benchmark.gpu_idle", "--output", str(file)]
    command += ["--jobs", str(TOY_JOBS if bench.is_toy else JOBS)]
    subprocess.run(command, cwd=ROOT, timeout=max(5.0, bench.left_seconds - 1), check=True)
    found = json.loads(file.read_text(encoding="utf-8"))
    bench.note("rows", found["rows"])
    bench.note("idle_share", max(row["engine_idle_share"] for row in found["rows"]))
