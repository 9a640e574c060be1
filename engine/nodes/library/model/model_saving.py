"""Nodes that save models, text encoders and VAEs as `.safetensors`, with their patches applied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat, PlaygroundLatentFormat
from darkroom.engine.diffusion.model_sampling import X0, ContinuousEdmSchedule, DiscreteSchedule, Eps, VPrediction
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models import saved_layout
from darkroom.engine.models.clip import Clip
from darkroom.engine.models.kinds.clip_vision_value import ClipVision
from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Hidden
from darkroom.engine.nodes.sockets import CLIP, CLIP_VISION, MODEL, VAE
from darkroom.engine.nodes.widgets import FilePrefix

CATEGORY = "model/merging"
MERGING_MODULE = "comfy_extras.nodes_model_merging"
ENDING = ".safetensors"


Tensors = dict[str, torch.Tensor]
Prompt = Annotated[Any, Hidden("PROMPT")]
ExtraPngInfo = Annotated[Any, Hidden("EXTRA_PNGINFO")]


def unet_tensors(model: Model) -> Tensors:
    """Return the network's weights under a checkpoint's names, and the empty tensors that mark v-prediction."""
    predicts_v = _predicts_v(model)
    with model.in_use() as network:
        names = network.diffusion_model.state_dict()
        weights = {name: model.weights.current_weight(f"diffusion_model.{name}") for name in names}
        tensors = saved_layout.denoiser_tensors(network.model_config.family, _copied(weights))
    if predicts_v:
        tensors["v_pred"] = torch.empty(0)
        if getattr(model.get_model_object("model_sampling"), "zsnr", False):
            tensors["ztsnr"] = torch.empty(0)
    return (
        tensors | _level_tensors(model.get_model_object("model_sampling")) | _latent_tensors(model.model.latent_format)
    )


def _latent_tensors(latent_format: LatentFormat) -> Tensors:
    """Return the marks of a network trained on standardised latents: their moments, under the names of its own file."""
    if not isinstance(latent_format, PlaygroundLatentFormat):
        return {}
    moments = {"edm_mean": latent_format.mean, "edm_std": latent_format.deviation}
    return {name: torch.tensor(values).view(1, -1, 1, 1) for name, values in moments.items()}


def _level_tensors(sampling: object) -> Tensors:
    """Return the marks of a network of any noise level that predicts v: its bounds, under ComfyUI's names."""
    if not (isinstance(sampling, ContinuousEdmSchedule) and isinstance(sampling, VPrediction)):
        return {}
    bounds = {"edm_vpred.sigma_max": sampling.sigma_max, "edm_vpred.sigma_min": sampling.sigma_min}
    return {name: bound.float().reshape(()).cpu().clone() for name, bound in bounds.items()}


def text_encoder_tensors(clip: Clip) -> Tensors:
    """Return the text encoder's weights under ComfyUI's names, in the type that ComfyUI stores them in."""
    with clip.patcher.in_use() as network:
        clip.patcher.apply_hooks(clip.patcher.forced_hooks)
        kept: torch.dtype | None = getattr(network, "patched_dtype", None)
        return _copied(_current(clip.patcher, network), kept)


def vae_tensors(vae: Vae) -> Tensors:
    with vae.patcher.in_use() as network:
        return _copied(_current(vae.patcher, network))


def _current(model: ModulePatcher, network: torch.nn.Module) -> Tensors:
    """Return all weights with the current patches applied, including layers that are not on the device."""
    return {name: model.weights.current_weight(name) for name in network.state_dict()}


def _copied(weights: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> Tensors:
    """Copy weights to the CPU as contiguous tensors, since the weights themselves change with the next use."""
    return {
        name: weight.to("cpu", dtype or weight.dtype, copy=True, memory_format=torch.contiguous_format)
        for name, weight in weights.items()
    }


def _own_sampling(model: Model) -> Any:
    """Return the parameterisation of the checkpoint itself. One set by a node is not saved, as in ComfyUI."""
    return model.object_patches_backup.get("model_sampling", model.model.model_sampling)


def _predicts_v(model: Model) -> bool:
    """Return True if the checkpoint itself is a network of trained timesteps that predicts v."""
    own = _own_sampling(model)
    return isinstance(own, VPrediction) and isinstance(own, DiscreteSchedule)


def checkpoint_tensors(model: Model, clip: Clip | None, vae: Vae | None, vision: ClipVision | None = None) -> Tensors:
    tensors = unet_tensors(model)
    if clip is not None:
        tensors |= saved_layout.text_tensors(clip.cond_stage_model.family, text_encoder_tensors(clip))
        tensors |= saved_layout.vocabulary_tensors(clip.cond_stage_model)
    if vae is not None:
        tensors |= saved_layout.vae_tensors(model.model.model_config.family, vae_tensors(vae))
    if vision is not None:
        prefix = model.model.model_config.family.vision_prefix or ""
        with vision.patcher.in_use() as network:
            found = _copied(_current(vision.patcher, network))
        tensors |= {prefix + name: tensor for name, tensor in found.items()}
    return tensors


def _metadata(context: NodeContext, prompt: Any, extra_pnginfo: Any, **more: str) -> dict[str, str]:
    texts = dict(more)
    if context.embed_metadata:
        texts["prompt"] = "" if prompt is None else json.dumps(prompt)
        texts |= {name: json.dumps(value) for name, value in (extra_pnginfo or {}).items()}
    return texts


def _save(
    context: NodeContext, prefix: str, tensors: Tensors, metadata: Mapping[str, str], architecture: str | None = None
) -> NodeOutput:
    """Write tensors to a file at once, so that gigabytes are not held in memory while other nodes run."""
    path: Path = context.files.save_path(prefix, suffix=ENDING).path
    specified = {} if architecture is None else _model_specification(path, architecture)
    write_safetensors(path, tensors, {**specified, **metadata})
    return NodeOutput({})


def _model_specification(path: Path, architecture: str) -> dict[str, str]:
    """Return the metadata of the model specification; the title is the file's name and its number."""
    name, _, number = path.name.removesuffix(f"_{ENDING}").rpartition("_")
    return {
        "modelspec.architecture": architecture,
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.implementation": "sgm",
        "modelspec.title": f"{name} {int(number)}",
    }


def _save_checkpoint(
    context: NodeContext,
    prefix: str,
    model: Model,
    clip: Clip | None,
    vae: Vae | None,
    prompt: object,
    extra: object,
    vision: ClipVision | None = None,
) -> NodeOutput:
    config = model.model.model_config
    described = saved_layout.description(
        config.family, model.model.diffusion_model, None if vae is None else vae.first_stage_model
    )
    metadata = _metadata(context, prompt, extra, **_predicted(model), **described)
    architecture = config.family.comfyui.architecture(config.variant)
    return _save(context, prefix, checkpoint_tensors(model, clip, vae, vision), metadata, architecture)


def _predicted(model: Model) -> dict[str, str]:
    """Return the metadata about what the network predicts, for those of trained timesteps."""
    if _predicts_v(model):
        return {"modelspec.predict_key": "v"}
    is_eps = isinstance(_own_sampling(model), Eps) and not isinstance(_own_sampling(model), (VPrediction, X0))
    return {"modelspec.predict_key": "epsilon"} if is_eps else {}


@node("CheckpointSave", display_name="Save Checkpoint", category=CATEGORY, is_output=True, python_module=MERGING_MODULE)
def checkpoint_save(
    context: NodeContext,
    *,
    model: MODEL,
    clip: CLIP,
    vae: VAE,
    filename_prefix: Annotated[str, FilePrefix()] = "checkpoints/ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> NodeOutput:
    return _save_checkpoint(context, filename_prefix, model, clip, vae, prompt, extra_pnginfo)


@node("ModelSave", category=CATEGORY, is_output=True, python_module=MERGING_MODULE)
def model_save(
    context: NodeContext,
    *,
    model: MODEL,
    filename_prefix: Annotated[str, FilePrefix()] = "diffusion_models/ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> NodeOutput:
    return _save_checkpoint(context, filename_prefix, model, None, None, prompt, extra_pnginfo)


@node("CLIPSave", category=CATEGORY, is_output=True, python_module=MERGING_MODULE)
def clip_save(
    context: NodeContext,
    *,
    clip: CLIP,
    filename_prefix: Annotated[str, FilePrefix()] = "clip/ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> NodeOutput:
    """Save each encoder of the text encoder to its own file, named after the encoder."""
    tensors = text_encoder_tensors(clip)
    metadata = _metadata(context, prompt, extra_pnginfo, **({"format": "pt"} if context.embed_metadata else {}))
    for key in clip.cond_stage_model.slots.values():
        start = f"{key}."
        own = {
            name.removeprefix(start).removeprefix("transformer."): tensor
            for name, tensor in tensors.items()
            if name.startswith(start)
        }
        _save(context, f"{filename_prefix}_{key}", own, metadata)
    return NodeOutput({})


@node("VAESave", category=CATEGORY, is_output=True, python_module=MERGING_MODULE)
def vae_save(
    context: NodeContext,
    *,
    vae: VAE,
    filename_prefix: Annotated[str, FilePrefix()] = "vae/ComfyUI_vae",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> NodeOutput:
    described = saved_layout.vae_description(vae.first_stage_model)
    return _save(context, filename_prefix, vae_tensors(vae), _metadata(context, prompt, extra_pnginfo, **described))


@node("ImageOnlyCheckpointSave", category=CATEGORY, is_output=True,
      python_module="comfy_extras.nodes_video_model")  # fmt: skip
def image_only_checkpoint_save(
    context: NodeContext,
    *,
    model: MODEL,
    clip_vision: CLIP_VISION,
    vae: VAE,
    filename_prefix: Annotated[str, FilePrefix()] = "checkpoints/ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> NodeOutput:
    return _save_checkpoint(context, filename_prefix, model, None, vae, prompt, extra_pnginfo, clip_vision)


NODES = (checkpoint_save, model_save, clip_save, vae_save, image_only_checkpoint_save)
