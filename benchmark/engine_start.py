"""Time of an engine from the start of its process to its first answer, and to its first finished prompt.

    python -m benchmark.engine_start [--repeats 5] [--comfyui DIR [--comfyui-python PYTHON]]

Both engines are started the same way: on the CPU, on an empty base directory, asked for `/system_stats` every 5 ms,
then given a prompt of two nodes (EmptyImage, SaveImage) whose history entry is awaited. Without a ComfyUI to start
beside ours the time measured for it before stands in: 6.6 s on two cores. Times are medians, in seconds; ratios are
ComfyUI's time over ours. The result is printed and written to benchmark/results/engine_start.json.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.machine import describe_cpu, installed_environment

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "engine_start.json"
BAR_SECONDS = 1.7
COMFYUI_BEFORE_SECONDS = 6.6
GIVE_UP_SECONDS = 120.0
LOOK_SECONDS = 0.005
PROMPT = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 0}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "start"}},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int, method: str, path: str, body: Any = None) -> Any:
    """The answer's JSON; None while there is none."""
    connection = HTTPConnection("127.0.0.1", port, timeout=GIVE_UP_SECONDS)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return json.loads(response.read()) if response.status == 200 else None
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def wait_until(process: subprocess.Popen[bytes], is_done: Callable[[], Any]) -> None:
    """Raises RuntimeError when the process ends, or nothing comes of it in time."""
    until = time.perf_counter() + GIVE_UP_SECONDS
    while not is_done():
        if process.poll() is not None or time.perf_counter() > until:
            raise RuntimeError(f"the engine did not start (exit code {process.returncode})")
        time.sleep(LOOK_SECONDS)


def start_once(command: Sequence[str], directory: Path) -> tuple[float, float]:
    """Seconds from the start of the process to its first answer, and to the end of its first prompt."""
    with tempfile.TemporaryDirectory() as base:
        port = free_port()
        for name in ("models", "input", "output", "custom_nodes"):
            Path(base, name).mkdir()
        arguments = ["--cpu", "--port", str(port), "--base-directory", base, "--disable-all-custom-nodes"]
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=directory,
            env=installed_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(process, lambda: ask(port, "GET", "/system_stats"))
            answered = time.perf_counter() - began
            wait_until(process, lambda: ask(port, "POST", "/prompt", {"prompt": PROMPT, "prompt_id": "start"}))
            wait_until(process, lambda: ask(port, "GET", "/history/start"))
            return answered, time.perf_counter() - began
        finally:
            process.terminate()
            process.wait()


def measure(command: Sequence[str], directory: Path, repeats: int) -> dict[str, Any]:
    """Medians over `repeats` starts; one more before them fills the file cache."""
    start_once(command, directory)
    times = [start_once(command, directory) for _ in range(repeats)]
    return {
        "first_answer_seconds": round(statistics.median(answered for answered, _ in times), 3),
        "first_prompt_seconds": round(statistics.median(done for _, done in times), 3),
        "starts": repeats,
    }


def report(ours: dict[str, Any], comfyui: dict[str, Any] | None) -> dict[str, Any]:
    """Return the report to write. `comfyui` None stands for the time measured before."""
    beside = comfyui or {"first_answer_seconds": COMFYUI_BEFORE_SECONDS, "first_prompt_seconds": None, "starts": 0}
    ratios = {
        key: round(beside[key] / ours[key], 2) if beside[key] else None
        for key in ("first_answer_seconds", "first_prompt_seconds")
    }
    return {
        "machine": describe_cpu(),
        "bar_seconds": BAR_SECONDS,
        "is_met": ours["first_answer_seconds"] <= BAR_SECONDS,
        "ours": ours,
        "comfyui": {**beside, "is_from_this_run": comfyui is not None},
        "ratios": ratios,
    }


def show(found: dict[str, Any]) -> None:
    table = Table("", "ours", "ComfyUI", "ratio", title="seconds from the start of the process")
    for key, name in (("first_answer_seconds", "first answer"), ("first_prompt_seconds", "first prompt done")):
        other = found["comfyui"][key]
        table.add_row(
            name, f"{found['ours'][key]:.2f}", f"{other:.2f}" if other else "-", str(found["ratios"][key] or "-")
        )
    Console().print(table)
    if not found["comfyui"]["is_from_this_run"]:
        Console().print("ComfyUI's time is one measured before, not in this run.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--comfyui", type=Path, default=None, help="a ComfyUI checkout to start beside ours")
    parser.add_argument("--comfyui-python", default=sys.executable, help="the interpreter that has its requirements")
    parser.add_argument("--note", default=None, help="anything a reader of the result must know")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    ours = measure([sys.executable, "-m", "darkroom.engine"], ROOT, given.repeats)
    comfyui = None
    if given.comfyui is not None:
        comfyui = measure([given.comfyui_python, "main.py"], given.comfyui, given.repeats)
    found = report(ours, comfyui) | ({"note": given.note} if given.note else {})
    show(found)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if found["is_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
