"""Model files of twenty workflows as they are public: loaders and file names of each, with the bytes they come to.

The sizes are written out here, so that a plan's sum is compared with something else than its own table.
"""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.worker.models.manifest import built_in_manifest
from darkroom.worker.prompts.model_needs import find_needs
from darkroom.worker.prompts.workflows.node_uses import ModelHint, NodeUse

LOADERS = {
    "CheckpointLoaderSimple": ("ckpt_name",),
    "ImageOnlyCheckpointLoader": ("ckpt_name",),
    "UNETLoader": ("unet_name",),
    "CLIPLoader": ("clip_name",),
    "DualCLIPLoader": ("clip_name1", "clip_name2"),
    "TripleCLIPLoader": ("clip_name1", "clip_name2", "clip_name3"),
    "QuadrupleCLIPLoader": ("clip_name1", "clip_name2", "clip_name3", "clip_name4"),
    "VAELoader": ("vae_name",),
    "CLIPVisionLoader": ("clip_name",),
    "StyleModelLoader": ("style_model_name",),
    "LoraLoader": ("lora_name",),
}
OBJECT_INFO: dict[str, Any] = {
    name: {"input": {"required": {field: [["another.safetensors"], {}] for field in fields}}, "output": ["MODEL"]}
    for name, fields in LOADERS.items()
} | {"KSampler": {"input": {"required": {"seed": ["INT", {}]}}, "output": ["LATENT"]}}

CLIP_L, T5, T5_FP8, T5_SCALED = 246_144_152, 9_787_841_024, 4_893_934_904, 5_157_348_688
AE, WAN_VAE, QWEN_VAE, QWEN_3_4B = 335_304_388, 253_815_318, 253_806_246, 8_044_982_048

# what the workflow is, its loaders and files, the bytes of known size, and how many files are of unknown size
PUBLIC: dict[str, tuple[list[tuple[str, ...]], int, int]] = {
    "sd15 text to image": ([("CheckpointLoaderSimple", "v1-5-pruned-emaonly-fp16.safetensors")], 2_132_696_762, 0),
    "sd15 with its own VAE": (
        [
            ("CheckpointLoaderSimple", "v1-5-pruned-emaonly-fp16.safetensors"),
            ("VAELoader", "vae-ft-mse-840000-ema-pruned.safetensors"),
        ],
        2_132_696_762 + 334_641_190,
        0,
    ),
    "sd21": ([("CheckpointLoaderSimple", "v2-1_768-ema-pruned.safetensors")], 5_214_604_494, 0),
    "sdxl base and refiner": (
        [
            ("CheckpointLoaderSimple", "sd_xl_base_1.0.safetensors"),
            ("CheckpointLoaderSimple", "sd_xl_refiner_1.0.safetensors"),
        ],
        6_938_078_334 + 6_075_981_930,
        0,
    ),
    "sdxl turbo": ([("CheckpointLoaderSimple", "sd_xl_turbo_1.0_fp16.safetensors")], 6_938_081_905, 0),
    "sd35 medium": (
        [("CheckpointLoaderSimple", "sd3.5_medium_incl_clips_t5xxlfp8scaled.safetensors")],
        11_638_004_202,
        0,
    ),
    "flux schnell": ([("CheckpointLoaderSimple", "flux1-schnell-fp8.safetensors")], 17_236_328_572, 0),
    "flux dev": (
        [
            ("UNETLoader", "flux1-dev.safetensors"),
            ("DualCLIPLoader", "clip_l.safetensors", "t5xxl_fp16.safetensors"),
            ("VAELoader", "ae.safetensors"),
        ],
        23_802_932_552 + CLIP_L + T5 + AE,
        0,
    ),
    "flux redux": (
        [
            ("UNETLoader", "flux1-dev.safetensors"),
            ("DualCLIPLoader", "t5xxl_fp8_e4m3fn.safetensors", "clip_l.safetensors"),
            ("VAELoader", "ae.safetensors"),
            ("CLIPVisionLoader", "sigclip_vision_patch14_384.safetensors"),
            ("StyleModelLoader", "flux1-redux-dev.safetensors"),
        ],
        23_802_932_552 + T5_FP8 + CLIP_L + AE + 856_505_640,
        1,
    ),
    "flux kontext": (
        [
            ("UNETLoader", "flux1-dev-kontext_fp8_scaled.safetensors"),
            ("DualCLIPLoader", "clip_l.safetensors", "t5xxl_fp8_e4m3fn_scaled.safetensors"),
            ("VAELoader", "ae.safetensors"),
        ],
        CLIP_L + T5_SCALED + AE,
        1,
    ),
    "flux2 dev": (
        [
            ("UNETLoader", "flux2_dev_fp8mixed.safetensors"),
            ("CLIPLoader", "mistral_3_small_flux2_fp8.safetensors"),
            ("VAELoader", "flux2-vae.safetensors"),
        ],
        35_455_599_592 + 18_034_640_095 + 336_213_556,
        0,
    ),
    "z image turbo": (
        [
            ("UNETLoader", "z_image_turbo_bf16.safetensors"),
            ("CLIPLoader", "qwen_3_4b.safetensors"),
            ("VAELoader", "ae.safetensors"),
        ],
        12_309_866_400 + QWEN_3_4B + AE,
        0,
    ),
    "qwen image": (
        [
            ("UNETLoader", "qwen_image_fp8_e4m3fn.safetensors"),
            ("CLIPLoader", "qwen_2.5_vl_7b_fp8_scaled.safetensors"),
            ("VAELoader", "qwen_image_vae.safetensors"),
        ],
        9_384_670_680 + QWEN_VAE,
        1,
    ),
    "chroma": (
        [
            ("UNETLoader", "Chroma1-HD-fp8mixed.safetensors"),
            ("CLIPLoader", "t5xxl_fp16.safetensors"),
            ("VAELoader", "ae.safetensors"),
        ],
        T5 + AE,
        1,
    ),
    "hidream dev": (
        [
            ("UNETLoader", "hidream_i1_dev_fp8.safetensors"),
            (
                "QuadrupleCLIPLoader",
                "clip_l_hidream.safetensors",
                "clip_g_hidream.safetensors",
                "t5xxl_fp8_e4m3fn_scaled.safetensors",
                "llama_3.1_8b_instruct_fp8_scaled.safetensors",
            ),
            ("VAELoader", "ae.safetensors"),
        ],
        247_586_528 + 1_389_743_104 + T5_SCALED + 9_081_258_056 + AE,
        1,
    ),
    "wan text to video": (
        [
            ("UNETLoader", "wan2.1_t2v_1.3B_fp16.safetensors"),
            ("CLIPLoader", "umt5_xxl_fp8_e4m3fn_scaled.safetensors"),
            ("VAELoader", "wan_2.1_vae.safetensors"),
        ],
        6_735_906_897 + WAN_VAE,
        1,
    ),
    "hunyuan image": (
        [
            ("UNETLoader", "hunyuanimage2.1_distilled_fp8_e4m3fn.safetensors"),
            ("DualCLIPLoader", "qwen_2.5_vl_7b.safetensors", "byt5_small_glyphxl_fp16.safetensors"),
            ("VAELoader", "hunyuan_image_2.1_vae_fp16.safetensors"),
        ],
        438_643_184,
        3,
    ),
    "hunyuan video": (
        [
            ("UNETLoader", "hunyuan_video_t2v_720p_bf16.safetensors"),
            ("DualCLIPLoader", "clip_l.safetensors", "llava_llama3_fp8_scaled.safetensors"),
            ("VAELoader", "hunyuan_video_vae_bf16.safetensors"),
        ],
        CLIP_L,
        3,
    ),
    "svd image to video": ([("ImageOnlyCheckpointLoader", "svd_xt.safetensors")], 0, 1),
    "stable diffusion 3.5 from parts": (
        [
            (
                "TripleCLIPLoader",
                "clip_l.safetensors",
                "clip_g.safetensors",
                "t5xxl_fp16.safetensors",
            ),
        ],
        CLIP_L + 1_389_382_176 + T5,
        0,
    ),
}


def uses(loaders: list[tuple[str, ...]]) -> list[NodeUse]:
    found = [
        NodeUse(str(place), name, dict(zip(LOADERS[name], files, strict=True)))
        for place, (name, *files) in enumerate(loaders)
    ]
    return [*found, NodeUse("99", "KSampler", {"seed": 5})]


@pytest.mark.parametrize("name", PUBLIC)
def test_missing_files_and_their_bytes(name: str) -> None:
    loaders, num_bytes, num_unknown = PUBLIC[name]
    needs = find_needs(uses(loaders), OBJECT_INFO, built_in_manifest())
    named = {file for _, *files in loaders for file in files}
    assert {item.model.name for item in needs.missing} == named
    entries = [item.entry for item in needs.to_fetch().values() if item.entry is not None]
    assert {entry.name for entry in entries} == named
    assert sum(entry.size_bytes or 0 for entry in entries) == num_bytes
    assert sum(entry.size_bytes is None for entry in entries) == num_unknown


def test_a_file_in_the_list_is_here_and_texts_are_no_files() -> None:
    found = [
        NodeUse("1", "LoraLoader", {"lora_name": "another.safetensors"}),
        NodeUse("2", "KSampler", {"seed": "a text about another.safetensors", "note": "model.safetensors"}),
        NodeUse("3", "CLIPLoader", {"clip_name": ["1", 0]}),
    ]
    needs = find_needs(found, OBJECT_INFO, built_in_manifest())
    assert [item.name for item in needs.named] == ["another.safetensors"] and needs.missing == ()


def test_rows_of_a_list_of_loras_count_unless_they_are_off() -> None:
    rows = {"lora_1": {"on": True, "lora": "a.safetensors"}, "lora_2": {"on": False, "lora": "b.safetensors"}}
    needs = find_needs([NodeUse("1", "Power Lora Loader (rgthree)", rows)], OBJECT_INFO, built_in_manifest())
    assert [(item.model.name, item.model.kinds) for item in needs.missing] == [("a.safetensors", ("loras",))]


@pytest.mark.parametrize(
    ("name", "url", "directory", "is_taken"),
    [
        ("x.safetensors", "https://models.example/x.safetensors", "loras", True),
        ("x.safetensors", "https://models.example/x.safetensors", "vae", False),
        ("x.safetensors", "file:///etc/passwd", "loras", False),
        ("x.safetensors", "s3://bucket/x.safetensors", "loras", False),
        ("x.safetensors", "ftp://x", "loras", False),
        ("x.ckpt", "https://models.example/x.ckpt", "loras", False),
        ("../x.safetensors", "https://models.example/x.safetensors", "loras", False),
    ],
)
def test_only_safe_addresses_of_a_workflow_are_sources(name: str, url: str, directory: str, is_taken: bool) -> None:
    use = NodeUse("1", "LoraLoader", {"lora_name": name})
    needs = find_needs([use], OBJECT_INFO, built_in_manifest(), [ModelHint(name, url, directory)])
    (missing,) = needs.missing
    assert (missing.entry is not None) is is_taken and not (is_taken and missing.is_operators)


def test_nodes_that_no_output_needs_do_not_run() -> None:
    info = {"Save": {"output_node": True}, "Load": {}}
    prompt = {
        "1": {"class_type": "Load", "inputs": {}},
        "2": {"class_type": "Load", "inputs": {}},
        "3": {"class_type": "Save", "inputs": {"images": ["1", 0], "other": ["3", 0]}},
    }
    assert set(PromptGraph(prompt, info).running_part()) == {"1", "3"}
