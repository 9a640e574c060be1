"""Previews of latents: images, and animations of videos."""

from __future__ import annotations

import io
import json
import struct

import torch
from PIL import Image

from darkroom.contract.graph.node_ref import NodeRef
from darkroom.engine.events import PreviewMade
from darkroom.engine.images.preview import MAX_ANIMATION_FRAMES, latent_animation, latent_preview
from darkroom.engine.server.messages import preview
from darkroom.worker.engines.preview_frames import PreviewFrame, read_frame

RGB = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


def video(num_frames: int) -> torch.Tensor:
    """Return latents [1, 3, F, 4, 6] that become brighter red with every frame."""
    latent = torch.full((1, 3, num_frames, 4, 6), -1.0)
    latent[:, 0] = torch.linspace(-1, 1, num_frames).view(-1, 1, 1)
    return latent


def test_the_preview_of_a_video_is_its_first_frame_and_the_animation_has_all() -> None:
    image = Image.open(io.BytesIO(latent_preview(video(5), RGB, None, 60)))
    assert (image.format, image.size) == ("JPEG", (60, 40))
    animation = Image.open(io.BytesIO(latent_animation(video(5), RGB, None, 60)))
    assert (animation.format, animation.size, animation.n_frames) == ("WEBP", (60, 40), 5)  # type: ignore[attr-defined]
    reds = []
    for frame in range(5):
        animation.seek(frame)
        reds.append(animation.convert("RGB").getpixel((30, 20))[0])  # type: ignore[index]
    assert reds == sorted(reds) and reds[0] < 30 and reds[-1] > 200


def test_a_long_video_is_thinned_out() -> None:
    animation = Image.open(io.BytesIO(latent_animation(video(60), RGB, None, 30)))
    assert animation.n_frames == 20 <= MAX_ANIMATION_FRAMES  # type: ignore[attr-defined]


def test_an_animation_goes_out_in_the_message_that_names_its_node() -> None:
    event = PreviewMade("job", NodeRef("3", "3", None, "3"), b"jpeg", "image/jpeg", b"webp")
    assert read_frame(preview(event, with_metadata=True)) == PreviewFrame("image/webp", b"webp", "job", "3")
    assert read_frame(preview(event, with_metadata=False)) == PreviewFrame("image/jpeg", b"jpeg")
    still = preview(PreviewMade("job", event.node, b"jpeg", "image/jpeg"), with_metadata=True)
    length = struct.unpack(">II", still[:8])[1]
    assert json.loads(still[8 : 8 + length])["image_type"] == "image/jpeg"
