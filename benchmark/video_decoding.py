"""RAM that decoding a video into a file takes, by the number of its frames.

    python -m benchmark.video_decoding [--family NAME …] [--frames 17 65 129] [--side 128]

Small random autoencoders decode latents on the CPU, each in a process of its own, as nodes do it: one that gets all
frames in one tensor (`held`), SaveVideo and SaveWEBM behind VAEDecode (`streamed`), and the same behind VAEDecodeTiled
with 16 frames a tile (`tiled`). SaveAnimatedWEBP and SaveAnimatedPNG behind VAEDecode are measured with Wan's alone.
Up to 65 frames HunyuanVideo's network sees all of them together, so its first rows grow. `encoder` writes frames that
are there. Cosmos-Predict2 has Wan's autoencoder.

Peaks are the kernel's, beyond the memory at the start, after a first short video; the allocator returns what is freed
(`MALLOC_MMAP_THRESHOLD_`), so that they are of memory in use. An H.264 encoder looks some 40 frames ahead: of a shorter
video it encodes most when decoding is over, of a longer one both at once. So a row may grow by what the encoder alone
takes, and no further behind those frames; animations grow by their compressed frames, which a WebP file is made of at
its end. The result is printed and written to benchmark/results/video_decoding.json. Linux alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import torch

from benchmark.loading_peak import MIB
from benchmark.machine import describe_cpu
from darkroom.engine.families.registry import family_named
from darkroom.engine.images.animations import write_animated_png
from darkroom.engine.images.encode import write_animated_webp
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.media.video_files import write_video
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.models.video_vae import VideoVae
from darkroom.engine.settings import EngineSettings

RESULTS = Path(__file__).parent / "results" / "video_decoding.json"
FAMILIES = ("wan", "wan22", "ltx_video", "mochi", "cosmos1", "hunyuan_video")
FRAMES = (17, 65, 129)
MODES = ("held", "streamed", "tiled")
ANIMATIONS, ANIMATED_FAMILY = ("animated_webp", "animated_png"), "wan"
WHOLE_UP_TO_LIMIT = "hunyuan_video"  # the family whose peak grows until its frames are too many to be decoded at once
ENCODER = "encoder"
SIDE_PX = 128
TILE_FRAMES, SHARED_FRAMES = 16, 8
ALLOWED_GROWTH_MIB = 20  # beyond what the encoder alone takes; the shortest video does not fill all tiles
ALLOWED_LATE_GROWTH_MIB = 4  # between the last two numbers of frames
EXACT = {"MALLOC_MMAP_THRESHOLD_": "131072"}


def make_vae(family: str) -> VideoVae:
    """Make a family's small autoencoder with random weights."""
    _, _, network = random_networks("small", 1, LoadTypes(vae=torch.float32), family=family_named(family))
    vae = vae_of(ModelMemory(EngineSettings(cpu=True)).keep("vae", network, role="vae"))
    assert isinstance(vae, VideoVae)
    return vae


def decoded(vae: VideoVae, mode: str, num_frames: int, side_px: int) -> torch.Tensor | FrameStream:
    """Return the frames of a video as the decoding node gives them to one that takes a tensor, or pieces too."""
    cells = side_px // vae.upscale_ratio
    generator = torch.Generator().manual_seed(num_frames)
    shape = (1, vae.latent_channels, vae.num_latent_frames(num_frames), cells, cells)
    samples = torch.randn(shape, generator=generator)
    stream = None
    if mode == "tiled":
        tile, shared = max(2, TILE_FRAMES // vae.frames_ratio), max(1, SHARED_FRAMES // vae.frames_ratio)
        stream = vae.tiled_frame_stream(samples, cells, cells, 1, tile, shared)
    elif mode != "held":
        stream = vae.frame_stream(samples)
    return vae.decode(samples).flatten(0, 1) if stream is None else stream


def write(frames: torch.Tensor | FrameStream, mode: str, folder: Path) -> None:
    """Write frames to a file as the saving node does."""
    if mode == "animated_webp":
        write_animated_webp(folder / "a.webp", frames, {}, 16.0, lossless=False, quality=80, method=0)
    elif mode == "animated_png":
        write_animated_png(folder / "a.png", frames, {}, 16.0, 1)
    else:
        write_video(folder / "a.mp4", images=frames, frame_rate=Fraction(16), tags={})


def drawn_frames(num_frames: int, side_px: int) -> FrameStream:
    """Return frames of noise, each made when it is taken."""

    def pieces() -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(num_frames):
            yield torch.rand(1, side_px, side_px, 3, generator=generator)

    return FrameStream((num_frames, side_px, side_px, 3), pieces)


def memory_bytes(field: str) -> int:
    """Return a field of /proc/self/status, `VmRSS` or its peak `VmHWM`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def measure(family: str, mode: str, numbers: Sequence[int], side_px: int) -> list[float]:
    """Return the peaks of memory in MiB while videos of so many frames are decoded and written."""
    vae = None if mode == ENCODER else make_vae(family)
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for num_frames in (9, *numbers):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
            before = memory_bytes("VmRSS")
            if vae is None:
                write(drawn_frames(num_frames, side_px), mode, Path(folder))
            else:
                write(decoded(vae, mode, num_frames, side_px), mode, Path(folder))
            peaks.append(round((memory_bytes("VmHWM") - before) / MIB, 1))
    return peaks[1:]


def measure_apart(family: str, mode: str, numbers: Sequence[int], side_px: int) -> list[float]:
    """Measure in a process of its own, whose allocator returns what is freed."""
    call = [family, mode, ",".join(map(str, numbers)), str(side_px)]
    command = [sys.executable, "-m", "benchmark.video_decoding", "--measure", *call]
    environment = {**os.environ, **EXACT}  # noqa: TID251 - of a child
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the RAM of decoding a video by its number of frames.")
    parser.add_argument("--family", action="append", help="repeatable")
    parser.add_argument("--frames", type=int, nargs="+", default=FRAMES)
    parser.add_argument("--side", type=int, default=SIDE_PX, help="of the frames, in pixels")
    parser.add_argument("--measure", nargs=4, metavar="VALUE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        family, mode, numbers, side_px = arguments.measure
        print(json.dumps(measure(family, mode, [int(number) for number in numbers.split(",")], int(side_px))))
        return 0
    encoder = measure_apart("", ENCODER, arguments.frames, arguments.side)
    peaks = {
        family: {
            mode: measure_apart(family, mode, arguments.frames, arguments.side)
            for mode in (*MODES, *(ANIMATIONS if family == ANIMATED_FAMILY else ()))
        }
        for family in arguments.family or FAMILIES
    }
    rows = {(family, mode): row for family, modes in peaks.items() for mode, row in modes.items() if mode != "held"}
    even = [row for place, row in rows.items() if place != (WHOLE_UP_TO_LIMIT, "streamed")]
    growth = round(max(row[-1] - row[0] for row in even) - max(encoder), 1)
    late_growth = round(max(row[-1] - row[-2] for row in rows.values()), 1)
    result = {
        "machine": describe_cpu(), "side_px": arguments.side, "frames": list(arguments.frames),
        "frame_mib": round(arguments.side**2 * 12 / MIB, 2), "encoder_mib": encoder, "peak_mib": peaks,
        "largest_growth_mib": growth, "largest_late_growth_mib": late_growth,
    }  # fmt: skip
    text = json.dumps(result, indent=2) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0 if growth <= ALLOWED_GROWTH_MIB and late_growth <= ALLOWED_LATE_GROWTH_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
