"""Model files as MODEL, CLIP and VAE values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from darkroom.engine.diffusion.denoiser import Denoiser, ModelConfig
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, TokenizerParts
from darkroom.engine.families.vision_family import VisionFamily
from darkroom.engine.formats.weight_file import WeightFile
from darkroom.engine.layers.pixel_space import NAME as PIXEL_SPACE
from darkroom.engine.layers.pixel_space import PixelSpace
from darkroom.engine.models.auxiliary_models import AuxiliaryModels
from darkroom.engine.models.clip import Clip
from darkroom.engine.models.device_work import DeviceWork
from darkroom.engine.models.embeddings import EmbeddingFinder
from darkroom.engine.models.files.diffusers_folder import diffusers_files
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.kinds.load_tiny_autoencoder import load_tiny_autoencoder
from darkroom.engine.models.load import (
    LoadedDenoiser,
    LoadedVision,
    LoadTypes,
    load_checkpoint_or_vision,
    load_further_vae,
    load_text_encoders,
    load_unet_or_vision,
    load_vae,
    text_encoders_of,
    unet_of,
    vae_of_file,
)
from darkroom.engine.models.loaded_files import KeepsWeights, LoadedFiles
from darkroom.engine.models.model import Model
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.recent_models import RecentModels
from darkroom.engine.models.vae import Vae
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.models.vision_model import VisionModel, VisionNetwork
from darkroom.engine.models.vision_models import VisionModels
from darkroom.engine.models.weight_handle import WeightHandle
from darkroom.engine.text.clip_encoding import TextEncoderSet
from darkroom.engine.text.clip_tokens import BytePairs, TokenizerSet

CHECKPOINT_PARTS: tuple[Any, ...] = ("unet", "clip", "vae")
TINY_HALVES = ("encoder", "decoder")
DEFAULT_TEXT_TYPE = "stable_diffusion"  # of ComfyUI's loader nodes


class ModelStore:
    """Loader of MODEL, CLIP and VAE by the name of their file.

    `auxiliary` loads the models that are used along with a MODEL, `vision` those that work on images alone.

    `files` has the networks that are read. `device_work` is the memory of `device`, None where nobody counts it. For
    the other arguments after `device` see `LoadedFiles`.
    """

    def __init__(
        self,
        folders: ModelFolders,
        keep: KeepsWeights,
        types: LoadTypes,
        device: str = "cpu",
        *,
        recent: RecentModels | None = None,
        make_room: Callable[[int], None] = lambda num_bytes: None,
        on_read: Callable[[float | None], None] = lambda seconds: None,
        device_work: DeviceWork | None = None,
    ) -> None:
        self.files = LoadedFiles(folders, keep, recent, make_room, on_read)
        self.auxiliary = AuxiliaryModels(self.files, types)
        self.vision = VisionModels(self.files, types)
        self._folders = folders
        self._types = types
        self._device = device
        self._device_work = device_work
        self._tokenizer_parts = TokenizerParts(BytePairs(), self._embedding_finder)

    def free_device_bytes(self) -> int:
        """Return the memory of the device that models and their work may take now; 0 where nobody counts it."""
        return 0 if self._device_work is None else self._device_work.free_device_bytes()

    def device_for(self, working_bytes: int) -> torch.device:
        """Return the device for work without a model, with room for so many bytes."""
        if self._device_work is not None:
            self._device_work.make_device_room(working_bytes)
        return torch.device(self._device)

    def checkpoint(
        self, name: str, *, unet_stored_as: torch.dtype | None = None
    ) -> tuple[Model, Clip | None, Vae | None]:
        """Load a checkpoint. CLIP or VAE are None where the file has none, as in ComfyUI.

        `unet_stored_as` is the type of the denoising network's weights, None the one that is decided for all. Raises
        `BadModelFile`, also when there is no such file.
        """
        path = self.files.path_of("checkpoints", name)
        parts, types = CHECKPOINT_PARTS, self._types
        if unet_stored_as is not None:
            parts, types = (("unet", unet_stored_as), *parts[1:]), types.with_unet_stored_as(unet_stored_as)

        def load() -> tuple[torch.nn.Module | None, ...]:
            loaded = load_checkpoint_or_vision(path, types)
            if isinstance(loaded, LoadedVision):
                return VisionNetwork(loaded), loaded.text_encoder, None
            return self._denoiser(loaded.denoiser), loaded.text_encoder, loaded.vae

        unet, clip, vae = self.files.several(path, parts, load)
        assert unet is not None
        return model_of(unet), None if clip is None else self._clip(clip), None if vae is None else vae_of(vae)

    def unet(self, name: str, *, stored_as: torch.dtype | None = None) -> Model:
        """Load a denoising network. `stored_as` is the type of its weights, None the one that is decided for all."""
        path = self.files.path_of("diffusion_models", name)
        part = "unet" if stored_as is None else ("unet", stored_as)
        types = self._types if stored_as is None else self._types.with_unet_stored_as(stored_as)
        return model_of(self.files.one(path, part, lambda: self._unet(path, types)))

    def unet_gguf(self, name: str, *, arithmetic: torch.dtype | None = torch.float16) -> Model:
        """Load a denoising network of a GGUF file.

        `arithmetic` is the type that the values of blocks are computed in, None the one that the network computes in.
        """
        path = self.files.path_of("unet_gguf", name)
        types = replace(self._types, block_arithmetic=arithmetic)
        return model_of(self.files.one(path, ("unet", "gguf", arithmetic), lambda: self._unet(path, types)))

    def unet_of(self, file: WeightFile) -> Model:
        """Load a denoising network from tensors that the caller has. It is read once for each call."""
        return Model(self.files.keep("unet", file.path.name, self._denoiser(unet_of(file, self._types))))

    def clip_of(self, files: Sequence[WeightFile], *, text_type: str) -> Clip:
        """Load the text encoders of one model from tensors that the caller has."""
        name = ", ".join(file.path.name for file in files)
        network = text_encoders_of(files, self._types, text_type)
        return self._clip(self.files.keep("clip", name, network))

    def clip(self, name: str, *, text_type: str = DEFAULT_TEXT_TYPE, on_cpu: bool = False) -> Clip:
        """Load the text encoder of a file. `text_type` is that of ComfyUI's loader nodes."""
        return self.clip_set([name], text_type=text_type, on_cpu=on_cpu)

    def clip_set(
        self, names: Sequence[str], *, text_type: str, on_cpu: bool = False, checkpoint: str | None = None
    ) -> Clip:
        """Load the text encoders of one model from files that hold one each, the last one of a checkpoint if given."""
        paths = [self.files.path_of("text_encoders", name) for name in names]
        paths += [] if checkpoint is None else [self.files.path_of("checkpoints", checkpoint)]
        first, *others = paths
        label = "clip on the CPU" if on_cpu else "clip"
        part, load = (label, text_type), lambda: load_text_encoders(paths, self._types, text_type)
        return self._clip(self.files.one(first, part, load, beside=others, on_cpu=on_cpu))

    def _clip(self, handle: WeightHandle) -> Clip:
        """Return a CLIP value with the tokenizers of its text encoders."""
        text_encoders = cast(TextEncoderSet, handle.module)
        family: ModelFamily | VisionFamily = text_encoders.family
        encoders = text_encoders.encoders()
        described = [(item, encoders.get(item.encoding.slot)) for item in family.text]
        tokenizers = [
            item.tokenizer(encoder, self._tokenizer_parts) for item, encoder in described if encoder is not None
        ]
        return Clip(handle, TokenizerSet(tokenizers))

    def _embedding_finder(self, encoding: Any) -> EmbeddingFinder:
        return EmbeddingFinder(
            lambda: self._folders.roots("embeddings"), key=encoding.key, width=encoding.embedding_width
        )

    def vae(self, name: str) -> Vae:
        """Load the VAE of a file, or the small or empty autoencoder of that name. Raises `BadModelFile`."""
        if name == PIXEL_SPACE and self._folders.path("vae", name) is None:
            return vae_of(self.files.keep("vae", name, PixelSpace().eval()))
        if name in registry.tiny_autoencoders() and self._folders.path("vae", name) is None:
            return self._tiny_autoencoder(name)
        path = self.files.path_of("vae", name)
        return vae_of(self.files.one(path, "vae", lambda: load_vae(path, self._types)))

    def vae_of(self, file: WeightFile) -> Vae:
        """Load a VAE from tensors that the caller has. It is read once for each call. Raises `BadModelFile`."""
        return vae_of(self.files.keep("vae", file.path.name, vae_of_file(file, self._types)))

    def further_vae(self, name: str) -> Vae:
        """Load the VAE of a checkpoint that its family has beside its own. Raises `BadModelFile`."""
        path = self.files.path_of("checkpoints", name)
        return vae_of(self.files.one(path, "further vae", lambda: load_further_vae(path, self._types)))

    def _tiny_autoencoder(self, name: str) -> Vae:
        """Load a small autoencoder from the files `NAME_encoder.*` and `NAME_decoder.*`. It has the VAE's type."""
        names = self._folders.names("vae_approx")
        found = [next((item for item in names if item.startswith(f"{name}_{half}.")), None) for half in TINY_HALVES]
        encoder, decoder = (
            self.files.path_of("vae_approx", f"{name}_{half}" if file is None else file)
            for half, file in zip(TINY_HALVES, found, strict=True)
        )
        latent_format, types = registry.tiny_autoencoders()[name], self._types.of(registry.default_family())

        def load() -> torch.nn.Module:
            return load_tiny_autoencoder(encoder, decoder, latent_format, types.vae, to=types.to)

        return vae_of(self.files.one(decoder, ("vae", name), load, beside=[encoder]))

    def diffusers(self, name: str) -> tuple[Model, Clip, Vae]:
        """Load a model from the folder layout of the diffusers library."""
        folder = self._folders.folder("diffusers", name)
        if folder is None:
            raise BadModelFile(name, "no such folder among the diffusers models", "one of the names the node offers")
        paths = diffusers_files(folder)
        unet = self.files.one(paths.unet, "diffusers unet", lambda: self._unet(paths.unet, self._types))
        family: ModelFamily = cast(Denoiser, unet.module).model_config.family
        texts, text_type = paths.text_encoders, next(iter(family.comfyui.text_types), DEFAULT_TEXT_TYPE)
        part = ("clip", text_type)
        clip = self.files.one(
            texts[0], part, lambda: load_text_encoders(texts, self._types, text_type), beside=texts[1:]
        )
        vae = self.files.one(paths.vae, "vae", lambda: load_vae(paths.vae, self._types))
        return Model(unet), self._clip(clip), vae_of(vae)

    def random_checkpoint(self, family: str, scale: str, seed: int = 0) -> tuple[Model, Clip | None, Vae]:
        """Create networks in a family's own shape, with random weights drawn on the device; nothing is read."""
        described = registry.family_named(family)
        unet, text_encoder, vae = random_networks(scale, seed, self._types, self._device, family=described)
        computed = self._types.of(described).unet_computed
        drawn = LoadedDenoiser(described, "", described.parameterisation, unet, computed)
        networks = {"unet": self._denoiser(drawn), "clip": text_encoder, "vae": vae}
        handles = {
            part: self.files.keep(part, f"random {family} {scale} {part}", network)
            for part, network in networks.items()
            if network is not None
        }
        return (
            Model(handles["unet"]),
            self._clip(handles["clip"]) if "clip" in handles else None,
            vae_of(handles["vae"]),
        )

    def _unet(self, path: Path, types: LoadTypes) -> Denoiser | VisionNetwork:
        loaded = load_unet_or_vision(path, types)
        return VisionNetwork(loaded) if isinstance(loaded, LoadedVision) else self._denoiser(loaded)

    def _denoiser(self, loaded: LoadedDenoiser) -> Denoiser:
        network = denoiser(loaded)
        loaded.unet.compute_dtype = network.manual_cast_dtype = loaded.computed
        return network


def model_of(handle: WeightHandle) -> Model:
    """Return the MODEL of a network that denoises, or that reads images."""
    return VisionModel(handle) if isinstance(handle.module, VisionNetwork) else Model(handle)


def denoiser(loaded: LoadedDenoiser) -> Denoiser:
    """Return a network under the parameterisation of its file, with the inputs of its variant."""
    family, unet = loaded.family, loaded.unet
    config = ModelConfig(
        family,
        loaded.variant,
        unet_config=_unet_config(unet.config),
        sampling_settings=loaded.parameterisation.settings,
        latent_format=(loaded.parameterisation.latent_format or family.latent_format)(),
        memory_usage_factor=family.memory_usage_factor,
    )
    return family.variant_types.get(loaded.variant, family.denoiser_type)(
        unet,
        model_sampling=loaded.parameterisation.kind(config),
        config=config,
        concat_keys=family.variants[loaded.variant],
    )


def _unet_config(config: Any) -> dict[str, Any]:
    """Return the properties of a network's configuration that nodes look up by ComfyUI's names."""
    names = ("model_channels", "in_channels", "context_dim", "num_heads")
    return {name: getattr(config, name) for name in names if hasattr(config, name)}
