"""Everything that needs a GPU, in one call of under eight minutes: `python benchmark/gpu.py --out DIR`.

Writes `gpu.json` into DIR: it/s of SD1.5 at 512x512 for batches of 1 and 4, end to end and of the UNet alone, how fast
a checkpoint loads, what it costs that weights stay in RAM, peak memory of the device, what the device does when asked
for one thing at a time, what every strategy of tuning brings, what eight requests in one batch bring, and how far the
GPU's picture is from the CPU's. Needs only this repository, torch, numpy, Pillow and safetensors. Weights are random:
speed does not depend on them.

On a machine without a GPU everything runs at toy size, to prove the script itself; the numbers then mean nothing, and
`is_toy` says so. A part that fails is reported as such and does not stop the others; the exit code then is 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy  # noqa: E402 - the repository has to be on the path first
import torch  # noqa: E402
from PIL import Image  # noqa: E402

from benchmark.other_readers import readers_for  # noqa: E402
from benchmark.residency import Workload, measure_residency  # noqa: E402
from benchmark.tuning import measure_strategies  # noqa: E402
from engine import Engine, EngineSettings, RunRequest, device_probe  # noqa: E402
from engine.checkpoints.load import LoadedCheckpoint, LoadTypes, load_checkpoint  # noqa: E402
from engine.checkpoints.random_weights import random_networks, write_random_checkpoint  # noqa: E402
from engine.settings import DtypeSettings  # noqa: E402

CHECKPOINT = "random.safetensors"
MIB = 1024**2
RUNS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How large the runs are. `num_runs` are timed, after one that is not."""

    scale: str
    side_px: int
    num_steps: int
    num_runs: int
    compared_side_px: int
    compared_steps: int


FULL = Size("full", 512, 20, 5, 256, 4)
TOY = Size("small", 64, 2, 2, 64, 2)


@dataclass(frozen=True, slots=True)
class Bench:
    """What every part gets: the device, the sizes, a folder for checkpoints and pictures."""

    device: str
    size: Size
    base: Path

    @property
    def is_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def weight_type(self) -> torch.dtype:
        return torch.float16 if self.is_gpu else torch.float32

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()


def text_to_image(loader: dict[str, Any], *, side_px: int, num_steps: int, batch: int, seed: int) -> dict[str, Any]:
    """The workflow that is timed, in API format, with the node that brings the model in."""
    return {
        "1": loader,
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": side_px, "height": side_px, "batch_size": batch}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse at dawn", "clip": ["1", 1]}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry", "clip": ["1", 1]}},
        "5": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0],
                "positive": ["3", 0],
                "negative": ["4", 0],
                "latent_image": ["2", 0],
                "seed": seed,
                "steps": num_steps,
                "cfg": 7.0,
                "sampler_name": "euler",
                "scheduler": "normal",
                "denoise": 1.0,
            },
        },
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
        "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": "benchmark"}},
    }


def random_loader(bench: Bench) -> dict[str, Any]:
    return {"class_type": "DarkroomRandomCheckpoint", "inputs": {"family": "sd15", "scale": bench.size.scale}}


def file_loader() -> dict[str, Any]:
    return {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}}


@contextmanager
def running_engine(
    bench: Bench, *, on_cpu: bool = False, in_float32: bool = False, runs_at_once: int = 1
) -> Iterator[Engine]:
    settings = EngineSettings(
        max_concurrent_runs=runs_at_once,
        base_directory=bench.base,
        cpu=on_cpu or not bench.is_gpu,
        dtypes=DtypeSettings(force_fp32=in_float32),
        disable_all_custom_nodes=True,
    )
    engine = Engine(settings)
    try:
        yield engine
    finally:
        engine.close()


def draw(engine: Engine, prompt: dict[str, Any]) -> Path:
    """Runs a prompt to its end and names the first picture. Raises RuntimeError when there is none."""
    return begin_drawing(engine, prompt)()


def begin_drawing(engine: Engine, prompt: dict[str, Any]) -> Callable[[], Path]:
    """Submits a prompt; the function waits for its end and names the first picture, or raises RuntimeError."""
    checked = engine.check(prompt)
    failures: list[Any] = []

    def note(event: Any) -> None:
        if type(event).__name__ == "RunFailed":
            failures.append(event)

    request = RunRequest(prompt_id=f"{time.monotonic_ns()}", prompt=prompt, outputs=checked.outputs)
    future = engine.submit(request, note)

    def finish() -> Path:
        result = future.result()
        if result.status != "success":
            reason = failures[0].exception_message if failures else ""
            raise RuntimeError(f"the run ended as {result.status}: {reason}")
        shown = result.outputs["7"]["images"][0]
        return Path(engine.settings.output_path, shown["subfolder"], shown["filename"])

    return finish


def seconds_of(work: Callable[[], object], bench: Bench) -> float:
    bench.wait()
    started = time.perf_counter()
    work()
    bench.wait()
    return time.perf_counter() - started


# --- the parts --------------------------------------------------------------------------------------------------------


def measure_unet(bench: Bench, batch: int) -> dict[str, Any]:
    """The UNet alone, as guidance calls it: the batch with and without the prompt at once."""
    unet, _, _ = random_networks(bench.size.scale, 0, LoadTypes(unet=bench.weight_type), bench.device)
    cells = bench.size.side_px // 8
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(2 * batch, 4, cells, cells, generator=generator).to(
        bench.device, bench.weight_type
    )  # [2B, 4, h, w]
    context = torch.randn(2 * batch, 77, unet.config.context_dim, generator=generator).to(
        bench.device, bench.weight_type
    )  # [2B, T, D]
    timesteps = torch.full((2 * batch,), 500.0, device=bench.device)

    def steps() -> None:
        with torch.inference_mode():
            for _ in range(bench.size.num_steps):
                unet(latent, timesteps, context=context)

    steps()
    runs = [seconds_of(steps, bench) for _ in range(bench.size.num_runs)]
    return speeds(runs, bench.size.num_steps, batch)


def measure_end_to_end(bench: Bench, batch: int) -> dict[str, Any]:
    """Prompt in, PNG on disk, the model loaded already: steps and pictures a second, and the device's peak memory."""
    if bench.is_gpu:
        torch.cuda.reset_peak_memory_stats()
    with running_engine(bench) as engine:

        def run(seed: int) -> None:
            size = bench.size
            loader = random_loader(bench)
            draw(
                engine,
                text_to_image(loader, side_px=size.side_px, num_steps=size.num_steps, batch=batch, seed=seed),
            )

        first = seconds_of(lambda: run(1), bench)
        runs = [seconds_of(lambda seed=seed: run(seed), bench) for seed in range(2, 2 + bench.size.num_runs)]  # type: ignore[misc]
        peak_bytes = engine.memory_report().peak_bytes  # torch's own count begins anew with each use of a model
    return {
        **speeds(runs, bench.size.num_steps, batch),
        "first_run_seconds": round(first, 3),
        "peak_vram_mib": None if peak_bytes is None else round(peak_bytes / MIB),
    }


def speeds(runs: list[float], num_steps: int, batch: int) -> dict[str, Any]:
    median = statistics.median(runs)
    return {
        "batch": batch,
        "it_per_s": round(num_steps / median, 3),
        "it_per_s_best": round(num_steps / min(runs), 3),
        "images_per_s": round(batch / median, 4),
        "seconds": [round(run, 4) for run in runs],
    }


def measure_shared_steps(bench: Bench) -> dict[str, Any]:
    """Pictures a minute of a queue of requests, one at a time and eight whose steps share their evaluations."""
    checkpoint(bench)
    figures: dict[str, float] = {}
    widths: list[int] = []
    for way, at_once in (("one_at_a_time", 1), ("in_one_batch", RUNS_AT_ONCE)):
        with running_engine(bench, runs_at_once=at_once) as engine:
            size = bench.size
            prompts = [
                text_to_image(file_loader(), side_px=size.side_px, num_steps=size.num_steps, batch=1, seed=seed)
                for seed in range(3 * RUNS_AT_ONCE)
            ]
            warm_up, timed = prompts[:RUNS_AT_ONCE], prompts[RUNS_AT_ONCE:]  # the first ones measure widths
            for finish in [begin_drawing(engine, prompt) for prompt in warm_up]:
                finish()

            def draw_all(engine: Engine = engine, timed: list[dict[str, Any]] = timed) -> None:
                for finish in [begin_drawing(engine, prompt) for prompt in timed]:
                    finish()

            figures[way] = round(len(timed) / seconds_of(draw_all, bench) * 60, 2)
            if engine.batcher is not None:
                widths = [width for item in engine.batcher.widths_in_use for width in item.widths]
    ratio = round(figures["in_one_batch"] / figures["one_at_a_time"], 3)
    return {"pictures_per_minute": figures, "ratio": ratio, "widths": widths}


def measure_load(bench: Bench) -> dict[str, Any]:
    """A float16 checkpoint from a warm file cache into host memory, and from there to the device."""
    path = checkpoint(bench)
    size_gb = path.stat().st_size / 1e9
    types = LoadTypes(bench.weight_type, bench.weight_type, bench.weight_type)
    loaded: LoadedCheckpoint | None = load_checkpoint(path, types)
    to_host = min(seconds_of(lambda: load_checkpoint(path, types), bench) for _ in range(3))
    to_device = seconds_of(lambda: move(loaded, bench.device), bench)
    loaded = None
    with running_engine(bench) as engine:
        prompt = text_to_image(file_loader(), side_px=64, num_steps=1, batch=1, seed=1)
        first = seconds_of(lambda: draw(engine, prompt), bench)
        prompt = text_to_image(file_loader(), side_px=64, num_steps=1, batch=1, seed=2)
        again = seconds_of(lambda: draw(engine, prompt), bench)
    return {
        "file_gb": round(size_gb, 3),
        "to_host_gb_per_s": round(size_gb / to_host, 3),
        "to_device_gb_per_s": round(size_gb / to_device, 3) if bench.is_gpu else None,
        "engine_first_run_seconds": round(first, 3),
        "engine_later_run_seconds": round(again, 3),
        "engine_load_gb_per_s": round(size_gb / max(first - again, 1e-6), 3),
    }


def measure_other_readers(bench: Bench) -> dict[str, Any]:
    """GB/s of the installed readers of other projects to the device, from a warm file cache."""
    path = checkpoint(bench)
    size_gb = path.stat().st_size / 1e9
    return {
        name: round(size_gb / min(seconds_of(partial(read, path), bench) for _ in range(3)), 3)
        for name, read in readers_for(bench.device).items()
    }


def measure_device(bench: Bench) -> dict[str, Any]:
    """What explains the rest: arithmetic, memory, the way from the host; and whether a fixed product comes out right.

    Raises RuntimeError when it does not.
    """
    figures = device_probe.measure(bench.device)
    if figures.fault is not None:
        raise RuntimeError(figures.fault)
    return asdict(figures)


def measure_tuning(bench: Bench) -> dict[str, Any]:
    """Every strategy with the UNet, also those that the setting must name; the toy compiles nothing."""
    size, settings = bench.size, {"family": "sd15", "scale": bench.size.scale}
    sides = {"width_px": size.side_px, "height_px": size.side_px, "num_steps": size.num_steps}
    times = {"settle_seconds": 120.0, "turns_seconds": 1.5} if bench.is_gpu else {"turns_seconds": 0.0}
    return measure_strategies(
        {**settings, **sides, **times}, on_cpu=not bench.is_gpu, with_compiler=bench.is_gpu, base=bench.base
    )


def move(loaded: LoadedCheckpoint | None, device: str) -> None:
    if loaded is not None:
        for network in (loaded.unet, loaded.text_encoder, loaded.vae):
            network.to(device)


def compare_pictures(bench: Bench) -> dict[str, Any]:
    """The same file and seed on the CPU in float32, on the device in float32, and in the device's own types."""
    checkpoint(bench)
    size = bench.size
    prompt = text_to_image(file_loader(), side_px=size.compared_side_px, num_steps=size.compared_steps, batch=1, seed=7)
    pictures = {}
    for name, options in {
        "cpu": {"on_cpu": True, "in_float32": True},
        "float32": {"in_float32": True},
        "default": {},
    }.items():
        with running_engine(bench, **options) as engine:
            pictures[name] = numpy.asarray(Image.open(draw(engine, prompt)).convert("RGB"), dtype=numpy.float64)
    reference = pictures.pop("cpu")
    return {
        "reference_deviation": round(float(reference.std()), 3),
        **{
            f"{name}_{measure}": round(float(function(numpy.abs(picture - reference))), 4)
            for name, picture in pictures.items()
            for measure, function in (("mean", numpy.mean), ("max", numpy.max))
        },
    }


def checkpoint(bench: Bench) -> Path:
    """The file that is loaded, written on first use."""
    path = bench.base / "models" / "checkpoints" / CHECKPOINT
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_random_checkpoint(path, bench.size.scale)
    return path


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "device": measure_device,
    "unet_batch_1": lambda bench: measure_unet(bench, 1),
    "unet_batch_4": lambda bench: measure_unet(bench, 4),
    "end_to_end_batch_1": lambda bench: measure_end_to_end(bench, 1),
    "end_to_end_batch_4": lambda bench: measure_end_to_end(bench, 4),
    "load": measure_load,
    "other_readers_gb_per_s": measure_other_readers,
    "residency": lambda bench: measure_residency(
        bench.device, Workload(checkpoint(bench), bench.weight_type, bench.size.side_px, bench.size.num_runs)
    ),
    "picture": compare_pictures,
    "shared_steps": measure_shared_steps,
    "tuning": measure_tuning,
}


# --- the call ---------------------------------------------------------------------------------------------------------


def describe_machine(bench: Bench) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0) if bench.is_gpu else None
    return {
        "device": platform.processor() or platform.machine() if properties is None else properties.name,
        "vram_mib": None if properties is None else round(properties.total_memory / MIB),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "num_threads": torch.get_num_threads(),
    }


def measure(bench: Bench, limit_seconds: float) -> dict[str, Any]:
    """The report. A part that would start after `limit_seconds` is skipped and named."""
    started = time.monotonic()
    report: dict[str, Any] = {
        "is_toy": not bench.is_gpu,
        "size": asdict(bench.size),
        "machine": describe_machine(bench),
    }
    failed: list[str] = []
    for name, part in PARTS.items():
        if time.monotonic() - started > limit_seconds:
            failed.append(name)
            report[name] = {"error": f"skipped: over {limit_seconds:.0f} s"}
            continue
        print(f"{name} ...", flush=True)
        try:
            report[name] = part(bench)
        except Exception as error:  # noqa: BLE001 - one part of the benchmark
            traceback.print_exc()
            failed.append(name)
            report[name] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{name}: {json.dumps(report[name])}", flush=True)
    report["failed"] = failed
    report["total_seconds"] = round(time.monotonic() - started, 1)
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json")
    parser.add_argument("--toy", action="store_true", help="toy size even with a GPU")
    parser.add_argument("--limit-seconds", type=float, default=420.0, help="start no part after this")
    asked = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = FULL if device == "cuda" and not asked.toy else TOY
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Bench(device, size, Path(folder)), asked.limit_seconds)
    asked.out.mkdir(parents=True, exist_ok=True)
    target = asked.out / "gpu.json"
    target.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"{target} after {report['total_seconds']} s")
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
