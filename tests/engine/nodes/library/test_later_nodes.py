"""Nodes of later releases of ComfyUI, in an engine: what they save and return, and what they refuse."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine, RunRequest, RunResult
from darkroom.engine.events import Event, RunFailed
from darkroom.engine.images.encode import write_png
from darkroom.engine.media.deep_images import write_png16
from darkroom.engine.nodes.library.image.later_images import save_image_advanced
from darkroom.engine.settings import EngineSettings
from tests.contract.graph.declared import node
from tests.parity.recorded import INPUTS

BASE = {"1": node("LoadImage", image="photo_a.png"), "2": node("PrimitiveInt", value=3)}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base = tmp_path_factory.mktemp("later")
    shutil.copytree(INPUTS, base / "input")
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running


def run(engine: Engine, prompt: dict[str, Any], events: list[Event] | None = None) -> RunResult:
    checked = engine.check(BASE | prompt)
    request = RunRequest("p", checked.prompt, checked.outputs, {})
    told: list[Event] = [] if events is None else events
    return engine.submit(request, told.append).result(timeout=60)


def shown(engine: Engine, prompt: dict[str, Any], kind: str = "images") -> list[Path]:
    """Return the files that node 9 shows."""
    result = run(engine, prompt)
    assert result.status == "success"
    folders = {"output": engine.settings.output_path, "temp": engine.settings.temp_path}
    return [folders[item["type"]] / item["subfolder"] / item["filename"] for item in result.outputs["9"][kind]]


def test_a_png_of_16_bits_keeps_what_8_bits_lose(engine: Engine) -> None:
    batch = {
        "3": node("ImageScaleBy", image=["1", 0], upscale_method="bilinear", scale_by=1.37),
        "9": node(
            "SaveImageAdvanced",
            images=["3", 0],
            filename_prefix="deep",
            **{"format": "png", "format.bit_depth": "16-bit", "format.input_color_space": "sRGB"},
        ),
    }
    (path,) = shown(engine, batch)
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
    assert frame.format.name == "rgb48be"
    steps = frame.to_ndarray(format="rgb48le")
    assert np.unique(steps % 257).size > 200  # 8 bits stretched to 16 are multiples of 257
    assert b"tEXtprompt" in path.read_bytes()


def test_two_batches_are_shown_beside_each_other(engine: Engine) -> None:
    compared = {"9": node("ImageCompare", image_a=["1", 0], compare_view={})}
    (path,) = shown(engine, compared, "a_images")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert shown(engine, compared, "b_images") == []


def test_a_switch_computes_only_the_chosen_side(engine: Engine) -> None:
    prompt = {
        "3": node("ComfyMathExpression", expression="1 / 0", **{"values.a": ["2", 0]}),
        "4": node("ComfySwitchNode", switch=False, on_true=["3", 0], on_false=["2", 0]),
        "9": node("PreviewAny", source=["4", 0]),
    }
    result = run(engine, prompt)
    assert result.status == "success"
    assert list(result.outputs["9"]["text"]) == ["3"]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "is empty"),
        ("1 / 0", "cannot be calculated"),
        ("b", "cannot be calculated"),
        ("().__class__", "cannot be calculated"),
        ("pow(9, 99999)", "too large"),
        ("9 ** 9 ** 9", "cannot be calculated"),
        ("'text'", "gives 'text'; expected a finite number"),
        ("a +", "cannot be calculated"),
    ],
)
def test_an_expression_that_is_no_arithmetic_fails_by_name(engine: Engine, expression: str, words: str) -> None:
    prompt = {
        "3": node("ComfyMathExpression", expression=expression, **{"values.a": ["2", 0]}),
        "9": node("PreviewAny", source=["3", 0]),
    }
    events: list[Event] = []
    assert run(engine, prompt, events).status == "error"
    (failure,) = [event for event in events if isinstance(event, RunFailed)]
    assert failure.node_id == "3"
    assert failure.exception_message.startswith("expression: ")
    assert words in failure.exception_message


def test_a_way_to_resize_that_does_not_exist_is_refused_before_anything_runs(engine: Engine) -> None:
    prompt = {
        "3": node("ResizeImageMaskNode", input=["1", 0], resize_type="scale depth", scale_method="area"),
        "9": node("PreviewImage", images=["3", 0]),
    }
    with pytest.raises(PromptRejected) as refusal:
        engine.check(BASE | prompt)
    (problem,) = refusal.value.node_problems["3"].problems
    assert problem.type == "value_not_in_list"
    assert "scale width" in problem.details


@pytest.mark.parametrize("channels", [2, 5])
@pytest.mark.parametrize(("form", "depth"), [("png", "8-bit"), ("png", "16-bit"), ("exr", "32-bit float")])
def test_images_of_odd_channels_are_refused_before_one_is_saved(channels: int, form: str, depth: str) -> None:
    context: Any = None  # nothing is asked of it
    given = {"format": form, "bit_depth": depth, "input_color_space": "sRGB"}
    with pytest.raises(ValueError, match=f"images: {form} of {channels} channels; .*expected 1, 3, 4"):
        save_image_advanced(context, images=torch.zeros(1, 4, 4, channels), filename_prefix="x", format=given)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("depth", ["8-bit", "16-bit"])
def test_grey_and_transparent_images_are_saved(tmp_path: Path, channels: int, depth: str) -> None:
    image = torch.rand(4, 4, channels)
    write = partial(write_png, compress_level=1) if depth == "8-bit" else write_png16
    write(tmp_path / "a.png", image, {})
    with Image.open(tmp_path / "a.png") as saved:
        assert len(saved.getbands()) == channels


def test_the_place_of_a_choice_may_be_linked(engine: Engine) -> None:
    prompt = {"3": node("CustomCombo", choice="b", index=["2", 0]), "9": node("PreviewAny", source=["3", 1])}
    assert list(run(engine, prompt).outputs["9"]["text"]) == ["3"]
