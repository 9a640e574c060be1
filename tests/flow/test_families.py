"""What a family of models draws with by default comes from the engine, through the real processes."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from engine.checkpoints.random_weights import write_random_checkpoint
from engine.families import registry
from engine.families.base import ModelFamily
from modifiers.example_picture import EXAMPLE_PICTURE
from modifiers.registry import build_registry
from tests.flow.running_worker import CHECKPOINT, RunningWorker, running_worker
from tests.flow.small_models import write_control_net, write_lora

DEFAULT, *OTHERS = registry.families()
DRAWN = [family for family in OTHERS if family.nodes == DEFAULT.nodes]  # by the modifiers' plain workflows
STEERED = [family for family in DRAWN if family.controls is not None]  # by ControlNets and LoRAs as well
MEASURED = DRAWN[0]

each_family = pytest.mark.parametrize("family", DRAWN, ids=lambda family: family.name)
each_steered_family = pytest.mark.parametrize("family", STEERED, ids=lambda family: family.name)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Iterator[RunningWorker]:
    """A worker with a checkpoint of every family, measured with another family than the default one."""
    base = tmp_path_factory.mktemp("families")
    (base / "models" / "checkpoints").mkdir(parents=True)
    models = base / "models"
    for family in DRAWN:
        write_random_checkpoint(models / "checkpoints" / file_of(family), family=family)
    for family in STEERED:
        write_control_net(models / "controlnet" / file_of(family), family)
        write_lora(models / "loras" / file_of(family), family, models / "checkpoints" / file_of(family))
    settings = {"BENCHMARK": "auto", "BENCHMARK_FAMILY": MEASURED.name, "BENCHMARK_TEST_STEPS": "2"}
    with running_worker(base, small_checkpoint, METADATA="prompt", **settings) as running:
        yield running


def file_of(family: ModelFamily) -> str:
    return f"{family.name}.safetensors"


def sampling_of(worker: RunningWorker, **modifications: Any) -> dict[str, Any]:
    """The inputs of the sampler, as the picture of an Image2Image request tells them."""
    asked = {"prompt": "a boat", "input_image": EXAMPLE_PICTURE, "denoise": 0.1, **modifications}
    body = {"input": {"modifier": "Image2Image", "modifications": asked, "return_outputs_as_base64": True}}
    result = worker.generate(body).raise_for_status().json()
    picture = Image.open(io.BytesIO(base64.b64decode(result["output"][0]["data"])))
    prompt = json.loads(picture.info["prompt"])
    inputs: dict[str, Any] = prompt["3"]["inputs"]
    return inputs


def drawn(worker: RunningWorker, modifier: str, **modifications: Any) -> Image.Image:
    """The picture that a modifier gives."""
    body = {"input": {"modifier": modifier, "modifications": modifications, "return_outputs_as_base64": True}}
    result = worker.generate(body).raise_for_status().json()
    return Image.open(io.BytesIO(base64.b64decode(result["output"][0]["data"]))).convert("RGB")


def cost_done(worker: RunningWorker) -> float:
    found = re.search(r"^darkroom_done_cost_units_total ([\d.e+]+)$", worker.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found.group(1))


@each_family
def test_a_request_that_names_a_checkpoint_alone_draws_as_its_family_does(
    worker: RunningWorker, family: ModelFamily
) -> None:
    done = cost_done(worker)
    inputs = sampling_of(worker, ckpt_name=file_of(family))
    assert (inputs["steps"], inputs["cfg"]) == (family.default.steps, family.default.cfg)
    assert (inputs["sampler_name"], inputs["scheduler"]) == (family.default.sampler_name, family.default.scheduler)
    assert cost_done(worker) - done == pytest.approx(100 * family.default.cost)


@each_family
def test_what_the_request_says_wins(worker: RunningWorker, family: ModelFamily) -> None:
    inputs = sampling_of(worker, ckpt_name=file_of(family), steps=3, cfg_scale=2.5, sampler_name="heun")
    assert (inputs["steps"], inputs["cfg"], inputs["sampler_name"]) == (3, 2.5, "heun")
    assert inputs["scheduler"] == family.default.scheduler


@each_steered_family
def test_every_modifier_draws_with_a_checkpoint_of_the_family(worker: RunningWorker, family: ModelFamily) -> None:
    common = {"prompt": "a boat", "ckpt_name": file_of(family), "steps": 2, "seed": 3}
    sized = {**common, "width": 64, "height": 64}
    started = {**common, "input_image": EXAMPLE_PICTURE}
    plain = drawn(worker, "Text2Image", **sized)
    control = {"control_image": EXAMPLE_PICTURE, "control_net_name": file_of(family)}
    pictures = {
        "ControlNet": drawn(worker, "ControlNet", **sized, **control),
        "LoraText2Image": drawn(worker, "LoraText2Image", **sized, loras=[file_of(family)]),
        "Image2Image": drawn(worker, "Image2Image", **started),
        "Inpaint": drawn(worker, "Inpaint", **started, mask_image=EXAMPLE_PICTURE),
    }
    assert plain.size == (64, 64)
    assert len({picture.tobytes() for picture in (plain, *pictures.values())}) == 1 + len(pictures)
    assert drawn(worker, "HiresFix", **sized, hires_steps=1).size == (96, 96)
    assert drawn(worker, "Upscale", **started, method="latent").size == (128, 128)
    assert len(set(plain.tobytes())) > 10


def test_the_default_family_draws_as_the_workflow_says(worker: RunningWorker) -> None:
    own = build_registry().build("Image2Image", {"prompt": "", "input_image": "a.png"})["3"]["inputs"]
    inputs = sampling_of(worker, ckpt_name=CHECKPOINT)
    names = ("steps", "cfg", "sampler_name", "scheduler")
    assert [inputs[name] for name in names] == [own[name] for name in names]


def test_the_benchmark_measures_the_family_that_is_named(worker: RunningWorker) -> None:
    report = worker.get("/benchmark").json()
    assert (report["verdict"], report["model"]) == ("pass", f"random:{MEASURED.name}:small")
    assert report["steps"] <= 2 and report["width_px"] <= MEASURED.default.width
