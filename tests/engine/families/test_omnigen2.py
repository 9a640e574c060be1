"""OmniGen2: its text encoder by the keys, reference images as the network's latents, LoRAs under its own names."""

from __future__ import annotations

from dataclasses import replace

import torch

from darkroom.engine.diffusion.model_sampling_variants import Flow
from darkroom.engine.families.omnigen2.family import fits, lora_keys
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.language_model import LanguageModel
from darkroom.engine.models.load import LoadedDenoiser
from darkroom.engine.models.store import denoiser

FAMILY = family_named("omnigen2")
SMALL = FAMILY.scales["small"]


def test_its_text_encoder_is_known_by_the_rows_of_its_keys() -> None:
    config = SMALL.text["qwen25_3b"]
    for key_heads, expected in ((2, True), (4, False)):
        with unfilled():
            model = LanguageModel(replace(config, heads=4, key_heads=key_heads))
        assert fits({name: tuple(weight.shape) for name, weight in model.state_dict().items()}) is expected
    assert not fits({})


def test_reference_images_are_scaled_as_the_networks_latents() -> None:
    with unfilled():
        network = FAMILY.denoiser.build(SMALL.denoiser)
    made = denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network))
    assert isinstance(made.model_sampling, Flow) and made.model_sampling.shift == 2.6
    image = torch.ones(1, 16, 4, 6)
    given = {"noise": torch.zeros(1, 16, 4, 4), "device": torch.device("cpu"), "cross_attn": torch.zeros(1, 5, 16)}
    assert "ref_latents" not in made.extra_conds(**given)
    (seen,) = made.extra_conds(**given, reference_latents=[image])["ref_latents"].cond
    assert torch.equal(seen, made.process_latent_in(image))


def test_loras_may_name_the_networks_layers_plainly() -> None:
    name = "diffusion_model.layers.0.attn.to_q.weight"
    keys = lora_keys([name], SMALL.denoiser)
    for key in ("layers.0.attn.to_q", "diffusion_model.layers.0.attn.to_q", "lora_unet_layers_0_attn_to_q"):
        assert keys[key] == name
