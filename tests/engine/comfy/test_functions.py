"""Functions of ComfyUI's modules that packs call."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from darkroom.engine.comfy.names import execution, nodes
from darkroom.engine.comfy.names.comfy import float as comfy_float
from darkroom.engine.comfy.names.comfy import hooks, lora, model_detection, model_management, model_sampling, ops
from darkroom.engine.comfy.names.comfy.ldm.modules import attention
from darkroom.engine.comfy.names.comfy.ldm.modules.diffusionmodules import openaimodel
from darkroom.engine.comfy.names.comfy_extras import (
    nodes_align_your_steps,
    nodes_lt,
    nodes_post_processing,
    nodes_sag,
    nodes_tcfg,
)
from darkroom.engine.comfy.names.comfy_extras.nodes_lt import get_keyframe_idxs
from darkroom.engine.diffusion.denoiser import ModelConfig
from darkroom.engine.diffusion.model_type import ModelType, model_type_of
from darkroom.engine.errors import OutOfMemory
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.unet import TimestepEmbedSequential
from darkroom.engine.layers.vae_kl import AttnBlock, Decoder, Encoder


def test_a_cast_weight_comes_with_what_gives_it_back_where_that_is_asked_for() -> None:
    layer = ops.disable_weight_init.Linear(2, 2)
    weight, bias, stream = ops.cast_bias_weight(layer, torch.zeros(1, 2, dtype=torch.float64), offloadable=True)
    assert (weight.dtype, bias.dtype, stream) == (torch.float64, torch.float64, None)
    assert ops.uncast_bias_weight(layer, weight, bias, stream) is None  # type: ignore[func-returns-value]
    assert len(ops.cast_bias_weight(layer, torch.zeros(1, 2))) == 2


def test_patches_are_added_to_a_weight() -> None:
    patches = [(0.5, ("diff", (torch.ones(2),)), 1.0, None, None)]
    assert lora.calculate_weight(patches, torch.zeros(2), "name").tolist() == [0.5, 0.5]


def test_a_patch_of_another_model_is_what_that_is_above_the_original() -> None:
    patches = [(1.0, ("model_as_lora", (torch.full((2,), 3.0),)), 1.0, None, None)]
    originals = {"name": [(torch.ones(2), None)]}
    assert lora.calculate_weight(patches, torch.zeros(2), "name", original_weights=originals).tolist() == [2.0, 2.0]


def test_values_are_rounded_at_random_to_float8_alone() -> None:
    values = torch.full((4096,), 1.03)
    rounded = comfy_float.stochastic_rounding(values, torch.float8_e4m3fn, seed=1).float()
    assert set(rounded.tolist()) == {1.0, 1.125}
    assert abs(rounded.mean().item() - 1.03) < 0.01
    assert comfy_float.stochastic_rounding(values, torch.float16).dtype is torch.float16


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        ([f"model.diffusion_model.{index}" for index in range(6)], "model.diffusion_model."),
        ([f"net.{index}" for index in range(6)], "net."),
        (["net.0", "net.1"], "model."),
        (["detector.a", "tracker.b"], ""),
    ],
)
def test_the_network_of_a_file_is_found_by_its_prefix(names: list[str], prefix: str) -> None:
    assert model_detection.unet_prefix_from_state_dict(dict.fromkeys(names)) == prefix


def test_a_control_is_taken_off_the_end_of_its_list() -> None:
    control: dict[str, list[Any]] = {"input": [None, torch.ones(1, 2)]}
    assert openaimodel.apply_control(torch.zeros(1, 2), control, "input").tolist() == [[1.0, 1.0]]
    assert control == {"input": [None]}


def test_the_layers_of_a_block_are_called_in_order() -> None:
    block = TimestepEmbedSequential(torch.nn.Flatten(), torch.nn.Identity())
    assert openaimodel.forward_timestep_embed(block, torch.zeros(1, 2, 3), torch.zeros(1)).shape == (1, 6)


def _two_levels(flow: Any, shift: float, multiplier: float) -> None:
    flow.sigmas = torch.tensor([0.5, 1.0])


def test_packs_make_flows_with_shifts_of_their_own() -> None:
    made = type("Made", (model_sampling.ModelSamplingDiscreteFlow, model_sampling.CONST), {})(ModelConfig())
    made.set_parameters(shift=3.0, timesteps=4, multiplier=1.0)
    assert torch.allclose(made.sigmas, torch.tensor([0.5, 0.75, 0.9, 1.0]))
    assert made.timestep(torch.tensor(0.5)).item() == 0.5
    assert model_type_of(made) is ModelType.FLOW
    made.set_noise_scale(2)
    assert made.noise_scaling(torch.ones(1), torch.ones(1, 1), torch.zeros(1, 1)).item() == 2.0
    own = type("Own", (model_sampling.ModelSamplingDiscreteFlow,), {"set_parameters": _two_levels})()
    assert (own.sigmas.tolist(), own.noise_scale) == ([0.5, 1.0], 1.0)  # a class's own parameters hold from the start
    flux = model_sampling.ModelSamplingFlux()
    flux.set_parameters(shift=0.0, timesteps=2)
    assert flux.sigmas.tolist() == [0.5, 1.0]


def test_a_star_import_has_the_kinds_of_predictions() -> None:
    assert {"CONST", "EDM", "EPS", "IMG_TO_IMG", "V_PREDICTION", "X0"} <= {*model_sampling.__all__}
    assert all(hasattr(model_sampling, name) for name in model_sampling.__all__)


def test_a_packs_name_is_that_of_its_folder_or_file(tmp_path: Path) -> None:
    (tmp_path / "one.py").touch()
    (tmp_path / "two.disabled").mkdir()
    assert nodes.get_module_name(str(tmp_path / "one.py")) == "one"
    assert nodes.get_module_name(str(tmp_path / "two.disabled")) == "two.disabled"


def test_the_layers_of_an_image_vae_have_what_packs_compute_them_by() -> None:
    config = family_named("sd15").scales["small"].vae
    with unfilled():
        encoder, decoder = Encoder(config), Decoder(config)
    halves: tuple[tuple[Any, Any], ...] = ((encoder, encoder.down), (decoder, decoder.up))
    for half, levels in halves:
        assert half.num_resolutions == len(levels)
        assert all(block.in_channels == block.conv1.in_channels for level in levels for block in level.block)


def test_attention_is_chosen_by_name() -> None:
    assert attention.get_attention_function("pytorch") is attention.optimized_attention
    assert attention.get_attention_function("sage", None) is None
    with pytest.raises(KeyError, match="sage: no such attention function"):
        attention.get_attention_function("sage")


def test_the_name_of_a_class_has_its_module() -> None:
    assert execution.full_type_name(int) == "int"
    assert execution.full_type_name(np.ndarray) == "numpy.ndarray"


def test_a_lora_hook_for_no_model_is_a_hook_alone() -> None:
    model, clip, group = hooks.load_hook_lora_for_models(None, None, {}, 1.0, 1.0)
    assert (model, clip, len(group.hooks)) == (None, None, 1)


def test_kernels_and_blurs_sum_to_one() -> None:
    kernel = nodes_post_processing.gaussian_kernel(4, 1.0)
    assert kernel.shape == (4, 4)
    assert math.isclose(kernel.sum().item(), 1.0, rel_tol=1e-6)
    assert torch.allclose(nodes_sag.gaussian_blur_2d(torch.ones(1, 2, 8, 8), 5, 1.0), torch.ones(1, 2, 8, 8))


def test_attention_of_a_vae_is_a_function_that_packs_call() -> None:
    block = AttnBlock(32)
    cells = torch.randn(1, 32, 2, 3, generator=torch.Generator().manual_seed(1))
    normed = block.norm(cells)
    attended = block.optimized_attention(block.q(normed), block.k(normed), block.v(normed))
    assert torch.equal(cells + block.proj_out(attended), block(cells))


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("full"), True),
        (OutOfMemory("full"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access"), False),
        (RuntimeError("out of memory"), False),
    ],
)
def test_errors_of_memory_are_told_from_others(error: Exception, is_one: bool) -> None:
    assert model_management.is_oom(error) is is_one


def test_levels_are_interpolated_log_linearly() -> None:
    assert np.allclose(nodes_align_your_steps.loglinear_interp([100.0, 1.0], 3), [100.0, 10.0, 1.0])


def test_equal_scores_have_all_in_common() -> None:
    score = torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(nodes_tcfg.score_tangential_damping(score, score), score, atol=1e-5)


def test_guides_and_masks_of_a_video_are_read() -> None:
    assert get_keyframe_idxs([[torch.zeros(1), {}]]) == (None, 0)
    places = torch.zeros(1, 3, 8, 2)
    places[0, 0, 4:, 0] = 8
    conditioning = [[torch.zeros(1), {"keyframe_idxs": places}]]
    assert get_keyframe_idxs(conditioning)[1] == 2
    assert get_keyframe_idxs(conditioning, (1, 4, 3, 2, 4))[1] == 1
    guides = [{"latent_shape": [2, 2, 2]}, {"latent_shape": [1, 2, 2]}]  # two that begin at one frame
    guided = [[torch.zeros(1), {"keyframe_idxs": torch.zeros(1, 3, 12, 2), "guide_attention_entries": guides}]]
    assert get_keyframe_idxs(guided)[1] == 3
    assert nodes_lt.get_noise_mask({"samples": torch.zeros(2, 4, 3, 2, 2)}).shape == (2, 1, 3, 1, 1)
