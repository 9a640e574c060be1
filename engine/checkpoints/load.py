"""Model files -> networks with weights, on the CPU.

A network is built without memory (torch's meta device), then each weight is copied from the mapped file into place in
one block of memory of the wanted type: nothing is held twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from engine.architectures.autoencoder_kl import AutoencoderKl
from engine.architectures.clip_text import ClipTextEncoder
from engine.architectures.latent_unet import UnetModel
from engine.checkpoints import inspect
from engine.checkpoints.diffusers_folder import unet_from_diffusers, vae_from_diffusers
from engine.checkpoints.families import sd15
from engine.checkpoints.inspect import CheckpointFamily, NotRecognised
from engine.errors import BadModelFile
from engine.formats.safetensors_file import SafetensorsFile
from engine.formats.weight_file import WeightFile, open_weights
from engine.formats.weight_source import SOURCE_ATTRIBUTE, FileWeights

SD1 = "a Stable Diffusion 1 checkpoint with UNet, text encoder and VAE"

T = TypeVar("T")


class Destination(Enum):
    """Where the weights of a network are to compute, which says when they are read and how they lie."""

    RAM = "ram"  # the processor, with memory of their own, filled at once
    DEVICE = "device"  # they are read when they are brought there
    SIMULATED_DEVICE = "simulated device"  # likewise, and lie as for the processor, which computes: to the same bits

    @property
    def is_processor(self) -> bool:
        return self is not Destination.DEVICE


@dataclass(frozen=True, slots=True)
class LoadTypes:
    """The types weights are kept in."""

    unet: torch.dtype = torch.float32
    text_encoder: torch.dtype = torch.float32
    vae: torch.dtype = torch.float32
    patched_text_encoder: torch.dtype | None = torch.float16  # what its weights are rounded to, patched ones too
    unet_computed: torch.dtype | None = None  # what a UNet is cast to while it computes; None: as it is kept
    vision: torch.dtype = torch.float16  # picture encoders; they compute in float32
    to: Destination = Destination.RAM


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    family: CheckpointFamily
    unet: UnetModel
    text_encoder: ClipTextEncoder
    vae: AutoencoderKl


def load_checkpoint(path: Path, types: LoadTypes) -> LoadedCheckpoint:
    """A whole checkpoint. Raises `BadModelFile`."""
    file = open_weights(path)
    try:
        family = inspect.checkpoint_family(file.shapes, file.metadata)
        unet = _unet(file, sd15.UNET_PREFIX, types.unet, to=types.to)
        text_encoder = _text_encoder(file, sd15.TEXT_PREFIX + "transformer.", types)
        vae = _vae(file, sd15.VAE_PREFIX, types.vae, to=types.to)
    except NotRecognised as error:
        raise BadModelFile(path.name, error.found, SD1) from error
    width = text_encoder.clip_l.config.width
    if unet.config.context_dim != width:
        found = f"a UNet for text of width {unet.config.context_dim} and a text encoder of width {width}"
        raise BadModelFile(path.name, found, "equal widths")
    return LoadedCheckpoint(family, unet, text_encoder, vae)


def load_unet(
    path: Path, dtype: torch.dtype, *, to: Destination = Destination.RAM
) -> tuple[CheckpointFamily, UnetModel]:
    """The UNet of a file that holds one. Raises `BadModelFile`."""
    file = open_weights(path)
    try:
        if "down_blocks.0.resnets.0.conv1.weight" in file.tensors:
            file = unet_from_diffusers(file)
        prefix = inspect.find_prefix(file.shapes, sd15.UNET_PREFIXES, "input_blocks.0.0.weight")
        if prefix is None:
            raise NotRecognised(inspect.describe(file.shapes))
        family = inspect.unet_family(inspect.without_prefix(file.shapes, prefix), file.shapes, file.metadata)
        return family, _unet(file, prefix, dtype, to=to)
    except NotRecognised as error:
        raise BadModelFile(path.name, error.found, "the UNet of Stable Diffusion 1") from error


def load_text_encoder(path: Path, types: LoadTypes) -> ClipTextEncoder:
    """The CLIP-L text encoder of a file that holds one. Raises `BadModelFile`."""
    file = open_weights(path)
    try:
        ending = "text_model.embeddings.token_embedding.weight"
        prefix = inspect.find_prefix(file.shapes, sd15.TEXT_PREFIXES, ending)
        if prefix is None:
            raise NotRecognised(inspect.describe(file.shapes))
        return _text_encoder(file, prefix, types)
    except NotRecognised as error:
        raise BadModelFile(path.name, error.found, "a CLIP-L text encoder") from error


def load_vae(path: Path, dtype: torch.dtype, *, to: Destination = Destination.RAM) -> AutoencoderKl:
    """The VAE of a file that holds one. Raises `BadModelFile`."""
    file = open_weights(path)
    try:
        if "decoder.up_blocks.0.resnets.0.norm1.weight" in file.tensors:
            file = vae_from_diffusers(file)
        prefix = inspect.find_prefix(file.shapes, sd15.VAE_PREFIXES, "decoder.conv_in.weight")
        if prefix is None:
            raise NotRecognised(inspect.describe(file.shapes))
        return _vae(file, prefix, dtype, to=to)
    except NotRecognised as error:
        raise BadModelFile(path.name, error.found, "the VAE of Stable Diffusion 1") from error


def _unet(file: WeightFile, prefix: str, dtype: torch.dtype, *, to: Destination) -> UnetModel:
    names = _names(file, prefix)
    config = _read(file, lambda: inspect.unet_config({name: file.tensors[key].shape for name, key in names.items()}))
    with torch.device("meta"):
        network = UnetModel(config)
    fill(network, file, names, dtype, to=to)
    return network


def _vae(file: WeightFile, prefix: str, dtype: torch.dtype, *, to: Destination) -> AutoencoderKl:
    names = _names(file, prefix)
    config = _read(file, lambda: inspect.vae_config({name: file.tensors[key].shape for name, key in names.items()}))
    with torch.device("meta"):
        network = AutoencoderKl(config)
    fill(network, file, names, dtype, to=to)
    return network


def _text_encoder(file: WeightFile, prefix: str, types: LoadTypes) -> ClipTextEncoder:
    names = _names(file, prefix)
    if "embeddings.token_embedding.weight" in names:  # early files leave `text_model.` out
        names = {"text_model." + name: key for name, key in names.items()}
    shapes = {name: file.tensors[key].shape for name, key in names.items()}
    config = _read(file, lambda: inspect.clip_text_config(shapes))
    with torch.device("meta"):
        network = ClipTextEncoder(config)
    network.patched_dtype = types.patched_text_encoder
    dtype = types.text_encoder
    projection = network.clip_l.transformer.text_projection
    if "text_projection.weight" not in names:  # SD1 has none, and its pooled output is not projected
        projection.weight = nn.Parameter(torch.eye(config.width, dtype=dtype), requires_grad=False)
    names = {"clip_l.transformer." + name: key for name, key in names.items()}
    fill(network, file, names, dtype, to=types.to, through=types.patched_text_encoder)
    return network


def _names(file: WeightFile, prefix: str) -> dict[str, str]:
    """Name in the network -> name in the file."""
    return {key.removeprefix(prefix): key for key in file.tensors if key.startswith(prefix)}


def _read(file: WeightFile, read: Callable[[], T]) -> T:
    """A configuration, or what is missing for it."""
    try:
        return read()
    except (KeyError, IndexError) as error:
        raise BadModelFile(file.path.name, f"no tensor {error}", SD1) from error


def fill(
    network: nn.Module,
    file: WeightFile,
    names: Mapping[str, str],
    dtype: torch.dtype | Callable[[str], torch.dtype],
    *,
    to: Destination = Destination.RAM,
    through: torch.dtype | None = None,
) -> None:
    """Give every weight of a network that has none (meta device) its values from the file, as `dtype`, which may tell
    it by the weight's name. Where they are copied they are rounded to `through` first, unless that is None.

    For a device a mapped file is not read: its weights become views of it where they lie there as they are wanted, and
    the others keep none; the network's `weight_source` gives them. Raises `BadModelFile` for a weight that is missing
    or of another shape; other tensors of the file are left alone.
    """
    wanted = {name: weight for name, weight in network.named_parameters() if weight.is_meta}
    _check(file, wanted, names)
    dtype_of = dtype if callable(dtype) else lambda name: dtype
    layouts = {name: _layout(weight, dtype_of(name), to) for name, weight in wanted.items()}
    is_mapped = isinstance(file, SafetensorsFile)
    later = is_mapped and to is not Destination.RAM
    source = FileWeights(file, names, layouts, copies=not later, through=None if later else through)
    found = {name: source.view(name) for name in wanted if source.is_view(name)} if later else dict(source.read(wanted))
    for name in wanted:
        owner, _, attribute = name.rpartition(".")
        tensor = found.get(name, layouts[name])
        setattr(network.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))
    if is_mapped:
        setattr(network, SOURCE_ATTRIBUTE, source)
    network.eval()


def _layout(weight: torch.Tensor, dtype: torch.dtype, to: Destination) -> torch.Tensor:
    """A weight of the meta device in the type and layout it is kept in."""
    shaped = torch.empty(weight.shape, dtype=dtype, device="meta")
    is_last = wants_channels_last(dtype, on_processor=to.is_processor) and weight.ndim == 4
    return shaped.contiguous(memory_format=torch.channels_last) if is_last else shaped


def _check(file: WeightFile, wanted: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        found = f"{len(wanted) - len(missing)} of {len(wanted)} weights; {missing[0]!r} is missing"
        raise BadModelFile(file.path.name, found, "all of them")
    for name, weight in wanted.items():
        shape = file.tensors[names[name]].shape
        if shape != tuple(weight.shape) and _squeezed(shape) != _squeezed(tuple(weight.shape)):
            raise BadModelFile(file.path.name, f"{name!r} of shape {list(shape)}", f"shape {list(weight.shape)}")


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without trailing ones: a linear layer may be stored as a 1x1 convolution, and the other way round."""
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def wants_channels_last(dtype: torch.dtype, *, on_processor: bool) -> bool:
    """Whether convolutions of this type are faster with channels innermost: 16-bit ones are, on CPU and GPU alike.

    On a processor float32 ones are, too, because cells are gathered without being torn apart (see `layers.py`).
    UNet of SD1.5 at 256x256 on two cores with AVX-512: float32 1.02 s instead of 1.2 s.
    """
    return dtype in (torch.bfloat16, torch.float16) or (on_processor and dtype == torch.float32)
