"""Model files as MODEL, CLIP and VAE values; each file's weights are held once, all in the one ModelPool."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch

from engine.diffusion.denoiser import Denoiser, ModelConfig
from engine.errors import BadModelFile
from engine.families import registry
from engine.families.base import ModelFamily, TokenizerParts
from engine.formats.arriving_file import stat_of
from engine.formats.mapped_file import MappedFile
from engine.formats.weight_file import WeightFile, all_tensors, open_weights
from engine.formats.weight_source import source_of
from engine.layers.pixel_space import NAME as PIXEL_SPACE
from engine.layers.pixel_space import PixelSpace
from engine.models.clip import Clip
from engine.models.embeddings import EmbeddingFinder
from engine.models.files.diffusers_folder import diffusers_files
from engine.models.files.folders import ModelFolders
from engine.models.kinds.audio_encoder_value import AudioEncoder
from engine.models.kinds.clip_vision_value import ClipVision, StyleModel
from engine.models.kinds.control_lora_value import ControlLora
from engine.models.kinds.controlnet_value import ControlBase, ControlNet, T2IAdapter
from engine.models.kinds.load_audio_encoder import load_audio_encoder
from engine.models.kinds.load_clip_vision import load_clip_vision
from engine.models.kinds.load_control_lora import is_control_lora
from engine.models.kinds.load_controlnet import load_controlnet, steering_kind
from engine.models.kinds.load_gligen import load_gligen
from engine.models.kinds.load_hypernetwork import load_hypernetwork
from engine.models.kinds.load_model_patch import load_model_patch
from engine.models.kinds.load_photomaker import load_photomaker
from engine.models.kinds.load_style_model import load_style_model
from engine.models.kinds.load_tiny_autoencoder import load_tiny_autoencoder
from engine.models.kinds.load_upscaler import load_upscaler
from engine.models.kinds.photomaker_value import PhotoMakerEncoder
from engine.models.kinds.upscaler_value import UpscaleModel
from engine.models.load import (
    LoadedDenoiser,
    LoadTypes,
    load_checkpoint,
    load_text_encoders,
    load_unet,
    load_vae,
    text_encoders_of,
    unet_of,
    vision_prefix,
)
from engine.models.model import Model
from engine.models.patching.module_patcher import ModulePatcher
from engine.models.random_weights import random_networks
from engine.models.recent_models import RecentModels
from engine.models.vae import Vae
from engine.models.vae_of import vae_of
from engine.models.weight_handle import WeightHandle
from engine.text.clip_encoding import TextEncoderSet
from engine.text.clip_tokens import BytePairs, TokenizerSet

CHECKPOINT_PARTS = ("unet", "clip", "vae")
TINY_HALVES = ("encoder", "decoder")
DEFAULT_TEXT_TYPE = "stable_diffusion"  # of ComfyUI's loader nodes


class KeepsWeights(Protocol):
    """Function that puts a network into the pool: (name for logs, network) -> handle.

    `on_cpu`: it always computes on the CPU. `role` (`ROLES`, else `other`) determines its place, `source` is where its
    weights can be read again.
    """

    def __call__(
        self, name: str, module: torch.nn.Module, *, role: Any = "other", on_cpu: bool = False, source: Any = None
    ) -> WeightHandle: ...


class FileState(NamedTuple):
    """State of a file at the time it was read."""

    path: str
    mtime_ns: int
    num_bytes: int


class ModelStore:
    """Loader of models by kind and name.

    A file that is still in use, or held by `recent`, is not read again unless it changed on disk. `make_room(bytes of a
    file)` is called before a file is read, `on_read(seconds)` when its networks are built, None when that failed.
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
    ) -> None:
        self._folders = folders
        self._keep = keep
        self._types = types
        self._device = device
        self._tokenizer_parts = TokenizerParts(BytePairs(), self._embedding_finder)
        self._handles: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self._mapped: weakref.WeakKeyDictionary[Any, FileState] = weakref.WeakKeyDictionary()  # by its mapping
        self._parts: dict[FileState, tuple[str, ...]] = {}  # the networks that a checkpoint has
        self._kept: dict[tuple[str, str], list[WeightHandle]] = {}
        self._recent = RecentModels(0) if recent is None else recent
        self._make_room = make_room
        self._on_read = on_read

    def checkpoint(self, name: str) -> tuple[Model, Clip | None, Vae | None]:
        """Load a checkpoint. CLIP or VAE are None where the file has none, as in ComfyUI.

        Raises `BadModelFile`, also when there is no such file.
        """
        path = self.path_of("checkpoints", name)
        file = _state_of(path)
        parts = self._parts.get(file, CHECKPOINT_PARTS)
        handles = self._known(file, parts)
        if handles is None:
            with self._reading(file):
                loaded = load_checkpoint(path, self._types)
                networks = (self._denoiser(loaded.denoiser), loaded.text_encoder, loaded.vae)
                found = {part: item for part, item in zip(CHECKPOINT_PARTS, networks, strict=True) if item is not None}
                parts = tuple(found)
                handles = self._kept_handles(path, parts, tuple(found.values()))
            file = _state_of(path)
            self._parts[file] = parts
            self._register(file, parts, handles)
        by_part = dict(zip(parts, handles, strict=True))
        unet, clip, vae = (by_part.get(part) for part in CHECKPOINT_PARTS)
        assert unet is not None
        return Model(unet), None if clip is None else self._clip(clip), None if vae is None else vae_of(vae)

    def is_loaded(self, path: Path) -> bool:
        """Return True if weights of the file, in any version of it, are in use or held."""
        return any(file.path == str(path) for file, _ in list(self._handles))

    def checkpoint_vision(self, name: str) -> ClipVision | None:
        """Load the picture encoder of a checkpoint, None for one that has none. Raises `BadModelFile`."""
        path = self.path_of("checkpoints", name)
        prefix = vision_prefix(path)
        if prefix is None:
            return None
        types = self._types

        def load() -> torch.nn.Module:
            return load_clip_vision(path, types.vision, to=types.to, prefix=prefix)

        return ClipVision(self._one(path, "clip vision", load))

    def preload(self, kind: str, name: str, *, keep: bool = False) -> int:
        """Read a file and load it to its device, as far as it fits; return the bytes of its weights.

        `kind` is one of `PRELOADED_KINDS` (KeyError otherwise). With `keep` its weights are held as long as the store
        exists, and leave the device last. Without it, they are held as long as something refers to them. The file is in
        the page cache then, and reading it takes most of the time of a first run. Raises `BadModelFile`.
        """
        values = PRELOADED_KINDS[kind](self, name)
        handles = [handle for value in values if value is not None for handle in _handles(value)]
        kept: list[WeightHandle] = []
        for handle in handles:
            with handle.in_use():
                pass
            if keep:
                handle.keep()
                kept.append(handle)
        if kept:
            self._kept[kind, name] = kept
        return sum(handle.size_bytes for handle in handles)

    def unet(self, name: str, *, stored_as: torch.dtype | None = None) -> Model:
        """Load a denoising network. `stored_as` is the type of its weights, None the one that is decided for all."""
        path = self.path_of("diffusion_models", name)
        part = "unet" if stored_as is None else ("unet", stored_as)
        types = self._types if stored_as is None else self._types.with_unet_stored_as(stored_as)
        return Model(self._one(path, part, lambda: self._unet(path, types)))

    def unet_gguf(self, name: str, *, arithmetic: torch.dtype | None = torch.float16) -> Model:
        """Load a denoising network of a GGUF file.

        `arithmetic` is the type that the values of blocks are computed in, None the one that the network computes in.
        """
        path = self.path_of("unet_gguf", name)
        types = replace(self._types, block_arithmetic=arithmetic)
        return Model(self._one(path, ("unet", "gguf", arithmetic), lambda: self._unet(path, types)))

    def unet_of(self, file: WeightFile) -> Model:
        """Load a denoising network from tensors that the caller has. It is read once for each call."""
        handle = self._keep(file.path.name, self._denoiser(unet_of(file, self._types)), role=ROLES["unet"])
        return Model(handle)

    def clip_of(self, files: Sequence[WeightFile], *, text_type: str) -> Clip:
        """Load the text encoders of one model from tensors that the caller has."""
        name = ", ".join(file.path.name for file in files)
        network = text_encoders_of(files, self._types, text_type)
        return self._clip(self._keep(name, network, role=ROLES["clip"]))

    def clip(self, name: str, *, text_type: str = DEFAULT_TEXT_TYPE, on_cpu: bool = False) -> Clip:
        """Load the text encoder of a file. `text_type` is that of ComfyUI's loader nodes."""
        return self.clip_set([name], text_type=text_type, on_cpu=on_cpu)

    def clip_set(self, names: Sequence[str], *, text_type: str, on_cpu: bool = False) -> Clip:
        """Load the text encoders of one model from files that hold one each."""
        first, *others = paths = [self.path_of("text_encoders", name) for name in names]
        label = "clip on the CPU" if on_cpu else "clip"
        part, load = (label, text_type), lambda: load_text_encoders(paths, self._types, text_type)
        return self._clip(self._one(first, part, load, beside=others, on_cpu=on_cpu))

    def _clip(self, handle: WeightHandle) -> Clip:
        """Return a CLIP value with the tokenizers of its text encoders."""
        text_encoders = cast(TextEncoderSet, handle.module)
        family: ModelFamily = text_encoders.family
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
            return vae_of(self._keep(name, PixelSpace().eval(), role=ROLES["vae"]))
        if name in registry.tiny_autoencoders() and self._folders.path("vae", name) is None:
            return self._tiny_autoencoder(name)
        path = self.path_of("vae", name)
        return vae_of(self._one(path, "vae", lambda: load_vae(path, self._types)))

    def _tiny_autoencoder(self, name: str) -> Vae:
        """Load a small autoencoder from the files `NAME_encoder.*` and `NAME_decoder.*`. It has the VAE's type."""
        names = self._folders.names("vae_approx")
        found = [next((item for item in names if item.startswith(f"{name}_{half}.")), None) for half in TINY_HALVES]
        encoder, decoder = (
            self.path_of("vae_approx", f"{name}_{half}" if file is None else file)
            for half, file in zip(TINY_HALVES, found, strict=True)
        )
        latent_format, types = registry.tiny_autoencoders()[name], self._types.of(registry.default_family())

        def load() -> torch.nn.Module:
            return load_tiny_autoencoder(encoder, decoder, latent_format, types.vae, to=types.to)

        return vae_of(self._one(decoder, ("vae", name), load, beside=[encoder]))

    def controlnet(self, name: str) -> ControlNet | T2IAdapter:
        path = self.path_of("controlnet", name)
        if is_control_lora(open_weights(path)):
            return ControlLora(self.tensors("controlnet", name), averages_globally(path))
        handle = self._one(path, "controlnet", lambda: self._controlnet(path))
        return _control_value(handle, path)

    def controlnet_upon(self, name: str, base: Model) -> ControlNet | T2IAdapter:
        """Load a ControlNet. Its file may hold the difference to a UNet: that of `base`, with its patches."""
        path = self.path_of("controlnet", name)
        if is_control_lora(open_weights(path)):
            return self.controlnet(name)

        def load() -> torch.nn.Module:
            with base.in_use() as network:
                names = network.diffusion_model.state_dict()
                weights = {name: base.weights.current_weight(f"diffusion_model.{name}") for name in names}
                return self._controlnet(path, weights.get)

        return _control_value(self._one(path, ("controlnet upon", base.patches_uuid), load), path)

    def upscaler(self, name: str) -> UpscaleModel:
        path = self.path_of("upscale_models", name)
        return UpscaleModel(self._one(path, "upscaler", lambda: load_upscaler(path, to=self._types.to)))

    def hypernetwork(self, name: str) -> ModulePatcher:
        path = self.path_of("hypernetworks", name)
        return ModulePatcher(
            self._one(
                path, "hypernetwork", lambda: load_hypernetwork(path, self._types.unet_computed or self._types.unet)
            )
        )

    def gligen(self, name: str) -> ModulePatcher:
        path = self.path_of("gligen", name)
        return ModulePatcher(self._one(path, "gligen", lambda: load_gligen(path, to=self._types.to)))

    def clip_vision(self, name: str) -> ClipVision:
        path = self.path_of("clip_vision", name)
        types = self._types
        return ClipVision(self._one(path, "clip vision", lambda: load_clip_vision(path, types.vision, to=types.to)))

    def audio_encoder(self, name: str) -> AudioEncoder:
        path = self.path_of("audio_encoders", name)
        types = self._types
        return AudioEncoder(
            self._one(path, "audio encoder", lambda: load_audio_encoder(path, types.vision, to=types.to))
        )

    def photomaker(self, name: str) -> PhotoMakerEncoder:
        path = self.path_of("photomaker", name)
        types = self._types
        return PhotoMakerEncoder(
            self._one(path, "photomaker", lambda: load_photomaker(path, types.vision, to=types.to))
        )

    def model_patch(self, name: str) -> ModulePatcher:
        path = self.path_of("model_patches", name)
        return ModulePatcher(self._one(path, "model patch", lambda: load_model_patch(path, self._types)))

    def style_model(self, name: str) -> StyleModel:
        """Load a style model. It computes on the CPU, as in ComfyUI: a few layers, once per picture."""
        path = self.path_of("style_models", name)
        return StyleModel(self._one(path, "style model", lambda: load_style_model(path), on_cpu=True))

    def diffusers(self, name: str) -> tuple[Model, Clip, Vae]:
        """Load a model from the folder layout of the diffusers library."""
        folder = self._folders.folder("diffusers", name)
        if folder is None:
            raise BadModelFile(name, "no such folder among the diffusers models", "one of the names the node offers")
        paths = diffusers_files(folder)
        unet = self._one(paths.unet, "diffusers unet", lambda: self._unet(paths.unet, self._types))
        family: ModelFamily = cast(Denoiser, unet.module).model_config.family
        texts, text_type = paths.text_encoders, next(iter(family.comfyui.text_types), DEFAULT_TEXT_TYPE)
        part = ("clip", text_type)
        clip = self._one(texts[0], part, lambda: load_text_encoders(texts, self._types, text_type), beside=texts[1:])
        vae = self._one(paths.vae, "vae", lambda: load_vae(paths.vae, self._types))
        return Model(unet), self._clip(clip), vae_of(vae)

    def text(self, kind: str, name: str) -> str:
        """Read a text file (a configuration)."""
        return self.path_of(kind, name).read_text("utf-8", errors="replace")

    def file_state(self, kind: str, name: str) -> FileState:
        """Return the state that a file has now; a file of the same state has the same content."""
        return _state_of(self.path_of(kind, name))

    def tensors(self, kind: str, name: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a file that is not a network of its own (a LoRA).

        Those of a mapped file are read when they are accessed.
        """
        path = self.path_of(kind, name)
        state, file = _state_of(path), open_weights(path)
        if isinstance(file, MappedFile):
            self._mapped[file.mapping] = state
        return all_tensors(file)

    def forget_changed(self) -> list[str]:
        """Forget files whose content changed since they were read, and return their paths.

        A file has changed when it was written to or replaced by another. Only files from which something is still held
        are considered. They are read again when they are requested next. Each change is reported once.
        """
        read = {file for file, _ in list(self._handles)} | set(self._mapped.values())
        changed = {file for file in read if _has_changed(file)}
        if changed:
            self._parts = {file: parts for file, parts in self._parts.items() if file not in changed}
            for file, part in list(self._handles):
                if file in changed:
                    del self._handles[file, part]
            for mapping, file in list(self._mapped.items()):
                if file in changed:
                    del self._mapped[mapping]
            paths = {file.path for file in changed}
            self._kept = {
                (kind, name): handles
                for (kind, name), handles in self._kept.items()
                if str(self._folders.path(kind, name)) not in paths
            }
        return sorted(file.path for file in changed)

    def random_checkpoint(self, family: str, scale: str, seed: int = 0) -> tuple[Model, Clip | None, Vae]:
        """Create networks in a family's own shape, with random weights drawn on the device; nothing is read."""
        described = registry.family_named(family)
        unet, text_encoder, vae = random_networks(scale, seed, self._types, self._device, family=described)
        computed = self._types.of(described).unet_computed
        drawn = LoadedDenoiser(described, "", described.parameterisation, unet, computed)
        networks = {"unet": self._denoiser(drawn), "clip": text_encoder, "vae": vae}
        handles = {
            part: self._keep(f"random {family} {scale} {part}", network, role=ROLES[part])
            for part, network in networks.items()
            if network is not None
        }
        return (
            Model(handles["unet"]),
            self._clip(handles["clip"]) if "clip" in handles else None,
            vae_of(handles["vae"]),
        )

    def _unet(self, path: Path, types: LoadTypes) -> Denoiser:
        return self._denoiser(load_unet(path, types))

    def _denoiser(self, loaded: LoadedDenoiser) -> Denoiser:
        network = denoiser(loaded)
        loaded.unet.compute_dtype = network.manual_cast_dtype = loaded.computed
        return network

    def _controlnet(
        self, path: Path, base_weight: Callable[[str], torch.Tensor | None] | None = None
    ) -> torch.nn.Module:
        return load_controlnet(path, self._types, base_weight)

    def path_of(self, kind: str, name: str) -> Path:
        """Return the path of a file, also of one that is being downloaded.

        Raises `BadModelFile` when no folder of its kind has it.
        """
        path = self._folders.path(kind, name) or self._folders.arriving_path(kind, name)
        if path is None:
            raise BadModelFile(name, f"no such file among the {kind}", "one of the names the node offers")
        return path

    def _one(
        self,
        path: Path,
        part: Any,
        load: Callable[[], torch.nn.Module],
        *,
        beside: Sequence[Path] = (),
        on_cpu: bool = False,
    ) -> WeightHandle:
        """Return the network of a file and of those `beside` it. `part` names it among what the file has."""

        def key() -> tuple[FileState, Any]:
            own = part if isinstance(part, tuple) else (part,)
            return _state_of(path), (*own, *map(_state_of, beside)) if beside else part

        file, full_part = key()
        handles = self._known(file, (full_part,))
        if handles is None:
            with self._reading(file):
                handles = self._kept_handles(path, (full_part,), (load(),), on_cpu=on_cpu)
            file, full_part = key()
            self._register(file, (full_part,), handles)
        return handles[0]

    @contextmanager
    def _reading(self, file: FileState) -> Iterator[None]:
        """Make room for a file, and report the time of the block, or its failure."""
        self._make_room(file.num_bytes)
        began_seconds = time.monotonic()
        try:
            yield
        except Exception:
            self._on_read(None)
            raise
        self._on_read(time.monotonic() - began_seconds)

    def _known(self, file: FileState, parts: tuple[Any, ...]) -> list[WeightHandle] | None:
        handles = [self._handles.get((file, part)) for part in parts]
        found = [handle for handle in handles if handle is not None]
        if len(found) < len(parts):
            return None
        self._recent.use((file, parts))
        return found

    def _kept_handles(
        self, path: Path, parts: tuple[Any, ...], networks: tuple[torch.nn.Module, ...], *, on_cpu: bool = False
    ) -> list[WeightHandle]:
        """Put the networks of a file into the pool; those that are being downloaded come to their device with it.

        Raises DownloadEnded where their download fails.
        """
        handles = []
        for part, network in zip(parts, networks, strict=True):
            label = part if isinstance(part, str) else part[0]
            name, role, source = f"{path.name} {label}", ROLES.get(label, "other"), source_of(network)
            handle = self._keep(name, network, role=role, on_cpu=on_cpu, source=source)
            if source is not None and source.is_arriving:
                with handle.in_use():
                    pass
            handles.append(handle)
        for network in networks:
            source = source_of(network)
            if source is not None:
                source.settle()
        return handles

    def _register(self, file: FileState, parts: tuple[Any, ...], handles: list[WeightHandle]) -> None:
        """Find these handles again by their file, as long as they are held."""
        for part, handle in zip(parts, handles, strict=True):
            self._handles[file, part] = handle
        if all(source_of(handle.module) is not None for handle in handles):  # what cannot be read again stays in RAM
            self._recent.note((file, parts), handles)


# What can be read before a prompt names it: the folder's kind -> the values of a file of it.
PRELOADED_KINDS: Mapping[str, Callable[[ModelStore, str], tuple[Any, ...]]] = {
    "checkpoints": lambda store, name: store.checkpoint(name),
    "diffusion_models": lambda store, name: (store.unet(name),),
    "text_encoders": lambda store, name: (store.clip(name),),
    "vae": lambda store, name: (store.vae(name),),
    "controlnet": lambda store, name: (store.controlnet(name),),
    "upscale_models": lambda store, name: (store.upscaler(name),),
    "clip_vision": lambda store, name: (store.clip_vision(name),),
}


def _handles(value: Any) -> list[WeightHandle]:
    """Return the weights of a MODEL, CLIP, VAE...; a Control-LoRA has none of its own."""
    if isinstance(value, ControlBase):
        return [model.weights for model in value.get_models()]
    patcher: Model = getattr(value, "patcher", value)
    return [patcher.weights]


def _control_value(handle: WeightHandle, path: Path) -> ControlNet | T2IAdapter:
    kind = steering_kind(handle.module)
    if kind is None:
        return T2IAdapter.of(handle)
    return ControlNet.of(handle, kind, global_average_pooling=averages_globally(path))


def averages_globally(path: Path) -> bool:
    """Return True if a ControlNet's additions are averaged over the picture, which only the file's name indicates."""
    return path.stem.endswith(("_shuffle", "_shuffle_fp16"))


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


def _state_of(path: Path) -> FileState:
    """Return the state of a file. Call it before opening the file, so that a change meanwhile is detected.

    That of a file which is being downloaded changes until its content has been checked.
    """
    state = stat_of(path)
    return FileState(str(path), state.st_mtime_ns, state.st_size)


def _has_changed(file: FileState) -> bool:
    """Return True if a file changed since it was read. A deleted one did not: the weights read from it stay valid."""
    try:
        return _state_of(Path(file.path)) != file
    except OSError:
        return False


# What a network of a part is to the pool.
ROLES: Mapping[str, str] = {
    "unet": "unet", "diffusers unet": "unet", "controlnet": "controlnet", "controlnet upon": "controlnet",
    "clip": "text_encoder", "clip on the CPU": "text_encoder", "clip vision": "vision", "vae": "vae",
    "photomaker": "vision", "audio encoder": "vision",
}  # fmt: skip
