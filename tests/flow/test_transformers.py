"""Every modifier draws with checkpoints of Flux and Stable Diffusion 3, through the real processes."""

from __future__ import annotations

import pytest

from darkroom.engine.families.base import ModelFamily
from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from tests.flow.families import FLUX, SD3, drawn, file_of, sampling_of
from tests.flow.running_worker import RunningWorker

each_family = pytest.mark.parametrize("family", [FLUX, SD3], ids=lambda family: family.name)


@each_family
def test_every_modifier_draws_with_a_checkpoint_of_the_family(families: RunningWorker, family: ModelFamily) -> None:
    common = {"prompt": "a boat", "ckpt_name": file_of(family), "steps": 2, "seed": 3}
    sized = {**common, "width": 64, "height": 64}
    started = {**common, "input_image": EXAMPLE_IMAGE}
    plain = drawn(families, "Text2Image", **sized)
    control = {"control_image": EXAMPLE_IMAGE, "control_net_name": file_of(family)}
    images = {
        "ControlNet": drawn(families, "ControlNet", **sized, **control, strength=10),
        "LoraText2Image": drawn(families, "LoraText2Image", **sized, loras=[{"name": file_of(family), "strength": 20}]),
        "Image2Image": drawn(families, "Image2Image", **started, denoise=0.6),
        "Inpaint": drawn(families, "Inpaint", **started, mask_image=EXAMPLE_IMAGE),
    }
    assert plain.size == (64, 64)
    assert len({image.tobytes() for image in (plain, *images.values())}) == 1 + len(images)
    assert drawn(families, "HiresFix", **sized, hires_steps=1).size == (96, 96)
    assert drawn(families, "Upscale", **started, method="latent").size == (128, 128)
    assert len(set(plain.tobytes())) > 10


@each_family
def test_a_request_that_names_a_checkpoint_alone_draws_as_its_family_does(
    families: RunningWorker, family: ModelFamily
) -> None:
    inputs = sampling_of(families, ckpt_name=file_of(family))
    assert (inputs["steps"], inputs["cfg"]) == (family.default.steps, family.default.cfg)
    assert (inputs["sampler_name"], inputs["scheduler"]) == (family.default.sampler_name, family.default.scheduler)
