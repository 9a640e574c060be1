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

DEFAULT, *OTHERS = registry.families()
DRAWN = [family for family in OTHERS if family.nodes == DEFAULT.nodes]  # by the modifiers' plain workflows
MEASURED = DRAWN[0]

each_family = pytest.mark.parametrize("family", DRAWN, ids=lambda family: family.name)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Iterator[RunningWorker]:
    """A worker with a checkpoint of every family, measured with another family than the default one."""
    base = tmp_path_factory.mktemp("families")
    (base / "models" / "checkpoints").mkdir(parents=True)
    for family in DRAWN:
        write_random_checkpoint(base / "models" / "checkpoints" / file_of(family), family=family)
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


def cost_done(worker: RunningWorker) -> float:
    found = re.search(r"^darkroom_cost_done_total ([\d.e+]+)$", worker.get("/metrics").text, re.MULTILINE)
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


def test_the_default_family_draws_as_the_workflow_says(worker: RunningWorker) -> None:
    own = build_registry().build("Image2Image", {"prompt": "", "input_image": "a.png"})["3"]["inputs"]
    inputs = sampling_of(worker, ckpt_name=CHECKPOINT)
    names = ("steps", "cfg", "sampler_name", "scheduler")
    assert [inputs[name] for name in names] == [own[name] for name in names]


def test_the_benchmark_measures_the_family_that_is_named(worker: RunningWorker) -> None:
    report = worker.get("/benchmark").json()
    assert (report["verdict"], report["model"]) == ("pass", f"random:{MEASURED.name}:small")
    assert report["steps"] <= 2 and report["width_px"] <= MEASURED.default.width
