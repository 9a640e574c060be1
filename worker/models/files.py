"""Model files on this machine: listed, and checked for completeness."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUILT_IN_FOLDER = Path(__file__).resolve().parents[2] / "engine" / "weights"
"""Models that come with the engine."""

MODEL_EXTENSIONS = frozenset({".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf"})
MAX_HEADER_BYTES = 100_000_000
CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelFile:
    name: str
    path: Path
    size_bytes: int


def list_models(models_directory: Path) -> list[ModelFile]:
    """Return every model file below the folder, by name."""
    return sorted(_model_files(models_directory), key=lambda model: model.name)


def _model_files(models_directory: Path) -> Iterator[ModelFile]:
    for path in models_directory.rglob("*"):
        name = path.relative_to(models_directory)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if path.suffix.lower() in MODEL_EXTENSIONS and not is_hidden and path.is_file():
            yield ModelFile(str(name), path, path.stat().st_size)


def find_problem(path: Path, expected: str | None = None) -> str | None:
    """Return the problem of a model file: a truncated or damaged structure, or a wrong checksum. None without one.

    `expected` is the SHA-256 that a manifest gives; without it the one that was recorded at the download counts.
    """
    problem = find_file_problem(path)
    if problem is not None:
        return problem
    recorded = checksum_path(path)
    if expected is None and recorded.is_file():
        expected = recorded.read_text().split(" ", 1)[0].strip()
    if expected is not None:
        found = sha256_of(path)
        if found != expected:
            return f"has SHA-256 {found}, expected {expected}"
    return None


def find_file_problem(path: Path, name: str = "") -> str | None:
    """Compare the header of a safetensors file with its length and return the problem; None for other kinds of file.

    `name` tells the kind where the path does not.
    """
    if Path(name or path.name).suffix.lower() not in (".safetensors", ".sft"):
        return None
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, size_bytes - 8):
            return "is not a safetensors file, or is cut off in its header"
        try:
            header = json.loads(file.read(header_bytes))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "is not a safetensors file: its header does not parse"
    expected_bytes = 8 + header_bytes + max(ends, default=0)
    if size_bytes != expected_bytes:
        return f"has {size_bytes} bytes, its header announces {expected_bytes}"
    return None


def checksum_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
