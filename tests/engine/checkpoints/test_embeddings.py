"""Textual inversions: where they are looked for, how a prompt names them, what a hostile file may not do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.checkpoints.embeddings import EmbeddingFinder, embedding_rows, find_embedding
from engine.errors import BadModelFile
from engine.formats.safetensors_file import write_safetensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "a.safetensors", {"emb_params": torch.ones(2, 768)})
    write_safetensors(tmp_path / "sub" / "b.safetensors", {"clip_l": torch.ones(3, 768), "clip_g": torch.ones(3, 1280)})
    torch.save({"string_to_param": {"*": torch.ones(4, 768)}, "name": "c"}, tmp_path / "c.pt")
    torch.save({"<d>": torch.ones(768)}, tmp_path / "d.bin")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("a", (2, 768)),
        ("a.safetensors", (2, 768)),
        ("sub/b", (3, 768)),
        ("b", (3, 768)),
        ("c", (4, 768)),
        ("d", (768,)),
    ],
)
def test_every_format_and_folder_is_found(folder: Path, name: str, shape: tuple[int, ...]) -> None:
    rows, left = EmbeddingFinder(lambda: [folder], key="clip_l", width=768)(f"{name} and more")
    assert rows is not None and tuple(rows.shape) == shape
    assert left == "and more"


def test_commas_after_a_name_are_text() -> None:
    rows, left = EmbeddingFinder(lambda: [], key="clip_l", width=768)("nothing, here")
    assert rows is None and left == ", here"


def test_commas_after_a_known_name_are_text(folder: Path) -> None:
    rows, left = EmbeddingFinder(lambda: [folder], key="clip_l", width=768)("a, here")
    assert rows is not None and left == ", here"


def test_a_missing_one_is_warned_about(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert EmbeddingFinder(lambda: [folder], key="clip_l", width=768)("nothing here") == (None, "here")
    assert "embedding:nothing here does not exist" in caplog.text


def test_a_name_never_leads_out_of_the_folder(folder: Path) -> None:
    assert find_embedding([folder / "sub"], "../a") is None


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"x": Path("/")}, tmp_path / "bad.pt")
    with pytest.raises(BadModelFile, match="more than weights"):
        embedding_rows(tmp_path / "bad.pt", key="clip_l", width=768)
