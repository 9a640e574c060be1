"""Fuzz every documented route of a running worker with schemathesis: no reply may be a fault of the worker's own.

    pip install schemathesis
    python -m tests.security.fuzz [--examples 400]

`--examples` is for each operation and phase; 400 make some 10,000 requests. The exit code is 1 when a reply was a 5xx,
when the worker logged an error or does not serve afterwards.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.security.worker_process import worker_process

KEY = "fuzz-operator-key"
SETTINGS = {
    "ADMIN_API_KEYS": f"ops:{KEY}",
    "JOB_TIMEOUT": "20",
    "MAX_QUEUE_SIZE": "100000",
    "LOG_FORMAT": "json",
}
OPTIONS = (
    *("--checks", "not_a_server_error", "--workers", "4"),
    *("--phases", "examples,fuzzing,stateful"),  # its coverage phase ends in a recursion of its own on our schema
    *("--suppress-health-check", "all", "--continue-on-failure", "--request-timeout", "90"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every documented route of a running worker.")
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    program = shutil.which("st", path=str(Path(sys.executable).parent)) or shutil.which("st")
    if program is None:
        sys.stderr.write("schemathesis: not installed; run pip install schemathesis\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, worker_process(Path(folder), **SETTINGS) as worker:
        asked = ["-H", f"Authorization: Bearer {KEY}", "-n", str(arguments.examples), "--seed", str(arguments.seed)]
        fuzzed = subprocess.run([program, "run", f"{worker.url}/openapi.json", *asked, *OPTIONS], check=False)
        errors = [line for line in worker.log.read_text().splitlines() if '"level": "error"' in line]
        sys.stdout.write("".join(f"logged: {line[:500]}\n" for line in errors[:10]))
        is_serving = worker.get("/ready").status_code == 200
    return fuzzed.returncode or int(bool(errors) or not is_serving)


if __name__ == "__main__":
    sys.exit(main())
