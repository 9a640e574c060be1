"""Everything that needs a GPU, in one call: `python benchmark/gpu.py --out DIR [--minutes 9] [--only NAME,NAME]`.

Each part is a process of its own with its own time, so that a crash, a hang or a spoilt CUDA context costs that part
alone. After every part DIR has all that is known until then, on the disk: `gpu.json`, the same as a line of
`gpu.jsonl` for each part, `table.md` with the figures beside their goals, floors and peers, and `log.txt`. The parts,
their order and what each decides are in `benchmark/gpu_schedule.py` and docs/benchmark.md.

Weights are random, and those of full size are drawn on the device: nothing is downloaded. It needs this repository,
torch, numpy, Pillow, safetensors and, for the tests, pytest. Peers are measured where `--peers DIR` has them
(`benchmark/gpu_peers.sh`). Without a GPU, or with `--toy`, everything runs at toy size to prove the script itself; the
figures then mean nothing and `is_toy` says so. What fails or dies is reported as data: the exit code is 0 once all
parts ran, and 1 where one was skipped for lack of time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmark.gpu_files import LINES, LOG, REPORT, TABLE, append_line, read_object, write_whole  # noqa: E402
from benchmark.gpu_process import BoundedLog, RunningPart, Start, reason_of  # noqa: E402
from benchmark.gpu_schedule import CLOSING_SECONDS, Part, budget, chosen, may_begin, told_seconds  # noqa: E402
from benchmark.gpu_table import rows_of, table  # noqa: E402

POLL_SECONDS = 0.05
DEFAULT_MINUTES = 9.0
EXIT_STOPPED = 143
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StoppedError(Exception):
    """The call was asked to end."""


class Call:
    """One call: its parts, their time, and the files."""

    def __init__(self, folder: Path, parts: Sequence[Part], minutes: float, start: Start, results: Path) -> None:
        self._folder = folder
        self._waiting = list(parts)
        self._limit = minutes * 60
        self._start = start
        self._results = results
        self._began = time.monotonic()
        self._running: dict[str, tuple[Part, RunningPart]] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        self._names = [part.name for part in parts]
        self._was_stopped = False

    @property
    def left_seconds(self) -> float:
        return self._limit - (time.monotonic() - self._began)

    def run(self) -> None:
        """Run all parts in their order. Raises what interrupts it, with all children ended and the files written."""
        try:
            self.write()
            while self._waiting or self._running:
                self._begin_due()
                self._end_due()
                if self._running:
                    time.sleep(POLL_SECONDS)
        except BaseException as error:
            self._stop(f"stopped: {type(error).__name__}")
            raise

    def write(self) -> None:
        """Write the report and its table."""
        report = self.report()
        write_whole(self._folder / REPORT, json.dumps(report, indent=1) + "\n")
        write_whole(self._folder / TABLE, table(report) + "\n")

    def report(self) -> dict[str, Any]:
        """Return all that is known now."""
        parts = {name: self.entries[name] for name in self._names if name in self.entries}
        machine = parts.get("machine", {}).get("figures", {})
        told = {name: bool(entry["is_toy"]) for name, entry in parts.items() if "is_toy" in entry}
        is_toy = bool(told) and all(told.values())
        # A card that is lost on the way makes toys of the parts after it: their figures are none of the card's.
        measured = {name: entry for name, entry in parts.items() if is_toy or not told.get(name)}
        return {
            "version": 2,
            "is_toy": is_toy,
            "device": next((entry["device"] for entry in measured.values() if entry.get("device")), None),
            "machine": {name: machine.get(name) for name in ("name", "torch", "cuda", "cudnn", "python", "triton")},
            "minutes": self._limit / 60,
            "total_seconds": round(time.monotonic() - self._began, 1),
            "is_finished": len(self.entries) == len(self._names) and not self._was_stopped,
            "not_done": {name: entry["reason"] for name, entry in parts.items() if entry["reason"]},
            "rows": rows_of(measured, is_toy=is_toy),
            "parts": parts,
        }

    def _begin_due(self) -> None:
        while self._waiting:
            part = self._waiting[0]
            if not may_begin(part, [item for item, _ in self._running.values()]):
                return
            self._waiting.pop(0)
            limit = budget(part, self.left_seconds)
            if limit is None:
                left = max(0.0, self.left_seconds - CLOSING_SECONDS)
                reason = f"skipped: {left:.0f} s were left, it needs {part.least_seconds:.0f}"
                self._note(part, {"status": "skipped", "reason": reason, "seconds": 0.0})
                continue
            print(f"{part.name} ... (at most {limit:.0f} s, {self.left_seconds:.0f} s left)", flush=True)
            self._running[part.name] = part, self._start(part.name, limit)

    def _end_due(self) -> None:
        for part, process in list(self._running.values()):
            code = process.poll()
            if code is not None:
                self._ended(part, process, reason_of(
                    code, was_killed=process.was_killed, limit_seconds=process.limit_seconds
                ))  # fmt: skip

    def _ended(self, part: Part, process: RunningPart, reason: str | None) -> None:
        del self._running[part.name]
        found = read_object(self._results / f"{part.name}.json")
        if reason is None and not found.get("is_complete"):
            reason = "it ended without a report"
        status = "done" if reason is None else "failed"
        times = {"seconds": round(process.seconds, 1), "limit_seconds": round(process.limit_seconds, 1)}
        self._note(part, {"status": status, "reason": reason, **times, **found})

    def _note(self, part: Part, entry: dict[str, Any]) -> None:
        """Record how a part ended, in all files."""
        whole = {"name": part.name, "about": part.about, "failures": {}, "figures": {}, **entry}
        self.entries[part.name] = whole
        append_line(self._folder / LINES, whole)
        self.write()
        failures = len(whole["failures"])
        state = whole["reason"] or (f"{failures} of its figures failed" if failures else "done")
        print(f"{part.name}: {state}, {whole['seconds']:.0f} s", flush=True)

    def _stop(self, reason: str) -> None:
        self._was_stopped = True
        for part, process in list(self._running.values()):
            process.kill()
            self._ended(part, process, reason)
        for part in self._waiting:
            self._note(part, {"status": "skipped", "reason": reason, "seconds": 0.0})
        self._waiting.clear()


def part_command(name: str, results: Path, seconds: float, asked: argparse.Namespace) -> list[str]:
    """Return the command of a part's process."""
    command = [sys.executable, "-u", "-m", "benchmark.gpu_parts", name, "--out", str(results / f"{name}.json")]
    command += ["--seconds", f"{seconds:.1f}", "--base", str(results)]
    if asked.toy:
        command.append("--toy")
    if asked.peers is not None:
        command += ["--peers", str(asked.peers.absolute())]
    return command


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Raise what ends the call; a second request changes nothing."""
    for signal_number in ENDING_SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    raise StoppedError


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES, help="the whole call ends before this")
    parser.add_argument("--only", default=None, metavar="NAME,NAME", help="parts to run")
    parser.add_argument("--peers", type=Path, default=None, help="folder that benchmark/gpu_peers.sh made")
    parser.add_argument("--toy", action="store_true", help="toy size even with a GPU")
    asked = parser.parse_args(arguments)
    names = None if asked.only is None else [name.strip() for name in asked.only.split(",") if name.strip()]
    try:
        asked.parts = chosen(names, is_toy=asked.toy or not has_gpu())
    except ValueError as error:
        parser.error(str(error))
    return asked


def has_gpu() -> bool:
    """Return True where the system shows a GPU; whether torch can use it is decided by each part."""
    return any(
        Path(path).exists() for path in ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/kfd", "/dev/dxg")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parse(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    for signal_number in ENDING_SIGNALS:
        signal.signal(signal_number, stop)
    log = BoundedLog(asked.out / LOG)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as name:
        results = Path(name)

        def start(part: str, limit_seconds: float) -> RunningPart:
            command = part_command(part, results, told_seconds(limit_seconds), asked)
            return RunningPart(part, command, ROOT, limit_seconds, log, environment)

        call = Call(asked.out, asked.parts, asked.minutes, start, results)
        try:
            call.run()
        except StoppedError:
            return EXIT_STOPPED
        finally:
            log.sync()
            log.close()
            print(table(call.report()), flush=True)
    return 1 if any(entry["status"] == "skipped" for entry in call.entries.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
