"""Every modifier draws with checkpoints of Flux and Stable Diffusion 3, through the real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.architectures.double_stream_control import HintKind
from engine.architectures.mmdit_control import PatchControl, PatchControlConfig
from engine.checkpoints.random_weights import write_random_checkpoint
from engine.families.base import ModelFamily
from engine.families.registry import family_named
from engine.formats.safetensors_file import write_safetensors
from modifiers.example_picture import EXAMPLE_PICTURE
from tests.engine.families.test_transformer_controlnets import control_network, write_control
from tests.flow.running_worker import RunningWorker, running_worker
from tests.flow.test_families import drawn, file_of, sampling_of

FLUX, SD3 = family_named("flux"), family_named("sd3")
PROJECTIONS = {"flux": "double_blocks_0_img_attn_proj", "sd3": "joint_blocks_0_x_block_attn_proj"}
WIDTH = 128  # of both small networks

each_family = pytest.mark.parametrize("family", [FLUX, SD3], ids=lambda family: family.name)


def control_for(family: ModelFamily) -> nn.Module:
    if family is FLUX:
        return control_network(HintKind.LATENT)
    return PatchControl(PatchControlConfig(num_blocks=1, width=WIDTH, embeds_twice=True))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Iterator[RunningWorker]:
    base = tmp_path_factory.mktemp("transformers")
    models = base / "models"
    (models / "checkpoints").mkdir(parents=True)
    for family in (FLUX, SD3):
        write_random_checkpoint(models / "checkpoints" / file_of(family), family=family)
        write_control(models / "controlnet" / file_of(family), control_for(family))
        key = f"lora_unet_{PROJECTIONS[family.name]}"
        pair = {f"{key}.lora_up.weight": torch.randn(WIDTH, 2), f"{key}.lora_down.weight": torch.randn(2, WIDTH)}
        write_safetensors(models / "loras" / file_of(family), pair)
    with running_worker(base, small_checkpoint, METADATA="prompt") as running:
        yield running


@each_family
def test_every_modifier_draws_with_a_checkpoint_of_the_family(worker: RunningWorker, family: ModelFamily) -> None:
    common = {"prompt": "a boat", "ckpt_name": file_of(family), "steps": 2, "seed": 3}
    sized = {**common, "width": 64, "height": 64}
    started = {**common, "input_image": EXAMPLE_PICTURE}
    plain = drawn(worker, "Text2Image", **sized)
    control = {"control_image": EXAMPLE_PICTURE, "control_net_name": file_of(family)}
    pictures = {
        "ControlNet": drawn(worker, "ControlNet", **sized, **control, strength=10),
        "LoraText2Image": drawn(worker, "LoraText2Image", **sized, loras=[{"name": file_of(family), "strength": 20}]),
        "Image2Image": drawn(worker, "Image2Image", **started, denoise=0.6),
        "Inpaint": drawn(worker, "Inpaint", **started, mask_image=EXAMPLE_PICTURE),
    }
    assert plain.size == (64, 64)
    assert len({picture.tobytes() for picture in (plain, *pictures.values())}) == 1 + len(pictures)
    assert drawn(worker, "HiresFix", **sized, hires_steps=1).size == (96, 96)
    assert drawn(worker, "Upscale", **started, method="latent").size == (128, 128)
    assert len(set(plain.tobytes())) > 10


@each_family
def test_a_request_that_names_a_checkpoint_alone_draws_as_its_family_does(
    worker: RunningWorker, family: ModelFamily
) -> None:
    inputs = sampling_of(worker, ckpt_name=file_of(family))
    assert (inputs["steps"], inputs["cfg"]) == (family.default.steps, family.default.cfg)
    assert (inputs["sampler_name"], inputs["scheduler"]) == (family.default.sampler_name, family.default.scheduler)
