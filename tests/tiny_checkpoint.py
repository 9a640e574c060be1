"""A checkpoint in SD1.5's layout of some 20 MB, made once a test session."""

from __future__ import annotations

from pathlib import Path

from darkroom.engine.models.random_weights import write_random_checkpoint


def make_tiny_checkpoint(folder: Path, name: str = "tiny.safetensors") -> Path:
    path = folder / name
    if not path.exists():
        write_random_checkpoint(path, "small", seed=0)
    return path
