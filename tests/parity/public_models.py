"""Names and shapes of the tensors in published model files, from ComfyUI's definitions at their full size.

Run by ComfyUI's Python, with ComfyUI's folder; it writes `public_models.json.xz` beside this file:

    /path/to/python tests/parity/public_models.py /path/to/ComfyUI

The networks are made on the meta device, so that nothing of their size is in memory. Each file is a list of parts, a
prefix and a component (`sd15` behind `model.diffusion_model.`), since many files share their encoders and VAEs. What
training left in published files (EMA, schedules, buffers) is in components too. The sizes are those that the authors
published: configuration files of the repositories, and the papers.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Shapes = dict[str, list[int]]

OUTPUT = Path(__file__).with_name("public_models.json.xz")
UNET = "model.diffusion_model."
VAE = "first_stage_model."
SD1 = {
    "image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320, "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 2, 4, 4], "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0], "transformer_depth_middle": 1,
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0], "num_heads": 8, "context_dim": 768,
    "use_spatial_transformer": True, "legacy": False, "use_linear_in_transformer": False,
}  # fmt: skip
SD2 = {
    **{key: value for key, value in SD1.items() if key != "num_heads"},
    "num_head_channels": 64, "context_dim": 1024, "use_linear_in_transformer": True,
}  # fmt: skip
UPSCALER = {
    **SD1, "in_channels": 7, "model_channels": 256, "channel_mult": [1, 2, 2, 4], "context_dim": 1024,
    "transformer_depth": [0, 0, 1, 1, 1, 1, 1, 1], "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "use_linear_in_transformer": True, "num_classes": 1000, "disable_self_attentions": [True, True, True, False],
}  # fmt: skip
XL = {
    "image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320, "num_res_blocks": [2, 2, 2],
    "channel_mult": [1, 2, 4], "transformer_depth": [0, 0, 2, 2, 10, 10], "transformer_depth_middle": 10,
    "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10], "num_head_channels": 64, "context_dim": 2048,
    "use_spatial_transformer": True, "legacy": False, "use_linear_in_transformer": True, "num_classes": "sequential",
    "adm_in_channels": 2816,
}  # fmt: skip
REFINER = {
    **XL, "model_channels": 384, "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4], "context_dim": 1280,
    "transformer_depth": [0, 0, 4, 4, 4, 4, 0, 0], "transformer_depth_middle": 4, "adm_in_channels": 2560,
    "transformer_depth_output": [0, 0, 0, 4, 4, 4, 4, 4, 4, 0, 0, 0],
}  # fmt: skip
VIDEO = {
    **SD2, "in_channels": 8, "num_classes": "sequential", "adm_in_channels": 768, "use_temporal_resblock": True,
    "use_temporal_attention": True, "merge_strategy": "learned_with_images", "video_kernel_size": [3, 1, 1],
}  # fmt: skip
KOALA = {**XL, "num_res_blocks": [1, 1, 1]}
UNETS: Mapping[str, Mapping[str, Any]] = {
    "sd15": SD1,
    "sd15-inpaint": {**SD1, "in_channels": 9},
    "sd15-edit": {**SD1, "in_channels": 8},
    "sd2": SD2,
    "sd2-inpaint": {**SD2, "in_channels": 9},
    "sd2-depth": {**SD2, "in_channels": 5},
    "sd2-unclip-h": {**SD2, "num_classes": "sequential", "adm_in_channels": 2048},
    "sd2-unclip-l": {**SD2, "num_classes": "sequential", "adm_in_channels": 1536},
    "sd2-upscaler": UPSCALER,
    "sdxl": XL,
    "sdxl-inpaint": {**XL, "in_channels": 9},
    "sdxl-edit": {**XL, "in_channels": 8},
    "sdxl-refiner": REFINER,
    "ssd-1b": {
        **XL, "transformer_depth": [0, 0, 2, 2, 4, 4], "transformer_depth_output": [0, 0, 0, 1, 1, 2, 10, 4, 4],
        "transformer_depth_middle": -1,
    },
    "vega": {
        **XL, "transformer_depth": [0, 0, 1, 1, 2, 2], "transformer_depth_output": [0, 0, 0, 1, 1, 1, 2, 2, 2],
        "transformer_depth_middle": -1,
    },
    "koala-700m": {
        **KOALA, "transformer_depth": [0, 2, 5], "transformer_depth_output": [0, 0, 2, 2, 5, 5],
        "transformer_depth_middle": -2,
    },
    "koala-1b": {
        **KOALA, "transformer_depth": [0, 2, 6], "transformer_depth_output": [0, 0, 2, 2, 6, 6],
        "transformer_depth_middle": 6,
    },
    "svd": VIDEO,
    "sv3d-u": {**VIDEO, "adm_in_channels": 256},
    "sv3d-p": {**VIDEO, "adm_in_channels": 1280},
}  # fmt: skip
IMAGES = {
    "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128, "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2,
    "attn_resolutions": [], "dropout": 0.0,
}  # fmt: skip
NUM_STEPS = 1000
SCHEDULE = (
    "alphas_cumprod", "alphas_cumprod_prev", "betas", "log_one_minus_alphas_cumprod", "posterior_log_variance_clipped",
    "posterior_mean_coef1", "posterior_mean_coef2", "posterior_variance", "sqrt_alphas_cumprod",
    "sqrt_one_minus_alphas_cumprod", "sqrt_recip_alphas_cumprod", "sqrt_recipm1_alphas_cumprod",
)  # fmt: skip


def shapes_of(module: Any) -> Shapes:
    return {name: list(tensor.shape) for name, tensor in module.state_dict().items()}


def ema_of(unet: Shapes) -> Shapes:
    """Return the averaged weights as the training of Stable Diffusion names them: without dots."""
    averaged = {"model_ema." + f"diffusion_model.{name}".replace(".", ""): shape for name, shape in unet.items()}
    return {"model_ema.decay": [], "model_ema.num_updates": [], **averaged}


def open_clip_text(width: int, num_layers: int) -> Shapes:
    """Return a text encoder of OpenCLIP under its own names."""
    found: Shapes = {
        "positional_embedding": [77, width], "text_projection": [width, width], "logit_scale": [],
        "token_embedding.weight": [49408, width], "ln_final.weight": [width], "ln_final.bias": [width],
    }  # fmt: skip
    for index in range(num_layers):
        found |= open_clip_block(f"transformer.resblocks.{index}.", width)
    return found


def open_clip_block(prefix: str, width: int) -> Shapes:
    sizes = {
        "ln_1.weight": [width], "ln_1.bias": [width], "ln_2.weight": [width], "ln_2.bias": [width],
        "attn.in_proj_weight": [3 * width, width], "attn.in_proj_bias": [3 * width],
        "attn.out_proj.weight": [width, width], "attn.out_proj.bias": [width], "mlp.c_fc.weight": [4 * width, width],
        "mlp.c_fc.bias": [4 * width], "mlp.c_proj.weight": [width, 4 * width], "mlp.c_proj.bias": [width],
    }  # fmt: skip
    return {prefix + name: shape for name, shape in sizes.items()}


def open_clip_vision(width: int, num_layers: int, patch: int, projection: int) -> Shapes:
    """Return an image encoder of OpenCLIP for 224 pixels under its own names."""
    found: Shapes = {
        "class_embedding": [width], "positional_embedding": [(224 // patch) ** 2 + 1, width],
        "proj": [width, projection], "conv1.weight": [width, 3, patch, patch], "ln_pre.weight": [width],
        "ln_pre.bias": [width], "ln_post.weight": [width], "ln_post.bias": [width],
    }  # fmt: skip
    for index in range(num_layers):
        found |= open_clip_block(f"transformer.resblocks.{index}.", width)
    return found


def components(folder: Path) -> dict[str, Shapes]:
    """Make every network of ComfyUI on the meta device. Return names and shapes by component."""
    sys.path.insert(0, str(folder))
    sys.argv = ["main.py", "--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.ops
    import torch
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    ops = comfy.ops.disable_weight_init
    made: dict[str, Shapes] = {}
    on = {"dtype": torch.float32, "device": "meta", "operations": ops}
    for name, config in UNETS.items():
        made[name] = shapes_of(UNetModel(**config, **on))
    for name, build in transformers(on).items():
        made[name] = shapes_of(build())
    for name, build in coders(ops).items():
        with torch.device("meta"):
            made[name] = shapes_of(build())
    made |= text_encoders(folder, on)
    made["sd15-ema"] = ema_of(made["sd15"])
    made["ema-counts"] = {"model_ema.decay": [], "model_ema.num_updates": []}
    made["schedule"] = {name: [NUM_STEPS] for name in SCHEDULE}
    made["position-ids"] = {"text_model.embeddings.position_ids": [1, 77]}
    made["mask"] = {"attn_mask": [77, 77]}
    made["sd15-edit-ema"] = ema_of(made["sd15-edit"])
    made["clip-l-bare"] = {name: shape for name, shape in made["clip-l"].items() if name != "text_projection.weight"}
    made["open-clip-h"] = open_clip_text(1024, 24)
    made["open-clip-g"] = open_clip_text(1280, 32)
    made["vision-h"] = open_clip_vision(1280, 32, 14, 1024)
    made["vision-l"] = open_clip_vision(1024, 24, 14, 768)
    made["loss"] = {"loss.logvar": []}
    made["unclip-statistics-h"] = {"data_mean": [1024], "data_std": [1024]}
    made["unclip-statistics-l"] = {"data_mean": [768], "data_std": [768]}
    made["zero123-projection"] = {"cc_projection.weight": [768, 772], "cc_projection.bias": [768]}
    made["playground-marks"] = {"edm_mean": [1, 4, 1, 1], "edm_std": [1, 4, 1, 1]}
    made["cosxl-marks"] = {"edm_vpred.sigma_max": [], "edm_vpred.sigma_min": []}
    return made


def transformers(on: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return builders of the networks that are no UNets of Stable Diffusion's kind."""
    from comfy.ldm.aura.mmdit import MMDiT as AuraFlow
    from comfy.ldm.cascade.stage_b import StageB
    from comfy.ldm.cascade.stage_c import StageC
    from comfy.ldm.chroma.model import Chroma
    from comfy.ldm.chroma_radiance.model import ChromaRadiance
    from comfy.ldm.flux.model import Flux
    from comfy.ldm.hidream.model import HiDreamImageTransformer2DModel
    from comfy.ldm.hunyuan_video.model import HunyuanVideo
    from comfy.ldm.hydit.models import HunYuanDiT
    from comfy.ldm.lightricks.model import LTXVModel
    from comfy.ldm.lumina.model import NextDiT
    from comfy.ldm.modules.diffusionmodules.mmdit import OpenAISignatureMMDITWrapper
    from comfy.ldm.pixart.pixartms import PixArtMS
    from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel
    from comfy.ldm.wan.model import WanModel

    joint = {
        "input_size": None,
        "patch_size": 2,
        "in_channels": 16,
        "adm_in_channels": 2048,
        "pos_embed_scaling_factor": None,
    }

    def sd3(depth: int, places: int, **options: Any) -> Callable[[], Any]:
        config = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 64 * depth}}
        return lambda: OpenAISignatureMMDITWrapper(
            **joint, depth=depth, pos_embed_max_size=places, num_patches=places**2, context_embedder_config=config,
            **options, **on,
        )  # fmt: skip

    flux = {
        "vec_in_dim": 768, "context_in_dim": 4096, "hidden_size": 3072, "mlp_ratio": 4.0, "num_heads": 24, "depth": 19,
        "depth_single_blocks": 38, "axes_dim": [16, 56, 56], "theta": 10000, "patch_size": 2, "qkv_bias": True,
        "in_channels": 16, "out_channels": 16, "guidance_embed": True,
    }  # fmt: skip
    hunyuan = {
        "in_channels": 64, "out_channels": 64, "vec_in_dim": None, "context_in_dim": 3584, "hidden_size": 3584,
        "mlp_ratio": 4.0, "num_heads": 28, "depth": 20, "depth_single_blocks": 40, "axes_dim": [64, 64], "theta": 256,
        "patch_size": [1, 1], "qkv_bias": True, "guidance_embed": False, "byt5": True, "meanflow": False,
    }  # fmt: skip
    video = {
        **hunyuan, "in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096,
        "hidden_size": 3072, "num_heads": 24, "axes_dim": [16, 56, 56], "patch_size": [1, 2, 2],
        "guidance_embed": True, "byt5": False,
    }  # fmt: skip
    stage_b = {
        "c_hidden": [320, 640, 1280, 1280], "nhead": [-1, -1, 20, 20], "blocks": [[2, 6, 28, 6], [6, 28, 6, 2]],
        "block_repeat": [[1, 1, 1, 1], [3, 3, 2, 2]],
    }  # fmt: skip
    return {
        "sd3-medium": sd3(24, 192),
        "sd3.5-medium": sd3(24, 384, qk_norm="rms", x_block_self_attn_layers=list(range(13))),
        "sd3.5-large": sd3(38, 192, qk_norm="rms"),
        "flux-dev": lambda: Flux(**flux, **on),
        "flux-schnell": lambda: Flux(**{**flux, "guidance_embed": False}, **on),
        "flux-fill": lambda: Flux(**{**flux, "in_channels": 96}, **on),
        "flux-canny": lambda: Flux(**{**flux, "in_channels": 32}, **on),
        "cascade-c": lambda: StageC(**on),
        "cascade-c-1b": lambda: StageC(c_hidden=[1536, 1536], nhead=[24, 24], blocks=[[4, 12], [12, 4]], **on),
        "cascade-b": lambda: StageB(**stage_b, **on),
        "cascade-b-700m": lambda: StageB(
            **{**stage_b, "c_hidden": [320, 576, 1152, 1152], "nhead": [-1, 9, 18, 18],
               "blocks": [[2, 4, 14, 4], [4, 14, 4, 2]], "block_repeat": [[1, 1, 1, 1], [2, 2, 2, 2]]}, **on
        ),
        "aura-flow": lambda: AuraFlow(max_seq=96 * 96, **on),
        "chroma": lambda: Chroma(
            in_channels=64, out_channels=64, context_in_dim=4096, hidden_size=3072, mlp_ratio=4.0, num_heads=24,
            depth=19, depth_single_blocks=38, axes_dim=[16, 56, 56], theta=10000, patch_size=2, qkv_bias=True,
            in_dim=64, out_dim=3072, hidden_dim=5120, n_layers=5, **on,
        ),
        "chroma-radiance": lambda: ChromaRadiance(
            in_channels=3, out_channels=3, context_in_dim=4096, hidden_size=3072, mlp_ratio=4.0, num_heads=24,
            depth=19, depth_single_blocks=38, axes_dim=[16, 56, 56], theta=10000, patch_size=16, qkv_bias=True,
            in_dim=64, out_dim=3072, hidden_dim=5120, n_layers=5, nerf_hidden_size=64, nerf_mlp_ratio=4, nerf_depth=4,
            nerf_max_freqs=8, nerf_tile_size=32, nerf_final_head_type="conv", nerf_embedder_dtype=None, **on,
        ),
        "lumina-2": lambda: NextDiT(
            patch_size=2, in_channels=16, dim=2304, n_layers=26, n_heads=24, n_kv_heads=8, axes_dims=[32, 32, 32],
            axes_lens=[300, 512, 512], cap_feat_dim=2304, qk_norm=True, **on,
        ),
        "qwen-image": lambda: QwenImageTransformer2DModel(in_channels=64, num_layers=60, **on),
        "hidream-i1": lambda: HiDreamImageTransformer2DModel(
            patch_size=2, in_channels=16, out_channels=16, num_layers=16, num_single_layers=32, attention_head_dim=128,
            num_attention_heads=20, caption_channels=[4096, 4096], text_emb_dim=2048, num_routed_experts=4,
            num_activated_experts=2, axes_dims_rope=[64, 32, 32], max_resolution=[128, 128], **on,
        ),
        "hunyuan-dit-1.2": lambda: HunYuanDiT(
            depth=40, hidden_size=1408, num_heads=16, mlp_ratio=4.3637, size_cond=False, use_style_cond=False, **on
        ),
        "hunyuan-dit-1.1": lambda: HunYuanDiT(
            depth=40, hidden_size=1408, num_heads=16, mlp_ratio=4.3637, size_cond=True, use_style_cond=True, **on
        ),
        "hunyuan-image-2.1": lambda: HunyuanVideo(**hunyuan, **on),
        "hunyuan-image-2.1-distilled": lambda: HunyuanVideo(
            **{**hunyuan, "guidance_embed": True, "meanflow": True}, **on
        ),
        "hunyuan-image-2.1-refiner": lambda: HunyuanVideo(
            **{**hunyuan, "in_channels": 128, "hidden_size": 3328, "num_heads": 26, "patch_size": [1, 1, 1],
               "axes_dim": [16, 56, 56], "byt5": False, "guidance_embed": True, "meanflow": True}, **on
        ),
        "hunyuan-video": lambda: HunyuanVideo(**video, **on),
        "hunyuan-video-i2v": lambda: HunyuanVideo(**{**video, "in_channels": 33}, **on),
        "skyreels-i2v": lambda: HunyuanVideo(**{**video, "in_channels": 32}, **on),
        "pixart-sigma": lambda: PixArtMS(
            depth=28, hidden_size=1152, num_heads=16, input_size=128, pe_interpolation=2, micro_condition=False,
            model_max_length=300, **on,
        ),
        "ltx-video": lambda: LTXVModel(in_channels=128, **on),
        "wan-2.1-14b": lambda: WanModel(
            model_type="t2v", dim=5120, ffn_dim=13824, num_heads=40, num_layers=40, in_dim=16, out_dim=16, **on
        ),
    }  # fmt: skip


def coders(ops: Any) -> dict[str, Callable[[], Any]]:
    """Return builders of the VAEs."""
    from comfy.ldm.cascade.stage_a import StageA
    from comfy.ldm.models.autoencoder import AutoencoderKL, AutoencodingEngine
    from comfy.ldm.modules.temporal_ae import VideoDecoder

    def kl(z_channels: int, *, ch_mult: Iterable[int] = (1, 2, 4, 4), has_quant: bool = True) -> Callable[[], Any]:
        config = {**IMAGES, "double_z": True, "z_channels": z_channels, "ch_mult": list(ch_mult)}
        if has_quant:
            return lambda: AutoencoderKL(ddconfig=config, embed_dim=z_channels)
        parts = "comfy.ldm.modules.diffusionmodules.model."
        return lambda: AutoencodingEngine(
            regularizer_config={"target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"},
            encoder_config={"target": f"{parts}Encoder", "params": config},
            decoder_config={"target": f"{parts}Decoder", "params": config},
        )

    def kl_video() -> Any:
        built = kl(4)()
        built.decoder = VideoDecoder(**IMAGES, z_channels=4, video_kernel_size=[3, 1, 1], alpha=0.0)
        return built

    return {
        "kl": kl(4),
        "kl-upscaler": kl(4, ch_mult=(1, 2, 4)),
        "kl-16": kl(16, has_quant=False),
        "stage-a": StageA,
        "kl-video": kl_video,
    }


def text_encoders(folder: Path, on: Mapping[str, Any]) -> dict[str, Shapes]:
    """Return the text encoders that ComfyUI defines, by its own configuration files."""
    from comfy.clip_model import CLIPTextModel, CLIPVisionModelProjection
    from comfy.text_encoders.t5 import T5

    configs = {
        "clip-vision-l": (CLIPVisionModelProjection, "clip_vision_config_vitl.json"),
        "clip-l": (CLIPTextModel, "sd1_clip_config.json"),
        "clip-g": (CLIPTextModel, "clip_config_bigg.json"),
        "t5-xxl": (T5, "text_encoders/t5_config_xxl.json"),
    }
    return {
        name: shapes_of(
            kind(json.loads((folder / "comfy" / file).read_text("utf-8")), on["dtype"], "meta", on["operations"])
        )
        for name, (kind, file) in configs.items()
    }


SD1_TEXT = [("cond_stage_model.transformer.", "clip-l-bare"), ("cond_stage_model.transformer.", "position-ids")]
SD1_REST = [*SD1_TEXT, (VAE, "kl"), ("", "schedule")]
SD2_REST = [
    ("cond_stage_model.model.", "open-clip-h"),
    ("cond_stage_model.model.", "mask"),
    (VAE, "kl"),
    ("", "schedule"),
]
XL_TEXT = [
    ("conditioner.embedders.0.transformer.", "clip-l-bare"), ("conditioner.embedders.0.transformer.", "position-ids"),
    ("conditioner.embedders.1.model.", "open-clip-g"),
]  # fmt: skip
XL_REST = [*XL_TEXT, (VAE, "kl")]
REFINER_REST = [("conditioner.embedders.0.model.", "open-clip-g"), (VAE, "kl")]
VIDEO_TEXT = [("conditioner.embedders.0.open_clip.model.visual.", "vision-h")]
VIDEO_REST = [*VIDEO_TEXT, ("conditioner.embedders.3.encoder.", "kl"), (VAE, "kl-video")]
SD3_TEXT = [("text_encoders.clip_l.transformer.", "clip-l"), ("text_encoders.clip_g.transformer.", "clip-g")]
T5 = ("text_encoders.t5xxl.transformer.", "t5-xxl")
STAGE_C_REST = [("text_encoder.", "clip-g"), ("clip_l_vision.", "clip-vision-l")]
# The published file -> its parts.
FILES: Mapping[str, Sequence[tuple[str, str]]] = {
    "v1-5-pruned-emaonly": [(UNET, "sd15"), *SD1_REST, ("", "ema-counts")],
    "v1-5-pruned": [(UNET, "sd15"), ("", "sd15-ema"), *SD1_REST, (VAE, "loss")],
    "diffusion_pytorch_model (v1-5, without prefix)": [("", "sd15")],
    "sd-v1-5-inpainting": [(UNET, "sd15-inpaint"), *SD1_REST],
    "instruct-pix2pix-00-22000": [(UNET, "sd15-edit"), *SD1_REST],
    "512-base-ema": [(UNET, "sd2"), *SD2_REST],
    "v2-1_768-ema-pruned": [(UNET, "sd2"), *SD2_REST],
    "512-inpainting-ema": [(UNET, "sd2-inpaint"), *SD2_REST],
    "512-depth-ema": [(UNET, "sd2-depth"), *SD2_REST],
    "x4-upscaler-ema": [
        (UNET, "sd2-upscaler"), ("cond_stage_model.model.", "open-clip-h"), (VAE, "kl-upscaler"), ("", "schedule"),
        ("low_scale_model.", "schedule"),
    ],
    "sd21-unclip-h": [
        (UNET, "sd2-unclip-h"), *SD2_REST, ("embedder.model.visual.", "vision-h"),
        ("noise_augmentor.", "unclip-statistics-h"), ("noise_augmentor.", "schedule"),
    ],
    "sd21-unclip-l": [
        (UNET, "sd2-unclip-l"), *SD2_REST, ("embedder.model.visual.", "vision-l"),
        ("noise_augmentor.", "unclip-statistics-l"), ("noise_augmentor.", "schedule"),
    ],
    "sd_xl_base_1.0": [(UNET, "sdxl"), *XL_REST],
    "sd_xl_base_1.0 without VAE and text encoders": [(UNET, "sdxl")],
    "sd_xl_turbo_1.0": [(UNET, "sdxl"), *XL_REST],
    "sdxl_lightning_4step_unet": [("", "sdxl")],
    "sd_xl_base_1.0_inpainting_0.1": [(UNET, "sdxl-inpaint"), *XL_REST],
    "sdxl-instructpix2pix": [(UNET, "sdxl-edit"), *XL_REST],
    "cosxl": [(UNET, "sdxl"), *XL_REST, ("", "cosxl-marks")],
    "cosxl_edit": [(UNET, "sdxl-edit"), *XL_REST, ("", "cosxl-marks")],
    "playground-v2.5-1024px-aesthetic": [(UNET, "sdxl"), *XL_REST, ("", "playground-marks")],
    "ssd-1b": [(UNET, "ssd-1b"), *XL_REST],
    "segmind-vega": [(UNET, "vega"), *XL_REST],
    "koala-700m": [(UNET, "koala-700m"), *XL_REST],
    "koala-1b": [(UNET, "koala-1b"), *XL_REST],
    "sd_xl_refiner_1.0": [(UNET, "sdxl-refiner"), *REFINER_REST],
    "svd": [(UNET, "svd"), *VIDEO_REST],
    "svd_xt_1_1": [(UNET, "svd"), *VIDEO_REST],
    "sv3d_u": [(UNET, "sv3d-u"), *VIDEO_TEXT, (VAE, "kl")],
    "sv3d_p": [(UNET, "sv3d-p"), *VIDEO_TEXT, (VAE, "kl")],
    "stable_zero123": [
        (UNET, "sd15-edit"), ("cond_stage_model.model.visual.", "vision-l"), (VAE, "kl"), ("", "zero123-projection"),
        ("", "schedule"),
    ],
    "zero123-xl": [
        (UNET, "sd15-edit"), ("", "sd15-edit-ema"), ("cond_stage_model.model.visual.", "vision-l"), (VAE, "kl"),
        ("", "zero123-projection"), ("", "schedule"),
    ],
    "stable_cascade_stage_c": [(UNET, "cascade-c"), *STAGE_C_REST],
    "stage_c": [("", "cascade-c")],
    "stage_c_lite": [("", "cascade-c-1b")],
    "stable_cascade_stage_b": [(UNET, "cascade-b"), ("text_encoder.", "clip-g"), ("vae.", "stage-a")],
    "stage_b": [("", "cascade-b")],
    "stage_b_lite": [("", "cascade-b-700m")],
    "sd3_medium": [(UNET, "sd3-medium"), (VAE, "kl-16")],
    "sd3_medium_incl_clips": [(UNET, "sd3-medium"), *SD3_TEXT, (VAE, "kl-16")],
    "sd3_medium_incl_clips_t5xxlfp8": [(UNET, "sd3-medium"), *SD3_TEXT, T5, (VAE, "kl-16")],
    "sd3.5_medium": [(UNET, "sd3.5-medium"), (VAE, "kl-16")],
    "sd3.5_large": [(UNET, "sd3.5-large"), (VAE, "kl-16")],
    "flux1-dev": [("", "flux-dev")],
    "flux1-dev-fp8": [(UNET, "flux-dev"), ("text_encoders.clip_l.transformer.", "clip-l"), T5, ("vae.", "kl-16")],
    "flux1-schnell": [("", "flux-schnell")],
    "flux1-fill-dev": [("", "flux-fill")],
    "flux1-canny-dev": [("", "flux-canny")],
    "aura_flow_0.3": [("model.", "aura-flow")],
    "Chroma1-HD": [("", "chroma")],
    "Chroma1-Radiance": [("", "chroma-radiance")],
    "lumina_2_model_bf16": [("", "lumina-2")],
    "qwen_image_fp8_e4m3fn": [("", "qwen-image")],
    "hidream_i1_full_fp16": [("", "hidream-i1")],
    "hunyuan_dit_1.1": [("model.", "hunyuan-dit-1.1")],
    "hunyuan_dit_1.2": [("model.", "hunyuan-dit-1.2")],
    "hunyuanimage2.1": [("", "hunyuan-image-2.1")],
    "hunyuanimage2.1_distilled": [("", "hunyuan-image-2.1-distilled")],
    "hunyuanimage2.1_refiner": [("", "hunyuan-image-2.1-refiner")],
    "hunyuan_video_t2v_720p": [("", "hunyuan-video")],
    "hunyuan_video_image_to_video_720p": [("", "hunyuan-video-i2v")],
    "skyreels_hunyuan_i2v": [("", "skyreels-i2v")],
    "PixArt-Sigma-XL-2-1024-MS": [("", "pixart-sigma")],
    "ltx-video-2b-v0.9": [(UNET, "ltx-video")],
    "wan2.1_t2v_14B_fp16": [("", "wan-2.1-14b")],
}  # fmt: skip


def main(folder: Path) -> int:
    made = components(folder)
    used = {component for parts in FILES.values() for _, component in parts}
    data = {"components": {name: made[name] for name in sorted(used)}, "files": FILES}
    OUTPUT.write_bytes(lzma.compress(json.dumps(data, separators=(",", ":")).encode(), preset=9))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
