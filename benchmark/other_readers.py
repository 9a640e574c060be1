"""Readers of weights from other projects, which are measured beside the engine's where they are installed.

    pip install -c constraints.txt -e '.[readers]'

Run:ai Model Streamer (https://github.com/run-ai/runai-model-streamer) reads into RAM with several threads.
InstantTensor (https://github.com/scitix/InstantTensor) reads into the memory of a CUDA device, past the page cache
where the file is not in it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

Read = Callable[[Path], object]


def read_by_run_ai(path: Path, device: str) -> None:
    """Read all tensors and keep copies: the reader uses their memory again."""
    streamer = importlib.import_module("runai_model_streamer").SafetensorsStreamer()
    with streamer:
        streamer.stream_file(str(path))
        kept = [tensor.to(device, copy=True) for _, tensor in streamer.get_tensors()]
    assert kept


def read_by_instant_tensor(path: Path, device: str) -> None:
    """Read all tensors and keep copies: the reader uses their memory again."""
    reader = importlib.import_module("instanttensor").safe_open(
        [str(path)], framework="pt", device=torch.device(device, 0)
    )
    with reader:
        kept = [tensor.clone() for _, tensor in reader.tensors()]
    assert kept


def readers_for(device: str) -> Mapping[str, Read]:
    """Return the installed readers for a device, `cpu` or the first `cuda`, by their packages' names."""
    found = {"runai_model_streamer": read_by_run_ai}
    if device == "cuda":
        found["instanttensor"] = read_by_instant_tensor
    return {
        name: partial(read, device=device) for name, read in found.items() if importlib.util.find_spec(name) is not None
    }
