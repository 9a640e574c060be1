"""ComfyUI's recorded latents and images of the other families, drawn again by the engine in this process.

A fast share of each family's cases runs with `./test.sh`, on small networks; all of them run with
`./test.sh -m slow tests/engine/families`.
"""

from __future__ import annotations

import pytest

from darkroom.engine.engine import Engine
from tests.parity.in_process import assert_like_the_reference
from tests.parity.recorded import Case

FAST = {
    "sdxl": (
        "tinyxl_basic", "tinyxl_base_refiner", "tinyxl_koala_diffusers", "tinyxl_inpaint_model", "tinyxl_cosxl_edit",
        "tinyxl_playground_img2img", "tinyxl_unclip", "tinyxl_photomaker_first",
        "tinyxl_area_combine", "tinyxl_control", "tinyxl_size_cond_chunks",
    ),
    "minimax_h3": ("h3_guide_image_and_audio",),
    "zero123": ("zero123_batched_cfg_1",),
    "ace_step15": ("ace15_reference_with_codes",),
    "minimax_music3": ("music3_audio", "music3_merged"),
    "cascade": ("cascade_control_super_resolution",),
    "ltx2": ("ltx2_text_generate", "ltx23_all_guidance"),
    "trellis2": ("trellis2_texture",),
    "z_image_pixel": ("z_image_pixel_omni_two",),
    "triposplat": ("prepared_batch", "prepared_mask", "prepared_rgba", "tripo_more_gaussians"),
    "core_nodes": (
        "batches_and_alpha", "feather_sides", "guidance_and_sampling_options", "latent_composites_and_batches",
        "load_odd_formats", "porter_duff_modes", "resize_masks_and_images", "total_pixels_steps", "image_glsl_shader",
    ),
    "later_nodes": (
        "resize_pictures", "resize_masks", "growing_batches", "logic_and_arithmetic", "advanced_saving",
    ),
    "flow_nodes": (
        "lists_of_texts", "numbers", "text_changes", "string_format", "json_texts", "training_images", "image_lists",
        "text_overlay",
    ),
    "media_nodes": (
        "audio_join", "boxes", "cameras", "color_transfer", "colors_and_curves", "crop_to_mask", "layers",
        "latent_cut_to_batch", "painter", "regions", "tiles",
    ),
    "vision_nodes": (
        "faces_full_custom", "faces_interpolate", "frames_film", "frames_rife", "da3_mono_sky", "da3_views", "moge_v1",
        "moge_v2",
    ),
    "rt_detr": ("all", "batch", "cut_out", "from_the_end", "nothing", "one_class"),
    "sam3": ("text_several", "points", "track_mask_text"),
    "templates": ("image_flux2", "image_krea2_turbo_t2i", "image_sdxl_simple", "utility-gan_upscaler"),
    "later_sampling": (
        "flux_nag", "flux_scale_rope", "ltxv_windows", "node_cfg_override_two", "prompt_japanese", "wan_fresca",
        "wan_tonemap", "wan_easycache",
    ),  # fmt: skip
    "flux_keys": ("keys_klein_batch_cfg",),
    "qwen_layered": ("layered_image", "layered_two_references"),
    "wan_later": ("wan_a2_cache_int4", "wan_scail2_bare", "wan_ar_lora"),
}  # fmt: skip

SLOW = {
    "later_sampling": ("sampler_sa_solver_leftover", "sampler_sa_solver_pece_leftover"),
    "flux_keys": ("keys_dev", "keys_klein", "keys_none_dev", "keys_none_klein"),
    "sam3": (
        "batch_counted", "box", "found_boxes", "nothing_wanted", "odd_text_point", "point_alone", "sam3_point_box",
        "sam3_text", "text_box_individual", "text_unrefined", "track_mask_alone", "track_nine_frames", "track_nothing",
        "track_text", "track_two_groups", "track_two_masks",
    ),
    "qwen_layered": (
        "layered_image_alone", "layered_no_layers", "layered_prompt", "layered_reference_of_layers",
        "layered_references_index", "layered_references_index_timestep_zero", "layered_references_offset",
        "layered_shift", "layered_twice", "layered_vae", "layered_lora", "layered_mask", "layered_vae_frames",
    ),
    "vision_nodes": (
        "background_birefnet", "background_cut_out", "da3_mono_lower_bound", "da3_small_batch", "da3_two_views",
        "faces_both_filled", "faces_previous", "faces_short_drawn", "frames_film_video", "frames_rife_raw_odd_size",
        "frames_rife_sixteen", "moge_levels", "moge_panorama",
    ),
}  # fmt: skip
"""Cases of groups that are no family's, whose tests run those of the families."""

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    "case",
    [Case(family, name) for family, names in FAST.items() for name in names],
    ids=lambda case: case.name,
)
def test_draws_what_comfyui_draws(engine: Engine, case: Case) -> None:
    assert_like_the_reference(engine, case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [Case(family, name) for family, names in SLOW.items() for name in names],
    ids=lambda case: case.name,
)
def test_draws_at_length_what_comfyui_draws(engine: Engine, case: Case) -> None:
    assert_like_the_reference(engine, case)
