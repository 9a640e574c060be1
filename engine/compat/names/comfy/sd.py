"""`comfy.sd`: loading model files as MODEL, CLIP and VAE values.

Files are named by their path and must lie in a model folder: the engine loads by kind and name, each file once.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from engine.compat.host import HOST
from engine.compat.lacking import not_supported
from engine.nodes.clip_value import Clip as CLIP
from engine.nodes.clip_vision_value import StyleModel
from engine.nodes.lora import with_lora
from engine.nodes.vae_value import Vae as VAE

__all__ = ["CLIP", "VAE", "StyleModel"]


class CLIPType(Enum):
    STABLE_DIFFUSION = 1


def load_lora_for_models(
    model: Any, clip: Any, lora: dict[str, torch.Tensor], strength_model: float, strength_clip: float
) -> tuple[Any, Any]:
    """Clones that carry the LoRA; None stays None."""
    return with_lora(model, clip, lora, strength_model, strength_clip)


def load_checkpoint_guess_config(
    ckpt_path: str,
    output_vae: bool = True,
    output_clip: bool = True,
    output_clipvision: bool = False,
    embedding_directory: Any = None,
    output_model: bool = True,
    model_options: Any = None,
    te_model_options: Any = None,
) -> tuple[Any, Any, Any, None]:
    """MODEL, CLIP, VAE, and None for the vision model that these families do not have."""
    if model_options or te_model_options:
        raise not_supported("comfy.sd.load_checkpoint_guess_config with model_options")
    model, clip, vae = HOST.get().engine.models.checkpoint(ckpt_path)
    return (model if output_model else None, clip if output_clip else None, vae if output_vae else None, None)


def load_clip(
    ckpt_paths: list[str], embedding_directory: Any = None, clip_type: Any = None, model_options: Any = None
) -> Any:
    if len(ckpt_paths) != 1 or clip_type not in (None, CLIPType.STABLE_DIFFUSION) or model_options:
        raise not_supported("comfy.sd.load_clip for several files, other types or with model_options")
    return HOST.get().engine.models.clip(ckpt_paths[0])


def load_diffusion_model(unet_path: str, model_options: Any = None) -> Any:
    if model_options:
        raise not_supported("comfy.sd.load_diffusion_model with model_options")
    return HOST.get().engine.models.unet(unet_path)


def load_style_model(ckpt_path: str) -> StyleModel:
    return HOST.get().engine.models.style_model(ckpt_path)


def load_unet(unet_path: str, dtype: Any = None) -> Any:
    return load_diffusion_model(unet_path, None if dtype is None else {"dtype": dtype})
