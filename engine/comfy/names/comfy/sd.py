"""`comfy.sd`: loading model files as MODEL, CLIP and VAE values.

Files are named by their path and must lie in a model folder: the engine loads by kind and name, each file once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.comfy.tensor_files import as_file
from darkroom.engine.families.comfyui_text_types import comfyui_text_types
from darkroom.engine.models.clip import Clip as CLIP
from darkroom.engine.models.kinds.clip_vision_value import StyleModel
from darkroom.engine.models.model import Model
from darkroom.engine.models.store import DEFAULT_TEXT_TYPE
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.library.model.lora import with_lora

__all__ = ["CLIP", "VAE", "StyleModel"]

# Options of loading that change no result: float8 weights are multiplied like others, and the engine decides itself
# where weights are.
WITHOUT_EFFECT = frozenset({"fp8_optimizations", "initial_device", "load_device", "offload_device"})
_NUMBERS = {name.upper(): number for name, number in comfyui_text_types().numbers.items()}
CLIPType: Any = Enum("CLIPType", _NUMBERS, module=__name__)  # type: ignore[misc]  # members from data
"""Kinds of text encoders, numbered as in ComfyUI; loading a kind that no family has is refused."""


class _VaeClass(type):
    """Metaclass of `VAE`: calls load one, every VAE is an instance, and what packs set in the class is set in all.

    Classes that packs derive from it are ordinary ones.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _loaded_vae(*args, **kwargs) if cls is VAE else super().__call__(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Vae) if cls is VAE else super().__instancecheck__(instance)

    def __setattr__(cls, name: str, value: object) -> None:
        if cls is VAE:
            setattr(Vae, name, value)
        else:
            super().__setattr__(name, value)


class VAE(Vae, metaclass=_VaeClass):
    """ComfyUI's class of VAE values, with the members that those of this engine have."""


def _loaded_vae(
    sd: Mapping[str, torch.Tensor] | None = None,
    device: object = None,
    config: object = None,
    dtype: object = None,
    metadata: Mapping[str, str] | None = None,
) -> Vae:
    """Load a VAE from tensors by name. Raises `BadModelFile`.

    The engine decides its device and type. `config`, a description of the layers, is refused.
    """
    if sd is None or config is not None:
        raise not_supported("comfy.sd.VAE() without tensors, or with a config")
    return HOST.get().engine.models.vae_of(as_file("VAE", sd, metadata=metadata))


def load_lora_for_models(
    model: Any,
    clip: Any,
    lora: dict[str, torch.Tensor],
    strength_model: float,
    strength_clip: float,
    lora_metadata: Mapping[str, str] | None = None,
) -> tuple[Any, Any]:
    """Return clones that carry the LoRA, with the metadata of its file attached; None stays None."""
    return with_lora(model, clip, lora, strength_model, strength_clip, metadata=lora_metadata)


def load_checkpoint_guess_config(
    ckpt_path: str,
    output_vae: bool = True,
    output_clip: bool = True,
    output_clipvision: bool = False,
    embedding_directory: object = None,
    output_model: bool = True,
    model_options: Any = None,
    te_model_options: Any = None,
) -> tuple[object, object, object, None]:
    """Return MODEL, CLIP, VAE, and None for the vision model that these families do not have.

    `dtype` of `model_options` is the type that the denoising network's weights are stored in.
    """
    function = "load_checkpoint_guess_config"
    stored_as = _stored_as(function, model_options)
    if _stored_as(function, te_model_options) is not None:
        raise not_supported(f"comfy.sd.{function} with dtype in te_model_options")
    model, clip, vae = HOST.get().engine.models.checkpoint(ckpt_path, unet_stored_as=stored_as)
    return (model if output_model else None, clip if output_clip else None, vae if output_vae else None, None)


def load_clip(
    ckpt_paths: list[str], embedding_directory: Any = None, clip_type: Any = None, model_options: Any = None
) -> Any:
    """Load text encoders. Raises `BadModelFile` for a set that no family of that type has."""
    if _stored_as("load_clip", model_options) is not None:
        raise not_supported("comfy.sd.load_clip with dtype in model_options")
    return HOST.get().engine.models.clip_set(ckpt_paths, text_type=_text_type(clip_type))


def load_diffusion_model(unet_path: str, model_options: Any = None) -> Model:
    """Load a denoising network; `dtype` among the options is the type that its weights are stored in.

    `fp8_optimizations` changes nothing: float8 weights are multiplied like others, as with the engine's own loader.
    """
    stored_as = _stored_as("load_diffusion_model", model_options)
    return HOST.get().engine.models.unet(unet_path, stored_as=stored_as)


def load_diffusion_model_state_dict(sd: dict[str, torch.Tensor], model_options: Any = None) -> Model:
    """Load a denoising network from tensors by name. Raises `BadModelFile`.

    `custom_operations`, classes of layers, are for quantised tensors: the engine's own layers unpack those, as the
    classes' `dequant_dtype` says. Other options raise `NotSupported`.
    """
    arithmetic = _arithmetic("load_diffusion_model_state_dict", model_options, ("custom_operations",))
    return HOST.get().engine.models.unet_of(as_file("diffusion model", sd, arithmetic))


def load_text_encoder_state_dicts(
    state_dicts: Sequence[dict[str, torch.Tensor]] = (),
    embedding_directory: object = None,
    clip_type: Any = None,
    model_options: Any = None,
) -> CLIP:
    """Load text encoders from tensors by name. Raises `BadModelFile` for a set that no family of that type has."""
    options = ("custom_operations", "initial_device")
    arithmetic = _arithmetic("load_text_encoder_state_dicts", model_options, options)
    files = [as_file("text encoder", tensors, arithmetic) for tensors in state_dicts]
    return HOST.get().engine.models.clip_of(files, text_type=_text_type(clip_type))


def _text_type(clip_type: Any) -> str:
    return DEFAULT_TEXT_TYPE if clip_type is None else str(clip_type.name).lower()


def _stored_as(function: str, model_options: dict[str, Any] | None) -> torch.dtype | None:
    """Return the type that weights are stored in, None the one that is decided for all; raise for other options."""
    options = {name: value for name, value in (model_options or {}).items() if value is not None}
    others = sorted(options.keys() - {"dtype"} - WITHOUT_EFFECT)
    if others:
        raise not_supported(f"comfy.sd.{function} with {', '.join(others)} in model_options")
    stored_as: torch.dtype | None = options.get("dtype")
    return stored_as


def _arithmetic(function: str, model_options: dict[str, Any] | None, known: tuple[str, ...]) -> torch.dtype | None:
    """Return the type that quantised values are computed in, None the one they are wanted in."""
    options = model_options or {}
    for name in options:
        if name not in known:
            raise not_supported(f"comfy.sd.{function} with {name} in model_options")
    chosen = getattr(getattr(options.get("custom_operations"), "Linear", None), "dequant_dtype", None)
    if isinstance(chosen, torch.dtype):
        return chosen
    return None if chosen == "target" else torch.float16


def load_style_model(ckpt_path: str) -> StyleModel:
    return HOST.get().engine.models.auxiliary.style_model(ckpt_path)


def load_unet(unet_path: str, dtype: Any = None) -> Any:
    return load_diffusion_model(unet_path, None if dtype is None else {"dtype": dtype})
