"""Requests that the built-in model draws, their sizes, and the note in their results."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.modifiers.registry import build_registry
from darkroom.worker.models.demo_model import (
    DEMO_CHECKPOINT,
    DEMO_DEFAULTS,
    DEMO_PROMPT,
    defaults_among,
    note_on,
    suited_example,
)

SD15 = "v1-5-pruned-emaonly-fp16.safetensors"


def test_without_any_other_checkpoint_the_demo_model_draws_in_its_own_size() -> None:
    defaults = defaults_among([DEMO_CHECKPOINT], {"prompt": "a cat"}, SD15)
    prompt = build_registry().build("Text2Image", {"prompt": "a cat"}, defaults)
    assert prompt["4"]["inputs"]["ckpt_name"] == DEMO_CHECKPOINT
    assert (prompt["5"]["inputs"]["width"], prompt["5"]["inputs"]["height"]) == (128, 128)
    assert note_on(prompt)


def test_what_the_request_says_wins_over_the_demo_model_s_size() -> None:
    asked = {"prompt": "a cat", "width": 256}
    prompt = build_registry().build("Text2Image", asked, defaults_among([DEMO_CHECKPOINT], asked, SD15))
    assert (prompt["5"]["inputs"]["width"], prompt["5"]["inputs"]["height"]) == (256, 128)


def test_the_demo_model_asked_for_by_name_draws_in_its_own_size_too() -> None:
    assert defaults_among([SD15, DEMO_CHECKPOINT], {"ckpt_name": DEMO_CHECKPOINT}, SD15) == DEMO_DEFAULTS


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((SD15, DEMO_CHECKPOINT), {}),
        ((SD15, "other.safetensors", DEMO_CHECKPOINT), {}),
        (("mine.safetensors", DEMO_CHECKPOINT), {"ckpt_name": "mine.safetensors"}),
        (("a.safetensors", "b.safetensors", DEMO_CHECKPOINT), {}),
        (("foreign.safetensors",), {"ckpt_name": "foreign.safetensors"}),
        ((), {}),
    ],
)
def test_a_checkpoint_of_the_user_comes_first(names: tuple[str, ...], expected: dict[str, Any]) -> None:
    assert defaults_among([*names], {}, SD15) == expected


def test_an_image_of_another_model_has_no_note() -> None:
    assert note_on({"1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": SD15}}}) == ""


def test_an_example_for_the_demo_model_asks_for_what_it_knows_in_its_own_size() -> None:
    example = {"prompt": "a lighthouse", "negative_prompt": "blurry", "width": 256, "height": 256, "steps": 8}
    example["ckpt_name"] = DEMO_CHECKPOINT
    expected = {"prompt": DEMO_PROMPT, "steps": 8, "ckpt_name": DEMO_CHECKPOINT}
    assert suited_example(example, [DEMO_CHECKPOINT]) == expected
    assert suited_example({"ckpt_name": DEMO_CHECKPOINT, "scale": 2}, [DEMO_CHECKPOINT]) == {
        "ckpt_name": DEMO_CHECKPOINT,
        "scale": 2,
    }


def test_an_example_names_a_checkpoint_of_the_user_where_there_is_one() -> None:
    example = {"prompt": "a lighthouse", "width": 256, "ckpt_name": DEMO_CHECKPOINT}
    assert suited_example(example, [DEMO_CHECKPOINT, "mine.safetensors"]) == {
        **example,
        "ckpt_name": "mine.safetensors",
    }
    assert suited_example({"prompt": "a boat"}, [DEMO_CHECKPOINT]) == {"prompt": "a boat"}
