"""Families and variants that published files are found to be, by the names and shapes of their tensors."""

from __future__ import annotations

import math
import sys
from types import FrameType

import pytest

from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.registry import family_names, recognise
from tests.parity.public_files import public_files

# File -> family, variant, and what a refusal names where the family is not supported.
FOUND: dict[str, tuple[str, str, str]] = {
    "v1-5-pruned-emaonly": ("sd15", "", ""),
    "v1-5-pruned": ("sd15", "", ""),
    "diffusion_pytorch_model (v1-5, without prefix)": ("sd15", "", ""),
    "sd-v1-5-inpainting": ("sd15", "inpaint", ""),
    "instruct-pix2pix-00-22000": ("sd15", "edit", ""),
    "512-base-ema": ("sd2", "", ""),
    "v2-1_768-ema-pruned": ("sd2", "", ""),
    "512-inpainting-ema": ("sd2", "inpaint", ""),
    "512-depth-ema": ("sd2", "depth", ""),
    "x4-upscaler-ema": ("sd2", "upscale", ""),
    "sd21-unclip-h": ("sd2", "unclip", ""),
    "sd21-unclip-l": ("sd2", "unclip", ""),
    "sd_xl_base_1.0": ("sdxl", "", ""),
    "sd_xl_base_1.0 without VAE and text encoders": ("sdxl", "", ""),
    "sd_xl_turbo_1.0": ("sdxl", "", ""),
    "sdxl_lightning_4step_unet": ("sdxl", "", ""),
    "sd_xl_base_1.0_inpainting_0.1": ("sdxl", "inpaint", ""),
    "sdxl-instructpix2pix": ("sdxl", "edit", ""),
    "cosxl": ("sdxl", "", ""),
    "cosxl_edit": ("sdxl", "edit_scaled", ""),
    "playground-v2.5-1024px-aesthetic": ("sdxl", "", ""),
    "ssd-1b": ("sdxl", "", ""),
    "segmind-vega": ("sdxl", "", ""),
    "koala-700m": ("sdxl", "", ""),
    "koala-1b": ("sdxl", "", ""),
    "sd_xl_refiner_1.0": ("sdxl_refiner", "", ""),
    "svd": ("svd", "", ""),
    "svd_xt_1_1": ("svd", "", ""),
    "sv3d_u": ("svd", "orbit", ""),
    "sv3d_p": ("svd", "pose", ""),
    "stable_zero123": ("zero123", "", ""),
    "zero123-xl": ("zero123", "", ""),
    "stable_cascade_stage_c": ("cascade", "", ""),
    "stage_c": ("cascade", "", ""),
    "stage_c_lite": ("cascade", "", ""),
    "stable_cascade_stage_b": ("cascade", "decoder", ""),
    "stage_b": ("cascade", "decoder", ""),
    "stage_b_lite": ("cascade", "decoder", ""),
    "sd3_medium": ("sd3", "", ""),
    "sd3_medium_incl_clips": ("sd3", "", ""),
    "sd3_medium_incl_clips_t5xxlfp8": ("sd3", "", ""),
    "sd3.5_medium": ("sd3", "", ""),
    "sd3.5_large": ("sd3", "", ""),
    "flux1-dev": ("flux", "", ""),
    "flux1-dev-fp8": ("flux", "", ""),
    "flux1-schnell": ("flux", "", ""),
    "flux1-fill-dev": ("flux", "inpaint", ""),
    "flux1-canny-dev": ("flux", "", ""),
    "aura_flow_0.3": ("aura_flow", "", "AuraFlow"),
    "Chroma1-HD": ("chroma", "", "Chroma"),
    "Chroma1-Radiance": ("chroma_radiance", "", "Chroma"),
    "lumina_2_model_bf16": ("lumina2", "", "Lumina 2"),
    "qwen_image_fp8_e4m3fn": ("qwen_image", "", "Qwen-Image"),
    "hidream_i1_full_fp16": ("hidream", "", "HiDream"),
    "hunyuan_dit_1.1": ("hunyuan_dit", "", "Hunyuan DiT"),
    "hunyuan_dit_1.2": ("hunyuan_dit", "", "Hunyuan DiT"),
    "hunyuanimage2.1": ("hunyuan_image", "", "Hunyuan"),
    "hunyuanimage2.1_distilled": ("hunyuan_image", "", "Hunyuan"),
    "hunyuanimage2.1_refiner": ("hunyuan_image_refiner", "", "Hunyuan"),
    "hunyuan_video_t2v_720p": ("hunyuan_video", "", "Hunyuan Video"),
    "hunyuan_video_image_to_video_720p": ("hunyuan_video", "image", "Hunyuan Video"),
    "skyreels_hunyuan_i2v": ("hunyuan_video", "skyreels", "Hunyuan Video"),
    "PixArt-Sigma-XL-2-1024-MS": ("pixart", "", "PixArt"),
    "ltx-video-2b-v0.9": ("ltx_video", "", "LTX-Video"),
    "wan2.1_t2v_14B_fp16": ("wan", "", "Wan"),
}
# Parts of files: number of weights in millions, as the authors give it.
MILLIONS = {
    "diffusion_pytorch_model (v1-5, without prefix)": 860,
    "sdxl_lightning_4step_unet": 2567,
    "stage_c": 3600,
    "stage_c_lite": 1000,
    "stage_b": 1500,
    "stage_b_lite": 700,
    "flux1-dev": 11901,
    "aura_flow_0.3": 6800,
    "Chroma1-HD": 8900,
    "lumina_2_model_bf16": 2610,
    "qwen_image_fp8_e4m3fn": 20430,
    "hunyuan_dit_1.2": 1500,
    "hunyuanimage2.1": 17400,
    "hunyuan_video_t2v_720p": 12800,
    "PixArt-Sigma-XL-2-1024-MS": 610,
    "wan2.1_t2v_14B_fp16": 14300,
}
CALLS_FOR_A_TENSOR = 150  # the most; of the files here the most is 96


def test_every_file_of_the_record_is_known_here() -> None:
    assert public_files().keys() == FOUND.keys()


@pytest.mark.parametrize("file", MILLIONS)
def test_the_record_has_as_many_weights_as_published(file: str) -> None:
    shapes = public_files()[file]
    assert sum(map(math.prod, shapes.values())) / 1e6 == pytest.approx(MILLIONS[file], rel=0.08)


@pytest.mark.parametrize("file", FOUND)
def test_a_published_file_is_its_family_and_variant(file: str) -> None:
    family, variant, label = FOUND[file]
    index = TensorIndex(public_files()[file])
    if family in family_names():
        found = recognise(index)
        assert (found.family.name, found.match.variant) == (family, variant)
        assert found.match.variant in found.family.variants
    else:
        with pytest.raises(NotRecognised, match=label):
            recognise(index)


@pytest.mark.parametrize("file", FOUND)
def test_a_family_is_found_or_refused_in_few_steps(file: str) -> None:
    family_names()  # their modules are imported
    index = TensorIndex(public_files()[file])
    num_calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        recognise(index)
    except NotRecognised:
        assert FOUND[file][0] not in family_names()
    finally:
        sys.setprofile(None)
    assert num_calls < CALLS_FOR_A_TENSOR * len(public_files()[file])
