"""Models that a prompt uses along with a MODEL: controls, encoders of images and audio, upscalers, patches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from darkroom.engine.formats.weight_file import WeightFile, open_weights
from darkroom.engine.models.kinds.audio_encoder_value import AudioEncoder
from darkroom.engine.models.kinds.clip_vision_value import ClipVision, StyleModel
from darkroom.engine.models.kinds.control_lora_value import ControlLora
from darkroom.engine.models.kinds.controlnet_value import ControlNet, T2IAdapter
from darkroom.engine.models.kinds.latent_upscaler_value import LatentUpscaler
from darkroom.engine.models.kinds.load_audio_encoder import load_audio_encoder
from darkroom.engine.models.kinds.load_clip_vision import load_clip_vision
from darkroom.engine.models.kinds.load_control_lora import is_control_lora
from darkroom.engine.models.kinds.load_controlnet import load_controlnet, steering_kind
from darkroom.engine.models.kinds.load_gligen import load_gligen
from darkroom.engine.models.kinds.load_hypernetwork import load_hypernetwork
from darkroom.engine.models.kinds.load_latent_upscaler import load_latent_upscaler
from darkroom.engine.models.kinds.load_model_patch import load_model_patch
from darkroom.engine.models.kinds.load_photomaker import load_photomaker
from darkroom.engine.models.kinds.load_style_model import load_style_model
from darkroom.engine.models.kinds.load_upscaler import load_upscaler, upscaler_of
from darkroom.engine.models.kinds.photomaker_value import PhotoMakerEncoder
from darkroom.engine.models.kinds.upscaler_value import UpscaleModel
from darkroom.engine.models.load import LoadTypes, vision_prefix
from darkroom.engine.models.loaded_files import LoadedFiles
from darkroom.engine.models.model import Model
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.weight_handle import WeightHandle


class AuxiliaryModels:
    """Loader of the models besides MODEL, CLIP and VAE, by the name of their file.

    All raise `BadModelFile`, also when there is no such file.
    """

    def __init__(self, files: LoadedFiles, types: LoadTypes) -> None:
        self._files = files
        self._types = types

    def controlnet(self, name: str) -> ControlNet | T2IAdapter:
        path = self._files.path_of("controlnet", name)
        if is_control_lora(open_weights(path)):
            return ControlLora(self._files.tensors("controlnet", name), averages_globally(path))
        handle = self._files.one(path, "controlnet", lambda: self._controlnet(path))
        return _control_value(handle, path)

    def controlnet_upon(self, name: str, base: Model) -> ControlNet | T2IAdapter:
        """Load a ControlNet. Its file may hold the difference to a UNet: that of `base`, with its patches."""
        path = self._files.path_of("controlnet", name)
        if is_control_lora(open_weights(path)):
            return self.controlnet(name)

        def load() -> torch.nn.Module:
            with base.in_use() as network:
                names = network.diffusion_model.state_dict()
                weights = {name: base.weights.current_weight(f"diffusion_model.{name}") for name in names}
                return self._controlnet(path, weights.get)

        return _control_value(self._files.one(path, ("controlnet upon", base.patches_uuid), load), path)

    def upscaler(self, name: str) -> UpscaleModel:
        path = self._files.path_of("upscale_models", name)
        return UpscaleModel(self._files.one(path, "upscaler", lambda: load_upscaler(path, to=self._types.to)))

    def upscaler_of(self, file: WeightFile) -> UpscaleModel:
        """Load an upscaling network from tensors that the caller has. Raises `BadModelFile`."""
        return UpscaleModel(self._files.keep("upscaler", file.path.name, upscaler_of(file, to=self._types.to)))

    def latent_upscaler(self, name: str) -> LatentUpscaler:
        path = self._files.path_of("latent_upscale_models", name)
        return LatentUpscaler(self._files.one(path, "latent upscaler", lambda: load_latent_upscaler(path, self._types)))

    def hypernetwork(self, name: str) -> ModulePatcher:
        path = self._files.path_of("hypernetworks", name)
        dtype = self._types.unet_computed or self._types.unet
        return ModulePatcher(self._files.one(path, "hypernetwork", lambda: load_hypernetwork(path, dtype)))

    def gligen(self, name: str) -> ModulePatcher:
        path = self._files.path_of("gligen", name)
        return ModulePatcher(self._files.one(path, "gligen", lambda: load_gligen(path, to=self._types.to)))

    def clip_vision(self, name: str) -> ClipVision:
        path, types = self._files.path_of("clip_vision", name), self._types
        handle = self._files.one(path, "clip vision", lambda: load_clip_vision(path, types.vision, to=types.to))
        return ClipVision(handle)

    def checkpoint_vision(self, name: str) -> ClipVision | None:
        """Load the image encoder of a checkpoint, None for one that has none."""
        path, types = self._files.path_of("checkpoints", name), self._types
        prefix = vision_prefix(path)
        if prefix is None:
            return None

        def load() -> torch.nn.Module:
            return load_clip_vision(path, types.vision, to=types.to, prefix=prefix)

        return ClipVision(self._files.one(path, "clip vision", load))

    def audio_encoder(self, name: str) -> AudioEncoder:
        path, types = self._files.path_of("audio_encoders", name), self._types
        handle = self._files.one(path, "audio encoder", lambda: load_audio_encoder(path, types.vision, to=types.to))
        return AudioEncoder(handle)

    def photomaker(self, name: str) -> PhotoMakerEncoder:
        path, types = self._files.path_of("photomaker", name), self._types
        handle = self._files.one(path, "photomaker", lambda: load_photomaker(path, types.vision, to=types.to))
        return PhotoMakerEncoder(handle)

    def model_patch(self, name: str) -> ModulePatcher:
        path = self._files.path_of("model_patches", name)
        return ModulePatcher(self._files.one(path, "model patch", lambda: load_model_patch(path, self._types)))

    def style_model(self, name: str) -> StyleModel:
        """Load a style model. It computes on the CPU, as in ComfyUI: a few layers, once per image."""
        path = self._files.path_of("style_models", name)
        return StyleModel(self._files.one(path, "style model", lambda: load_style_model(path), on_cpu=True))

    def _controlnet(
        self, path: Path, base_weight: Callable[[str], torch.Tensor | None] | None = None
    ) -> torch.nn.Module:
        return load_controlnet(path, self._types, base_weight)


def _control_value(handle: WeightHandle, path: Path) -> ControlNet | T2IAdapter:
    kind = steering_kind(handle.module)
    if kind is None:
        return T2IAdapter.of(handle)
    return ControlNet.of(handle, kind, global_average_pooling=averages_globally(path))


def averages_globally(path: Path) -> bool:
    """Return True if a ControlNet's additions are averaged over the image, which only the file's name indicates."""
    return path.stem.endswith(("_shuffle", "_shuffle_fp16"))
