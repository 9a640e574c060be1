"""Loading of model files as networks with weights, by the rules of the families (`engine/families`).

A network is built without memory (torch's meta device), then filled from the file (`engine/formats/fill.py`). All
networks of a file are built, and their weights compared with its list of tensors, before the first one is filled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from darkroom.contract.errors import EngineError
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import (
    ModelFamily,
    Network,
    NotRecognised,
    Parameterisation,
    TensorIndex,
    TextEncoder,
    Vocabulary,
)
from darkroom.engine.families.vision_family import VisionFamily
from darkroom.engine.formats.fill import Destination, check_tensors, fill, set_weight
from darkroom.engine.formats.quantised.open_model import open_model
from darkroom.engine.formats.quantised.packed_layers import has_packed_weights
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import Names, WeightFile
from darkroom.engine.text.clip_encoding import TextEncoderSet

# Where checkpoints have text encoders.
TEXT_PREFIXES = ("cond_stage_model.", "conditioner.embedders.", "text_encoders.")
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
EncoderSource = tuple[TextEncoder, WeightFile, Names]


@dataclass(frozen=True, slots=True)
class LoadTypes:
    """The types in which weights are stored."""

    unet: torch.dtype = torch.float32
    text_encoder: torch.dtype = torch.float32
    vae: torch.dtype = torch.float32
    patched_text_encoder: torch.dtype | None = torch.float16  # what its weights are rounded to, patched ones too
    text_encoder_computed: torch.dtype | None = None  # what it is cast to while it computes; None: what all are
    unet_computed: torch.dtype | None = None  # what a UNet is cast to while it computes; None: as it is kept
    vision: torch.dtype = torch.float16  # image encoders; they compute in float32
    block_arithmetic: torch.dtype | None = torch.float16  # of GGUF's blocks; None: the type they are wanted in
    room_bytes: int | None = None  # for the weights of a denoising network; None: enough
    to: Destination = Destination.RAM
    by_family: Callable[[ModelFamily | VisionFamily], LoadTypes] | None = None  # where the types depend on it

    def of(self, family: ModelFamily | VisionFamily) -> LoadTypes:
        """Return the types for the networks of a family."""
        return self if self.by_family is None else self.by_family(family)

    def with_unet_stored_as(self, dtype: torch.dtype) -> LoadTypes:
        """Return types in which UNets are stored in `dtype` and compute as they do now."""

        def of(family: ModelFamily | VisionFamily) -> LoadTypes:
            own = self.of(family)
            return replace(own, unet=dtype, unet_computed=own.unet_computed or own.unet, by_family=None)

        return replace(self, by_family=of)


@dataclass(frozen=True, slots=True)
class LoadedDenoiser:
    """A denoising network, its family, and the interpretation of its output.

    `computed` is the type that it is cast to while it computes, None where it computes as it is kept.
    """

    family: ModelFamily
    variant: str
    parameterisation: Parameterisation
    unet: Any
    computed: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class LoadedVision:
    """A network that reads images, its family, and its text encoders, a `TextEncoderSet`; None without any."""

    family: VisionFamily
    network: Any
    text_encoder: Any = None
    computed: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """The networks of a checkpoint; None for text encoders or a VAE that the file does not have."""

    denoiser: LoadedDenoiser
    text_encoder: Any  # a `TextEncoderSet`
    vae: Any

    @property
    def family(self) -> ModelFamily:
        return self.denoiser.family

    @property
    def unet(self) -> Any:
        return self.denoiser.unet


@refuses("a checkpoint of a supported family")
def load_checkpoint(path: Path, types: LoadTypes) -> LoadedCheckpoint:
    """Load a checkpoint, whole or without text encoders or VAE. Raises `BadModelFile`."""
    return checkpoint_of(open_model(path, types.block_arithmetic), types)


@refuses("a checkpoint of a supported family")
def load_checkpoint_or_vision(path: Path, types: LoadTypes) -> LoadedCheckpoint | LoadedVision:
    """Load a checkpoint of networks that generate, or of one that reads images. Raises `BadModelFile`."""
    file = open_model(path, types.block_arithmetic)
    return vision_of(file, types, has_text=True) or checkpoint_of(file, types)


@refuses("a checkpoint of a supported family")
def checkpoint_of(file: WeightFile, types: LoadTypes) -> LoadedCheckpoint:
    """Load a checkpoint from an open file. Raises `BadModelFile`."""
    expected = f"a checkpoint of {registry.labels()}"
    try:
        found = registry.recognise(TensorIndex(file.shapes, file.metadata))
        family = found.family
        types = types.of(family)
        encoders = _checked_encoders_in(file, family)
        vae = registry.checkpoint_vae(family, file.shapes)
        parameterisation = family.parameterise(found.match, file)
        empty_unet = _empty(file, family.denoiser, found.match.names, types.unet)
        empty_encoders = _empty_encoders(encoders, types)
        empty_vae = None if vae is None else _empty(file, *vae, types.vae)
        unet, computed = _denoiser(empty_unet, types)
        text_encoder = _text_encoders(family, encoders, empty_encoders, types) if encoders else None
        filled_vae = None if empty_vae is None else empty_vae.filled(types.to)
    except NotRecognised as error:
        raise BadModelFile(file.path.name, _described(error, file), expected) from error
    if text_encoder is not None:
        _check_widths(file.path, unet, text_encoder)
    denoiser = LoadedDenoiser(family, found.match.variant, parameterisation, unet, computed)
    return LoadedCheckpoint(denoiser, text_encoder, filled_vae)


def _encoders_in(file: WeightFile, family: ModelFamily | VisionFamily) -> list[EncoderSource]:
    """Return the text encoders of a checkpoint that it has."""
    return [
        (encoder, file, names)
        for encoder in family.text
        if (names := registry.names_of(encoder.network, file.shapes, in_checkpoint=True)) is not None
    ]


def _checked_encoders_in(file: WeightFile, family: ModelFamily) -> list[EncoderSource]:
    """Return the text encoders of a checkpoint: all of the family's or none, or some where others may be left out."""
    found = _encoders_in(file, family)
    is_partial = bool(found) and len(found) < (family.num_taken_encoders or len(family.text))
    if is_partial and not family.takes_fewer_encoders:
        slots = ", ".join(encoder.encoding.slot for encoder, _, _ in found)
        raise NotRecognised(f"a checkpoint with only some of its text encoders ({slots})")
    other = next((name for name in file.shapes if name.startswith(TEXT_PREFIXES) and name.endswith(".weight")), None)
    if family.text and not found and other is not None:
        raise NotRecognised(f"a network of {family.label} with the text encoder of another model, {other!r}")
    return found


def _check_widths(path: Path, unet: Any, text_encoder: TextEncoderSet) -> None:
    """Refuse a checkpoint whose only text encoder is of another width than its network's tokens."""
    encoders = list(text_encoder.encoders().values())
    wanted = getattr(unet.config, "encoder_dim", getattr(unet.config, "context_dim", None))
    if wanted is None or len(encoders) != 1:
        return
    width = getattr(encoders[0], "output_width", encoders[0].config.width)
    if wanted != width:
        found = f"a UNet for text of width {wanted} and a text encoder of width {width}"
        raise BadModelFile(path.name, found, "equal widths")


@refuses("a checkpoint of a supported family")
def vision_prefix(path: Path) -> str | None:
    """Return the prefix of the image encoder in a checkpoint, None where it has none. Raises `BadModelFile`."""
    file = open_model(path)
    try:
        prefix = registry.recognise(TensorIndex(file.shapes, file.metadata)).family.vision_prefix
    except NotRecognised as error:
        raise BadModelFile(path.name, error.found, f"a checkpoint of {registry.labels()}") from error
    return prefix if prefix is not None and any(name.startswith(prefix) for name in file.shapes) else None


@refuses("a checkpoint of a supported family")
def vision_of(file: WeightFile, types: LoadTypes, *, has_text: bool) -> LoadedVision | None:
    """Load the network of an open file that reads images, with its text encoders where wanted; None for other files.

    Raises `BadModelFile`.
    """
    found = registry.recognise_vision(file.shapes)
    if found is None:
        return None
    family, names = found
    types = types.of(family)
    sources = _encoders_in(file, family) if has_text else []
    try:
        empty, empty_encoders = _empty(file, family.network, names, types.unet), _empty_encoders(sources, types)
    except NotRecognised as error:
        raise BadModelFile(file.path.name, error.found, f"the network of {family.label}") from error
    network, computed = _denoiser(empty, types)
    text_encoder = _text_encoders(family, sources, empty_encoders, types) if sources else None
    return LoadedVision(family, network, text_encoder, computed)


@refuses("a checkpoint of a supported family")
def load_unet(path: Path, types: LoadTypes) -> LoadedDenoiser:
    """Load the denoising network of a file that holds one. Raises `BadModelFile`."""
    return unet_of(open_model(path, types.block_arithmetic), types)


@refuses("a checkpoint of a supported family")
def load_unet_or_vision(path: Path, types: LoadTypes) -> LoadedDenoiser | LoadedVision:
    """Load the network of a file that holds one that denoises, or that reads images. Raises `BadModelFile`."""
    file = open_model(path, types.block_arithmetic)
    return vision_of(file, types, has_text=False) or unet_of(file, types)


@refuses("a checkpoint of a supported family")
def unet_of(file: WeightFile, types: LoadTypes) -> LoadedDenoiser:
    """Load the denoising network of an open file, or of tensors that are like one. Raises `BadModelFile`."""
    try:
        found = registry.recognise(TensorIndex(file.shapes, file.metadata))
        family = found.family
        own = _without_float8_beside_packed(file, types.of(family))
        unet, computed = _denoiser(_empty(file, family.denoiser, found.match.names, own.unet), own)
        parameterisation = family.parameterise(found.match, file)
    except NotRecognised as error:
        raise BadModelFile(file.path.name, _described(error, file), f"the network of {registry.labels()}") from error
    return LoadedDenoiser(family, found.match.variant, parameterisation, unet, computed)


@refuses("a checkpoint of a supported family")
def load_text_encoders(paths: Sequence[Path], types: LoadTypes, text_type: str) -> TextEncoderSet:
    """Load the text encoders of files that hold all of a family's. Raises `BadModelFile`.

    `text_type` is that of ComfyUI's loader nodes.
    """
    return text_encoders_of([open_model(path, types.block_arithmetic) for path in paths], types, text_type)


@refuses("a checkpoint of a supported family")
def text_encoders_of(files: Sequence[WeightFile], types: LoadTypes, text_type: str) -> TextEncoderSet:
    """Load the text encoders of open files, or of tensors that are like them. Raises `BadModelFile`."""
    name = ", ".join(file.path.name for file in files)
    try:
        family, found = registry.recognise_text_encoders(
            [file.shapes for file in files], text_type, [file.metadata for file in files]
        )
        types = types.of(family)
        sources = [(encoder, file, names) for file, (encoder, names) in zip(files, found, strict=True)]
        sources.sort(key=lambda item: family.text.index(item[0]))
        return _text_encoders(family, sources, _empty_encoders(sources, types), types)
    except NotRecognised as error:
        raise BadModelFile(name, _described(error, *files), registry.expected_text_encoders(text_type)) from error


@refuses("a checkpoint of a supported family")
def load_text_encoder(path: Path, types: LoadTypes, text_type: str = "stable_diffusion") -> TextEncoderSet:
    """Load the text encoder of a file that holds a family's only one. Raises `BadModelFile`."""
    return load_text_encoders([path], types, text_type)


@refuses("a checkpoint of a supported family")
def load_vae(path: Path, types: LoadTypes) -> Any:
    """Load the VAE of a file that holds one. Raises `BadModelFile`."""
    return vae_of_file(open_model(path), types)


def vae_of_file(file: WeightFile, types: LoadTypes) -> Any:
    """Load the VAE of an open file. Raises `BadModelFile`."""
    try:
        family, names = registry.recognise_vae(file.shapes, file.metadata)
        return _empty(file, family.vae, names, types.of(family).vae).filled(types.to)
    except NotRecognised as error:
        raise BadModelFile(file.path.name, error.found, f"a VAE of {registry.labels()}") from error


@refuses("a checkpoint of a supported family")
def load_further_vae(path: Path, types: LoadTypes) -> Any:
    """Load the VAE of a checkpoint that its family has beside its own. Raises `BadModelFile`."""
    file = open_model(path)
    expected = "a checkpoint with an audio VAE"
    try:
        family, names = registry.recognise_further_vae(file.shapes, file.metadata)
        return _empty(file, family.vae, names, types.of(family).vae).filled(types.to)
    except NotRecognised as error:
        raise BadModelFile(path.name, error.found, expected) from error


def _described(error: NotRecognised, *files: WeightFile) -> str:
    """Return the description of an unrecognised file, with the kinds of quantised files."""
    labels = [file.label for file in files if isinstance(file, QuantisedFile) and file.label]
    return ": ".join([*labels, error.found])


def _denoiser(empty: _EmptyNetwork, types: LoadTypes) -> tuple[object, torch.dtype | None]:
    """Return the denoising network of a file, and the type that it is cast to while it computes.

    Weights that the file has as float8 stay so where they would not fit the memory otherwise: ComfyUI's rule.
    """
    keep = FLOAT8 if _is_too_large(empty.file, empty.names, types) else ()
    network = empty.filled(types.to, keep=keep)
    is_cast = has_packed_weights(network) or any(weight.dtype in FLOAT8 for weight in network.parameters())
    return network, types.unet_computed or (types.unet if is_cast else None)


def _without_float8_beside_packed(file: WeightFile, types: LoadTypes) -> LoadTypes:
    """Return types that a quantised file is read in: what it has beside packed weights is not made float8.

    As in ComfyUI since 2026, whatever type the loader was asked to store a network in.
    """
    computed = types.unet_computed
    is_left = isinstance(file, QuantisedFile) and types.unet in FLOAT8
    return replace(types, unet=computed) if is_left and computed is not None else types


def _is_too_large(file: WeightFile, names: Names, types: LoadTypes) -> bool:
    """Return True where weights that the file has as float8 would take more than the memory in the type wanted."""
    if types.room_bytes is None:
        return False
    places = (file.tensors[item] for item in names.values() if isinstance(item, str))
    num_values = sum(math.prod(place.shape) for place in places if place.dtype in FLOAT8)
    return num_values * types.unet.itemsize > types.room_bytes


def _empty_encoders(sources: Sequence[EncoderSource], types: LoadTypes) -> list[_EmptyNetwork]:
    return [_empty(file, encoder.network, names, types.text_encoder) for encoder, file, names in sources]


def _text_encoders(
    family: ModelFamily | VisionFamily,
    sources: Sequence[EncoderSource],
    empty: Sequence[_EmptyNetwork],
    types: LoadTypes,
) -> TextEncoderSet:
    encoders = []
    for (encoder, file, _), network in zip(sources, empty, strict=True):
        transformer = network.filled(types.to, types.patched_text_encoder, keep=FLOAT8)
        encoders.append(encoder.encoder_type(transformer, encoder.encoding))
        if encoder.vocabulary is not None:
            encoders[-1].vocabulary = _vocabulary(file, encoder.vocabulary)
        if encoder.second_vocabulary is not None:
            encoders[-1].second_vocabulary = _found_vocabulary(file, encoder.second_vocabulary)
    text_encoders = TextEncoderSet(encoders, combine=family.combine_text, family=family)
    text_encoders.patched_dtype = types.patched_text_encoder
    text_encoders.compute_dtype = types.text_encoder_computed
    return text_encoders.eval()


def _vocabulary(file: WeightFile, vocabulary: Vocabulary) -> bytes:
    """Return the serialised tokenizer of a file, or the one beside it. Raises `BadModelFile` where there is none."""
    found = _found_vocabulary(file, vocabulary)
    if found is None:
        expected = "a text encoder with its tokenizer"
        if vocabulary.beside is not None:
            expected += f", or the file {vocabulary.beside!r} in its folder"
        raise BadModelFile(file.path.name, f"no tensor {vocabulary.names[0]!r}", expected)
    return found


def _found_vocabulary(file: WeightFile, vocabulary: Vocabulary) -> bytes | None:
    """Return the serialised tokenizer of a file, or the one beside it; None where there is none."""
    name = next((name for name in (vocabulary.in_checkpoint, *vocabulary.names) if name in file.shapes), None)
    if name is not None:
        return file.tensor(name).to(torch.uint8).contiguous().numpy().tobytes()
    beside = None if vocabulary.beside is None else file.path.with_name(vocabulary.beside)
    return beside.read_bytes() if beside is not None and beside.is_file() else None


@dataclass(frozen=True, slots=True)
class _EmptyNetwork:
    """A network without memory whose weights a file has, all and in the right shapes."""

    module: nn.Module
    file: WeightFile
    names: Names
    dtype: torch.dtype
    float32_ends: tuple[str, ...]

    def filled(self, to: Destination, through: torch.dtype | None = None, keep: Collection[torch.dtype] = ()) -> Any:
        """Fill the network from the file and return it. Raises `BadModelFile`."""
        dtype_of = self._dtype_of if self.float32_ends else self.dtype
        fill(self.module, self.file, self.names, dtype_of, to=to, through=through, keep=keep)
        return self.module

    def _dtype_of(self, name: str) -> torch.dtype:
        return torch.float32 if f".{name}".endswith(self.float32_ends) else self.dtype


def _empty(file: WeightFile, network: Network, names: Names, dtype: torch.dtype) -> _EmptyNetwork:
    """Build a network of a file without reading weights. Raises `BadModelFile` for a missing or misshapen tensor."""
    config = configured(file, network, names)
    try:
        with unfilled():
            module = network.build(config)
    except (ArithmeticError, ValueError, RuntimeError) as error:
        found = f"tensors of shapes that no network can have ({error})"
        raise BadModelFile(file.path.name, found, f"a network of {registry.labels()}") from error
    _set_defaults(module, network, names, dtype)
    check_tensors(module, file, names)
    ends = network.float32_ends if network.float32_ends_of is None else network.float32_ends_of(config)
    return _EmptyNetwork(module, file, names, dtype, ends)


def _set_defaults(module: nn.Module, network: Network, names: Names, dtype: torch.dtype) -> None:
    """Give weights that the file may leave out, and does, their values."""
    for name, make in network.defaults.items():
        if name not in names:
            set_weight(module, name, make(tuple(module.get_parameter(name).shape)).to(dtype))


def configured(file: WeightFile, network: Network, names: Names) -> object:
    """Return the configuration of a network of the file. Raises `BadModelFile` for what is missing for it."""
    try:
        return network.as_described(network.configure(registry.shapes_under(names, file.shapes)), file.metadata)
    except registry.OF_SHAPES as error:
        if isinstance(error, EngineError):
            raise
        expected = f"a network of {registry.labels()}"
        raise BadModelFile(file.path.name, registry.misshapen(error), expected) from error
