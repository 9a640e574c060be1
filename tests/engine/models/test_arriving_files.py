"""Model files that are read while they are downloaded: the same weights, and none before the file has been checked."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken, Work
from darkroom.engine.errors import BadModelFile, DownloadEnded, Interrupted
from darkroom.engine.formats.fill import Destination
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.models.store import ModelStore
from darkroom.engine.settings import EngineSettings, MemorySettings
from darkroom.worker.models.download.part_file import PartFile, PartHeader, discard, mark_checked, part_path
from tests.engine.nodes.small_store import small_store

NAME = "a.safetensors"
PLACE = f"checkpoints/{NAME}"
KEY = "diffusion_model.out.2.weight"
BLOCK_BYTES = 1 << 18


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("models") / NAME
    write_random_checkpoint(path, "small")
    return path.read_bytes()


class Download:
    """A download that goes on when the test says so."""

    def __init__(self, models: Path, content: bytes) -> None:
        self.target = models / PLACE
        self.path = part_path(models, PLACE)
        self._content = content
        self._part = PartFile.create(self.path, PartHeader("any", len(content), None, BLOCK_BYTES))
        self._at = 0

    def bring(self, num_bytes: int) -> None:
        """Bring blocks up to that many bytes."""
        while self._at < min(num_bytes, len(self._content)):
            self._part.write(self._at, self._content[self._at : self._at + BLOCK_BYTES])
            self._at += BLOCK_BYTES

    def place(self) -> None:
        mark_checked(self.path)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.path, self.target)
        discard(self.path)


@pytest.fixture
def download(tmp_path: Path, content: bytes) -> Download:
    return Download(tmp_path, content)


@pytest.fixture
def reader() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def loading(reader: ThreadPoolExecutor, models: Path, cancel: CancelToken | None = None) -> Future[Any]:
    """Load the file on a thread, as a node of a run does."""

    def load() -> Any:
        with Work(cancel).current():
            store = small_store(models)
            return store, *store.checkpoint(NAME)

    return reader.submit(load)


def test_weights_of_an_arriving_file_are_those_of_the_whole_one(
    tmp_path: Path, content: bytes, download: Download, reader: ThreadPoolExecutor
) -> None:
    whole = tmp_path / "other" / PLACE
    whole.parent.mkdir(parents=True)
    whole.write_bytes(content)
    found = loading(reader, tmp_path)
    for num_bytes in (1, len(content) // 2, len(content)):
        download.bring(num_bytes)
        assert not found.done(), "the file has not been checked"
    download.place()
    store, model, _, _ = found.result(60)
    expected, _, _ = small_store(tmp_path / "other").checkpoint(NAME)
    for name in model.weights.module.state_dict():
        assert torch.equal(model.weights.original_weight(name), expected.weights.original_weight(name)), name
    assert store.files.forget_changed() == []
    again, _, _ = store.checkpoint(NAME)
    assert again.weights is model.weights, "it is known under its name"


def store_on_card(models: Path, card_gb: float) -> ModelStore:
    memory = ModelMemory(EngineSettings(cpu=True, memory=MemorySettings(simulate_vram_gb=card_gb)))
    types = LoadTypes(torch.float16, torch.float16, torch.float16, to=Destination.SIMULATED_DEVICE)
    return ModelStore(ModelFolders(models), memory.keep, types)


@pytest.mark.parametrize("card_gb", [1.0, 0.02])
def test_weights_come_to_a_device_while_their_file_arrives(
    tmp_path: Path, content: bytes, download: Download, reader: ThreadPoolExecutor, card_gb: float
) -> None:
    """The second card holds a part of the network alone."""
    whole = tmp_path / "other" / PLACE
    whole.parent.mkdir(parents=True)
    whole.write_bytes(content)
    found = reader.submit(lambda: store_on_card(tmp_path, card_gb).checkpoint(NAME))
    for share in range(1, 9):
        download.bring(len(content) * share // 8)
    assert not found.done(), "the file has not been checked"
    download.place()
    model, _, _ = found.result(60)
    expected, _, _ = store_on_card(tmp_path / "other", card_gb).checkpoint(NAME)
    x, t = torch.ones(1, 4, 8, 8), torch.ones(1)
    text = torch.ones(1, 77, model.model.diffusion_model.config.context_dim)
    with torch.inference_mode():
        results = []
        for item in (model, expected):
            with item.in_use() as network:
                results.append(network.diffusion_model(x.half(), t.half(), text.half()))
    assert torch.equal(*results)


def test_a_file_whose_download_is_given_up_is_an_error(
    tmp_path: Path, content: bytes, download: Download, reader: ThreadPoolExecutor
) -> None:
    found = loading(reader, tmp_path)
    download.bring(len(content))
    assert not found.done()
    discard(download.path)
    with pytest.raises(DownloadEnded, match=NAME):
        found.result(60)
    with pytest.raises(BadModelFile, match="no such file"):
        small_store(tmp_path).checkpoint(NAME)


def test_a_run_that_waits_for_a_file_is_cancelled(
    tmp_path: Path, download: Download, reader: ThreadPoolExecutor
) -> None:
    cancel = CancelToken()
    found = loading(reader, tmp_path, cancel)
    download.bring(BLOCK_BYTES)
    cancel.cancel()
    with pytest.raises(Interrupted):
        found.result(60)


def test_a_header_is_read_as_soon_as_it_is_there(tmp_path: Path, download: Download) -> None:
    header_is_there = threading.Event()

    def bring() -> None:
        header_is_there.wait(60)
        download.bring(BLOCK_BYTES)

    bringing = threading.Thread(target=bring)
    bringing.start()
    header_is_there.set()
    file = SafetensorsFile(tmp_path / PLACE)
    bringing.join()
    assert f"model.{KEY}" in file.tensors


def test_an_arriving_file_is_in_no_list(tmp_path: Path, download: Download) -> None:
    store = small_store(tmp_path)
    assert store.files.folders.names("checkpoints") == []
    assert store.files.folders.path("checkpoints", NAME) is None
    assert store.files.folders.arriving_path("checkpoints", "../" + NAME) is None
