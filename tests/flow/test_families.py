"""Defaults of a family of models come from the engine, through the real processes."""

from __future__ import annotations

import re

import pytest

from darkroom.engine.families.base import ModelFamily
from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.modifiers.registry import build_registry
from tests.flow.families import DRAWN, MEASURED, STEERED, drawn, file_of, sampling_of
from tests.flow.running_worker import CHECKPOINT, RunningWorker

each_family = pytest.mark.parametrize("family", DRAWN, ids=lambda family: family.name)
each_steered_family = pytest.mark.parametrize("family", STEERED, ids=lambda family: family.name)


def cost_done(worker: RunningWorker) -> float:
    found = re.search(r"^darkroom_done_cost_units_total ([\d.e+]+)$", worker.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found.group(1))


@each_family
def test_a_request_that_names_a_checkpoint_alone_draws_as_its_family_does(
    families: RunningWorker, family: ModelFamily
) -> None:
    done = cost_done(families)
    inputs = sampling_of(families, ckpt_name=file_of(family))
    assert (inputs["steps"], inputs["cfg"]) == (family.default.steps, family.default.cfg)
    assert (inputs["sampler_name"], inputs["scheduler"]) == (family.default.sampler_name, family.default.scheduler)
    assert cost_done(families) - done == pytest.approx(100 * family.default.cost)


@each_family
def test_what_the_request_says_wins(families: RunningWorker, family: ModelFamily) -> None:
    inputs = sampling_of(families, ckpt_name=file_of(family), steps=3, cfg_scale=2.5, sampler_name="heun")
    assert (inputs["steps"], inputs["cfg"], inputs["sampler_name"]) == (3, 2.5, "heun")
    assert inputs["scheduler"] == family.default.scheduler


@each_steered_family
def test_every_modifier_draws_with_a_checkpoint_of_the_family(families: RunningWorker, family: ModelFamily) -> None:
    common = {"prompt": "a boat", "ckpt_name": file_of(family), "steps": 2, "seed": 3}
    sized = {**common, "width": 64, "height": 64}
    started = {**common, "input_image": EXAMPLE_IMAGE}
    plain = drawn(families, "Text2Image", **sized)
    control = {"control_image": EXAMPLE_IMAGE, "control_net_name": file_of(family)}
    images = {
        "ControlNet": drawn(families, "ControlNet", **sized, **control),
        "LoraText2Image": drawn(families, "LoraText2Image", **sized, loras=[file_of(family)]),
        "Image2Image": drawn(families, "Image2Image", **started),
        "Inpaint": drawn(families, "Inpaint", **started, mask_image=EXAMPLE_IMAGE),
    }
    assert plain.size == (64, 64)
    assert len({image.tobytes() for image in (plain, *images.values())}) == 1 + len(images)
    assert drawn(families, "HiresFix", **sized, hires_steps=1).size == (96, 96)
    assert drawn(families, "Upscale", **started, method="latent").size == (128, 128)
    assert len(set(plain.tobytes())) > 10


def test_the_default_family_draws_as_the_workflow_says(families: RunningWorker) -> None:
    own = build_registry().build("Image2Image", {"prompt": "", "input_image": "a.png"})["3"]["inputs"]
    inputs = sampling_of(families, ckpt_name=CHECKPOINT)
    names = ("steps", "cfg", "sampler_name", "scheduler")
    assert [inputs[name] for name in names] == [own[name] for name in names]


def test_the_benchmark_measures_the_family_that_is_named(families: RunningWorker) -> None:
    report = families.get("/benchmark").json()
    assert (report["verdict"], report["model"]) == ("pass", f"random:{MEASURED.name}:small")
    assert report["steps"] <= 2 and report["width_px"] <= MEASURED.default.width
