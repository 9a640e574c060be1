"""A fragment shader with its images and values, and its run in a child process with a time limit.

`B` batch, `H W` pixels, `h w` those of an input. Images are float32, their first row the top one; textures begin with
the bottom row. The text of a shader comes with the prompt: the child has nothing of the engine and no environment,
limits of time and memory and a lower priority, and is killed at the time limit, on cancellation, and when the engine
ends. It is not confined to its files: drivers of OpenGL read many.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from darkroom.engine.images.shaders import opengl_process

MAX_IMAGES, MAX_NUMBERS, MAX_FLAGS, MAX_CURVES, MAX_OUTPUTS = 5, 20, 10, 4, 4
MAX_BYTES = 2 << 30
MAX_CHARACTERS = 200_000
RUN_SECONDS = 120.0
MEMORY_BYTES = 6 << 30  # images, copies in the driver, and the program
POLL_SECONDS, END_SECONDS = 0.005, 10.0
LIBRARIES = ("libEGL.so.1", "libGLESv2.so.2")
CHANNELS = 4
BYTES = 4
ENVIRONMENT = {"MESA_SHADER_CACHE_DISABLE": "true"}  # the child has no home to keep compiled shaders in
OUTPUT = re.compile(r"fragColor(\d+)")
PASSES = re.compile(r"#pragma\s+passes\s+(\d+)")

Images = Sequence[torch.Tensor]


class ShaderFailed(ValueError):
    """A shader that does not compile, is too large or exceeds the time limit, or a machine without OpenGL ES."""


@dataclass(frozen=True, slots=True)
class Shader:
    """Text of a fragment shader and the values of its uniforms: `u_float0`, `u_int0`, `u_bool0`, `u_curve0` and on."""

    text: str
    floats: Sequence[float] = ()
    ints: Sequence[int] = ()
    flags: Sequence[bool] = ()
    curves: Sequence[Sequence[float]] = ()

    @property
    def num_outputs(self) -> int:
        """Number of images that it writes: one more than the largest N of `fragColorN`, 4 at most."""
        return min(max((int(index) for index in OUTPUT.findall(self.text)), default=0) + 1, MAX_OUTPUTS)

    @property
    def num_passes(self) -> int:
        """Number of times that it runs, each on the first output of the one before: that of `#pragma passes N`."""
        found = PASSES.search(self.text)
        return 1 if found is None else max(1, int(found[1]))


def unavailable() -> str | None:
    """Return why this machine cannot run shaders, None where its libraries of OpenGL ES load."""
    for name in LIBRARIES:
        try:
            CDLL(name)
        except OSError:
            return (
                f"OpenGL ES is not installed: {name} does not load; on Debian and Ubuntu install libegl1, libgles2 "
                "and, without an NVIDIA driver for graphics, libgl1-mesa-dri"
            )
    return None


def run_shader(
    shader: Shader, images: Images, width: int, height: int, max_pixels: int, check: Callable[[], None]
) -> list[torch.Tensor]:
    """Compute the four outputs [B, H, W, 4] for each of the first image's batch; those that are not written are black.

    `images` are `u_image0` and so on, [B, h, w, C] with 3 or 4 channels. `check` raises on cancellation. Raises
    ShaderFailed.
    """
    batch = len(images[0])
    _check_sizes(shader, images, width, height, max_pixels)
    with tempfile.TemporaryDirectory(prefix="shader-") as name:
        folder = Path(name)
        _write_job(shader, images, width, height, folder)
        _run_child(folder, check)
        count = shader.num_outputs
        found = np.fromfile(folder / opengl_process.RESULT, dtype=np.float32)
    pixels = torch.from_numpy(found.reshape(batch, count, height, width, CHANNELS)).flip(2)
    black = torch.zeros(batch, height, width, CHANNELS)
    return [pixels[:, index].contiguous() if index < count else black for index in range(MAX_OUTPUTS)]


def _check_sizes(shader: Shader, images: Images, width: int, height: int, max_pixels: int) -> None:
    """Raise ShaderFailed for a text or a job that is too large, and for batches of which one is too short."""
    if len(shader.text) > MAX_CHARACTERS:
        raise ShaderFailed(
            f"fragment_shader: text is too long; got {len(shader.text)} characters, expected at most {MAX_CHARACTERS}"
        )
    batch = len(images[0])
    for index, image in enumerate(images):
        if len(image) < batch:
            raise ShaderFailed(f"images.image{index}: too few images; got {len(image)}, expected {batch} as image0 has")
        if image.shape[-1] not in (3, CHANNELS):
            raise ShaderFailed(f"images.image{index}: wrong number of channels; got {image.shape[-1]}, expected 3 or 4")
    if batch * width * height > max_pixels:
        raise ShaderFailed(
            f"size_mode: too many pixels; got {batch} images of {width}x{height}, expected at most {max_pixels} pixels"
        )
    read = sum(batch * image.shape[1] * image.shape[2] for image in images)
    num_bytes = (read + batch * width * height * shader.num_outputs) * CHANNELS * BYTES
    if num_bytes > MAX_BYTES:
        raise ShaderFailed(
            f"images: too large together with the outputs; got {num_bytes} bytes, expected at most {MAX_BYTES}"
        )


def _write_job(shader: Shader, images: Images, width: int, height: int, folder: Path) -> None:
    """Write what the child reads: the description, and the numbers of curves and images in one file."""
    job = {
        "text": shader.text,
        "width": width,
        "height": height,
        "batch": len(images[0]),
        "images": [[image.shape[1], image.shape[2]] for image in images],
        "outputs": shader.num_outputs,
        "passes": shader.num_passes,
        "floats": [float(value) for value in shader.floats],
        "ints": [int(value) for value in shader.ints],
        "flags": [bool(value) for value in shader.flags],
        "curves": [len(values) for values in shader.curves],
    }
    (folder / opengl_process.JOB).write_text(json.dumps(job), "utf-8")
    with (folder / opengl_process.NUMBERS).open("wb") as file:
        for values in (*map(np.array, shader.curves), *_textures(images)):
            file.write(np.ascontiguousarray(values, dtype=np.float32).tobytes())


def _textures(images: Images) -> Iterator[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Yield the textures [h, w, 4] of each of the batch, the bottom row first; images without alpha are opaque."""
    for index in range(len(images[0])):
        for image in images:
            texture = torch.ones(*image.shape[1:3], CHANNELS)
            texture[..., : image.shape[-1]] = image[index].cpu()
            yield texture.flip(0).numpy()


def _run_child(folder: Path, check: Callable[[], None]) -> None:
    """Run the job of a folder. Raises ShaderFailed with what the child reports, or with how it ended."""
    limits = (int(RUN_SECONDS) + 1, MEMORY_BYTES, os.getpid())
    command = [sys.executable, "-I", str(Path(opengl_process.__file__)), str(folder), *map(str, limits)]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
        env=ENVIRONMENT, start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + RUN_SECONDS
        while child.poll() is None:
            check()
            if time.monotonic() > until:
                raise ShaderFailed(f"fragment_shader: takes too long; expected at most {RUN_SECONDS:g} s")
            time.sleep(POLL_SECONDS)
    finally:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in a driver, and must not hold this thread
            child.wait(END_SECONDS)
    fault = folder / opengl_process.FAULT
    if fault.is_file():
        raise ShaderFailed(fault.read_text("utf-8", errors="replace"))
    if child.returncode:
        raise ShaderFailed(f"fragment_shader: OpenGL ES ended with code {child.returncode} while it ran the shader")
