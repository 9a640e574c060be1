"""Loading, scaling and saving images: pixel for pixel ComfyUI's, with or without metadata."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine, RunRequest, RunResult
from darkroom.engine.events import Event, RunFailed
from darkroom.engine.nodes.library.image import compositing, image_batches, image_filters, image_geometry, images, masks
from darkroom.engine.settings import EngineSettings
from tests.parity.recorded import INPUTS, Case

IMAGE_NODES = (
    *images.NODES,
    *image_geometry.NODES,
    *image_batches.NODES,
    *image_filters.NODES,
    *compositing.NODES,
    *masks.NODES,
)
CASE_NAMES = (
    *("image_add_noise", "image_alpha_join_split", "image_basic", "image_blend_1", "image_blend_2", "image_blend_3"),
    *("image_blur_sharpen", "image_canny", "image_composite_masked", "image_crop_from_batch", "image_load_formats"),
    *("image_load_mask_channels", "image_morphology_1", "image_morphology_2", "image_pad_outpaint"),
    *("image_porter_duff", "image_preview", "image_quantize", "image_rotate_flip_stitch", "image_scale_area"),
    *("image_scale_bicubic", "image_scale_bilinear", "image_scale_lanczos", "image_scale_nearest-exact"),
    *("image_scale_total_pixels", "image_scale_zero", "image_yuv", "mask_composite", "mask_convert"),
    *("mask_crop_threshold_color", "mask_feather", "mask_grow"),
)


class Studio:
    """An engine of the image nodes alone, and its folders."""

    def __init__(self, base: Path) -> None:
        self.settings = EngineSettings(base_directory=base, cpu=True)
        self.settings.input_path.mkdir()
        self.engine = Engine(self.settings, IMAGE_NODES)
        self.events: list[Event] = []

    def run(self, prompt: dict[str, Any], **extra_data: Any) -> RunResult:
        checked = self.engine.check(prompt)
        request = RunRequest("p", checked.prompt, checked.outputs, extra_data)
        future: Future[RunResult] = self.engine.submit(request, self.events.append)
        return future.result(timeout=60)

    def images(self, result: RunResult, node_id: str) -> list[Path]:
        folders = {"output": self.settings.output_path, "temp": self.settings.temp_path}
        shown = result.outputs[node_id]["images"]
        return [folders[item["type"]] / item["subfolder"] / item["filename"] for item in shown]


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    studio = Studio(tmp_path)
    yield studio
    studio.engine.close()


def blank(**inputs: Any) -> dict[str, Any]:
    return {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 4, "batch_size": 1, "color": 0, **inputs}}


def save(source: str, prefix: str = "x", slot: int = 0) -> dict[str, Any]:
    return {"class_type": "SaveImage", "inputs": {"images": [source, slot], "filename_prefix": prefix}}


@pytest.mark.parametrize("name", CASE_NAMES)
def test_images_are_comfyuis_pixel_for_pixel(studio: Studio, name: str) -> None:
    for path in INPUTS.glob("*.png"):
        (studio.settings.input_path / path.name).write_bytes(path.read_bytes())
    case = Case("sd15", name)
    result = studio.run(case.prompt)
    assert result.status == "success"
    expected = {output: content for output, content in case.expected().items() if output.endswith(".png")}
    assert expected
    for output, content in expected.items():
        node_id, index = output.removesuffix(".png").split("_")
        path = studio.images(result, node_id)[int(index)]
        with Image.open(io.BytesIO(content)) as wanted, Image.open(path) as drawn:
            np.testing.assert_array_equal(np.array(drawn), np.array(wanted), err_msg=output)


def test_saved_images_carry_prompt_and_workflow(studio: Studio) -> None:
    prompt = {
        "1": blank(),
        "2": save("1", "sub/name"),
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    result = studio.run(prompt, extra_pnginfo={"workflow": {"nodes": [1]}})
    saved, shown = studio.images(result, "2")[0], studio.images(result, "3")[0]
    assert saved == studio.settings.output_path / "sub" / "name_00001_.png"
    assert shown.parent == studio.settings.temp_path
    for path in (saved, shown):
        with Image.open(path) as image:
            assert json.loads(image.info["prompt"]) == prompt
            assert image.info["workflow"] == '{"nodes": [1]}'


def test_without_metadata_images_carry_nothing(tmp_path: Path) -> None:
    engine = Engine(EngineSettings(base_directory=tmp_path, cpu=True, embed_metadata=False), IMAGE_NODES)
    with engine:
        checked = engine.check({"1": blank(), "2": save("1")})
        engine.submit(RunRequest("p", checked.prompt, checked.outputs), lambda event: None).result(timeout=60)
    with Image.open(tmp_path / "output" / "x_00001_.png") as image:
        assert image.info == {}


def test_a_batch_is_numbered_on(studio: Studio) -> None:
    result = studio.run({"1": blank(batch_size=3), "2": save("1", "%width%x%height%")})
    assert [path.name for path in studio.images(result, "2")] == [f"8x4_0000{n}_.png" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.png", "Invalid image file: missing.png"),
        ("../outside.png", "Invalid image file: ../outside.png"),
        ("cut.png", "expected a whole image file"),
        ("text.png", "not an image in a known format"),
    ],
)
@pytest.mark.parametrize("class_type", ["LoadImage", "LoadImageMask"])
def test_images_that_cannot_be_read_are_refused_before_the_run(
    studio: Studio, class_type: str, name: str, said: str
) -> None:
    whole = studio.settings.input_path / "whole.png"
    Image.effect_noise((64, 64), 50).save(whole)
    (studio.settings.input_path / "cut.png").write_bytes(whole.read_bytes()[:20])  # its size is not in it
    (studio.settings.input_path / "text.png").write_text("hello")
    inputs = {"image": name} if class_type == "LoadImage" else {"image": name, "channel": "red"}
    prompt = {
        "1": {"class_type": class_type, "inputs": inputs},
        "2": {"class_type": "MaskToImage", "inputs": {"mask": ["1", 1 if class_type == "LoadImage" else 0]}},
        "3": save("2"),
    }
    with pytest.raises(PromptRejected) as refused:
        studio.engine.check(prompt)
    problem = refused.value.node_problems["1"].problems[0]
    assert problem.type == "custom_validation_failed" and said in problem.details


def test_an_image_is_read_again_when_its_file_has_changed(studio: Studio) -> None:
    prompt = {"1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}}, "2": save("1")}
    colours = []
    for colour in ((255, 0, 0), (0, 255, 0)):
        Image.new("RGB", (4, 4), colour).save(studio.settings.input_path / "a.png")
        result = studio.run(prompt)
        with Image.open(studio.images(result, "2")[0]) as image:
            colours.append(image.getpixel((0, 0)))
    assert colours == [(255, 0, 0), (0, 255, 0)]


def test_the_larger_side_is_scaled_to_the_asked_length(studio: Studio) -> None:
    for (width, height), expected in (((8, 4), (16, 8)), ((4, 8), (8, 16)), ((4, 4), (16, 16))):
        scale = {"image": ["1", 0], "upscale_method": "area", "largest_size": 16}
        prompt = {
            "1": blank(width=width, height=height),
            "2": {"class_type": "ImageScaleToMaxDimension", "inputs": scale},
            "3": save("2"),
        }
        with Image.open(studio.images(studio.run(prompt), "3")[0]) as image:
            assert image.size == expected


def test_a_channel_that_is_not_there_fails_the_node(studio: Studio) -> None:
    prompt = {
        "1": blank(),
        "2": {"class_type": "ImageToMask", "inputs": {"image": ["1", 0], "channel": "alpha"}},
        "3": {"class_type": "MaskToImage", "inputs": {"mask": ["2", 0]}},
        "4": save("3"),
    }
    assert studio.run(prompt).status == "error"
    failure = next(event for event in studio.events if isinstance(event, RunFailed))
    assert (failure.node_id, failure.exception_type) == ("2", "IndexError")


def test_an_image_is_loaded_from_the_output_folder_by_a_name_that_says_so(studio: Studio) -> None:
    studio.run({"1": blank(color=0xFF0000), "2": save("1", "made")})
    prompt: dict[str, Any] = {
        "1": {"class_type": "LoadImageOutput", "inputs": {"image": "made_00001_.png [output]"}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    with Image.open(studio.images(studio.run(prompt), "2")[0]) as image:
        assert image.getpixel((0, 0)) == (255, 0, 0)
    prompt["1"]["inputs"]["image"] = "other.png [output]"
    with pytest.raises(PromptRejected):
        studio.engine.check(prompt)


def test_animations_are_one_file(studio: Studio) -> None:
    animated = {"images": ["1", 0], "filename_prefix": "a", "fps": 6.0}
    prompt = {
        "1": blank(batch_size=3),
        "2": {"class_type": "SaveAnimatedPNG", "inputs": {**animated, "compress_level": 4}},
        "3": {
            "class_type": "SaveAnimatedWEBP",
            "inputs": {**animated, "lossless": True, "quality": 80, "method": "fastest"},
        },
    }
    result = studio.run(prompt)
    assert {path.suffix for node in "23" for path in studio.images(result, node)} == {".png", ".webp"}
