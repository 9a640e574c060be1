"""Textual inversions: where they are looked for, how a prompt names them, what a hostile file may not do."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.inert_pickle import MAX_BYTES, read_inert
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.log_context import NodeWarning, logged_as
from darkroom.engine.models.embeddings import EmbeddingFinder, embedding_rows, find_embedding


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
    assert "embedding:nothing does not exist and is left out of the prompt" in caplog.text


def warnings_of(folder: Path, text: str, width: int = 768) -> list[NodeWarning]:
    """Return the warnings of a node that looks up a text."""
    told: list[NodeWarning] = []
    with logged_as("prompt", "1", "CLIPTextEncode", told):
        EmbeddingFinder(lambda: [folder], key="clip_l", width=width)(text)
    return told


def test_what_is_left_out_is_reported_as_of_the_node(folder: Path) -> None:
    (folder / "damaged.pt").write_bytes(b"PK\3\4 no zip file")
    (warning,) = warnings_of(folder, "nothing here")
    assert warning.type == "embedding_left_out"
    assert warning.message == "embedding:nothing does not exist and is left out of the prompt"
    (warning,) = warnings_of(folder, "damaged")
    assert warning.message.startswith("embedding:damaged cannot be read and is left out of the prompt: damaged.pt")
    assert not warnings_of(folder, "a, here")


class Settings:
    """A class that only a trainer has."""

    def __init__(self) -> None:
        self.steps = 5


def test_the_original_trainer_s_parameters_are_read(tmp_path: Path) -> None:
    parameters = torch.nn.ParameterDict({"*": torch.nn.Parameter(torch.ones(3, 768))})
    content = {"string_to_token": {"*": 265}, "string_to_param": parameters, "name": "style", "settings": Settings()}
    torch.save(content, tmp_path / "style.pt")
    assert embedding_rows(tmp_path / "style.pt", key="clip_l", width=768).tolist() == torch.ones(3, 768).tolist()


def test_a_list_of_parameters_is_read(tmp_path: Path) -> None:
    torch.save(torch.nn.ParameterList([torch.ones(768), torch.ones(2, 768)]), tmp_path / "list.pt")
    rows = embedding_rows(tmp_path / "list.pt", key="clip_l", width=768)
    assert rows.shape[-1] == 768


class RunsCode:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code of the file ran')",)


def test_objects_beside_the_rows_run_nothing(tmp_path: Path) -> None:
    torch.save({"settings": RunsCode(), "string_to_param": {"*": torch.ones(2, 768)}}, tmp_path / "code.pt")
    assert tuple(embedding_rows(tmp_path / "code.pt", key="clip_l", width=768).shape) == (2, 768)


def test_a_program_and_what_unpacks_to_too_much_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "program.pt", "w") as archive:
        archive.writestr("program/constants.pkl", b"")
    with pytest.raises(BadModelFile, match="TorchScript"):
        read_inert(tmp_path / "program.pt")
    with zipfile.ZipFile(tmp_path / "large.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large/data/0", bytes(MAX_BYTES + 1))
    with pytest.raises(BadModelFile, match="expected at most"):
        read_inert(tmp_path / "large.pt")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"string_to_param": {"*": torch.ones(1, 2, 768)}}, "shape [1, 2, 768]"),
        ({"emb_params": [torch.ones(768), torch.ones(768)]}, "that is a list, no tensor"),
        ({"emb_params": torch.ones(2, 768, dtype=torch.int64)}, "type int64"),
        ({"emb_params": torch.ones(0, 768)}, "shape [0, 768]"),
        ({"emb_params": torch.tensor(1.0)}, "shape []"),
    ],
)
def test_what_are_no_rows_fails_with_the_file_s_name(tmp_path: Path, content: object, found: str) -> None:
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(BadModelFile) as raised:
        EmbeddingFinder(lambda: [tmp_path], key="clip_l", width=768)("odd")
    assert "odd.pt" in str(raised.value) and found in str(raised.value)


def test_a_name_never_leads_out_of_the_folder(folder: Path) -> None:
    assert find_embedding([folder / "sub"], "../a") is None


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"x": RunsCode()}, tmp_path / "bad.pt")
    with pytest.raises(BadModelFile, match="no tensor"):
        embedding_rows(tmp_path / "bad.pt", key="clip_l", width=768)


@pytest.mark.parametrize(
    "held",
    [
        lambda rows: [{"a": rows}] * 2000,
        lambda rows: {f"bundle_emb.{number}.string_to_param.*": rows for number in range(2000)},
    ],
    ids=["a list of one dictionary", "a bundle of one tensor"],
)
def test_a_file_that_holds_its_rows_many_times_is_refused_before_they_are_joined(
    tmp_path: Path, held: Callable[[torch.Tensor], object]
) -> None:
    path = tmp_path / "a.pt"
    torch.save(held(torch.ones(100, 768)), path)
    with pytest.raises(BadModelFile, match="rows of|tensors of"):
        embedding_rows(path, key="clip_l", width=768)
