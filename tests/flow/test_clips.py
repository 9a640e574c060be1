"""Clips of the small video models through the real processes: files that players read, links that they seek in."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from typing import Any

import av
import httpx
import pytest

from tests.flow.running_worker import RunningWorker
from tests.flow.video_workflow import FPS, NUM_FRAMES, SIZES_PX, clip_workflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MEDIA_TYPES = {"mp4": "video/mp4", "webm": "video/webm"}
REQUEST_SECONDS = 300


@pytest.fixture(scope="module", params=SIZES_PX)
def clips(request: pytest.FixtureRequest, worker: RunningWorker) -> tuple[str, dict[str, dict[str, Any]]]:
    """The name of the family, and its outputs by the kind of the file."""
    family = str(request.param)
    body = {"input": {"workflow_json": clip_workflow(family), "request_id": f"clip-{family}"}}
    body["input"]["output"] = {"thumbnail_size": 32}
    answer = worker.http.post("/generate/sync", json=body, timeout=REQUEST_SECONDS)
    assert answer.status_code == 200, answer.text
    return family, {output["node_id"]: output for output in answer.json()["output"]}


@pytest.mark.parametrize("kind", MEDIA_TYPES)
def test_a_clip_has_all_its_frames_and_says_so(clips: Any, worker: RunningWorker, kind: str) -> None:
    family, outputs = clips
    facts = {"frames": NUM_FRAMES, "fps": FPS, "duration_seconds": NUM_FRAMES / FPS}
    facts |= dict(zip(("width", "height"), SIZES_PX[family], strict=True))
    output = outputs[kind]
    assert {name: output.get(name) for name in facts} == facts
    assert httpx.get(output["thumbnail"]["url"]).headers["content-type"] == "image/webp"
    with av.open(io.BytesIO(httpx.get(output["url"]).content), "r") as container:
        assert len([*container.decode(video=0)]) == NUM_FRAMES
    job = worker.get(f"/api/v2/jobs/clip-{family}").json()
    (same,) = [item for item in job["outputs"] if item["node_id"] == kind]
    assert {name: same.get(name) for name in facts} == facts and same["type"] == "video"


@pytest.mark.skipif(shutil.which("ffprobe") is None, reason="ffprobe is not installed")
@pytest.mark.parametrize("kind", MEDIA_TYPES)
def test_ffprobe_reads_the_clip_through_its_link(clips: Any, kind: str) -> None:
    _, outputs = clips
    asked = ("-v", "error", "-count_frames", "-show_entries", "stream=codec_name,nb_read_frames", "-of", "json")
    done = subprocess.run(
        ["ffprobe", *asked, outputs[kind]["url"]], capture_output=True, text=True, timeout=120, check=True
    )
    (stream,) = json.loads(done.stdout)["streams"]
    assert stream == {"codec_name": {"mp4": "h264", "webm": "vp9"}[kind], "nb_read_frames": str(NUM_FRAMES)}


@pytest.mark.parametrize("kind", MEDIA_TYPES)
def test_a_link_serves_parts_with_the_type_of_the_whole(clips: Any, kind: str) -> None:
    _, outputs = clips
    url = outputs[kind]["url"]
    whole = httpx.get(url)
    assert whole.headers["content-type"] == MEDIA_TYPES[kind] and whole.headers["accept-ranges"] == "bytes"
    size = len(whole.content)
    for asked, first, last in (("0-99", 0, 99), (f"{size - 50}-", size - 50, size - 1), ("-10", size - 10, size - 1)):
        part = httpx.get(url, headers={"Range": f"bytes={asked}"})
        assert (part.status_code, part.content) == (206, whole.content[first : last + 1])
        assert part.headers["content-range"] == f"bytes {first}-{last}/{size}"
        assert part.headers["content-type"] == MEDIA_TYPES[kind]
    assert httpx.get(url, headers={"Range": f"bytes={size}-"}).status_code == 416
    assert httpx.head(url).headers["content-length"] == str(size)
