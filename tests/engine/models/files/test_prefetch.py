"""Model files of a prompt are read into the page cache in the background."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from queue import Queue

import pytest

from darkroom.contract.graph.facts import Facts
from darkroom.engine.formats.readahead import WORTHWHILE_BYTES
from darkroom.engine.formats.readahead import is_cached as is_range_cached
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.prefetch import FilePrefetch, files_of
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.simulated_card import GIB, engine_of, run

FILE_BYTES = 3 * WORTHWHILE_BYTES


def cold_file(path: Path) -> Path:
    """A file of which nothing is in the page cache, where the file system lets it leave."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(bytes(FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def is_cached(path: Path) -> bool:
    with path.open("rb") as file:
        return is_range_cached(file.fileno(), 0, FILE_BYTES)


def test_files_that_are_not_loaded_are_in_the_page_cache_afterwards(tmp_path: Path) -> None:
    encoder, unet = cold_file(tmp_path / "encoder.safetensors"), cold_file(tmp_path / "unet.safetensors")
    prefetch = FilePrefetch(lambda: 2 * FILE_BYTES, lambda path: path == encoder)
    was_cached = is_cached(encoder)
    prefetch.begin([encoder, unet])
    prefetch.wait()
    assert is_cached(unet) and is_cached(encoder) == was_cached


def test_a_file_larger_than_half_of_the_free_ram_is_left_alone(tmp_path: Path) -> None:
    unet = cold_file(tmp_path / "unet.safetensors")
    was_cached = is_cached(unet)
    prefetch = FilePrefetch(lambda: 2 * FILE_BYTES - 1, lambda path: False)
    prefetch.begin([unet, tmp_path / "gone.safetensors"])
    prefetch.wait()
    assert is_cached(unet) == was_cached


class EndlessReads:
    """Reads of files that go on until they are stopped."""

    def __init__(self) -> None:
        self.begun: Queue[str] = Queue()
        self.stopped: Queue[str] = Queue()

    def read(self, path: Path, stop: threading.Event) -> None:
        self.begun.put(path.name)
        if stop.wait(60):
            self.stopped.put(path.name)


def test_a_later_prompt_replaces_an_earlier_one_and_the_end_stops_the_reading(tmp_path: Path) -> None:
    first, second, later = (cold_file(tmp_path / name) for name in ("first", "second", "later"))
    reads = EndlessReads()
    prefetch = FilePrefetch(lambda: 2 * FILE_BYTES, lambda path: False, read=reads.read)
    prefetch.begin([first, second])
    assert reads.begun.get(timeout=60) == "first"
    prefetch.begin([later])
    assert reads.begun.get(timeout=60) == "later" and reads.stopped.get(timeout=60) == "first"
    assert reads.stopped.empty(), "the later prompt's file is being read"
    prefetch.end()
    assert reads.stopped.get(timeout=60) == "later" and reads.begun.empty(), "the second file was not begun"
    prefetch.end()  # of no effect


def test_files_come_in_the_order_in_which_a_prompt_needs_them(tmp_path: Path) -> None:
    kinds = ("vae", "diffusion_models", "clip_vision", "text_encoders", "loras")
    paths = {kind: cold_file(tmp_path / "models" / kind / f"{kind}.safetensors") for kind in kinds}
    cold_file(tmp_path / "models" / "text_encoders" / "clip_vision.safetensors")
    prompt = {
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "diffusion_models.safetensors"}},
        "2": {"class_type": "VAELoader", "inputs": {"vae_name": "vae.safetensors"}},
        "3": {"class_type": "CLIPLoader", "inputs": {"clip_name": "text_encoders.safetensors"}},
        "4": {"class_type": "CLIPLoader", "inputs": {"clip_name": ["9", 0]}},
        "5": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "missing.safetensors"}},
        "6": {"class_type": "CLIPVisionLoader", "inputs": {"clip_name": "clip_vision.safetensors"}},
        "7": {"class_type": "LoraLoader", "inputs": {"lora_name": "loras.safetensors"}},
    }
    found = files_of(prompt, ModelFolders(tmp_path / "models"), Facts().of)
    assert found == [paths[kind] for kind in ("text_encoders", "clip_vision", "diffusion_models", "vae")]
    assert paths["clip_vision"].parent.name == "clip_vision"


def test_an_engine_with_a_card_reads_the_files_of_a_prompt_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "darkroom.engine.models.files.prefetch")
    path = tmp_path / "models" / "checkpoints" / "small.safetensors"
    path.parent.mkdir(parents=True)
    write_random_checkpoint(path, "small")
    prompt = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": path.name}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a", "clip": ["1", 1]}},
        "3": {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}},
    }
    with engine_of(tmp_path, card_bytes=GIB) as engine:
        run(engine, prompt)
        engine.runs.prefetch.wait()
        assert caplog.text.count("small.safetensors read ahead") == 1
        assert engine.models.files.is_loaded(path) and not engine.models.files.is_loaded(tmp_path / "other")
