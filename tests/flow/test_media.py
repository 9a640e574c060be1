"""Videos, audio and images for a WebSocket, through the real processes: in by the request, out as files."""

from __future__ import annotations

import io
from typing import Any

import av
import httpx
import pytest
from PIL import Image

from tests.flow.running_worker import RunningWorker
from tests.flow.test_files import data_uri, outputs_of

FRAMES = {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 32, "batch_size": 4, "color": 0x2040FF}}
SILENCE = {"class_type": "EmptyAudio", "inputs": {"duration": 1.0, "sample_rate": 44100, "channels": 2}}
CREATE = {"class_type": "CreateVideo", "inputs": {"images": ["1", 0], "fps": 4.0, "audio": ["2", 0]}}
SAVE: dict[str, Any] = {
    "mp4": ("SaveVideo", {"video": ["3", 0], "format": "auto", "codec": "auto"}, "images", "video/mp4"),
    "webm": ("SaveWEBM", {"images": ["1", 0], "codec": "vp9", "fps": 4.0, "crf": 40.0}, "images", "video/webm"),
    "flac": ("SaveAudio", {"audio": ["2", 0]}, "audio", "audio/flac"),
    "mp3": ("SaveAudioMP3", {"audio": ["2", 0], "quality": "128k"}, "audio", "audio/mpeg"),
    "opus": ("SaveAudioOpus", {"audio": ["2", 0], "quality": "64k"}, "audio", "audio/ogg"),
}


def saving(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": {**inputs, "filename_prefix": "media/of a test"}}


@pytest.fixture(scope="module")
def saved(worker: RunningWorker) -> dict[str, dict[str, Any]]:
    """The outputs of a job that saves one file of each kind, by kind."""
    workflow = {"1": FRAMES, "2": SILENCE, "3": CREATE}
    workflow |= {kind: saving(class_type, **inputs) for kind, (class_type, inputs, *_) in SAVE.items()}
    return {output["node_id"]: output for output in outputs_of(worker, workflow)}


def test_results_have_the_facts_of_videos_and_audio(saved: dict[str, Any]) -> None:
    of_audio = {"sample_rate": 44100, "channels": 2, "duration_seconds": 1.0}
    expected = {"width": 64, "height": 32, "frames": 4, "fps": 4.0, "duration_seconds": 1.0}
    assert {name: saved["webm"][name] for name in expected} == expected
    assert {name: saved["mp4"][name] for name in expected | of_audio} == expected | of_audio
    assert {name: saved["flac"][name] for name in of_audio} == of_audio
    assert saved["mp4"]["size_bytes"] == len(httpx.get(saved["mp4"]["url"]).content)


@pytest.mark.parametrize("kind", SAVE)
def test_a_file_is_delivered_with_its_type_and_without_its_prompt(saved: dict[str, Any], kind: str) -> None:
    _, _, output_type, media_type = SAVE[kind]
    output = saved[kind]
    assert output["output_type"] == output_type and output["filename"].endswith(f".{kind}")
    assert "metadata_error" not in output
    answer = httpx.get(output["url"])
    assert answer.headers["content-type"] == media_type
    assert b"class_type" not in answer.content
    with av.open(io.BytesIO(answer.content)) as container:
        types = {"mp4": ["video", "audio"], "webm": ["video"]}.get(kind, ["audio"])
        assert [stream.type for stream in container.streams] == types


def test_a_video_of_the_request_is_taken_apart(worker: RunningWorker, saved: dict[str, Any]) -> None:
    content = httpx.get(saved["mp4"]["url"]).content
    workflow = {
        "1": {"class_type": "LoadVideo", "inputs": {"file": data_uri(content, "video/mp4")}},
        "2": {"class_type": "GetVideoComponents", "inputs": {"video": ["1", 0]}},
        "3": saving("SaveImage", images=["2", 0]),
        "4": {"class_type": "LoadAudio", "inputs": {"audio": data_uri(content, "video/mp4")}},
        "5": saving("SaveAudio", audio=["4", 0]),
    }
    outputs = outputs_of(worker, workflow)
    assert [output["node_id"] for output in outputs] == ["3"] * 4 + ["5"]
    image = Image.open(io.BytesIO(httpx.get(outputs[0]["url"]).content))
    assert image.size == (64, 32)
    red, green, blue = image.convert("RGB").getpixel((5, 5))  # type: ignore[misc]
    assert abs(red - 0x20) < 8 and abs(green - 0x40) < 8 and abs(blue - 0xFF) < 8


def test_a_file_that_is_no_video_is_refused_with_node_and_field(worker: RunningWorker) -> None:
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    workflow = {
        "1": {"class_type": "LoadAudio", "inputs": {"audio": data_uri(image.getvalue())}},
        "2": saving("SaveAudio", audio=["1", 0]),
    }
    answer = worker.generate({"input": {"workflow_json": workflow}})
    assert answer.status_code == 422, answer.text
    assert "Invalid audio file: the file that came with the request (no video and no audio" in answer.text


def test_images_for_a_websocket_are_delivered_as_files(worker: RunningWorker) -> None:
    send = {"class_type": "SaveImageWebsocket", "inputs": {"images": ["1", 0]}}
    for _ in range(2):  # also from the cache
        outputs = outputs_of(worker, {"1": FRAMES, "2": send})
        assert [(output["node_id"], output["output_type"]) for output in outputs] == [("2", "images")] * 4
        assert Image.open(io.BytesIO(httpx.get(outputs[0]["url"]).content)).size == (64, 32)
