"""Run the parity cases against a server that speaks ComfyUI's HTTP API, and compare its outputs with the reference's.

    python -m tests.parity.compare --url http://127.0.0.1:8188 [--family NAME] [--only GLOB …]

The server's models directory holds what `python -m tests.parity.models` writes. Prints a line a case; the exit code is
1 when any case failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.parity.outputs import Tolerance, compare_outputs
from tests.parity.recorded import CASES, INPUTS, Case, find_cases
from tests.parity.server import ComfyServer, RunFailed


def compare_case(server: ComfyServer, case: Case, timeout_seconds: float) -> tuple[list[str], list[str]]:
    """Return the measurements and the faults."""
    try:
        found = server.run(case.prompt, timeout_seconds)
    except RunFailed as error:
        return [], [str(error)]
    compared = compare_outputs(case.expected(), found, Tolerance().with_own(case.tolerance()))
    return [item.measured for item in compared], [item.problem for item in compared if item.problem]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare a server's outputs with the reference's.")
    parser.add_argument("--url", default="http://127.0.0.1:8188")
    parser.add_argument("--cases", type=Path, default=CASES, help="folder with an archive or a folder a family")
    parser.add_argument("--family", default="*")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one case")
    arguments = parser.parse_args()
    server = ComfyServer(arguments.url)
    for path in sorted(INPUTS.iterdir()):
        server.upload(path)
    num_passed = num_failed = 0
    for case in find_cases(arguments.cases, arguments.family, *arguments.only):
        began = time.monotonic()
        measured, problems = compare_case(server, case, arguments.timeout)
        num_passed += not problems
        num_failed += bool(problems)
        line = ("FAIL", problems) if problems else ("ok  ", measured)
        print(f"{line[0]} {case.name} ({time.monotonic() - began:.1f} s): {'; '.join(line[1])}", flush=True)
    print(f"{num_passed} passed, {num_failed} failed")
    return 1 if num_failed or not num_passed else 0


if __name__ == "__main__":
    sys.exit(main())
