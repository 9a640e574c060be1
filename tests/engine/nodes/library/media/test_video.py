"""Videos through graphs: made of images and audio, saved, loaded, taken apart, and refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest

from darkroom.contract.errors import PromptRejected
from darkroom.engine.media.video import VideoFromFile
from darkroom.engine.nodes.library.media.video import get_video_components
from tests.engine.nodes.library.media.studio import Studio, of_class


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    studio = Studio(tmp_path)
    yield studio
    studio.engine.close()


def making(**create: Any) -> dict[str, Any]:
    blank = {"width": 64, "height": 32, "batch_size": 6, "color": 0xFF0000}
    return {
        "frames": of_class("EmptyImage", **blank),
        "sound": of_class("Tone"),
        "video": of_class("CreateVideo", images=["frames", 0], fps=6.0, audio=["sound", 0], **create),
        "save": of_class("SaveVideo", video=["video", 0], filename_prefix="clips/a", format="auto", codec="auto"),
    }


def saved(studio: Studio) -> Path:
    [path] = studio.files(studio.run(making()), "save")
    return path


def test_a_saved_video_is_listed_as_an_animated_image_as_in_comfyui(studio: Studio) -> None:
    result = studio.run(making(), extra_pnginfo={"workflow": {"nodes": []}})
    item = {"filename": "a_00001_.mp4", "subfolder": "clips", "type": "output"}
    assert result.outputs["save"] == {"images": [item], "animated": (True,)}
    with av.open(str(studio.settings.output_path / "clips" / "a_00001_.mp4")) as container:
        assert [stream.codec.name for stream in container.streams] == ["h264", "aac"]
        assert container.streams.video[0].frames == 6
        assert json.loads(container.metadata["prompt"])["video"]["class_type"] == "CreateVideo"
        assert json.loads(container.metadata["workflow"]) == {"nodes": []}


def test_a_format_brings_its_codecs_and_a_codec_how_to_encode(studio: Studio) -> None:
    encoding = {
        "format": "mkv",
        "format.codec": "av1",
        "format.codec.encoding": "re-encode",
        "format.codec.encoding.crf": 50.0,
        "format.codec.encoding.color_space": "HDR",
    }
    prompt = making()
    prompt["save"] = of_class("SaveVideo", video=["video", 0], filename_prefix="deep", **encoding)
    [path] = studio.files(studio.run(prompt), "save")
    assert path.suffix == ".mkv"
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec.canonical_name, stream.format.name, stream.color_trc) == ("av1", "yuv420p10le", 18)
    context: Any = None
    assert get_video_components(context, video=VideoFromFile(path))[3:] == (10, "HDR")


@pytest.mark.parametrize(("given", "bits"), [("auto", 8), (8, 8), ("10", 10), (10, 10)])
def test_bits_of_a_channel_may_be_the_word_of_later_releases(studio: Studio, given: object, bits: int) -> None:
    [path] = studio.files(studio.run(making(bit_depth=given, color_space="sRGB")), "save")
    context: Any = None
    assert get_video_components(context, video=VideoFromFile(path))[3] == bits


@pytest.mark.parametrize("given", ["most", "", 12, True])
def test_other_words_and_bits_are_refused(studio: Studio, given: object) -> None:
    assert problem_of(studio, making(bit_depth=given)).startswith("bit_depth")


def test_a_codec_that_a_format_does_not_hold_is_refused(studio: Studio) -> None:
    prompt = making()
    prompt["save"]["inputs"].update({"format": "webm", "format.codec": "h264"})
    with pytest.raises(PromptRejected):
        studio.run(prompt)


def test_without_metadata_a_video_says_nothing_of_its_making(tmp_path: Path) -> None:
    studio = Studio(tmp_path, embed_metadata=False)
    with av.open(str(saved(studio))) as container:
        assert not {"prompt", "workflow"} & container.metadata.keys()
    studio.engine.close()


def test_a_loaded_video_is_taken_apart_into_images_audio_and_rate(studio: Studio) -> None:
    saved(studio).rename(studio.settings.input_path / "b.mp4")
    result = studio.run(
        {
            "load": of_class("LoadVideo", file="b.mp4"),
            "parts": of_class("GetVideoComponents", video=["load", 0]),
            "pictures": of_class("SaveImage", images=["parts", 0], filename_prefix="frame"),
            "sound": of_class("SaveAudio", audio=["parts", 1], filename_prefix="sound"),
            "again": of_class("CreateVideo", images=["parts", 0], fps=["parts", 2], audio=["parts", 1]),
            "save": of_class("SaveVideo", video=["again", 0], filename_prefix="again", format="mp4", codec="h264"),
        }
    )
    assert result.status == "success"
    assert len(studio.files(result, "pictures")) == 6
    assert [path.suffix for path in studio.files(result, "sound")] == [".flac"]
    with av.open(str(studio.files(result, "save")[0])) as container:
        assert container.streams.video[0].average_rate == 6


def test_a_silent_video_has_no_audio_to_give(studio: Studio) -> None:
    prompt = making()
    del prompt["video"]["inputs"]["audio"]
    [path] = studio.files(studio.run(prompt), "save")
    with av.open(str(path)) as container:
        assert [stream.type for stream in container.streams] == ["video"]


@pytest.mark.parametrize(("codec", "found"), [("vp9", "vp9"), ("av1", "libdav1d")])
def test_images_become_webm(studio: Studio, codec: str, found: str) -> None:
    result = studio.run(
        {
            "frames": of_class("EmptyImage", width=64, height=64, batch_size=3, color=255),
            "save": of_class("SaveWEBM", images=["frames", 0], filename_prefix="w", codec=codec, fps=12.5, crf=30.0),
        }
    )
    [path] = studio.files(result, "save")
    with av.open(str(path)) as container:
        assert "webm" in container.format.name and container.streams.video[0].codec.name == found
        assert container.streams.video[0].average_rate == 12.5
        assert "SaveWEBM" in container.metadata["PROMPT"]
        assert len(list(container.decode(video=0))) == 3


def problem_of(studio: Studio, prompt: dict[str, Any]) -> str:
    with pytest.raises(PromptRejected) as caught:
        studio.engine.check(prompt)
    [entry] = caught.value.node_problems.values()
    return entry.problems[0].details


@pytest.mark.parametrize(("content", "reason"), [(None, ""), (b"no video", " (FFmpeg refuses it: ")])
def test_a_file_that_is_no_video_is_refused_before_anything_runs(
    studio: Studio, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (studio.settings.input_path / "b.mp4").write_bytes(content)
    prompt = {
        "load": of_class("LoadVideo", file="b.mp4"),
        "save": of_class("SaveVideo", video=["load", 0], filename_prefix="x", format="auto", codec="auto"),
    }
    assert f"Invalid video file: b.mp4{reason}" in problem_of(studio, prompt)


def test_a_video_of_odd_sides_fails_with_its_size_and_leaves_no_file(studio: Studio) -> None:
    prompt = making()
    prompt["frames"]["inputs"]["width"] = 63
    assert studio.run(prompt).status == "error"
    assert "got 63x32 px, expected even sides" in str(studio.events)
    assert not list(studio.settings.output_path.rglob("*.mp4"))


def test_a_changed_file_is_loaded_again(studio: Studio) -> None:
    target = studio.settings.input_path / "b.mp4"
    saved(studio).rename(target)
    prompt = {
        "load": of_class("LoadVideo", file="b.mp4"),
        "parts": of_class("GetVideoComponents", video=["load", 0]),
        "pictures": of_class("PreviewImage", images=["parts", 0]),
    }
    assert len(studio.files(studio.run(prompt), "pictures")) == 6
    longer = making()
    longer["frames"]["inputs"]["batch_size"] = 4
    studio.files(studio.run(longer), "save")[0].rename(target)
    assert len(studio.files(studio.run(prompt), "pictures")) == 4


def test_input_videos_are_offered(studio: Studio) -> None:
    for name in ("b.mp4", "a.webm", "c.png"):
        (studio.settings.input_path / name).touch()
    declared = studio.engine.object_info("LoadVideo")["LoadVideo"]["input"]["required"]["file"]
    assert declared == ["COMBO", {"multiselect": False, "options": ["a.webm", "b.mp4"], "video_upload": True}]
