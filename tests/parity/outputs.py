"""Comparison of outputs with the reference's: latents, audio and meshes by distance, images by pixels, texts."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load

MESH_DISTANCE = 1e-4
OLD_LATENT_SCALE = 0.18215
"""Latent files without a version mark hold the scaled latent."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest allowed differences: latents and audio by relative L2 distance, images in levels of 255."""

    latent_rel_l2: float = 1e-3
    png_mean: float = 1.0
    png_max: float = 8.0
    audio_rel_l2: float = 1e-3

    def with_own(self, own: Mapping[str, Any]) -> Tolerance:
        """Return this tolerance with those limits in place of its own that a case brings."""
        return replace(self, **{item.name: own[item.name] for item in fields(self) if item.name in own})


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measurement of one output; `problem` is empty where it is within the tolerance."""

    measured: str
    problem: str = ""
    difference: float = math.inf
    """Relative L2 distance, largest difference of pixels of 1.0 or of vertices; infinite where nothing was measured."""


def compare_outputs(
    expected: Mapping[str, bytes], found: Mapping[str, bytes], tolerance: Tolerance
) -> list[Comparison]:
    """Compare all outputs of a case; missing and surplus ones are problems."""
    results = []
    if not expected or expected.keys() != found.keys():
        results.append(Comparison("", f"outputs: got {sorted(found)}, expected {sorted(expected)}"))
    for name in sorted(expected.keys() & found.keys()):
        results.append(compare_output(name, expected[name], found[name], tolerance))
    return results


def compare_output(name: str, expected: bytes, found: bytes, tolerance: Tolerance) -> Comparison:
    """Compare one output by the kind that its ending says."""
    if name.endswith(".latent"):
        return _compare_latents(name, expected, found, tolerance.latent_rel_l2)
    if name.endswith(".glb"):
        return _compare_meshes(name, expected, found)
    if name.endswith(".txt"):
        return _compare_texts(name, expected, found)
    if name.endswith(".flac"):
        return _compare_audio(name, _audio(expected), _audio(found), tolerance.audio_rel_l2)
    if name.endswith(".exr"):
        return _compare_arrays(name, _floats(expected), _floats(found), tolerance)
    return _compare_images(name, expected, found, tolerance)


def _compare_texts(name: str, expected: bytes, found: bytes) -> Comparison:
    if expected == found:
        return Comparison(f"{name} equal", difference=0.0)
    return Comparison("", f"{name}: got {found!r}, expected {expected!r}")


def _compare_latents(name: str, expected: bytes, found: bytes, limit: float) -> Comparison:
    wanted, given = _latent(expected), _latent(found)
    if wanted.shape != given.shape:
        return Comparison("", f"{name}: got shape {given.shape}, expected {wanted.shape}")
    distance = float(np.linalg.norm(wanted - given)) / max(float(np.linalg.norm(wanted)), 1e-12)
    text = f"{name} rel={distance:.2e}"
    return Comparison(text, "" if distance <= limit else f"{text} > {limit:g}", distance)


def _compare_meshes(name: str, expected: bytes, found: bytes) -> Comparison:
    """Compare corners by distance, in a mesh that is 2 wide, and triangles by equality."""
    (wanted, triangles), (given, own) = _mesh(expected), _mesh(found)
    if wanted.shape != given.shape or not np.array_equal(triangles, own):
        found_counts, counts = (f"{len(corners)} corners" for corners in (given, wanted))
        return Comparison("", f"{name}: got {found_counts}, expected {counts} and the same triangles")
    distance = float(np.abs(wanted - given).max())
    text = f"{name} distance={distance:.2e}"
    return Comparison(text, "" if distance <= MESH_DISTANCE else f"{text} > {MESH_DISTANCE:g}", distance)


def _mesh(data: bytes) -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
    """Read the corners and the indices of triangles of a binary glTF file with one mesh."""
    (length,) = struct.unpack_from("<I", data, 12)
    description = json.loads(data[20 : 20 + length])
    binary = data[28 + length :]
    parts = [binary[view["byteOffset"] :][: view["byteLength"]] for view in description["bufferViews"]]
    return np.frombuffer(parts[0], np.float32).reshape(-1, 3), np.frombuffer(parts[1], np.uint32)


def _compare_audio(name: str, wanted: NDArray[np.float64], given: NDArray[np.float64], limit: float) -> Comparison:
    if wanted.shape != given.shape:
        return Comparison("", f"{name}: got {given.shape[0]} samples and channels, expected {wanted.shape[0]}")
    distance = float(np.linalg.norm(wanted - given)) / max(float(np.linalg.norm(wanted)), 1e-12)
    text = f"{name} rel={distance:.2e}"
    return Comparison(text, "" if distance <= limit else f"{text} > {limit:g}", distance)


def _compare_images(name: str, expected: bytes, found: bytes, tolerance: Tolerance) -> Comparison:
    wanted, given = Image.open(io.BytesIO(expected)), Image.open(io.BytesIO(found))
    if (wanted.size, wanted.mode) != (given.size, given.mode):
        return Comparison("", f"{name}: got {given.mode} {given.size}, expected {wanted.mode} {wanted.size}")
    return _compare_arrays(name, np.asarray(wanted, np.float64), np.asarray(given, np.float64), tolerance)


def _compare_arrays(
    name: str, wanted: NDArray[np.float64], given: NDArray[np.float64], tolerance: Tolerance
) -> Comparison:
    """Compare images of one shape, in levels of 255."""
    if wanted.shape != given.shape:
        return Comparison("", f"{name}: got shape {given.shape}, expected {wanted.shape}")
    difference = np.abs(wanted - given)
    mean, largest = float(difference.mean()), float(difference.max())
    text = f"{name} mean={mean:.3f} max={largest:g}"
    is_close = mean <= tolerance.png_mean and largest <= tolerance.png_max
    limits = f"mean {tolerance.png_mean:g} max {tolerance.png_max:g}"
    return Comparison(text, "" if is_close else f"{text} > {limits}", largest / 255)


def _floats(data: bytes) -> NDArray[np.float64]:
    """Read an OpenEXR file of three channels, 0..1 as levels of 255."""
    with av.open(io.BytesIO(data), mode="r", format="exr_pipe") as container:
        frame = next(container.decode(video=0))
    return frame.to_ndarray(format="gbrpf32le").astype(np.float64) * 255


def _audio(data: bytes) -> NDArray[np.float64]:
    """Read an audio file as one row of samples, with its rate behind them so that it is compared too."""
    with av.open(io.BytesIO(data), mode="r") as container:
        stream = container.streams.audio[0]
        frames = [frame.to_ndarray().astype(np.float64).ravel() for frame in container.decode(stream)]
        levels = np.iinfo(np.int16).max if stream.format.bytes == 2 else np.iinfo(np.int32).max
        rate = stream.rate
    return np.append(np.concatenate(frames) / levels, rate / 44100)


def _latent(data: bytes) -> NDArray[np.float64]:
    tensors = load(data)
    latent: NDArray[np.float64] = tensors["latent_tensor"].astype(np.float64)
    return latent if "latent_format_version_0" in tensors else latent / OLD_LATENT_SCALE
