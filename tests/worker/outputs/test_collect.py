"""Outputs come into the job's own folder, whole and under safe names."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.errors import DeliveryFailed, OutputsTooLarge
from darkroom.worker.outputs.clean_names import clean_name, clean_subfolder
from darkroom.worker.outputs.collect import Output, collect_outputs
from darkroom.worker.outputs.listing import InlineOutput, ListedFile, listed_outputs


def write(path: Path, text: str) -> None:
    path.write_text(text)


class LocalEngine:
    """An engine whose output folder is on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def folder_of(self, kind: str) -> Path | None:
        return self.folder

    async def view(self, filename: str, subfolder: str, kind: str, target: Path, max_bytes: int | None = None) -> None:
        raise AssertionError("local files are not fetched")


class RemoteEngine:
    """An engine that gives its files by `/view` only, but for those in `missing`."""

    def __init__(self, *missing: str) -> None:
        self.missing = missing

    def folder_of(self, kind: str) -> Path | None:
        return None

    async def view(self, filename: str, subfolder: str, kind: str, target: Path, max_bytes: int | None = None) -> None:
        if filename in self.missing:
            raise DeliveryFailed(f"The engine does not have {filename} (404)")
        write(target, f"{kind}:{subfolder}/{filename}")


def saved(filename: str, subfolder: str = "", kind: str = "output") -> dict[str, str]:
    return {"filename": filename, "subfolder": subfolder, "type": kind}


@pytest.fixture
def engine(tmp_path: Path) -> LocalEngine:
    folder = tmp_path / "output"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nA")
    (folder / "sub" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nB")
    (tmp_path / "secret.txt").write_text("secret")
    return LocalEngine(folder)


async def collect(engine: Any, tmp_path: Path, outputs: dict[str, Any]) -> list[Output]:
    collected = await collect_outputs(outputs, tmp_path / "job", engine)
    return [item for item in collected if isinstance(item, Output)]


def test_every_list_counts_and_previews_do_not() -> None:
    outputs: dict[str, dict[str, Any]] = {
        "9": {"images": [saved("a.png"), saved("t.png", kind="temp"), saved("p.png", kind="preview")]},
        "12": {"gifs": [saved("a.gif")], "text": ["words"], "animated": [True]},
        "13": {"files": [saved("a.mp4")], "images": [saved("a_first_frame.png")]},
        "14": {"audio": [{"filename": "a.flac"}, {"subfolder": "x"}, {"filename": ""}, None]},
    }
    assert listed_outputs(outputs) == [
        ListedFile("9", "images", "a.png", "", "output"),
        ListedFile("12", "gifs", "a.gif", "", "output"),
        InlineOutput("12", "text", "words"),
        ListedFile("13", "files", "a.mp4", "", "output"),
        ListedFile("14", "audio", "a.flac", "", "output"),
        InlineOutput("14", "audio", {"subfolder": "x"}),
    ]


def test_temporary_files_are_outputs_where_no_node_saved_any_other() -> None:
    """A workflow whose videos are written with `save_output` off, or whose images are previewed, is run for them."""
    shown: dict[str, dict[str, Any]] = {
        "4": {"images": [saved("p.png", kind="preview"), saved("t.png", kind="temp")], "text": ["words"]},
        "9": {"gifs": [saved("a_00001.mp4", kind="temp")]},
    }
    assert listed_outputs(shown) == [
        ListedFile("4", "images", "t.png", "", "temp"),
        InlineOutput("4", "text", "words"),
        ListedFile("9", "gifs", "a_00001.mp4", "", "temp"),
    ]
    assert listed_outputs({**shown, "12": {"images": [saved("a.png")]}}) == [
        InlineOutput("4", "text", "words"),
        ListedFile("12", "images", "a.png", "", "output"),
    ]


async def test_texts_and_values_stand_in_the_record_with_the_fields_of_a_file(
    engine: LocalEngine, tmp_path: Path
) -> None:
    outputs = {"5": {"text": ["a cat", "a dog"], "size": [512], "images": [saved("a.png")]}}
    records = [item.as_record() for item in await collect_outputs(outputs, tmp_path / "job", engine)]
    assert [record.get("text", record.get("value")) for record in records] == ["a cat", "a dog", 512, None]
    assert [record["type"] for record in records] == ["text", "text", "value", "output"]
    fields = {"filename", "local_path", "subfolder", "type", "node_id", "output_type"}
    assert all(fields <= set(record) for record in records)


async def test_a_long_text_is_a_file(engine: LocalEngine, tmp_path: Path) -> None:
    long = "wörter " * 60_000
    outputs = {"5": {"text": [long, "short"], "tags": [[long]]}}
    [text, short, tags] = [item.as_record() for item in await collect_outputs(outputs, tmp_path / "job", engine)]
    assert (text["filename"], text["media_type"]) == ("text_5.txt", "text/plain") and short["text"] == "short"
    assert (tmp_path / "job" / str(text["path"])).read_text(encoding="utf-8") == long
    assert tags["filename"] == "tags_5.json" and tags["media_type"] == "application/json"


async def test_numbered_images_under_one_name_are_outputs_each(engine: LocalEngine, tmp_path: Path) -> None:
    """Video Combine lists the images of its PNG formats under the name that it gives FFmpeg."""
    for number in (1, 2, 3, 5):
        write(engine.folder / "sub" / f"a_00001.{number:03}.png", str(number))
    listed = {"9": {"gifs": [saved("a_00001.%03d.png", "sub")]}}
    outputs = await collect(engine, tmp_path, listed)
    assert [(item.filename, item.path.read_text()) for item in outputs] == [
        (f"a_00001.00{number}.png", str(number)) for number in (1, 2, 3)
    ]
    outputs = await collect(RemoteEngine("a_00001.003.png"), tmp_path, listed)
    assert [item.path.read_text() for item in outputs] == [f"output:sub/a_00001.00{number}.png" for number in (1, 2)]
    assert sorted(os.listdir(tmp_path / "job")) == ["a_00001.001.png", "a_00001.002.png"]


async def test_an_empty_video_is_no_output_and_an_empty_text_is_one(engine: LocalEngine, tmp_path: Path) -> None:
    """Nodes that encode by FFmpeg may leave one where the encoder is missing, and report it as their video."""
    write(engine.folder / "a_00001.mp4", "")
    write(engine.folder / "a.txt", "")
    with pytest.raises(DeliveryFailed, match=r"a_00001\.mp4 of node 9 is empty"):
        await collect(engine, tmp_path, {"9": {"gifs": [saved("a_00001.mp4")]}})
    [output] = await collect(engine, tmp_path, {"9": {"files": [saved("a.txt")]}})
    assert output.size_bytes == 0


async def test_a_name_with_a_percent_sign_may_be_a_name(engine: LocalEngine, tmp_path: Path) -> None:
    write(engine.folder / "50%d.png", "half")
    [output] = await collect(engine, tmp_path, {"9": {"images": [saved("50%d.png")]}})
    assert output.path.read_text() == "half"
    [output] = await collect(RemoteEngine("501.png"), tmp_path, {"9": {"images": [saved("50%d.png")]}})
    assert output.path.read_text() == "output:/50%d.png"


@pytest.mark.parametrize("name", ["a_00001_.png", "video_00012.mp4", "b_123456_.webp"])
async def test_files_with_a_counter_are_linked(engine: LocalEngine, tmp_path: Path, name: str) -> None:
    write(engine.folder / name, "content")
    [output] = await collect(engine, tmp_path, {"9": {"images": [saved(name)]}})
    assert (engine.folder / name).stat().st_ino == output.path.stat().st_ino


async def test_a_node_that_writes_to_the_same_name_again_does_not_change_what_an_earlier_job_has(
    engine: LocalEngine, tmp_path: Path
) -> None:
    [output] = await collect(engine, tmp_path, {"9": {"images": [saved("a.png")]}})
    with (engine.folder / "a.png").open("r+b") as file:  # into the very file, as most libraries do
        file.write(b"the next job's")
    assert output.path.read_bytes().endswith(b"A")


async def test_files_outlive_the_engines(engine: LocalEngine, tmp_path: Path) -> None:
    [output] = await collect(engine, tmp_path, {"9": {"images": [saved("a.png")]}})
    (engine.folder / "a.png").unlink()
    assert output.path.read_bytes().endswith(b"A")
    assert output.as_record() == {
        "filename": "a.png",
        "local_path": str(output.path),
        "subfolder": "",
        "type": "output",
        "node_id": "9",
        "output_type": "images",
        "path": "a.png",
        "media_type": "image/png",
        "size_bytes": 9,
    }


async def test_equal_names_of_different_folders_do_not_meet(engine: LocalEngine, tmp_path: Path) -> None:
    outputs = {"9": {"images": [saved("a.png"), saved("a.png", "sub")]}}
    first, second = await collect(engine, tmp_path, outputs)
    assert (first.path.name, second.path.name, second.filename, second.subfolder) == (
        "a.png",
        "a_1.png",
        "a.png",
        "sub",
    )
    assert second.path.read_bytes().endswith(b"B")


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
async def test_files_are_copied_where_they_cannot_be_linked(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "link", refuse)  # two file systems cannot be had in a test
    [output] = await collect(engine, tmp_path, {"9": {"images": [saved("a.png")]}})
    assert output.path.read_bytes().endswith(b"A") and output.path.stat().st_nlink == 1


async def test_a_foreign_engines_files_are_fetched(tmp_path: Path) -> None:
    outputs = {"9": {"images": [saved("a.png", "sub"), saved("a.png")]}}
    first, second = await collect(RemoteEngine(), tmp_path, outputs)
    assert (first.path.read_text(), second.path.read_text()) == ("output:sub/a.png", "output:/a.png")
    assert second.path.name == "a_1.png"


@pytest.mark.parametrize(
    "item", [saved("../secret.txt"), saved("secret.txt", ".."), saved("/etc/passwd"), saved("link.txt")]
)
async def test_nothing_outside_the_output_folder_is_taken(
    engine: LocalEngine, tmp_path: Path, item: dict[str, str]
) -> None:
    (engine.folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(DeliveryFailed):
        await collect(engine, tmp_path, {"9": {"images": [item]}})


async def test_a_file_that_the_engine_does_not_have_is_named(engine: LocalEngine, tmp_path: Path) -> None:
    with pytest.raises(DeliveryFailed, match="gone.png of node 9"):
        await collect(engine, tmp_path, {"9": {"images": [saved("gone.png")]}})


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ("a.png", "a.png"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\x.png", "x.png"),
        (".hidden", "hidden"),
        ("a\r\nb\x00.png", "a__b_.png"),
        ("..", "output"),
        ("", "output"),
        ("grün 1.png", "grün 1.png"),
    ],
)
def test_names_are_cleaned(given: str, clean: str) -> None:
    assert clean_name(given) == clean


def test_long_names_keep_their_extension() -> None:
    clean = clean_name("ü" * 500 + ".png")
    assert len(clean.encode()) <= 200 and clean.endswith("ü.png")


def test_subfolders_cannot_climb() -> None:
    assert clean_subfolder("/../a/./..\\b//c") == "a/b/c"


@pytest.mark.parametrize("is_local", [True, False])
async def test_outputs_over_the_limit_together_are_not_kept(
    tmp_path: Path, engine: LocalEngine, is_local: bool
) -> None:
    outputs = {"9": {"images": [saved("a.png")]}, "12": {"images": [saved("a.png", "sub")]}}
    source = engine if is_local else RemoteEngine()
    total = sum(item.size_bytes for item in await collect(source, tmp_path, outputs))
    assert len(await collect_outputs(outputs, tmp_path / "job", source, max_bytes=total)) == 2
    with pytest.raises(OutputsTooLarge) as refused:
        await collect_outputs(outputs, tmp_path / "job", source, max_bytes=total - 1)
    assert refused.value.fields == {"limit": "output_bytes", "node_id": "12", "value": total, "allowed": total - 1}
    assert list((tmp_path / "job").iterdir()) == []


async def test_a_long_text_counts_as_an_output(tmp_path: Path) -> None:
    with pytest.raises(OutputsTooLarge):
        await collect_outputs({"9": {"text": ["word " * 100]}}, tmp_path / "job", RemoteEngine(), max_bytes=499)


async def test_a_mesh_has_its_media_type(engine: LocalEngine, tmp_path: Path) -> None:
    (engine.folder / "shape.glb").write_bytes(b"glTF\2\0\0\0")
    (mesh,) = await collect(engine, tmp_path, {"9": {"3d": [saved("shape.glb")]}})
    assert (mesh.media_type, mesh.output_type, mesh.path.name) == ("model/gltf-binary", "3d", "shape.glb")
