"""The files of a job as its request wants them, and what their records say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from darkroom.worker.outputs.delivered import Processing, delivered_names, process_output
from darkroom.worker.outputs.options import OutputOptions
from tests.worker.shared_media_processes import confined_coding


def record(name: str, media_type: str = "image/png") -> dict[str, Any]:
    return {
        "filename": name,
        "path": name,
        "local_path": name,
        "node_id": "9",
        "subfolder": "",
        "media_type": media_type,
    }


def saved(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    Image.effect_noise((40, 30), 60).convert("RGB").save(folder / name, **options)
    return record(name, "image/jpeg" if name.endswith(".jpg") else "image/png")


def told() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("prompt", "planted")
    return info


def finished(folder: Path, item: dict[str, Any], **options: Any) -> dict[str, Any]:
    wanted = Processing(
        OutputOptions(**options), options.get("metadata") or "none", {"prompt": "{}"}, confined_coding()
    )
    [name] = delivered_names([item], wanted.options)
    return process_output(item, name, folder, wanted)


def test_a_converted_image_takes_the_place_of_the_original_which_stays_in_the_folder(tmp_path: Path) -> None:
    made = finished(tmp_path, saved(tmp_path, "a.png", pnginfo=told()), format="webp", quality=80)
    assert (made["filename"], made["path"], made["media_type"]) == ("a.webp", "delivered/a.webp", "image/webp")
    assert Path(made["local_path"]) == tmp_path / "delivered" / "a.webp"
    assert made["size_bytes"] == (tmp_path / "delivered" / "a.webp").stat().st_size
    assert (tmp_path / "a.png").is_file()


def test_without_a_wish_only_the_metadata_goes_and_the_name_stays(tmp_path: Path) -> None:
    made = finished(tmp_path, saved(tmp_path, "a.png", pnginfo=told()))
    assert (made["filename"], made["path"]) == ("a.png", "delivered/a.png")
    assert b"planted" not in (tmp_path / "delivered" / "a.png").read_bytes()
    assert b"planted" in (tmp_path / "a.png").read_bytes()  # the original may be the engine's own file


def test_an_image_that_is_as_wanted_is_delivered_itself(tmp_path: Path) -> None:
    item = saved(tmp_path, "a.png")
    assert finished(tmp_path, item) == item and finished(tmp_path, item, format="png") == item


def test_what_cannot_be_converted_is_delivered_as_it_is_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    made = finished(tmp_path, record("a.png"), format="jpeg", thumbnail_size=64)
    assert made["path"] == "a.png" and "jpeg" in made["conversion_error"]
    assert "metadata_error" in made and "thumbnail_error" in made
    assert not list((tmp_path / "delivered").iterdir())


def test_videos_and_texts_that_say_nothing_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"\0\0\0\x0cftypisom" + b"\0\0\0\x08moov")
    for item in (record("a.mp4", "video/mp4"), {"filename": "", "type": "text", "text": "hello"}):
        assert (
            process_output(item, "", tmp_path, Processing(OutputOptions("webp"), "none", {}, confined_coding())) == item
        )


def test_a_video_that_cannot_be_read_has_no_thumbnail_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"\0\0\0\x0cftypisom" + b"\0\0\0\x08moov")
    wanted = Processing(OutputOptions(thumbnail_size=64), "full", {}, confined_coding())
    made = process_output(record("a.mp4", "video/mp4"), "a.mp4", tmp_path, wanted)
    assert made["path"] == "a.mp4" and "thumbnail" not in made and "cannot be read" in str(made["thumbnail_error"])


def test_a_video_says_what_it_says_only_where_everything_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"\0\0\0\x0cftypisom" + b"\0\0\0\x0fudtaplanted")
    item = record("a.mp4", "video/mp4")
    assert finished(tmp_path, item, metadata="full") == item
    for level in ("none", "prompt"):
        made = finished(tmp_path, item, metadata=level)
        assert (made["path"], made["media_type"]) == ("delivered/a.mp4", "video/mp4")
        assert b"planted" not in (tmp_path / "delivered" / "a.mp4").read_bytes()


def test_a_file_whose_metadata_cannot_be_taken_out_says_so(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.tiff")
    made = finished(tmp_path, record("a.tiff", "image/tiff"))
    assert made["path"] == "a.tiff" and "image/tiff" in made["metadata_error"]


def test_a_thumbnail_is_a_file_of_its_own_within_the_record(tmp_path: Path) -> None:
    made = finished(tmp_path, saved(tmp_path, "a.png"), thumbnail_size=20)["thumbnail"]
    assert (made["filename"], made["width"], made["height"]) == ("a_thumb.webp", 20, 15)
    assert (tmp_path / made["path"]).is_file() and made["node_id"] == "9"


def test_names_differ_and_are_the_same_at_every_call() -> None:
    records = [record("a.png"), record("a.jpg", "image/jpeg"), record("a.mp4", "video/mp4")]
    names = delivered_names(records, OutputOptions("webp"))
    assert names == ["a.webp", "a_9_1.webp", "a_9_2.mp4"] == delivered_names(records, OutputOptions("webp"))


def test_doing_it_again_after_a_crash_gives_the_same(tmp_path: Path) -> None:
    item = saved(tmp_path, "a.png", pnginfo=told())
    wishes = {"format": "avif", "thumbnail_size": 20}
    assert finished(tmp_path, item, **wishes) == finished(tmp_path, item, **wishes)
