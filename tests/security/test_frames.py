"""Small files that would be large images are refused before the engine has anything to do."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from PIL import Image

from darkroom.worker.media.image_bounds import MAX_INPUT_PIXELS
from tests.flow.running_worker import RunningWorker
from tests.flow.test_files import data_uri

FRAME_PIXELS = 512 * 512


def animation(form: str, num_frames: int, side: int = 512) -> bytes:
    held = io.BytesIO()
    first, *rest = [Image.new("P", (side, side), index % 7) for index in range(num_frames)]
    for frame in (first, *rest):
        frame.putpalette([value * 30 for value in range(7) for _ in range(3)])
    first.save(held, form, save_all=True, append_images=rest, duration=100)
    return held.getvalue()


def load_and_save(image: str, class_type: str = "LoadImage", **inputs: Any) -> dict[str, Any]:
    return {
        "1": {"class_type": class_type, "inputs": {"image": image, **inputs}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "frames"}},
    }


@pytest.fixture(scope="module")
def bomb() -> bytes:
    content = animation("GIF", 600)
    assert len(content) < 2_000_000
    return content


def problem_of(worker: RunningWorker, workflow: dict[str, Any]) -> dict[str, Any]:
    answer = worker.generate({"input": {"workflow_json": workflow}})
    assert answer.status_code == 422, answer.text
    [problem] = answer.json()["error"]["problems"]
    return dict(problem)


def test_an_animation_of_too_many_pixels_is_refused_with_node_and_field(
    files_worker: RunningWorker, bomb: bytes
) -> None:
    problem = problem_of(files_worker, load_and_save(data_uri(bomb, "image/gif")))
    assert (problem["node_id"], problem["field"], problem["type"]) == ("1", "image", "input_broken")
    assert "513 frames of up to 512x512 px; expected at most 134217728" in problem["message"]


def test_one_in_the_input_folder_is_refused_by_the_engines_check(files_worker: RunningWorker, bomb: bytes) -> None:
    (files_worker.base / "input" / "bomb.gif").write_bytes(bomb)
    problem = problem_of(files_worker, load_and_save("bomb.gif"))
    assert problem["node_id"] == "1"
    # The bound follows the machine's free memory; the count ends with the first frame over it.
    found = re.search(
        r"at least (\d+) pixels in (\d+) frames of up to 512x512 px; expected at most (\d+)", problem["message"]
    )
    assert found is not None, problem["message"]
    num_pixels, num_frames, most = map(int, found.groups())
    assert num_pixels == num_frames * FRAME_PIXELS and num_pixels - FRAME_PIXELS <= most < num_pixels
    assert most <= MAX_INPUT_PIXELS


def test_an_animation_within_the_bound_is_read_whole(files_worker: RunningWorker) -> None:
    body = {"input": {"workflow_json": load_and_save(data_uri(animation("GIF", 5, 64), "image/gif"))}}
    answer = files_worker.generate(body)
    assert answer.status_code == 200 and len(answer.json()["output"]) == 5, answer.text
