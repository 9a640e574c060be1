"""How much RAM it takes to decode a video into a file, by the number of its frames.

    python -m benchmark.video_decoding [--family NAME …] [--frames 17 129] [--side 128]

Small random autoencoders decode latents on the CPU, each in a process of its own, as three nodes do it: one that gets
all frames in one tensor (`held`), SaveVideo and SaveWEBM behind VAEDecode (`streamed`), and the same behind
VAEDecodeTiled with 16 frames a tile (`tiled`). HunyuanVideo's network sees all frames together, so its videos are
streamed in tiles alone. Peaks are of anonymous memory beyond that at the start, after a first short video. The result
is printed and written to benchmark/results/video_decoding.json. Linux alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmark.loading_peak import MIB, watched
from benchmark.machine import describe_cpu
from engine.checkpoints.load import LoadTypes
from engine.checkpoints.random_weights import random_networks
from engine.families.registry import family_named
from engine.media.video_files import Frames, write_mp4
from engine.memory.model_memory import ModelMemory
from engine.settings import EngineSettings
from engine.values.video_vae import VideoVae, vae_of

RESULTS = Path(__file__).parent / "results" / "video_decoding.json"
FAMILIES = ("wan", "ltx_video", "hunyuan_video")
FRAMES = (17, 129)
MODES = ("held", "streamed", "tiled")
SIDE_PX = 128
TILE_FRAMES, SHARED_FRAMES = 16, 8
ALLOWED_GROWTH_MIB = 12  # that the allocator and the pictures in the encoder may add


def make_vae(family: str) -> VideoVae:
    """Make a family's small autoencoder with random weights."""
    _, _, network = random_networks("small", 1, LoadTypes(vae=torch.float32), family=family_named(family))
    vae = vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", network, role="vae"))
    assert isinstance(vae, VideoVae)
    return vae


def decoded(vae: VideoVae, mode: str, num_frames: int, side_px: int) -> Frames | None:
    """Return the frames of a video in one of the three ways, None where a network has no such way."""
    cells = side_px // vae.upscale_ratio
    generator = torch.Generator().manual_seed(num_frames)
    shape = (1, vae.latent_channels, vae.num_latent_frames(num_frames), cells, cells)
    samples = torch.randn(shape, generator=generator)
    if mode == "held":
        return vae.decode(samples).flatten(0, 1)
    if mode == "streamed":
        return vae.frame_stream(samples)
    tile, shared = max(2, TILE_FRAMES // vae.frames_ratio), max(1, SHARED_FRAMES // vae.frames_ratio)
    return vae.tiled_frame_stream(samples, cells, cells, 1, tile, shared)


def measure(family: str, mode: str, num_frames: int, side_px: int) -> float | None:
    """Return the peak of memory in MiB while a video is decoded and written."""
    vae = make_vae(family)
    with tempfile.TemporaryDirectory() as folder:
        write = partial(write_mp4, Path(folder) / "a.mp4", frame_rate=Fraction(16), tags={})
        first = decoded(vae, mode, 1 + vae.frames_ratio, side_px)
        if first is None:
            return None
        write(images=first)
        del first
        with watched() as most:
            frames = decoded(vae, mode, num_frames, side_px)
            assert frames is not None
            write(images=frames)
    return round(most() / MIB, 1)


def measure_apart(family: str, mode: str, num_frames: int, side_px: int) -> float | None:
    """Measure in a process of its own, in which nothing was freed before that could be used again."""
    call = [family, mode, str(num_frames), str(side_px)]
    command = [sys.executable, "-m", "benchmark.video_decoding", "--measure", *call]
    found: float | None = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the RAM of decoding a video by its number of frames.")
    parser.add_argument("--family", action="append", help="repeatable")
    parser.add_argument("--frames", type=int, nargs="+", default=FRAMES)
    parser.add_argument("--side", type=int, default=SIDE_PX, help="of the frames, in pixels")
    parser.add_argument("--measure", nargs=4, metavar="VALUE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        family, mode, num_frames, side_px = arguments.measure
        print(json.dumps(measure(family, mode, int(num_frames), int(side_px))))
        return 0
    peaks: dict[str, Any] = {}
    with ThreadPoolExecutor() as pool:  # processes of their own: memory is measured, not time
        calls = {
            (family, mode): [
                pool.submit(measure_apart, family, mode, number, arguments.side) for number in arguments.frames
            ]
            for family in arguments.family or FAMILIES
            for mode in MODES
        }
        for (family, mode), measured in calls.items():
            peaks.setdefault(family, {})[mode] = [call.result() for call in measured]
    growths = [row[-1] - row[0] for modes in peaks.values() for mode, row in modes.items() if mode != "held" and row[0]]
    result = {
        "machine": describe_cpu(), "side_px": arguments.side, "frames": list(arguments.frames),
        "frame_mib": round(arguments.side**2 * 12 / MIB, 2), "peak_mib": peaks, "largest_growth_mib": max(growths),
    }  # fmt: skip
    text = json.dumps(result, indent=2) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0 if max(growths) <= ALLOWED_GROWTH_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
