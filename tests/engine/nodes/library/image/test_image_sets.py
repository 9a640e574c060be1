"""Nodes that load a folder of images with captions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from darkroom.engine.errors import BadInputFile
from darkroom.engine.images.image_sets import captions_of, images_in, read_set
from darkroom.engine.images.pixel_budget import PictureTooLarge
from darkroom.engine.nodes.library.image.image_sets import (
    InputFolder,
    load_image_set_from_folder,
    load_image_text_set_from_folder,
)
from darkroom.engine.runtime.file_scope import FETCHED_FOLDER, ForeignFile
from darkroom.engine.runtime.outputs import FileFolders
from tests.engine.nodes.small_store import node_context, small_store
from tests.engine.runtime.runs import NoFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set: two images of 4 x 2, one of 8 x 8 in a folder that counts thrice, and captions for two of them."""
    found = tmp_path / "cats"
    (found / "3_big").mkdir(parents=True)
    for name, colour, size in (("a.png", "red", (4, 2)), ("b.PNG", "lime", (4, 2)), ("3_big/c.png", "blue", (8, 8))):
        Image.new("RGB", size, colour).save(found / name)
    (found / "a.txt").write_text(" a red cat \n")
    (found / "3_big" / "c.txt").write_text("blue")
    (found / "notes.md").write_text("no image")
    return found


def test_a_set_counts_images_of_folders_as_often_as_these_say(folder: Path) -> None:
    assert [path.name for path in images_in(folder)] == ["a.png", "b.PNG"]
    found = images_in(folder, with_repeats=True)
    assert [path.name for path in found] == ["c.png"] * 3 + ["a.png", "b.PNG"]
    assert captions_of(found) == ["blue"] * 3 + ["a red cat", ""]


@pytest.mark.parametrize("count", ["50001", "9" * 200])
def test_folders_that_count_their_images_too_often_are_refused(folder: Path, count: str) -> None:
    for name in ("a.png", "b.PNG"):
        (folder / name).rename(folder / "3_big" / name)
    (folder / "3_big").rename(folder / f"{count}_big")
    with pytest.raises(ValueError, match="folder: too many images, by .*_big; expected at most 100000"):
        images_in(folder, with_repeats=True)


@pytest.mark.parametrize(("method", "corner"), [("Stretch", [0.0, 0.0, 1.0]), ("Crop", [0.0, 0.0, 1.0])])
def test_images_get_the_size_of_the_first(folder: Path, method: str, corner: list[float]) -> None:
    batch = read_set([folder / "a.png", folder / "3_big" / "c.png"], method)
    assert batch.shape == (2, 2, 4, 3)
    assert batch[1, 0, 0].tolist() == corner
    with pytest.raises(ValueError, match=r"c\.png has another size .* 8x8 px .* 4x2 px, expected one of Stretch"):
        read_set([folder / "a.png", folder / "3_big" / "c.png"], "None")


def test_a_given_size_counts_and_all_images_count_towards_the_limit(folder: Path) -> None:
    assert read_set([folder / "a.png"], "Pad", (6, None)).shape == (1, 2, 6, 3)
    with pytest.raises(PictureTooLarge):
        read_set([folder / "a.png", folder / "b.PNG"], "None", max_pixels=4096 + 7)
    with pytest.raises(ValueError, match="no images in it"):
        read_set([], "None")


class Encoder:
    """A text encoder that gives back its text."""

    def tokenize(self, text: str) -> str:
        return text

    def encode_from_tokens_scheduled(self, tokens: str) -> list[Any]:
        return [[tokens, {}]]


def test_the_nodes_load_images_and_captions(folder: Path, tmp_path: Path) -> None:
    context = node_context(small_store(tmp_path), tmp_path)
    plain = load_image_set_from_folder(context, folder="cats", resize_method="None")
    assert torch.equal(plain[:, 0, 0], torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    images, texts = load_image_text_set_from_folder(
        context, folder="cats", clip=Encoder(), resize_method="Stretch", width=4, height=4
    )
    assert images.shape == (5, 4, 4, 3)
    # An image without a caption gives two entries, as in ComfyUI.
    assert [text for text, _ in texts] == ["blue"] * 3 + ["a red cat", "", ""]


def test_images_of_other_runs_are_not_read(folder: Path, tmp_path: Path) -> None:
    fetched = tmp_path / FETCHED_FOLDER
    folder.rename(fetched)
    context = node_context(small_store(tmp_path), tmp_path)
    context.files.limit_to([f"{FETCHED_FOLDER}/a.png"], lambda: ())
    with pytest.raises(ForeignFile):
        load_image_set_from_folder(context, folder=FETCHED_FOLDER, resize_method="None")
    with pytest.raises(BadInputFile, match="no such folder"):
        load_image_set_from_folder(context, folder="..", resize_method="None")


class Files(NoFiles):
    def __init__(self, root: Path) -> None:
        self._folders = FileFolders(root, root, root)

    def input_path(self, name: str) -> Path:
        return self._folders.path(name)


def test_folders_are_offered_and_others_refused(folder: Path, tmp_path: Path) -> None:
    files, widget = Files(tmp_path), InputFolder()
    assert widget.type_in(files) == ["cats", "cats/3_big"]
    assert widget.complaint(files, "cats") is None
    for wrong in ("dogs", "../..", "cats/a.png"):
        assert "no such folder" in str(widget.complaint(files, wrong))
    before = load_image_set_from_folder.fingerprint_of(files, {"folder": "cats"})
    (folder / "a.txt").write_text("another")
    assert load_image_set_from_folder.fingerprint_of(files, {"folder": "cats"}) != before
