"""ComfyUI's recorded latents and pictures, drawn again by the engine in this process.

A fast share of `../shared/parity/cases`, on one small checkpoint; each case's models are made when it is the first to
need them. The whole set runs over HTTP with `../shared/parity/compare.py`. Tolerances are far below that script's:
what differs is the order of sums.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.checkpoints.safetensors_file import SafetensorsFile
from engine.engine import Engine
from engine.runtime.request import RunRequest
from engine.settings import EngineSettings

PARITY = Path(__file__).parents[3] / "shared" / "parity"
LATENT_REL_L2 = 5e-5
PIXEL_MAX = 1

FAST = (
    "base_txt2img", "base_odd_latent", "base_batch2_ancestral", "base_cfg_1", "clip_skip_2", "prompt_weight_nested",
    "prompt_long_weighted", "prompt_unicode", "img2img_basic", "img2img_latent_file", "vae_encode_odd_size",
    "sampler_dpm_2", "sampler_dpmpp_2m", "sampler_lms", "sampler_ddim", "scheduler_ddim_uniform", "scheduler_karras",
    "scheduler_sgm_uniform", "custom_dual_cfg_nested", "custom_extend_sigmas", "custom_node_sampler_sa_solver",
    "custom_scheduler_gits", "custom_denoised_output", "patch_freeu_v2", "patch_hypertile", "patch_sag", "patch_tome",
    "patch_discrete_lcm", "patch_lazy_cache", "patch_perp_neg", "patch_apg", "patch_rescale_cfg",
    "inpaint_differential", "inpaint_vae_encode_odd", "advanced_two_stage", "vae_encode_tiled",
    "latent_ops_math", "latent_ops_composite", "latent_ops_geometry", "latent_operation",
    "cond_default_combine", "cond_set_area_percentage",
    "primitives_into_sampler", "text_nodes",
    "lora_one", "lora_lokr", "lora_hook_cond", "prompt_embedding_weighted", "control_apply", "patch_hypernetwork",
    "upscale_model_rrdb_x2_old",
)  # fmt: skip
SLOW = (
    "base_128", "base_batch2", "base_cfg_high", "base_cfg_zero", "base_denoise_zero_steps", "base_seed_32bit",
    "base_seed_max", "base_seed_zero", "base_steps_1", "base_wide", "clip_skip_1", "clip_skip_3", "clip_skip_6",
    "prompt_break_words", "prompt_case_numbers", "prompt_empty", "prompt_empty_both", "prompt_exact_75",
    "prompt_exact_76", "prompt_html", "prompt_long", "prompt_long_and_clip_skip", "prompt_long_word",
    "prompt_long_word_split", "prompt_negative_long", "prompt_newlines", "prompt_punctuation", "prompt_spaces",
    "prompt_weight_broken", "prompt_weight_escape", "prompt_weight_negative_zero", "prompt_weight_number_forms",
    "prompt_weight_simple", "sampler_euler", "sampler_euler_ancestral", "scheduler_exponential", "scheduler_normal",
    "scheduler_simple", "vae_encode",
    "advanced_no_noise", "advanced_start_late", "advanced_stop_early", "advanced_two_models",
    "advanced_two_stage_dpmpp", "base_unet_clip_loaders", "custom_add_noise", "custom_basic_guider",
    "custom_cfg_guider", "custom_control_batch", "custom_dual_cfg_regular", "custom_flip_sigmas", "custom_inpaint",
    "custom_node_sampler_dpm_adaptive", "custom_node_sampler_dpmpp_2m_sde", "custom_node_sampler_dpmpp_2s_ancestral",
    "custom_node_sampler_dpmpp_3m_sde", "custom_node_sampler_dpmpp_sde", "custom_node_sampler_er_sde",
    "custom_node_sampler_euler_ancestral", "custom_node_sampler_euler_ancestral_cfgpp",
    "custom_node_sampler_euler_cfgpp", "custom_node_sampler_lcm_upscale", "custom_node_sampler_lms", "custom_sampler",
    "custom_sampler_no_noise", "custom_scheduler_align_your_steps", "custom_scheduler_beta",
    "custom_scheduler_exponential", "custom_scheduler_karras", "custom_scheduler_laplace",
    "custom_scheduler_polyexponential", "custom_scheduler_sd_turbo", "custom_scheduler_vp", "custom_set_first_sigma",
    "custom_split_sigmas", "custom_split_sigmas_denoise", "img2img_ancestral", "img2img_dpm_2", "img2img_mixed_batch",
    "img2img_repeat_batch", "img2img_scheduler_ddim_uniform", "img2img_scheduler_karras",
    "img2img_scheduler_kl_optimal", "img2img_scheduler_normal", "img2img_scheduler_simple", "inpaint_model_batch",
    "inpaint_model_noise_mask_false", "inpaint_model_noise_mask_true", "inpaint_model_txt2img", "inpaint_noise_mask",
    "inpaint_noise_mask_ancestral", "inpaint_noise_mask_batch", "inpaint_outpaint", "inpaint_vae_encode_grow",
    "inpaint_vae_encode_grow2", "patch_cfg_norm", "patch_cfg_zero_star", "patch_clip_attention_multiply",
    "patch_continuous_edm_v", "patch_continuous_v", "patch_cross_attention_multiply", "patch_discrete_v",
    "patch_discrete_v_zsnr", "patch_discrete_x0", "patch_downscale", "patch_epsilon_scaling", "patch_freeu",
    "patch_freeu_lora_rescale", "patch_fresca", "patch_hypertile_large", "patch_latent_operation_cfg", "patch_mahiro",
    "patch_pag", "patch_perp_neg_guider", "patch_renorm_cfg", "patch_self_attention_multiply", "patch_tcfg",
    "sampler_ddpm", "sampler_dpm_adaptive", "sampler_dpmpp_2m_cfg_pp", "sampler_dpmpp_2m_sde",
    "sampler_dpmpp_2m_sde_heun", "sampler_dpmpp_2s_ancestral_cfg_pp", "sampler_dpmpp_3m_sde", "sampler_dpmpp_sde",
    "sampler_er_sde", "sampler_euler_ancestral_cfg_pp", "sampler_gradient_estimation", "sampler_heun",
    "sampler_ipndm_v", "sampler_lcm", "sampler_res_multistep", "sampler_res_multistep_ancestral",
    "sampler_sa_solver_pece", "sampler_seeds_3", "sampler_uni_pc", "scheduler_beta", "scheduler_kl_optimal",
    "scheduler_linear_quadratic", "vae_decode_tiled", "vae_encode_batch", "vae_loader",
    "cond_area_strength", "cond_average", "cond_combine", "cond_combine_three", "cond_concat",
    "cond_concat_long_negative", "cond_set_area", "cond_set_area_only", "cond_set_mask_default",
    "cond_set_mask_mask_bounds", "cond_zero_out", "cond_zero_out_positive_range", "hires_latent_upscale_area",
    "hires_latent_upscale_bicubic", "hires_latent_upscale_bilinear", "hires_latent_upscale_by_area",
    "hires_latent_upscale_by_bicubic", "hires_latent_upscale_by_bilinear", "hires_latent_upscale_by_bislerp",
    "hires_latent_upscale_by_nearest-exact", "hires_latent_upscale_nearest-exact", "latent_batch",
    "latent_composite_then_sample", "latent_from_batch", "latent_from_batch_repeat", "latent_ops_mixed_sizes",
    "latent_upscale_zero_width",
    "hires_latent_upscale_bislerp", "cond_average_lengths", "cond_pair_combine", "cond_two_masks",
    "cond_timestep_range", "latent_seed_behavior", "latent_rebatch",
    "control_advanced_early", "control_advanced_full", "control_advanced_late", "control_advanced_range",
    "control_advanced_strong", "control_batch", "control_canny", "control_hires", "control_image_batch",
    "control_lora", "control_two", "lora_clip_skip", "lora_conv", "lora_loha", "lora_model_only", "lora_negative",
    "lora_same_twice", "lora_stacked", "lora_stacked_mixed", "lora_unet_only_file", "lora_zero_clip",
    "lora_zero_model", "merge_add_difference", "merge_blocks", "merge_both", "merge_clip", "merge_lora",
    "merge_second_checkpoint", "merge_simple", "prompt_embedding", "prompt_embedding_bin_ext",
    "prompt_embedding_long", "prompt_embedding_missing", "prompt_embedding_subfolder", "prompt_negative_embedding",
    "upscale_model_hires", "upscale_model_rrdb_x2_new", "upscale_model_rrdb_x4_new", "upscale_model_rrdb_x4_old",
)  # fmt: skip

pytestmark = [
    pytest.mark.skipif(not PARITY.is_dir(), reason=f"no parity cases at {PARITY}"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base = tmp_path_factory.mktemp("parity")
    shutil.copytree(PARITY / "inputs", base / "input")
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running
    shutil.rmtree(base)


def _make_models(engine: Engine, prompt_text: str) -> None:
    """Writes the model files that a prompt names and that are not there yet."""
    models = engine.settings.models_path
    for layout in sorted((PARITY / "layouts").glob("*.json")):
        file = models / json.loads(layout.read_text("utf-8"))["file"]
        name = file.stem if "embeddings" in file.parts else file.name  # prompts name embeddings without an ending
        if name in prompt_text and not file.exists():
            make = [sys.executable, str(PARITY / "make_models.py"), "--models", str(models), "--only", layout.stem]
            subprocess.run(make, check=True, capture_output=True)


def _run(engine: Engine, case: str) -> dict[str, Path | str]:
    """Runs a case; the file or text of each output by `NODE_INDEX`, as the expected ones are named."""
    text = (PARITY / "cases" / f"{case}.json").read_text("utf-8")
    _make_models(engine, text)
    prompt: dict[str, Any] = json.loads(text)
    request = RunRequest(case, prompt, engine.check(prompt).outputs, {})
    result = engine.submit(request, lambda event: None).result()
    assert result.status == "success"
    found: dict[str, Path | str] = {}
    for node_id, shown in result.outputs.items():
        items = [item for kind in shown.values() for item in kind if isinstance(item, (dict, str))]
        for index, item in enumerate(items):
            is_text = isinstance(item, str)
            path = item if is_text else engine.files.of(item["type"]) / item["subfolder"] / item["filename"]
            found[f"{node_id}_{index}"] = path
    return found


def _assert_like_the_reference(engine: Engine, case: str) -> None:
    outputs = _run(engine, case)
    for expected in sorted((PARITY / "cases" / f"{case}.expected").iterdir()):
        path = outputs[expected.stem]
        if isinstance(path, str):
            assert path == expected.read_text("utf-8"), expected.name
        elif expected.suffix == ".latent":
            ours, theirs = (SafetensorsFile(item).tensor("latent_tensor").double() for item in (path, expected))
            assert float((ours - theirs).norm() / theirs.norm()) < LATENT_REL_L2, expected.name
        else:
            pixels, reference = (np.asarray(Image.open(item).convert("RGBA")).astype(int) for item in (path, expected))
            assert np.abs(pixels - reference).max() <= PIXEL_MAX, expected.name


@pytest.mark.parametrize("case", FAST)
def test_draws_what_comfyui_draws(engine: Engine, case: str) -> None:
    _assert_like_the_reference(engine, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW)
def test_draws_what_comfyui_draws_in_every_other_case(engine: Engine, case: str) -> None:
    _assert_like_the_reference(engine, case)
