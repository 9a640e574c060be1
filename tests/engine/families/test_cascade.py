"""Stable Cascade: its two stages, their files, and its text encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families.base import ModelFamily, TensorIndex
from darkroom.engine.families.cascade.denoisers import DecoderLatentFormat, StageBDenoiser, StageCDenoiser
from darkroom.engine.families.cascade.stages import StageA, StageAConfig, StageCCoder, StageCCoderConfig
from darkroom.engine.families.cascade.unet import BlockKind, CascadeConfig, CascadeLevel, build_stage, cascade_config
from darkroom.engine.families.registry import family_named, recognise, recognise_vae
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import Part
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.text.clip_encoding import END_TOKEN, START_TOKEN

PLAIN: tuple[BlockKind, ...] = ("residual", "time")
DEEP: tuple[BlockKind, ...] = (*PLAIN, "attention")
STAGE_B = CascadeConfig(
    latent_channels=4, patch=2, down=(CascadeLevel(64, PLAIN), CascadeLevel(128, DEEP)),
    up=(CascadeLevel(128, DEEP, repeats=2), CascadeLevel(64, PLAIN * 2, repeats=3)), mapped_dim=64, pooled_dim=32,
    tokens_per_embedding=4, conditions=("sca",), prior_channels=16,
)  # fmt: skip


@pytest.fixture(scope="module")
def family() -> ModelFamily:
    return family_named("cascade")


def shapes_of(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


def stage_shapes(config: CascadeConfig) -> dict[str, tuple[int, ...]]:
    with unfilled():
        return shapes_of(build_stage(config))


@pytest.mark.parametrize("stage", ["full", "small", "b"])
def test_a_stage_is_read_from_the_shapes_of_its_tensors(family: ModelFamily, stage: str) -> None:
    config = STAGE_B if stage == "b" else family.scales[stage].denoiser
    assert cascade_config(stage_shapes(config)) == config


def test_the_second_stage_draws_other_latents_with_another_shift(family: ModelFamily) -> None:
    match = recognise(TensorIndex(stage_shapes(STAGE_B))).match
    assert match.variant == "decoder" and family.variant_types[match.variant] is StageBDenoiser
    found = family.parameterise(match, None)  # type: ignore[arg-type]
    assert found.latent_format is DecoderLatentFormat and found.settings == {"shift": 1.0}
    first = recognise(TensorIndex(stage_shapes(family.scales["small"].denoiser))).match
    assert first.variant == "" and family.parameterise(first, None).settings == {"shift": 2.0}  # type: ignore[arg-type]


def test_joined_projections_of_attention_are_taken_apart(family: ModelFamily) -> None:
    shapes = stage_shapes(family.scales["small"].denoiser)
    joined = {
        name.replace("to_q.", "in_proj_"): (shape[0] * 3, *shape[1:]) if "to_q." in name else shape
        for name, shape in shapes.items()
        if "to_k." not in name and "to_v." not in name
    }
    names = recognise(TensorIndex(joined)).match.names
    assert names.keys() == shapes.keys()
    key = next(name for name in shapes if name.endswith("to_v.weight"))
    assert names[key] == Part(key.replace("to_v.", "in_proj_"), 2, 3)


def test_a_stage_denoises_to_the_size_of_its_latent() -> None:
    torch.manual_seed(0)
    network = build_stage(STAGE_B)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    with torch.no_grad():
        drawn = [
            network(torch.ones(2, 4, 8, 12), torch.tensor([0.5, 0.5]), effnet=prior, clip=torch.ones(2, 32))
            for prior in (torch.zeros(2, 16, 3, 3), torch.ones(2, 16, 3, 3))
        ]
    assert drawn[0].shape == (2, 4, 8, 12) and not torch.equal(*drawn)


# --- autoencoders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [StageAConfig((32, 64), 3, 4, 16), StageCCoderConfig(hidden_channels=64), StageCCoderConfig(has_colours=True)],
)
def test_an_autoencoder_is_read_from_the_shapes_of_its_tensors(
    family: ModelFamily, config: StageAConfig | StageCCoderConfig
) -> None:
    with unfilled():
        vae = StageA(config) if isinstance(config, StageAConfig) else StageCCoder(config)
    shapes = shapes_of(vae)
    found, names = recognise_vae(shapes)
    assert found is family and names.keys() == shapes.keys()
    assert family.vae.configure(shapes) == config
    assert any(name.endswith("num_batches_tracked") for name in family.vae.saved(vae.state_dict()))


@pytest.mark.parametrize("part", ["encoder", "previewer"])
def test_the_coders_of_the_first_stage_load_alone(family: ModelFamily, part: str) -> None:
    with unfilled():
        whole = StageCCoder(StageCCoderConfig())
    alone = {name.removeprefix(f"{part}."): shape for name, shape in shapes_of(whole).items() if name.startswith(part)}
    found, names = recognise_vae(alone)
    assert found is family and all(name.startswith(f"{part}.") for name in names)
    config = family.vae.configure({name: alone[str(key)] for name, key in names.items()})
    assert (config.has_encoder, config.has_previewer) == (part == "encoder", part == "previewer")
    lacking = StageCCoder(replace(StageCCoderConfig(), has_encoder=False, has_previewer=False))
    with pytest.raises(ValueError, match="VAE"):
        lacking.encode(torch.zeros(1, 3, 32, 32)) if part == "previewer" else lacking.decode(torch.zeros(1, 16, 1, 1))


def test_the_encoder_has_a_cell_for_32_pixels_a_side() -> None:
    network = StageCCoder(StageCCoderConfig(has_previewer=False))
    for name, weight in network.named_parameters():
        torch.nn.init.ones_(weight) if name.endswith("running_var") else torch.nn.init.normal_(weight, std=0.05)
    with torch.no_grad():
        assert network.encode(torch.rand(1, 3, 64, 96)).shape == (1, 16, 2, 3)


# --- what the networks see -------------------------------------------------------------------------------------------


def _inputs(family: ModelFamily, kind: type[Any], **options: Any) -> dict[str, Any]:
    network = torch.nn.Module()
    network.config = family.scales["small"].denoiser
    noise = torch.zeros(1, 4, 84, 42)
    inputs: dict[str, Any] = kind(network).extra_conds(noise=noise, device=torch.device("cpu"), **options)
    return inputs


def test_without_a_first_stage_the_second_is_given_zeros_of_its_size(family: ModelFamily) -> None:
    inputs = _inputs(family, StageBDenoiser, pooled_output=torch.ones(1, 64))
    assert torch.equal(inputs["effnet"].cond, torch.zeros(1, 16, 8, 4))
    prior = torch.rand(1, 16, 3, 3)
    given = _inputs(family, StageBDenoiser, pooled_output=torch.ones(1, 64), stable_cascade_prior=prior)
    assert torch.equal(given["effnet"].cond, prior)


def test_images_are_given_to_the_first_stage_by_their_strength(family: ModelFamily) -> None:
    class Image:
        image_embeds = torch.ones(2, 64)

    image = {"clip_vision_output": Image(), "strength": 0.5}
    inputs = _inputs(family, StageCDenoiser, pooled_output=torch.ones(1, 64), unclip_conditioning=[image, image])
    assert torch.equal(inputs["clip_img"].cond, torch.full((1, 4, 64), 0.5))
    assert torch.equal(
        _inputs(family, StageCDenoiser, pooled_output=torch.ones(1, 64))["clip_img"].cond, torch.zeros(1, 1, 64)
    )


@pytest.mark.parametrize("kind", [StageBDenoiser, StageCDenoiser])
def test_conditioning_without_pooled_output_is_refused(family: ModelFamily, kind: type[Any]) -> None:
    with pytest.raises(ValueError, match="pooled output"):
        _inputs(family, kind)


def test_no_token_of_a_prompt_sees_the_padding(family: ModelFamily) -> None:
    """Another padding token changes the padding's own outputs alone, and not the prompt's."""
    _, text, _ = random_networks("small", 0, LoadTypes(), family=family)
    encoder = text.encoders()["g"]
    with torch.no_grad():
        outputs = [
            encoder.encode([[START_TOKEN, 320, END_TOKEN, *[padding] * 74]], None, True)[0] for padding in (0, 5)
        ]
    assert torch.equal(outputs[0][:, :3], outputs[1][:, :3])
    assert not torch.equal(outputs[0][:, 3:], outputs[1][:, 3:])
    # A padding's output depends on its own token and on the prompt, and not on the padding before it.
    with torch.no_grad():
        mixed = encoder.encode([[START_TOKEN, 320, END_TOKEN, *[5] * 73, 0]], None, True)[0]
    assert torch.allclose(mixed[:, -1], outputs[0][:, -1], atol=1e-5)
