"""First job of a worker with an empty disk: models read while they are downloaded, against download first, then load.

    python -m benchmark.arriving_models [--megabytes-per-second 150] [--repeats 3] [--scale full] [--folder DIR]

A checkpoint of Stable Diffusion 1 with random weights is served by an HTTP server of this machine, once as one file and
once as three (text encoder, network, VAE). Each run has a fresh worker on the processor without any model, whose
manifest names the server and whose downloads are limited to the given rate. Seconds are those of its first job (64x64,
two steps) from the request to the image, in turns after the download and while it arrives. Images of both
ways are compared. The result is printed and written to benchmark/results/arriving_models.json.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web
from rich.console import Console

from benchmark.machine import describe_cpu
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.worker.cli.worker_alone import worker_alone

RESULTS = Path(__file__).parent / "results" / "arriving_models.json"
CHECKPOINT = "whole.safetensors"
PARTS: Mapping[str, tuple[str, str]] = {  # file -> its folder and the prefix of its tensors in the checkpoint
    "text.safetensors": ("text_encoders", "cond_stage_model.transformer."),
    "network.safetensors": ("diffusion_models", "model.diffusion_model."),
    "vae.safetensors": ("vae", "first_stage_model."),
}
WAYS: Mapping[str, Sequence[str] | None] = {
    "download_then_load": (sys.executable, "-c", """
from dataclasses import replace
from darkroom.worker.app.serve import serve_with
from darkroom.worker.settings.environment import load_settings
loaded = load_settings()
models = loaded.settings.models.model_copy(update={"early_seconds": 0.0})
serve_with(replace(loaded, settings=loaded.settings.model_copy(update={"models": models})))
"""),
    "load_while_it_arrives": None,
}  # fmt: skip
"""Command of the worker for each way; None is the usual one."""

START_SECONDS = 300.0
JOB_SECONDS = 1800.0


def write_files(folder: Path, scale: str) -> None:
    write_random_checkpoint(folder / CHECKPOINT, scale)
    whole = SafetensorsFile(folder / CHECKPOINT)
    for name, (_, prefix) in PARTS.items():
        own = {key: whole.tensor(key) for key in whole.tensors if key.startswith(prefix)}
        write_safetensors(folder / name, {key.removeprefix(prefix): tensor for key, tensor in own.items()})


def workflow(*, is_whole: bool) -> dict[str, Any]:
    """The job: one image, from the checkpoint or from its three parts."""
    if is_whole:
        loaders = {"1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}}}
        model, clip, vae = (["1", slot] for slot in range(3))
    else:
        names = list(PARTS)
        loaders = {
            "1": {"class_type": "CLIPLoader", "inputs": {"clip_name": names[0], "type": "stable_diffusion"}},
            "2": {"class_type": "UNETLoader", "inputs": {"unet_name": names[1], "weight_dtype": "default"}},
            "3": {"class_type": "VAELoader", "inputs": {"vae_name": names[2]}},
        }
        clip, model, vae = (["1", 0], ["2", 0], ["3", 0])
    sampled = {"seed": 1, "steps": 2, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    links = {"model": model, "positive": ["4", 0], "negative": ["4", 0], "latent_image": ["5", 0]}
    return {
        **loaders,
        "4": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse at dusk", "clip": clip}},
        "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "6": {"class_type": "KSampler", "inputs": {**sampled, **links}},
        "7": {"class_type": "VAEDecode", "inputs": {"samples": ["6", 0], "vae": vae}},
        "8": {"class_type": "SaveImage", "inputs": {"images": ["7", 0], "filename_prefix": "first"}},
    }


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder with ranges on a free port, and yield its address."""
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_static("/", folder)
    runner = web.AppRunner(app, access_log=None)

    async def start() -> str:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    address = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield address
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def first_job(
    address: str, base: Path, bytes_per_second: int, command: Sequence[str] | None, *, is_whole: bool
) -> tuple[float, str]:
    """Return the seconds of a fresh worker's first job, and the hash of its image."""
    base.mkdir(parents=True)
    files = {CHECKPOINT: "checkpoints"} | {name: kind for name, (kind, _) in PARTS.items()}
    tables = [f'[{Path(name).stem}]\nkind = "{kind}"\nsources = ["{address}/{name}"]\n' for name, kind in files.items()]
    (base / "models.toml").write_text("\n".join(tables))
    settings = {
        "BASE_DIRECTORY": str(base), "STATE_DIRECTORY": str(base / "state"), "BENCHMARK": "off", "CPU": "true",
        "FETCH_MISSING": "manifest", "MIN_FREE_MEMORY_BYTES": "0", "MODEL_BANDWIDTH": str(bytes_per_second),
    }  # fmt: skip
    with (
        (base / "log.txt").open("w+b") as log,
        worker_alone(settings, log, command) as (process, url),
        httpx.Client() as http,
    ):
        until_seconds = time.monotonic() + START_SECONDS
        while not _is_ready(http, url):
            if process.poll() is not None or time.monotonic() > until_seconds:
                raise SystemExit(f"the worker did not start:\n{(base / 'log.txt').read_text()[-2000:]}")
            time.sleep(0.1)
        body = {"input": {"workflow_json": workflow(is_whole=is_whole)}}
        began = time.perf_counter()
        answer = http.post(f"{url}/generate/sync", json=body, timeout=JOB_SECONDS)
        seconds = time.perf_counter() - began
        if answer.status_code != 200:
            raise SystemExit(f"the job failed: {answer.text[:2000]}")
        image = next((base / "output").rglob("*.png"))
        return seconds, hashlib.sha256(image.read_bytes()).hexdigest()


def _is_ready(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


def measure(folder: Path, bytes_per_second: int, repeats: int, *, is_whole: bool) -> dict[str, Any]:
    names = [CHECKPOINT] if is_whole else list(PARTS)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    images = set()
    source = folder / "source"
    with served(source) as address:
        for number in range(repeats):
            for way, command in WAYS.items():
                base = folder / f"{'whole' if is_whole else 'parts'}-{number}-{way}"
                seconds, image = first_job(address, base, bytes_per_second, command, is_whole=is_whole)
                found[way].append(seconds)
                images.add(image)
                for path in (base / "models").rglob("*.safetensors"):
                    path.unlink()
    num_bytes = sum((source / name).stat().st_size for name in names)
    medians = {f"{way}_s": round(statistics.median(times), 2) for way, times in found.items()}
    return {
        "files": len(names),
        "gigabytes": round(num_bytes / 1e9, 2),
        "megabytes_per_second": bytes_per_second // 1_000_000,
        "download_s": round(num_bytes / bytes_per_second, 2),
        **medians,
        "all_seconds": {way: [round(item, 2) for item in times] for way, times in found.items()},
        "has_equal_pictures": len(images) == 1,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes-per-second", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", choices=("full", "small"), default="full")
    parser.add_argument("--folder", type=Path, default=None, help="a folder on the disk to measure")
    parser.add_argument("--note", default=None, help="anything a reader of the result must know")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        (folder / "source").mkdir()
        write_files(folder / "source", given.scale)
        rate = given.megabytes_per_second * 1_000_000
        rows = [measure(folder, rate, given.repeats, is_whole=is_whole) for is_whole in (True, False)]
    report = {"machine": describe_cpu(), "repeats": given.repeats, "note": given.note, "rows": rows}
    given.output.write_text(json.dumps(report, indent=1) + "\n")
    Console().print_json(data=report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
