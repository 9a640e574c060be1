"""Every damaged model file is read or refused by name, in bounded time and memory."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.weight_file import all_tensors, open_weights
from darkroom.engine.models.embeddings import embedding_rows
from darkroom.engine.models.kinds.load_hypernetwork import load_hypernetwork
from darkroom.engine.models.kinds.load_upscaler import load_upscaler
from darkroom.engine.models.load import LoadTypes, load_unet
from tests.engine.formats.fuzzed_files import KINDS

MOST_SECONDS = 2.0  # of the processor, for a file of some kilobytes
MOST_BYTES = 300 << 20


def read_weights(path: Path) -> None:
    """Open a file and touch every byte of its tensors."""
    file = open_weights(path)
    for tensor in all_tensors(file).values():
        tensor.clone()
    for load in (load_upscaler, lambda path: load_unet(path, LoadTypes())):
        with pytest.raises(BadModelFile):
            load(path)


def read_embedding(path: Path) -> None:
    assert embedding_rows(path, key="clip_l", width=8).ndim in (1, 2)


def read_hypernetwork(path: Path) -> None:
    load_hypernetwork(path, torch.float32)


def read_lora(path: Path) -> None:
    """Read a LoRA; the node's error for one that is incomplete names the tensor."""
    tensors = all_tensors(open_weights(path))
    try:
        lora_patches(tensors, {key: key for key in "abcd"}, warn=False)
    except ValueError as error:
        assert str(error).startswith("LoRA: ")


READERS: dict[str, Callable[[Path], None]] = {
    "embedding": read_embedding,
    "old embedding": read_embedding,
    "hypernetwork": read_hypernetwork,
    "lora": read_lora,
}


def fuzz(kind: str, folder: Path, num_files: int) -> dict[str, float]:
    """Read damaged files and return figures. Fails for any error but `BadModelFile`, with the file's number."""
    name, whole, damage = KINDS[kind]
    content, read = whole(), READERS.get(kind, read_weights)
    path = folder / name
    path.write_bytes(content)
    read(path)
    num_refused, slowest = 0, 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(num_files):
        path.unlink()
        path.write_bytes(damage(content, random.Random(f"{kind} {number}")))
        began = time.process_time()
        try:
            read(path)
        except BadModelFile as refused:
            num_refused += 1
            assert refused.file_name == name and len(str(refused)) < 2000
        except Exception as error:
            raise AssertionError(f"{kind}, file {number}: {error!r}") from error
        slowest = max(slowest, time.process_time() - began)
        assert slowest < MOST_SECONDS, f"{kind}, file {number}: {slowest:.1f} s"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MOST_BYTES, f"{kind}: {grown >> 20} MiB"
    return {"files": num_files, "refused": num_refused, "slowest_seconds": round(slowest, 3), "bytes": grown}


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    figures = fuzz(kind, tmp_path, 200)
    assert figures["refused"] > 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_damaged_files_are_read_or_refused_by_name(
    kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    for name, value in fuzz(kind, tmp_path, 10_000).items():
        record_property(name, value)
