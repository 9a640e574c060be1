"""Images for a WebSocket client become files, and every other prompt stays as it is."""

from __future__ import annotations

from typing import Any

from darkroom.worker.engines.socket_images import with_saved_images

IMAGE = {"class_type": "EmptyImage", "inputs": {"width": 8}}


def test_images_for_a_socket_are_saved() -> None:
    sent = {"class_type": "SaveImageWebsocket", "inputs": {"images": ["1", 0]}, "_meta": {"title": "out"}}
    prompt: dict[str, Any] = {"1": IMAGE, "2": sent}
    expected = {
        "class_type": "SaveImage",
        "inputs": {"filename_prefix": "ComfyUI", "images": ["1", 0]},
        "_meta": {"title": "out"},
    }
    assert with_saved_images(prompt) == {"1": IMAGE, "2": expected}
    assert prompt["2"] is sent


def test_another_prompt_is_not_copied() -> None:
    prompt = {"1": IMAGE, "2": "no node"}
    assert with_saved_images(prompt) is prompt
