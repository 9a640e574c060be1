"""ComfyUI's recorded latents and pictures, drawn again by the engine in this process.

A fast share of `../shared/parity/cases`, all on one small checkpoint that is made here; the whole set runs over HTTP
with `../shared/parity/compare.py`. Tolerances are far below that script's: what differs is the order of sums.
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
    "scheduler_sgm_uniform",
    "latent_ops_math", "latent_ops_composite", "latent_ops_geometry", "latent_operation", "latent_rebatch",
    "latent_seed_behavior", "hires_latent_upscale_bislerp", "cond_average_lengths", "cond_default_combine",
    "cond_pair_combine", "cond_set_area_percentage", "cond_two_masks", "cond_timestep_range",
    "primitives_into_sampler", "text_nodes",
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
    "cond_area_strength", "cond_average", "cond_combine", "cond_combine_three", "cond_concat",
    "cond_concat_long_negative", "cond_set_area", "cond_set_area_only", "cond_set_mask_default",
    "cond_set_mask_mask_bounds", "cond_zero_out", "cond_zero_out_positive_range", "hires_latent_upscale_area",
    "hires_latent_upscale_bicubic", "hires_latent_upscale_bilinear", "hires_latent_upscale_by_area",
    "hires_latent_upscale_by_bicubic", "hires_latent_upscale_by_bilinear", "hires_latent_upscale_by_bislerp",
    "hires_latent_upscale_by_nearest-exact", "hires_latent_upscale_nearest-exact", "latent_batch",
    "latent_composite_then_sample", "latent_from_batch", "latent_from_batch_repeat", "latent_ops_mixed_sizes",
    "latent_upscale_zero_width",
)  # fmt: skip

pytestmark = [
    pytest.mark.skipif(not PARITY.is_dir(), reason=f"no parity cases at {PARITY}"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base = tmp_path_factory.mktemp("parity")
    shutil.copytree(PARITY / "inputs", base / "input")
    make = [sys.executable, str(PARITY / "make_models.py"), "--models", str(base / "models"), "--only", "sd15_small"]
    subprocess.run(make, check=True, capture_output=True)
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running
    shutil.rmtree(base)


def _run(engine: Engine, case: str) -> dict[str, Path | str]:
    """Runs a case; the file or text of each output by `NODE_INDEX`, as the expected ones are named."""
    prompt: dict[str, Any] = json.loads((PARITY / "cases" / f"{case}.json").read_text("utf-8"))
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
