"""Seconds of a sampling step of SD1.5 on this machine's processor, beside ComfyUI, in one run.

    python -m benchmark.comfyui_speed CHECKPOINT --comfyui DIR [--comfyui-python PYTHON] [--size 256] [--rounds 3]
                                      [--starts 2]

Three engines get the same prompts over HTTP in turn: ours in float32, ours in bfloat16 (what the front chooses on a
processor that has it), ComfyUI in float32 (its default). First each is started some times by itself, and it is measured
how long after its start the first prompt, which loads the checkpoint and makes one step, is done. Then all three run. A
step is what a run of many steps takes longer than a run of few, by the times in each engine's own history; loading,
text and decoding fall out of the difference. Medians; ratios are ComfyUI's time over ours. The result is printed and
written to benchmark/results/comfyui_speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.engine_start import ask, free_port, wait_until
from benchmark.machine import describe_cpu

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "comfyui_speed.json"
FEW_STEPS, MANY_STEPS = 2, 7
LOOK_SECONDS = 0.05


@dataclass
class Engine:
    """How one is started, and what was measured of it."""

    name: str
    command: Sequence[str]
    directory: Path
    first_result_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)


def prompt_of(checkpoint: str, size_px: int, num_steps: int, seed: int) -> dict[str, Any]:
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": checkpoint}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a lighthouse at dawn"}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "blurry"}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": size_px, "height": size_px, "batch_size": 1}},
        "5": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0],
                "seed": seed, "steps": num_steps, "cfg": 7.5, "sampler_name": "euler", "scheduler": "normal",
                "denoise": 1.0,
            },
        },
        "6": {"class_type": "SaveLatent", "inputs": {"samples": ["5", 0], "filename_prefix": "speed"}},
    }  # fmt: skip


def run_prompt(port: int, prompt: Mapping[str, Any]) -> float:
    """Seconds from `execution_start` to `execution_success`, by the engine's history. Raises RuntimeError."""
    answer = ask(port, "POST", "/prompt", {"prompt": prompt})
    if answer is None:
        raise RuntimeError("the engine refused the prompt")
    prompt_id = answer["prompt_id"]
    while not (history := ask(port, "GET", f"/history/{prompt_id}")):
        time.sleep(LOOK_SECONDS)
    status = history[prompt_id]["status"]
    if status["status_str"] != "success":
        raise RuntimeError(f"the prompt failed: {status['messages']}")
    at_ms = {kind: data["timestamp"] for kind, data in status["messages"] if "timestamp" in data}
    return float(at_ms["execution_success"] - at_ms["execution_start"]) / 1000


@contextmanager
def serving(
    engine: Engine, models: Path, num_threads: int, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Run an engine, with further variables in its environment, and yield the port it serves on."""
    with tempfile.TemporaryDirectory() as base:
        for folder in ("input", "output", "custom_nodes"):
            Path(base, folder).mkdir()
        Path(base, "models").symlink_to(models.absolute())
        port = free_port()
        environment = {**os.environ, "OMP_NUM_THREADS": str(num_threads), **(environment or {})}
        process = subprocess.Popen(
            [*engine.command, "--cpu", "--port", str(port), "--base-directory", base, "--disable-all-custom-nodes"],
            cwd=engine.directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_until(process, lambda: ask(port, "GET", "/system_stats"))
            yield port
        finally:
            process.terminate()
            process.wait()


def measure(engines: Sequence[Engine], checkpoint: Path, size_px: int, *, num_rounds: int, num_starts: int) -> None:
    """Fills in what was measured."""
    models, num_threads = checkpoint.absolute().parents[1], len(os.sched_getaffinity(0))
    checkpoint.read_bytes()  # so that the first engine's reads come from memory, too
    for _ in range(num_starts):
        for engine in engines:
            began = time.monotonic()
            with serving(engine, models, num_threads) as port:
                run_prompt(port, prompt_of(checkpoint.name, size_px, 1, 0))
                engine.first_result_seconds.append(time.monotonic() - began)
    with ExitStack() as stack:
        ports = [stack.enter_context(serving(engine, models, num_threads)) for engine in engines]
        for number in range(num_rounds + 1):
            for engine, port in zip(engines, ports, strict=True):
                few = run_prompt(port, prompt_of(checkpoint.name, size_px, FEW_STEPS, number))
                many = run_prompt(port, prompt_of(checkpoint.name, size_px, MANY_STEPS, number))
                if number:  # the first round loads the checkpoint
                    engine.step_seconds.append((many - few) / (MANY_STEPS - FEW_STEPS))


def report(engines: Sequence[Engine], size_px: int) -> dict[str, Any]:
    steps = {engine.name: statistics.median(engine.step_seconds) for engine in engines}
    firsts = {engine.name: statistics.median(engine.first_result_seconds) for engine in engines}
    theirs = engines[-1].name
    return {
        "machine": describe_cpu(),
        "size_px": size_px,
        "guidance": True,
        "rounds": len(engines[0].step_seconds),
        "starts": len(engines[0].first_result_seconds),
        "seconds_per_step": {name: round(value, 3) for name, value in steps.items()},
        "spread": {engine.name: [round(value, 3) for value in engine.step_seconds] for engine in engines},
        "ratios_to_comfyui": {name: round(steps[theirs] / value, 2) for name, value in steps.items()},
        "start_to_first_result_seconds": {name: round(value, 2) for name, value in firsts.items()},
        "start_to_first_result_spread": {
            engine.name: [round(value, 2) for value in engine.first_result_seconds] for engine in engines
        },
    }


def show(found: Mapping[str, Any]) -> None:
    table = Table("engine", "s/step", "ComfyUI's time over it", "from start to the first result (load, one step), s")
    for name, seconds in found["seconds_per_step"].items():
        ratio = found["ratios_to_comfyui"][name]
        table.add_row(name, f"{seconds:.2f}", f"{ratio:.2f}", f"{found['start_to_first_result_seconds'][name]:.1f}")
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="an SD1.5 checkpoint below models/checkpoints")
    parser.add_argument("--comfyui", type=Path, required=True, help="a ComfyUI checkout")
    parser.add_argument("--comfyui-python", default=sys.executable, help="the interpreter that has its requirements")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    ours = [sys.executable, "-m", "engine"]
    engines = (
        Engine("darkroom float32", ours, ROOT),
        Engine("darkroom bfloat16", [*ours, "--bf16-unet"], ROOT),
        Engine("comfyui float32", [given.comfyui_python, "main.py"], given.comfyui),
    )
    measure(engines, given.checkpoint, given.size, num_rounds=given.rounds, num_starts=given.starts)
    found = report(engines, given.size)
    show(found)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
