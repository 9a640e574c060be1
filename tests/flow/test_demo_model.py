"""The model that ships with the engine draws what the words say, through the real processes."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from darkroom.worker.models.demo_model import DEMO_CHECKPOINT
from tests.flow.running_worker import RunningWorker

EXPECTED = Path(__file__).parent / "expected"
DEMO_IMAGES = {
    "demo_apple.png": "a red apple on a blue background",
    "demo_heart.png": "a blue heart",
    "demo_star.png": "a yellow star on a black background",
}
Pixels = np.ndarray[Any, np.dtype[np.float64]]


def drawn(worker: RunningWorker, modifier: str = "Text2Image", **modifications: Any) -> Pixels:
    """[128, 128, 3]; only the checkpoint is named, the size comes with it."""
    fields = {"ckpt_name": DEMO_CHECKPOINT, "steps": 12, "seed": 3, **modifications}
    body = {"input": {"modifier": modifier, "modifications": fields, "return_outputs_as_base64": True}}
    result = worker.generate(body).raise_for_status().json()
    assert DEMO_CHECKPOINT in result["message"]
    image = Image.open(io.BytesIO(base64.b64decode(result["output"][0]["data"])))
    return np.asarray(image.convert("RGB"), dtype=np.float64)


def as_data_uri(image: Pixels) -> str:
    file = io.BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def middle(image: Pixels) -> Pixels:
    """Mean colour of the middle, where the thing is."""
    colour: Pixels = image[48:88, 48:88].mean((0, 1))
    return colour


def rim(image: Pixels) -> Pixels:
    sides = (image[:6], image[-6:], image[:, :6], image[:, -6:])
    colour: Pixels = np.median(np.concatenate([side.reshape(-1, 3) for side in sides]), 0)
    return colour


def expected(name: str, image: Pixels) -> Pixels:
    return np.asarray(Image.open(EXPECTED / name).convert("RGB"), dtype=np.float64) - image


@pytest.fixture(scope="module")
def apple(worker: RunningWorker) -> Pixels:
    return drawn(worker, prompt=DEMO_IMAGES["demo_apple.png"])


def test_a_red_apple_is_red_and_its_background_blue(apple: Pixels) -> None:
    assert apple.shape == (128, 128, 3)
    red, green, blue = middle(apple)
    assert red > green + 60 and red > blue + 60
    red, green, blue = rim(apple)
    assert blue > red + 60 and blue > green + 40
    assert np.abs(expected("demo_apple.png", apple)).mean() < 1


def test_a_blue_heart_is_blue_on_white(worker: RunningWorker) -> None:
    heart = drawn(worker, prompt=DEMO_IMAGES["demo_heart.png"])
    red, _, blue = middle(heart)
    assert blue > red + 60
    assert rim(heart).min() > 190
    assert np.abs(expected("demo_heart.png", heart)).mean() < 1


def test_a_yellow_star_is_yellow_on_black(worker: RunningWorker) -> None:
    star = drawn(worker, prompt=DEMO_IMAGES["demo_star.png"])
    red, green, blue = middle(star)
    assert min(red, green) > blue + 60
    assert rim(star).max() < 60
    assert np.abs(expected("demo_star.png", star)).mean() < 1


def test_a_little_noise_keeps_the_image_and_much_follows_the_words(worker: RunningWorker, apple: Pixels) -> None:
    source = as_data_uri(apple)
    kept = drawn(worker, "Image2Image", denoise=0.2, prompt=DEMO_IMAGES["demo_apple.png"], input_image=source)
    words = "a yellow star on a black background"
    redrawn = drawn(worker, "Image2Image", denoise=0.95, prompt=words, input_image=source)
    assert np.abs(kept - apple).mean() < np.abs(redrawn - apple).mean() / 2
    assert rim(redrawn).max() < 110 < rim(kept).max()


def inpainting(source: str) -> dict[str, Any]:
    """The lower half drawn anew."""

    def node(class_type: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": class_type, "inputs": inputs}

    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=DEMO_CHECKPOINT),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a yellow star on a black background"),
        "3": node("CLIPTextEncode", clip=["1", 1], text=""),
        "4": node("LoadImage", image=source),
        "5": node("VAEEncode", pixels=["4", 0], vae=["1", 2]),
        "6": node("SolidMask", value=0.0, width=128, height=128),
        "7": node("SolidMask", value=1.0, width=128, height=64),
        "8": node("MaskComposite", destination=["6", 0], source=["7", 0], x=0, y=64, operation="add"),
        "9": node("SetLatentNoiseMask", samples=["5", 0], mask=["8", 0]),
        "10": node(
            "KSampler", model=["1", 0], positive=["2", 0], negative=["3", 0], latent_image=["9", 0], seed=3, steps=12,
            cfg=4.0, sampler_name="euler", scheduler="normal", denoise=1.0,
        ),
        "11": node("VAEDecode", samples=["10", 0], vae=["1", 2]),
        "12": node("SaveImage", images=["11", 0], filename_prefix="inpainted"),
    }  # fmt: skip


def test_inpainting_redraws_what_the_mask_covers_and_keeps_the_rest(worker: RunningWorker, apple: Pixels) -> None:
    body = {"input": {"workflow_json": inpainting(as_data_uri(apple)), "return_outputs_as_base64": True}}
    result = worker.generate(body).raise_for_status().json()
    image = Image.open(io.BytesIO(base64.b64decode(result["output"][0]["data"])))
    changed = np.abs(np.asarray(image.convert("RGB"), dtype=np.float64) - apple).mean(2)
    assert changed[:48].mean() < 25
    assert changed[80:].mean() > 2 * changed[:48].mean()
