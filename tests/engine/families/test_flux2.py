"""Flux.2: what tells its networks and text encoders, sizes, text, reference images, latents, LoRAs, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.adapters.lora_names import rows_of
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.ksampler import fix_empty_latent_channels
from darkroom.engine.diffusion.model_sampling_variants import FluxFlow
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, Shapes, TensorIndex
from darkroom.engine.families.flux2.diffusers_names import file_layout, lora_keys
from darkroom.engine.families.flux2.nodes import shift_of
from darkroom.engine.families.flux2.text import QWEN_4B, LayerInputsEncoder
from darkroom.engine.families.flux2.vae import unpacked
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.language_model import LanguageModel
from darkroom.engine.models.load import LoadedDenoiser
from darkroom.engine.models.store import denoiser
from darkroom.engine.text.tekken_tokens import byte_tekken, tekken_vocabulary

FAMILY = family_named("flux2")
SMALL = FAMILY.scales["small"].denoiser
NOISE = torch.zeros(1, 128, 4, 4)
SIZES = {"full": (32223, 22901), "klein_4b": (3876, 4022), "klein_9b": (9079, 7568)}  # millions of weights


def shapes_of(network: torch.nn.Module) -> Shapes:
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


def network(scale: str = "small") -> torch.nn.Module:
    with unfilled():
        return FAMILY.denoiser.build(FAMILY.scales[scale].denoiser)


def text_model(scale: str) -> LanguageModel:
    (config,) = FAMILY.scales[scale].text.values()
    with unfilled():
        return LanguageModel(config)


def model() -> Denoiser:
    return denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network()))


def conditions(**options: Any) -> dict[str, Any]:
    given = {"noise": NOISE, "device": torch.device("cpu"), "cross_attn": torch.ones(1, 5, 192), **options}
    return model().extra_conds(**given)


@pytest.mark.parametrize("scale", SIZES)
def test_networks_have_as_many_weights_as_published_and_are_recognised(scale: str) -> None:
    found = network(scale)
    text = text_model(scale)
    counts = tuple(round(sum(weight.numel() for weight in item.parameters()) / 1e6) for item in (found, text))
    assert counts == SIZES[scale]
    for prefix in ("model.diffusion_model.", "diffusion_model.", ""):
        shapes = {prefix + name: shape for name, shape in shapes_of(found).items()}
        recognised = registry.recognise(TensorIndex(shapes))
        assert recognised.family is FAMILY
        assert FAMILY.denoiser.configure(registry.shapes_under(recognised.match.names, shapes)) == found.config
    family, ((encoder, _),) = registry.recognise_text_encoders([shapes_of(text)], "flux2")
    assert family is FAMILY and encoder.encoding.slot in FAMILY.scales[scale].text


def test_factors_of_norms_may_be_called_weights() -> None:
    own = shapes_of(network())
    later = {name.replace("_norm.scale", "_norm.weight"): shape for name, shape in own.items()}
    assert later.keys() != own.keys()
    assert registry.shapes_under(registry.recognise(TensorIndex(later)).match.names, later) == own


def test_files_of_both_layouts_are_one_network() -> None:
    own = shapes_of(network())
    renamed = lora_keys([], SMALL)
    theirs: dict[str, tuple[int, ...]] = {}
    for key, target in renamed.items():
        if key.startswith("transformer.") and ".linear1" not in key and "to_qkv" not in key and isinstance(target, str):
            theirs[key.removeprefix("transformer.") + ".weight"] = own[target.removeprefix("diffusion_model.")]
    width = SMALL.width
    theirs["norm_out.linear.weight"] = (2 * width, width)
    for block in range(SMALL.num_double):
        for part in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj"):
            theirs[f"transformer_blocks.{block}.attn.{part}.weight"] = (width, width)
    for block in range(SMALL.num_single):
        theirs[f"single_transformer_blocks.{block}.attn.to_qkv_mlp_proj.weight"] = (9 * width, width)
    names = file_layout()(theirs)
    assert names is not None
    assert dict(registry.shapes_under(names, theirs)) == own
    assert registry.recognise(TensorIndex(theirs)).family is FAMILY


def test_a_model_has_one_text_encoder_and_the_loader_of_one_file_alone_offers_the_type() -> None:
    assert "flux2" in registry.offered_text_types(num_encoders=1)
    assert "flux2" not in registry.offered_text_types(num_encoders=2)
    with pytest.raises(NotRecognised):
        registry.recognise_text_encoders([shapes_of(text_model("klein_4b"))] * 2, "flux2")


def test_short_text_has_zeros_before_it() -> None:
    text = conditions()["c_crossattn"].cond
    assert text.shape == (1, 512, 192) and text[:, :507].eq(0).all() and text[:, 507:].eq(1).all()
    assert conditions(cross_attn=torch.ones(1, 600, 192))["c_crossattn"].cond.shape[1] == 600


def test_text_of_another_encoder_is_refused() -> None:
    with pytest.raises(ValueError, match="got text of width 96, expected 192, as the text encoders of Flux.2 give it"):
        conditions(cross_attn=torch.ones(1, 5, 96))


def test_reference_images_are_latents_of_its_own_vae() -> None:
    found = conditions(reference_latents=[torch.ones(1, 128, 2, 3)], reference_latents_method="uxo")
    assert found["ref_latents"].cond[0].eq(1).all() and found["ref_latents_method"].cond == "uxo"
    with pytest.raises(ValueError, match=r"got shape \[1, 16, 4, 6\], expected 128 channels"):
        conditions(reference_latents=[torch.ones(1, 16, 4, 6)])


def test_guidance_is_three_and_a_half_unless_a_node_sets_it_or_disables_it() -> None:
    assert conditions()["guidance"].cond.tolist() == [3.5]
    assert "guidance" not in conditions(guidance=None)
    assert isinstance(model().model_sampling, FluxFlow)


def test_empty_latents_for_cells_of_eight_pixels_are_of_the_same_image() -> None:
    class Sampled:
        def get_model_object(self, name: str) -> object:
            return FAMILY.latent_format()

    fixed = fix_empty_latent_channels(Sampled(), torch.zeros(2, 4, 10, 8), 8)  # type: ignore[arg-type]
    assert fixed.shape == (2, 128, 5, 4)
    own = fix_empty_latent_channels(Sampled(), torch.zeros(1, 128, 10, 8))  # type: ignore[arg-type]
    assert own.shape == (1, 128, 10, 8)


def test_previews_show_four_colours_a_cell() -> None:
    latent = torch.rand(1, 128, 3, 5)
    reshape = FAMILY.latent_format.latent_rgb_factors_reshape
    assert reshape is not None and reshape(latent).shape == (1, 32, 6, 10)
    assert torch.equal(unpacked(latent)[0, 0, :2, :2].flatten(), latent[0, :4, 0, 0])


def test_the_conditioning_is_what_three_layers_read() -> None:
    (config,) = FAMILY.scales["small_klein_4b"].text.values()
    config = replace(config, num_layers=2, vocabulary_size=16)
    encoder = LayerInputsEncoder(LanguageModel(config), replace(QWEN_4B.encoding, pad_token=0), layers=(1, 2))
    encoder.requires_grad_(False)
    chunk = [[(5, 1.0), (6, 1.0), (7, 1.0)]]
    found = encoder.encode_weighted(chunk, layer_idx=-2, project_pooled=True)
    embeds = encoder.transformer.get_input_embeddings()(torch.tensor([[5, 6, 7]]))
    first, second = list(encoder.transformer.model.states(embeds, torch.ones(1, 3)))[1:3]
    torch.testing.assert_close(found.cond, torch.cat([first, second], dim=-1))
    assert encoder.output_width == found.cond.shape[-1]


def test_tekken_reads_marks_as_one_token_and_joins_pairs_by_rank() -> None:
    vocabulary = tekken_vocabulary(byte_tekken())
    marks = len("abc")
    first, *text = vocabulary.encode("[INST]abc")
    assert vocabulary.piece(first) == "[INST]" and len(text) == marks
    with pytest.raises(ValueError, match="invalid tekken file; got 2 bytes"):
        tekken_vocabulary(b"{}")


def test_loras_of_trainers_change_their_rows_of_joined_layers() -> None:
    keys = lora_keys(["diffusion_model.img_in.weight"], SMALL)
    width = SMALL.width
    joined = "diffusion_model.single_blocks.1.linear1.weight"
    assert keys["diffusion_model.single_blocks.1.linear1_qkv"] == rows_of(joined, 0, 3 * width)
    assert keys["transformer.single_transformer_blocks.1.attn.to_k"] == rows_of(joined, width, width)
    assert keys["transformer_blocks.0.ff.linear_in"] == "diffusion_model.double_blocks.0.img_mlp.0.weight"
    assert keys["lycoris_single_transformer_blocks_1_attn_to_out"] == "diffusion_model.single_blocks.1.linear2.weight"


def test_noise_levels_are_shifted_by_the_image_and_the_steps() -> None:
    assert shift_of(4096, 20) < shift_of(4096, 4)
    assert shift_of(8192, 20) == shift_of(8192, 4) == pytest.approx(0.00016927 * 8192 + 0.45666666)
