"""Surroundings in which tests run functions of the GPU benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmark.gpu_parts.bench import Bench


def bench_in(folder: Path, *, is_toy: bool = True) -> Bench:
    """Return a bench over a folder; a toy's networks are small."""
    own = folder / "own"
    own.mkdir()
    return Bench.of(out=folder / "figures.json", seconds=1e6, base=folder, own=own, peers=None, is_toy=is_toy)
