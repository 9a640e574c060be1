"""Seconds of a sampling step on this machine's processor, beside ComfyUI, at the same precision, in one run.

    python -m benchmark.comfyui_speed --comfyui DIR [--comfyui-python PYTHON] [--checkpoint FILE] [--families sd15 ...]
                                      [--size 256] [--rounds 3] [--starts 2]

Our engine and ComfyUI get the same prompts over HTTP in turn, each in float32 and, where the processor has
instructions for it, in bfloat16 (`--bf16-unet`; elsewhere the front does not choose it). SD1.5 is a whole checkpoint,
of random weights unless `--checkpoint` names one; it is also measured how long after an engine's start the first
prompt, which loads the checkpoint and makes one step, is done. SDXL and Flux are networks of full width and few layers
(`benchmark/layer_models.py`) with random conditioning from a node pack that both engines load. A step is what a run of
many steps takes longer than a run of few, by the times in each engine's own history; loading, text and decoding fall
out of the difference. Medians; ratios are ComfyUI's time over ours at the same precision. The result is printed and
written to benchmark/results/comfyui_speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.engine_start import ask, free_port, wait_until
from benchmark.layer_models import write_layers
from benchmark.machine import describe_cpu, installed_environment
from darkroom.engine.models.random_weights import write_random_checkpoint

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "comfyui_speed.json"
FEW_STEPS, MANY_STEPS = 2, 7
LOOK_SECONDS = 0.05
NAMES = ("darkroom", "comfyui")
PRECISIONS = ("float32", "bfloat16")
FAMILIES = ("sd15", "sdxl", "flux")
# Of the families measured by their layers: tokens and widths of the conditioning, node of the empty latent, guidance.
LAYERS: Mapping[str, tuple[int, int, int, str, float]] = {
    "sdxl": (77, 2048, 1280, "EmptyLatentImage", 7.5),
    "flux": (256, 4096, 768, "EmptySD3LatentImage", 1.0),
}
MakePrompt = Callable[[int, int], dict[str, Any]]
PACK = """
import torch


class RandomConditioning:
    CATEGORY, FUNCTION, RETURN_TYPES = "benchmark", "make", ("CONDITIONING",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {name: ("INT", {"default": 1, "max": 1 << 20}) for name in ARGUMENTS}}

    def make(self, tokens, width, pooled_width, seed):
        generator = torch.Generator().manual_seed(seed)
        pooled = torch.randn(1, pooled_width, generator=generator)
        return ([[torch.randn(1, tokens, width, generator=generator), {"pooled_output": pooled}]],)


ARGUMENTS = ("tokens", "width", "pooled_width", "seed")
NODE_CLASS_MAPPINGS = {"RandomConditioning": RandomConditioning}
"""


@dataclass
class Engine:
    """A way to start an engine, and its measurements."""

    name: str
    command: Sequence[str]
    directory: Path
    precision: str
    environment: Mapping[str, str] = field(default_factory=dict)  # further variables
    first_result_seconds: list[float] = field(default_factory=list)
    step_seconds: dict[str, list[float]] = field(default_factory=dict)  # by family
    peak_memory_mb: list[float] = field(default_factory=list)  # of each process, when it is ended


def sampled(model: list[Any], positive: str, negative: str, latent: dict[str, Any], cfg: float) -> MakePrompt:
    """Return a function that makes the sampling part of a prompt for a number of steps and a seed."""

    def nodes(num_steps: int, seed: int) -> dict[str, Any]:
        settings = {"steps": num_steps, "cfg": cfg, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
        inputs = {"model": model, "positive": [positive, 0], "negative": [negative, 0], "latent_image": ["4", 0]}
        return {
            "4": latent,
            "5": {"class_type": "KSampler", "inputs": {**inputs, **settings, "seed": seed}},
            "6": {"class_type": "SaveLatent", "inputs": {"samples": ["5", 0], "filename_prefix": "speed"}},
        }

    return nodes


def checkpoint_prompt(file: str, size_px: int) -> MakePrompt:
    """Return the prompt of a checkpoint with its own text encoder, guided."""
    loaded = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": file}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a lighthouse at dawn"}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "blurry"}},
    }
    size = {"width": size_px, "height": size_px, "batch_size": 1}
    rest = sampled(["1", 0], "2", "3", {"class_type": "EmptyLatentImage", "inputs": size}, 7.5)
    return lambda num_steps, seed: {**loaded, **rest(num_steps, seed)}


def layers_prompt(family: str, file: str, size_px: int) -> MakePrompt:
    """Return the prompt of a network alone, with random conditioning of the family's widths."""
    tokens, width, pooled, latent, cfg = LAYERS[family]
    shape = {"tokens": tokens, "width": width, "pooled_width": pooled}
    loaded = {
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": file, "weight_dtype": "default"}},
        "2": {"class_type": "RandomConditioning", "inputs": {**shape, "seed": 1}},
        "3": {"class_type": "RandomConditioning", "inputs": {**shape, "seed": 2}},
    }
    size = {"width": size_px, "height": size_px, "batch_size": 1}
    rest = sampled(["1", 0], "2", "3", {"class_type": latent, "inputs": size}, cfg)
    return lambda num_steps, seed: {**loaded, **rest(num_steps, seed)}


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
def serving(engine: Engine, models: Path, num_threads: int) -> Iterator[int]:
    """Run an engine and yield the port it serves on."""
    with tempfile.TemporaryDirectory() as base:
        for folder in ("input", "output", "custom_nodes"):
            Path(base, folder).mkdir()
        Path(base, "models").symlink_to(models.absolute())
        Path(base, "custom_nodes", "random_conditioning.py").write_text(PACK, encoding="utf-8")
        port = free_port()
        environment = {**installed_environment(), "OMP_NUM_THREADS": str(num_threads), **engine.environment}
        process = subprocess.Popen(
            [*engine.command, "--cpu", "--port", str(port), "--base-directory", base],
            cwd=engine.directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_until(process, lambda: ask(port, "GET", "/system_stats"))
            yield port
        finally:
            if process.poll() is None:
                engine.peak_memory_mb.append(peak_memory_mb(process.pid))
            process.terminate()
            process.wait()


def peak_memory_mb(pid: int) -> float:
    """Return the most memory that a process has held at once."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


def measure_starts(engines: Sequence[Engine], models: Path, make_prompt: MakePrompt, num_starts: int) -> None:
    """Measure from each engine's start to the end of a prompt of one step; the files come from the page cache."""
    for _ in range(num_starts):
        for engine in engines:
            began = time.monotonic()
            with serving(engine, models, num_threads()) as port:
                run_prompt(port, make_prompt(1, 0))
                engine.first_result_seconds.append(time.monotonic() - began)


def measure_steps(
    family: str, engines: Sequence[Engine], models: Path, make_prompt: MakePrompt, num_rounds: int
) -> None:
    """Measure the seconds of a step of a family, all engines in turn."""
    with ExitStack() as stack:
        ports = [stack.enter_context(serving(engine, models, num_threads())) for engine in engines]
        for number in range(num_rounds + 1):
            for engine, port in zip(engines, ports, strict=True):
                few = run_prompt(port, make_prompt(FEW_STEPS, number))
                many = run_prompt(port, make_prompt(MANY_STEPS, number))
                if number:  # the first round loads the model
                    found = engine.step_seconds.setdefault(family, [])
                    found.append((many - few) / (MANY_STEPS - FEW_STEPS))


def precisions(machine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the precisions to compare on a processor: bfloat16 only where it has instructions for it."""
    has_bfloat16 = machine["has_avx512_bf16"] or machine["has_amx_bf16"]
    return PRECISIONS if has_bfloat16 else PRECISIONS[:1]


def num_threads() -> int:
    return len(os.sched_getaffinity(0))


def report(engines: Sequence[Engine], families: Sequence[str], size_px: int) -> dict[str, Any]:
    """Return the medians of each family and precision, and ComfyUI's over ours."""
    ours, theirs = ({engine.precision: engine for engine in engines if engine.name == name} for name in NAMES)
    rows = []
    for family in families:
        for precision in ours:
            both = [side[precision].step_seconds[family] for side in (ours, theirs)]
            own, other = (statistics.median(found) for found in both)
            rows.append(
                {
                    "family": family,
                    "precision": precision,
                    "darkroom_seconds": round(own, 3),
                    "comfyui_seconds": round(other, 3),
                    "ratio": round(other / own, 2),
                    "spread": [[round(value, 3) for value in found] for found in both],
                }
            )
    firsts = {f"{engine.name} {engine.precision}": engine.first_result_seconds for engine in engines}
    return {
        "machine": describe_cpu(),
        "size_px": size_px,
        "guidance": {"sd15": True, **{family: LAYERS[family][-1] != 1.0 for family in LAYERS}},
        "rows": rows,
        "start_to_first_result_seconds": {
            name: round(statistics.median(found), 2) for name, found in firsts.items() if found
        },
        "start_to_first_result_spread": {name: [round(value, 2) for value in found] for name, found in firsts.items()},
    }


def show(found: Mapping[str, Any]) -> None:
    table = Table("family", "precision", "ours, s/step", "ComfyUI, s/step", "ComfyUI's time over ours")
    for row in found["rows"]:
        seconds = (f"{row[f'{name}_seconds']:.2f}" for name in NAMES)
        table.add_row(row["family"], row["precision"], *seconds, f"{row['ratio']:.2f}")
    console = Console()
    console.print(table)
    for name, seconds in found["start_to_first_result_seconds"].items():
        console.print(f"{name}: {seconds:.1f} s from start to the first result (load, one step)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=None, help="an SD1.5 checkpoint; without it random weights")
    parser.add_argument("--comfyui", type=Path, required=True, help="a ComfyUI checkout")
    parser.add_argument("--comfyui-python", default=sys.executable, help="the interpreter that has its requirements")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    commands = {"darkroom": [sys.executable, "-m", "darkroom.engine"], "comfyui": [given.comfyui_python, "main.py"]}
    folders = {"darkroom": ROOT, "comfyui": given.comfyui}
    flags = {"float32": [], "bfloat16": ["--bf16-unet"]}
    engines = [
        Engine(name, [*commands[name], *flags[precision]], folders[name], precision)
        for precision in precisions(describe_cpu())
        for name in NAMES
    ]
    with tempfile.TemporaryDirectory() as folder:
        for family in given.families:
            models = Path(folder, family)
            make_prompt = prepare(family, models, given.checkpoint, given.size)
            if family == "sd15":
                measure_starts(engines, models, make_prompt, given.starts)
            measure_steps(family, engines, models, make_prompt, given.rounds)
            shutil.rmtree(models)
    found = report(engines, given.families, given.size)
    show(found)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def prepare(family: str, models: Path, checkpoint: Path | None, size_px: int) -> MakePrompt:
    """Write or link a family's model below `models` and return the function that makes its prompts."""
    is_whole = family == "sd15"
    folder = models / ("checkpoints" if is_whole else "diffusion_models")
    folder.mkdir(parents=True)
    file = folder / f"{family}.safetensors"
    if not is_whole:
        write_layers(family, file)
        return layers_prompt(family, file.name, size_px)
    if checkpoint is None:
        write_random_checkpoint(file, "full")
    else:
        file.symlink_to(checkpoint.absolute())
    file.read_bytes()  # so that the first engine's reads come from memory, too
    return checkpoint_prompt(file.name, size_px)


if __name__ == "__main__":
    sys.exit(main())
