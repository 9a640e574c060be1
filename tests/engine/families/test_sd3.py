"""Stable Diffusion 3: sets of text encoders, detection, latents, and LoRAs on joined layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.diffusion.model_sampling_variants import FlowSchedule, RectifiedFlow
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.registry import family_named, recognise
from darkroom.engine.families.sd3.transformer import Sd3Transformer
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.memory.weight_patches import calculate_weight
from darkroom.engine.models.load import LoadedDenoiser
from darkroom.engine.models.store import denoiser
from darkroom.engine.text.chunk_encoding import Encoded
from tests.engine.families.test_every_family import saved_index

FAMILY = family_named("sd3")
SMALL = FAMILY.scales["small"].denoiser
L, G, T5 = torch.rand(1, 77, 768), torch.rand(1, 154, 1280), torch.rand(1, 90, 4096)
POOLED_L, POOLED_G = torch.rand(1, 768), torch.rand(1, 1280)
SETS = {"l": Encoded(L, POOLED_L), "g": Encoded(G, POOLED_G), "t5xxl": Encoded(T5, None)}


@pytest.mark.parametrize(
    ("slots", "num_tokens"),
    [(("l", "g", "t5xxl"), 167), (("l", "g"), 77), (("l", "t5xxl"), 167), (("g",), 154), (("t5xxl",), 90)],
)
def test_encoders_that_are_left_out_leave_zeros(slots: tuple[str, ...], num_tokens: int) -> None:
    cond, pooled, _ = FAMILY.combine_text({slot: SETS[slot] for slot in slots})
    assert pooled is not None
    assert cond.shape == (1, num_tokens, 4096) and pooled.shape == (1, 2048)
    num_clip = num_tokens - (90 if "t5xxl" in slots else 0)
    expected_l = L if "l" in slots else torch.zeros(1, num_clip, 768)
    expected_g = G[:, :num_clip] if "g" in slots else torch.zeros(1, num_clip, 1280)
    assert torch.equal(cond[:, :num_clip, :768], expected_l[:, :num_clip])
    assert torch.equal(cond[:, :num_clip, 768:2048], expected_g) and not cond[:, :num_clip, 2048:].any()
    assert torch.equal(cond[:, num_clip:], T5[:, : num_tokens - num_clip])
    assert torch.equal(pooled[:, :768], POOLED_L if "l" in slots else torch.zeros(1, 768))
    assert torch.equal(pooled[:, 768:], POOLED_G if "g" in slots else torch.zeros(1, 1280))


def test_prompts_that_are_left_out_give_no_tokens() -> None:
    empty = {"l": Encoded(L[:, :0], torch.zeros(1, 768)), "g": Encoded(G[:, :0], torch.zeros(1, 1280))}
    cond, pooled, _ = FAMILY.combine_text({**empty, "t5xxl": SETS["t5xxl"]})
    assert pooled is not None and torch.equal(cond, T5) and not pooled.any()
    nothing = FAMILY.combine_text(empty).cond
    assert nothing.shape == (1, 77, 4096) and not nothing.any()


def test_the_shift_and_the_latents_are_those_of_the_paper() -> None:
    with unfilled():
        network = FAMILY.denoiser.build(SMALL)
    model = denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network))
    sampling = model.model_sampling
    assert isinstance(sampling, FlowSchedule) and isinstance(sampling, RectifiedFlow)
    assert float(sampling.sigma(torch.tensor(500.0))) == pytest.approx(3 * 0.5 / (1 + 2 * 0.5))
    latent = torch.randn(1, 16, 4, 4)
    torch.testing.assert_close(model.process_latent_out(model.process_latent_in(latent)), latent)
    assert float(model.process_latent_in(torch.full((1, 16, 1, 1), 0.0609)).abs().max()) < 1e-6


def test_a_conditioning_without_pooled_output_is_refused() -> None:
    with unfilled():
        network = FAMILY.denoiser.build(SMALL)
    model = denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network))
    with pytest.raises(ValueError, match="pooled output; got None"):
        model.encode_adm(pooled_output=None)


def test_networks_of_other_latents_or_layers_are_others() -> None:
    index = saved_index(FAMILY, "small")
    first = "model.diffusion_model.x_embedder.proj.weight"
    assert FAMILY.detect(index) is not None
    assert FAMILY.detect(replace(index, shapes={**index.shapes, first: (128, 4, 2, 2)})) is None
    assert recognise(TensorIndex(index.shapes)).family is FAMILY


def test_loras_of_single_layers_fit_the_joined_layer() -> None:
    """Three adapters on queries, keys and values change their rows alone, as one on all rows would."""
    network = Sd3Transformer(SMALL)
    keys = FAMILY.denoiser_lora_keys([f"diffusion_model.{name}" for name in network.state_dict()], SMALL)
    parts = {part: (torch.randn(2, 128), torch.randn(128, 2)) for part in ("to_q", "to_k", "to_v")}
    lora = {}
    for part, (down, up) in parts.items():
        lora[f"transformer.transformer_blocks.1.attn.{part}.lora_A.weight"] = down
        lora[f"transformer.transformer_blocks.1.attn.{part}.lora_B.weight"] = up
    weight = torch.randn(384, 128)
    changed = weight.clone()
    name = "diffusion_model.joint_blocks.1.x_block.attn.qkv.weight"
    for target, adapter in lora_patches(lora, keys).items():
        assert target[0] == name
        changed = calculate_weight([(0.5, adapter, 1.0, target[1], None)], changed, name)
    expected = weight + 0.5 * torch.cat([up @ down for down, up in parts.values()])
    torch.testing.assert_close(changed, expected, atol=1e-5, rtol=1e-5)


def test_shift_and_scale_of_the_last_norm_are_swapped() -> None:
    keys = FAMILY.denoiser_lora_keys([], SMALL)
    target: Any = keys["transformer.norm_out.linear"]
    name, rows, reorder = target
    assert name == "diffusion_model.final_layer.adaLN_modulation.1.weight" and rows is None and callable(reorder)
    assert torch.equal(reorder(torch.arange(4)), torch.tensor([2, 3, 0, 1]))
    assert keys["lora_transformer_transformer_blocks_0_ff_net_2"] == (
        "diffusion_model.joint_blocks.0.x_block.mlp.fc2.weight"
    )
