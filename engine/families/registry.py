"""Registry of families, each a folder beside this file, and recognition of the family of a file."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

from darkroom.engine import families as package
from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.diffusion.model_sampling_variants import flow_of, flux_flow_of
from darkroom.engine.families.base import (
    ControlModels,
    ControlNetwork,
    Defaults,
    ImageControl,
    Match,
    ModelFamily,
    Network,
    NotRecognised,
    Shapes,
    TensorIndex,
    TextEncoder,
)
from darkroom.engine.families.comfyui_text_types import comfyui_text_types
from darkroom.engine.families.later_networks import NO_METADATA, describe_later
from darkroom.engine.families.unsupported import describe
from darkroom.engine.families.vision_family import VisionFamily
from darkroom.engine.families.wrapped_names import names_with, shapes_behind, wrapping_prefixes
from darkroom.engine.formats.weight_file import Names, shape_of

log = logging.getLogger(__name__)

# What reading the shapes of tensors raises that have other numbers of dimensions than the network's.
OF_SHAPES = (ArithmeticError, LookupError, TypeError, ValueError)
HEAD_WIDTH = 64  # of networks that no family is known to have
UNTYPED = "stable_diffusion"  # the type that ComfyUI's loader has until somebody sets another


def modules_of_families(name: str) -> tuple[str, ...]:
    """Return the full names of the modules so called in the folders of families, sorted; not every folder has one."""
    folders = (item.name for item in pkgutil.iter_modules(package.__path__) if item.ispkg)
    modules = (f"{package.__name__}.{folder}.{name}" for folder in folders)
    return tuple(sorted(module for module in modules if importlib.util.find_spec(module) is not None))


@cache
def families() -> tuple[ModelFamily, ...]:
    """Return every family, the default one first, the others by name."""
    found: Iterable[ModelFamily] = (importlib.import_module(name).FAMILY for name in modules_of_families("family"))
    return tuple(sorted(found, key=lambda family: (not family.is_default, family.name)))


def default_family() -> ModelFamily:
    """Return the family that is used where none is named."""
    return families()[0]


def family_named(name: str) -> ModelFamily:
    """Return a family by its name. Raises KeyError."""
    return {family.name: family for family in families()}[name]


def family_names() -> tuple[str, ...]:
    """Return the names of all families, the default one first."""
    return tuple(family.name for family in families())


def text_types(*, num_encoders: int) -> tuple[str, ...]:
    """Return the types of ComfyUI's loader nodes under which a family has so many text encoders."""
    found = [name for family in families() if _takes(family, num_encoders) for name in family.comfyui.text_types]
    return tuple(dict.fromkeys(found))


def complete_set_type(num_encoders: int) -> str | None:
    """Return the type under which a family has so many text encoders in all, none of them left out; else None."""
    for family in families():
        if len(family.text) == num_encoders and _takes(family, num_encoders) and family.comfyui.text_types:
            return family.comfyui.text_types[0]
    return None


def offered_text_types(*, num_encoders: int) -> tuple[str, ...]:
    """Return the types that the loader of so many text encoders offers.

    They are ComfyUI's in its order, also those of no family here, then those of families that ComfyUI does not have.
    """
    known = comfyui_text_types()
    offered = known.offered.get(num_encoders, ())
    own = (name for name in text_types(num_encoders=num_encoders) if name not in known.numbers and name not in offered)
    return (*offered, *own)


def tiny_autoencoders() -> dict[str, LatentFormat]:
    """Return the latent formats for which there are small autoencoders, by the beginning of their files' names."""
    formats = (family.latent_format for family in families())
    named = {item.taesd_decoder_name: item for item in reversed([*formats]) if item.taesd_decoder_name is not None}
    return {name.removesuffix("_decoder"): named[name]() for name in sorted(named)}


def described_families() -> list[dict[str, object]]:
    """Return the families for `/api/v1/families`: name, label, default parameters, and the nodes of a plain workflow.

    `variants` has the default parameters of variants of the network that have others than the family.
    """
    return [
        {
            "name": family.name,
            "label": family.label,
            "default": described_defaults(family, family.default),
            "variants": {name: described_defaults(family, item) for name, item in family.variant_defaults.items()},
            "nodes": list(family.nodes),
            "scales": list(family.scales),
            "file_words": list(family.file_words),
            "other_file_words": list(family.other_file_words),
            "file_billions": dict(family.file_billions),
        }
        for family in families()
    ]


def described_defaults(family: ModelFamily, defaults: Defaults) -> dict[str, object]:
    """Return default parameters of a family for `/api/v1/families`: with the nodes that they are set by."""
    kind, settings = family.parameterisation.kind, family.parameterisation.settings
    shift_by = None
    if kind is flux_flow_of or (kind is flow_of and settings.get("multiplier") == 1.0):
        shift_by = "ModelSamplingAuraFlow"
    elif kind is flow_of:
        shift_by = "ModelSamplingSD3"
    return {
        **asdict(defaults),
        "cost": defaults.cost,
        "shift_by": shift_by,
        "text_type": next(iter(family.comfyui.text_types), None),
    }


def expected_text_encoders(text_type: str) -> str:
    """Return the text encoders that a type of ComfyUI's loader nodes stands for, for error messages."""
    fitting = [family for family in families() if text_type in family.comfyui.text_types]
    if not fitting:
        return f"a text encoder of {labels()}"
    named = (f"{family.label} ({', '.join(item.encoding.key for item in family.text)})" for family in fitting)
    return f"for type {text_type!r} those of {', '.join(named)}"


def labels() -> str:
    """Return the families' names for people, for error messages."""
    return ", ".join(family.label for family in families())


@dataclass(frozen=True, slots=True)
class Recognised:
    """A file's denoising network and the family it is of."""

    family: ModelFamily
    match: Match


class AmbiguousFile(RuntimeError):
    """A file that several families match equally well: an error in the families, which a test excludes."""


@cache
def vision_families() -> tuple[VisionFamily, ...]:
    """Return the families whose networks read images and denoise nothing, by name."""
    found: Iterable[VisionFamily] = (importlib.import_module(name).FAMILY for name in modules_of_families("vision"))
    return tuple(sorted(found, key=lambda family: family.name))


def recognise_vision(shapes: Shapes) -> tuple[VisionFamily, Names] | None:
    """Return the family of a file's network that reads images, and the names of its weights; None for other files."""
    behind = {prefix: shapes_behind(prefix, shapes) for prefix in wrapping_prefixes(shapes)}
    for family in vision_families():
        for prefix, seen in {"": shapes, **behind}.items():
            names = family.detect(seen)
            if names is not None:
                return family, names_with(prefix, names) if prefix else names
    return None


def recognise(index: TensorIndex) -> Recognised:
    """Return the family of a file's denoising network, alone or in a checkpoint. Raises `NotRecognised`.

    A file whose names no family knows is looked at again without each prefix of wrapping modules that it has.
    """
    vision = recognise_vision(index.shapes)
    if vision is not None:
        raise NotRecognised(f"{vision[0].label}, which reads images and denoises nothing")
    found = _best_match(index)
    for prefix in wrapping_prefixes(index.shapes) if found is None else ():
        inner = _best_match(TensorIndex(shapes_behind(prefix, index.shapes), index.metadata))
        if inner is not None:
            found = replace(inner, match=replace(inner.match, names=names_with(prefix, inner.match.names)))
            break
    if found is None:
        raise NotRecognised(describe(index.shapes, index.metadata))
    return found


def _best_match(index: TensorIndex) -> Recognised | None:
    """Return the family that matches names as they stand, None without one. Raises `NotRecognised`.

    Networks that no family has are refused first: some have all layers of a family's, which would draw noise.
    """
    later = describe_refused(index)
    if later is not None:
        raise NotRecognised(later)
    matches = [Recognised(family, match) for family in families() if (match := _detected(family, index)) is not None]
    if not matches:
        return None
    best = max(item.match.specificity for item in matches)
    found = [item for item in matches if item.match.specificity == best]
    if len(found) > 1:
        raise AmbiguousFile(f"families {', '.join(item.family.name for item in found)}: equal matches of one file")
    return found[0]


def describe_refused(index: TensorIndex) -> str | None:
    """Return the description of a file's network that `recognise` refuses whatever layers it has; None for others."""
    return describe_later(index.shapes, index.metadata)


def shapes_under(names: Names, shapes: Shapes) -> Shapes:
    """Return the shapes of a network's weights under its own names."""
    return {name: shape_of(item, shapes) for name, item in names.items()}


def _detected(family: ModelFamily, index: TensorIndex) -> Match | None:
    """Return a family's match, None also for a file whose tensors of its names have no shapes of a network's."""
    try:
        return family.detect(index)
    except OF_SHAPES as error:
        log.debug("not %s: %r", family.name, error)
        return None


def recognise_text_encoders(
    files: Sequence[Shapes], text_type: str, metadata: Sequence[Mapping[str, str]] | None = None
) -> tuple[ModelFamily, list[tuple[TextEncoder, Names]]]:
    """Return the family whose text encoders these files hold, one each, and the encoders with their names.

    `text_type` is that of ComfyUI's loader nodes. A single file under its default type is known by its tensors alone.
    Raises `NotRecognised`, which describes the files by their `metadata` too.
    """
    for family in families():
        if text_type not in family.comfyui.text_types or not _takes(family, len(files)):
            continue
        found = [item for shapes in files if (item := _encoder_of(family, shapes)) is not None]
        if len({encoder.encoding.slot for encoder, _ in found}) == len(files):
            return family, found
    untyped = _untyped_encoder(files[0]) if text_type == UNTYPED and len(files) == 1 else None
    if untyped is not None:
        return untyped
    texts = [NO_METADATA] * len(files) if metadata is None else metadata
    raise NotRecognised("; ".join(describe(shapes, text) for shapes, text in zip(files, texts, strict=True)))


def check_text_encoder(shapes: Shapes, metadata: Mapping[str, str] = NO_METADATA) -> None:
    """Raise `NotRecognised` for a file that has no text encoder of any family, whatever the loader's type."""
    if not any(_encoder_of(family, shapes) for family in families()):
        raise NotRecognised(describe(shapes, metadata))


def _untyped_encoder(shapes: Shapes) -> tuple[ModelFamily, list[tuple[TextEncoder, Names]]] | None:
    """Return the family that has a file's text encoder where its type says nothing, and the encoder; else None."""
    for family in families():
        for encoder in family.text:
            if encoder.encoding.slot in family.comfyui.untyped_slots:
                names = names_of(encoder.network, shapes)
                if names is not None and _fits(encoder, shapes_under(names, shapes)):
                    return family, [(encoder, names)]
    return None


def _takes(family: ModelFamily, num_encoders: int) -> bool:
    """Return True for a family whose prompts can be read by so many text encoders."""
    taken = family.num_taken_encoders or len(family.text)
    return num_encoders == taken or (family.takes_fewer_encoders and num_encoders < taken)


def _encoder_of(family: ModelFamily, shapes: Shapes) -> tuple[TextEncoder, Names] | None:
    for encoder in family.text:
        names = names_of(encoder.network, shapes)
        if names is not None and _fits(encoder, shapes_under(names, shapes)):
            return encoder, names
    return None


def _fits(encoder: TextEncoder, shapes: Shapes) -> bool:
    try:
        return encoder.fits(shapes)
    except OF_SHAPES as error:
        log.debug("not %s: %r", encoder.encoding.slot, error)
        return False


def misshapen(error: Exception) -> str:
    """Return the problem of a file that an error in reading its network's shapes tells."""
    return f"no tensor {error}" if isinstance(error, KeyError) else f"tensors of shapes that no network has ({error})"


def recognise_vae(shapes: Shapes, metadata: Mapping[str, str] = NO_METADATA) -> tuple[ModelFamily, Names]:
    """Return a family with the VAE that a file holds, and its names: families may share one. Raises `NotRecognised`.

    Where that is a further one of the family, the returned description has it as its `vae`.
    """
    later = describe_later(shapes, metadata)
    if later is not None:
        raise NotRecognised(later)
    refusals = []
    for family, vae in vaes():
        names = names_of(vae, shapes)
        if names is None:
            continue
        try:
            vae.configure(shapes_under(names, shapes))
        except NotRecognised as error:
            refusals.append(error.found)
            continue
        except OF_SHAPES as error:
            refusals.append(misshapen(error))
            continue
        return (family if vae is family.vae else replace(family, vae=vae)), names
    raise NotRecognised("; ".join(dict.fromkeys(refusals)) or describe(shapes, metadata))


def recognise_further_vae(shapes: Shapes, metadata: Mapping[str, str] = NO_METADATA) -> tuple[ModelFamily, Names]:
    """Return the family of a file's further VAE, described with it as its `vae`, and its names. Raises `NotRecognised`.

    The file may have other networks too.
    """
    for family in families():
        for vae in family.further_vaes:
            names = names_of(vae, shapes)
            if names is not None:
                return replace(family, vae=vae), names
    raise NotRecognised(f"{describe(shapes, metadata)} without a VAE beside the network's own")


def checkpoint_vae(family: ModelFamily, shapes: Shapes) -> tuple[Network, Names] | None:
    """Return the VAE that a checkpoint of a family has, and its names; None where it has none."""
    for vae in (family.vae, *family.further_vaes):
        names = names_of(vae, shapes, in_checkpoint=True)
        if names is not None:
            return vae, names
    return None


def vaes() -> Iterator[tuple[ModelFamily, Network]]:
    """Yield the VAEs of all families, the further ones last."""
    for family in families():
        yield family, family.vae
    for family in families():
        yield from ((family, vae) for vae in family.further_vaes)


def recognise_control(shapes: Shapes) -> tuple[ModelFamily, ControlModels]:
    """Return the family that a ControlNet steers, by the shapes of its half of the network. Raises `NotRecognised`."""
    for family in families():
        if family.controls is not None and family.controls.fits(shapes):
            return family, family.controls
    raise NotRecognised(f"a ControlNet of another family than {labels()}")


def recognise_control_network(shapes: Shapes) -> tuple[ModelFamily, ControlNetwork, Names] | None:
    """Return the family that a ControlNet with a network of its own steers, its kind and its names; else None."""
    for family in families():
        for kind in family.control_networks:
            names = names_of(kind.network, shapes)
            if names is not None:
                return family, kind, names
    return None


def recognise_image_control(names: Collection[str]) -> ImageControl | None:
    """Return the kind of control that sees the image alone, by the names of its tensors; None for another file."""
    kinds = (family.image_control for family in families())
    return next((kind for kind in kinds if kind is not None and kind.fits(names)), None)


def recognise_model_patch(shapes: Shapes) -> tuple[ModelFamily, Network, Names] | None:
    """Return the family for whose network a file of a model patch is, its network and its names; else None."""
    for family in families():
        for network in family.model_patches:
            names = names_of(network, shapes)
            if names is not None:
                return family, network, names
    return None


def recognise_latent_upscaler(shapes: Shapes) -> tuple[ModelFamily, Network, Names] | None:
    """Return the family whose latents the network of a file enlarges, that network and its names; else None."""
    for family in families():
        for network in family.latent_upscalers:
            names = names_of(network, shapes)
            if names is not None:
                return family, network, names
    return None


def patched_labels() -> str:
    """Return the names for people of the families that have model patches, for error messages."""
    return ", ".join(family.label for family in families() if family.model_patches)


def gligen_heads(token_width: int, channels: int) -> int:
    """Return the attention heads at a width of a GLIGEN file's gates, by the width of its tokens."""
    controls = (family.controls for family in families() if family.controls is not None)
    fitting = next((item for item in controls if item.token_width == token_width), None)
    return channels // HEAD_WIDTH if fitting is None else fitting.heads(channels)


def names_of(network: Network, shapes: Shapes, *, in_checkpoint: bool = False) -> Names | None:
    """Return the names of a network's weights in a file that holds it, else None."""
    layouts = network.in_checkpoint if in_checkpoint else network.layouts
    return next((names for layout in layouts if (names := layout(shapes)) is not None), None)
