"""The node that draws text: what ComfyUI draws is in the parity cases; here limits and refusals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.errors import Interrupted
from darkroom.engine.nodes.library.image.text_overlay import MAX_CHARACTERS, text_overlay
from tests.engine.nodes.small_store import node_context, small_store

environment: Any = None
IMAGE = torch.full((1, 64, 96, 3), 0.5)


def test_text_is_drawn_on_each_image_of_a_batch_alike(tmp_path: Path) -> None:
    images = IMAGE.repeat(2, 1, 1, 1)
    drawn = text_overlay(node_context(small_store(tmp_path)), images=images, text="Ay", font_size=40.0, color="red")
    assert torch.equal(drawn[0], drawn[1])
    changed = (drawn[0] != 0.5).any(-1)
    assert changed.any() and not changed[60:].any()  # at the top


@pytest.mark.parametrize("text", ["x" * MAX_CHARACTERS, "\n" * (MAX_CHARACTERS - 1) + "."])
def test_the_longest_text_takes_seconds(tmp_path: Path, text: str) -> None:
    narrow = torch.zeros(1, 256, 16, 3)
    started = time.monotonic()
    text_overlay(node_context(small_store(tmp_path)), images=narrow, text=text, font_size=50.0)
    assert time.monotonic() - started < 60


def test_drawing_can_be_cancelled(tmp_path: Path) -> None:
    context = node_context(small_store(tmp_path))
    token: CancelToken = context.cancel
    token.cancel()
    with pytest.raises(Interrupted):
        text_overlay(context, images=IMAGE, text="a")


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"color": "no colour"}, "color: no colour"), ({"text": "a" * (MAX_CHARACTERS + 1)}, "text: too long")],
)
def test_a_bad_colour_or_length_is_refused_before_and_while_it_runs(
    tmp_path: Path, given: dict[str, Any], problem: str
) -> None:
    assert text_overlay.check is not None
    assert str(text_overlay.check(environment, **given)).startswith(problem)
    with pytest.raises(ValueError, match=problem):
        text_overlay(node_context(small_store(tmp_path)), images=IMAGE, **({"text": "a"} | given))


def test_images_of_other_channels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^images: channels"):
        text_overlay(node_context(small_store(tmp_path)), images=torch.zeros(1, 8, 8, 4), text="a")
