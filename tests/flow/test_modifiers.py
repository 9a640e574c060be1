"""Every modifier draws a real image through the real processes; a wrong name comes back with the nearest."""

from __future__ import annotations

import io
from typing import Any

import numpy
import pytest
from PIL import Image

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from tests.flow.running_worker import CHECKPOINT, RunningWorker
from tests.flow.small_models import CONTROL_NET, LORAS, UPSCALER

SMALL = {"steps": 2, "seed": 7, "ckpt_name": CHECKPOINT}
SIZE = {"width": 64, "height": 64}


def drawn(worker: RunningWorker, modifier: str, modifications: dict[str, Any]) -> numpy.ndarray[Any, Any]:
    """The pixels of the image that a request gives."""
    response = worker.generate({"input": {"modifier": modifier, "modifications": modifications}})
    assert response.status_code == 200, response.text
    image = Image.open(io.BytesIO(worker.output_bytes(response.json())))
    return numpy.asarray(image.convert("RGB"), dtype=numpy.float64)


def problem_of(worker: RunningWorker, modifier: str, modifications: dict[str, Any]) -> dict[str, Any]:
    response = worker.generate({"input": {"modifier": modifier, "modifications": modifications}})
    assert response.status_code == 422, response.text
    (problem,) = response.json()["error"]["problems"]
    found: dict[str, Any] = problem
    return found


def test_loras_change_the_image_each_for_itself_and_at_no_strength_not_at_all(studio: RunningWorker) -> None:
    text = {"prompt": "a fox", **SMALL, **SIZE}
    plain = drawn(studio, "Text2Image", text)
    one = drawn(studio, "LoraText2Image", {**text, "loras": LORAS[0]})
    both = drawn(studio, "LoraText2Image", {**text, "loras": [{"name": name} for name in LORAS]})
    none = drawn(studio, "LoraText2Image", {**text, "loras": [{"name": LORAS[0], "strength": 0}]})
    assert numpy.array_equal(none, plain)
    assert not numpy.array_equal(one, plain)
    assert not numpy.array_equal(both, one)


@pytest.mark.parametrize("preprocessor", ["none", "canny"])
def test_a_control_net_changes_the_image_and_at_no_strength_does_not(studio: RunningWorker, preprocessor: str) -> None:
    text = {"prompt": "a fox", **SMALL, **SIZE}
    control = {**text, "control_image": EXAMPLE_IMAGE, "control_net_name": CONTROL_NET, "preprocessor": preprocessor}
    plain = drawn(studio, "Text2Image", text)
    assert not numpy.array_equal(drawn(studio, "ControlNet", control), plain)
    assert numpy.array_equal(drawn(studio, "ControlNet", {**control, "strength": 0}), plain)


@pytest.mark.parametrize("masked_content", ["erase", "keep"])
def test_inpaint_redraws_the_middle_and_leaves_the_corners(studio: RunningWorker, masked_content: str) -> None:
    request = {"prompt": "a fox", "input_image": EXAMPLE_IMAGE, "mask_image": EXAMPLE_IMAGE, **SMALL}
    first = drawn(studio, "Inpaint", {**request, "masked_content": masked_content, "grow_mask_by": 0})
    other = drawn(studio, "Inpaint", {**request, "masked_content": masked_content, "grow_mask_by": 0, "seed": 8})
    changed = numpy.abs(first - other).max(axis=2)
    assert first.shape == (64, 64, 3)
    assert changed[24:40, 24:40].mean() > 2 * changed[:8, :8].mean()  # the VAE's attention reaches the corners


def test_without_a_mask_what_is_transparent_is_redrawn(studio: RunningWorker) -> None:
    half = Image.new("RGBA", (64, 64), "red")
    half.paste((0, 0, 0, 0), (0, 0, 32, 64))
    half.save(studio.base / "input" / "half.png")
    assert drawn(studio, "Inpaint", {"prompt": "a fox", "input_image": "half.png", **SMALL}).shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("modifications", "side_px"),
    [
        ({"scale": 1.5}, 96),
        ({"method": "pixel", "scale": 2, "interpolation": "nearest-exact"}, 128),
        ({"method": "model", "upscale_model": UPSCALER}, 128),
        ({"method": "model", "upscale_model": UPSCALER, "scale": 0.75}, 96),
        ({"method": "latent", "scale": 1.5, "prompt": "a disc", **SMALL}, 96),
    ],
)
def test_upscale_enlarges(studio: RunningWorker, modifications: dict[str, Any], side_px: int) -> None:
    image = drawn(studio, "Upscale", {"input_image": EXAMPLE_IMAGE, **modifications})
    assert image.shape == (side_px, side_px, 3)
    if modifications.get("method") == "pixel":
        assert image[side_px // 2, side_px // 2].mean() > 200 > image[2, 2].mean()


@pytest.mark.parametrize("upscale_in", ["latent", "pixel"])
def test_hires_fix_draws_at_the_larger_size(studio: RunningWorker, upscale_in: str) -> None:
    request = {"prompt": "a fox", "hires_scale": 1.5, "hires_steps": 2, "upscale_in": upscale_in, **SMALL, **SIZE}
    assert drawn(studio, "HiresFix", request).shape == (96, 96, 3)


@pytest.mark.parametrize(
    ("modifier", "modifications", "field", "nearest"),
    [
        ("LoraText2Image", {"prompt": "", "loras": [LORAS[1], "frist"]}, "loras.1.name", LORAS[0]),
        ("LoraText2Image", {"prompt": "", "loras": [{"name": LORAS[0], "weight": 1}]}, "loras.0.weight", "strength"),
        (
            "ControlNet",
            {"prompt": "", "control_image": EXAMPLE_IMAGE, "control_net_name": "sub/Small_Control.pth"},
            "control_net_name",
            CONTROL_NET,
        ),
        (
            "Upscale",
            {"input_image": EXAMPLE_IMAGE, "method": "model", "upscale_model": "twic"},
            "upscale_model",
            UPSCALER,
        ),
        ("Upscale", {"input_image": EXAMPLE_IMAGE, "interpolation": "lanzcos"}, "interpolation", "lanczos"),
        ("HiresFix", {"prompt": "", "upscale_method": "bislurp"}, "upscale_method", "bislerp"),
        ("Inpaint", {"prompt": "", "input_image": EXAMPLE_IMAGE, "sampler_name": "eulr"}, "sampler_name", "euler"),
        ("Text2Image", {"prompt": "", "ckpt_name": "smal.safetensors"}, "ckpt_name", CHECKPOINT),
    ],
)
def test_a_wrong_name_is_said_of_its_parameter_with_the_nearest_right_one(
    studio: RunningWorker, modifier: str, modifications: dict[str, Any], field: str, nearest: str
) -> None:
    problem = problem_of(studio, modifier, modifications)
    assert problem["field"] == f"input.modifications.{field}"
    assert nearest in problem["allowed"] or nearest in problem["message"]
    assert nearest in problem["message"] or "weight" in field


def test_a_missing_upscaler_is_said_before_anything_runs(studio: RunningWorker) -> None:
    problem = problem_of(studio, "Upscale", {"input_image": EXAMPLE_IMAGE, "method": "model"})
    assert problem["field"] == "input.modifications.upscale_model"


def test_a_modifier_of_the_users_own_needs_no_code(studio: RunningWorker) -> None:
    assert drawn(studio, "Poster", {"subject": "a fox"}).shape == (64, 64, 3)
    problem = problem_of(studio, "Poster", {"subject": "a fox", "steps": 5})
    assert (problem["field"], problem["allowed"]["maximum"]) == ("input.modifications.steps", 4)
    assert problem_of(studio, "Poster", {})["message"] == "is required"


def test_a_modifier_of_the_users_own_may_be_code(studio: RunningWorker) -> None:
    assert drawn(studio, "Postcard", {"greeting": "hello"}).shape == (64, 64, 3)


def test_broken_modifiers_are_named_in_the_list_and_the_log_and_stop_nothing(studio: RunningWorker) -> None:
    listed = {entry["name"]: entry for entry in studio.get("/modifiers").json()}
    assert "missing.json" in listed["broken"]["error"]
    assert "on purpose" in listed["explodes"]["error"]
    assert listed["Poster"]["source"] == "Poster.toml"
    log = studio.log.read_text()
    assert "broken.toml" in log and "explodes.py" in log


def test_the_list_of_modifiers_says_which_files_there_are(studio: RunningWorker) -> None:
    listed = {entry["name"]: entry for entry in studio.get("/modifiers").json()}
    assert listed["ControlNet"]["schema"]["properties"]["control_net_name"]["enum"] == [CONTROL_NET]
    assert "dpmpp_2m" in listed["Text2Image"]["schema"]["properties"]["sampler_name"]["enum"]
