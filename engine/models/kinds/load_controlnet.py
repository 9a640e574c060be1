"""ControlNet and T2I-Adapter files, original or in the layout of the diffusers library, as networks on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ControlNetwork, ControlReading, ModelFamily, NotRecognised
from darkroom.engine.families.unsupported import describe, describe_control
from darkroom.engine.formats.fill import fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import ChangedTensors, Names, WeightFile, open_weights
from darkroom.engine.layers.diffusers_names import unet_names
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.unet import UnetConfig
from darkroom.engine.layers.unet_shapes import diffusers_unet_config
from darkroom.engine.models.kinds.controlnet import ControlNetModel
from darkroom.engine.models.kinds.load_t2i_adapter import is_t2i_adapter, load_t2i_adapter
from darkroom.engine.models.kinds.union_controlnet import UnionControlNetModel
from darkroom.engine.models.load import LoadTypes, configured

log = logging.getLogger(__name__)

KIND_ATTRIBUTE = "steering_kind"
PREFIX = "control_model."
FIRST_ZERO_CONV = "zero_convs.0.0.weight"
DIFFUSERS_MARK = "controlnet_cond_embedding.conv_in.weight"
HINT = "input_hint_block.0.weight"
UNION_MARK = "control_add_embedding.linear_1.bias"
UNION_TYPES = "task_embedding"
UNION_PARTS = (UNION_TYPES, "control_add_embedding.", "transformer_layes.", "spatial_ch_projs.")


@dataclass(frozen=True, slots=True)
class SteeringKind:
    """The family that a ControlNet steers, its inputs, and its fit to a network by that one's configuration."""

    family: ModelFamily
    reading: ControlReading
    steers: Callable[[Any], bool]


@refuses("a ControlNet")
def load_controlnet(
    path: Path,
    types: LoadTypes,
    base_weight: Callable[[str], torch.Tensor | None] | None = None,
) -> torch.nn.Module:
    """Load the network of a file, in the types of the family it steers; a T2I-Adapter is one, too.

    Some files hold only the difference to the UNet that they were trained with: `base_weight` gives that UNet's weight
    by name, None for one that it does not have. `steering_kind` says what the network steers. Raises `BadModelFile`.
    """
    file = open_weights(path)
    found_network = registry.recognise_control_network(file.shapes)
    if found_network is not None:
        return _load_network(file, types, *found_network)
    try:
        if is_t2i_adapter(file.tensors):
            return load_t2i_adapter(file, to=types.to)
        is_difference = "difference" in file.tensors
        file, names = _names(file)
        shapes, family, config = _recognised(file, names)
    except (NotRecognised, LookupError) as error:
        raise _bad(path, error) from error
    if is_difference and base_weight is None:
        log.warning("%s: the difference to a UNet, loaded without one: use DiffControlNetLoader", path.name)
    elif is_difference and base_weight is not None:
        file = _completed(file, names, base_weight)
    with unfilled():
        network = _network(config, shapes)
    own = types.of(family)
    network.compute_dtype = own.unet_computed
    fill(network, file, names, own.unet, to=types.to)
    setattr(network, KIND_ATTRIBUTE, SteeringKind(family, ControlReading(), partial(_fits_unet, config)))
    return network


def check_controlnet(file: WeightFile) -> None:
    """Raise `BadModelFile` for a file that `load_controlnet` would refuse by its header."""
    if registry.recognise_control_network(file.shapes) is not None or is_t2i_adapter(file.tensors):
        return
    try:
        _recognised(*_names(file))
    except (NotRecognised, LookupError) as error:
        raise _bad(file.path, error) from error


def _recognised(file: WeightFile, names: Mapping[str, str]) -> tuple[Shapes, ModelFamily, UnetConfig]:
    """Return the shapes of a half of a UNet, its family and configuration. Raises `NotRecognised`, LookupError."""
    shapes = {name: file.tensors[key].shape for name, key in names.items()}
    family, controls = registry.recognise_control(shapes)
    return shapes, family, controls.configure(shapes)


def _bad(path: Path, error: NotRecognised | LookupError) -> BadModelFile:
    found = error.found if isinstance(error, NotRecognised) else f"no tensor {error}"
    return BadModelFile(path.name, found, f"a ControlNet or T2I-Adapter of {registry.labels()}")


def steering_kind(network: torch.nn.Module) -> SteeringKind | None:
    """Return the kind of network that a loaded ControlNet controls; None for an adapter, which fits several."""
    kind: SteeringKind | None = getattr(network, KIND_ATTRIBUTE, None)
    return kind


def _load_network(
    file: WeightFile, types: LoadTypes, family: ModelFamily, kind: ControlNetwork, names: Names
) -> torch.nn.Module:
    """Load a network that is no half of a UNet."""
    config = configured(file, kind.network, names)
    with unfilled():
        network = kind.network.build(config)
    own = types.of(family)
    setattr(network, "compute_dtype", own.unet_computed)  # noqa: B010 - the networks have it, their base does not
    fill(network, file, names, own.unet, to=types.to)
    steering = SteeringKind(family, kind.reading(config, file), partial(kind.steers, config))
    setattr(network, KIND_ATTRIBUTE, steering)
    return network


def _fits_unet(config: UnetConfig, steered: object) -> bool:
    """Return True for a UNet of these channels, which is given the text and labels that the network reads."""
    return (
        isinstance(steered, UnetConfig)
        and config.model_channels == steered.model_channels
        and config.context_dim in (0, steered.context_dim)
        and config.label_dim in (0, steered.label_dim)
    )


def _network(config: UnetConfig, shapes: Shapes) -> ControlNetModel:
    hint_channels = shapes[HINT][1]
    if UNION_MARK in shapes:
        return UnionControlNetModel(config, hint_channels, num_types=shapes[UNION_TYPES][0])
    return ControlNetModel(config, hint_channels)


def _names(file: WeightFile) -> tuple[WeightFile, dict[str, str]]:
    """Return the file in the original layout, and a map from the network's names to the file's."""
    description = describe_control(file.shapes)
    if description is not None:
        raise NotRecognised(description)
    if DIFFUSERS_MARK in file.tensors:
        file = _from_diffusers(file)
    for prefix in (PREFIX, ""):
        if prefix + FIRST_ZERO_CONV in file.tensors:
            return file, {key.removeprefix(prefix): key for key in file.tensors if key.startswith(prefix)}
    raise NotRecognised(describe(file.shapes, file.metadata))


def _completed(
    file: WeightFile, names: Mapping[str, str], base_weight: Callable[[str], torch.Tensor | None]
) -> WeightFile:
    tensors = {}
    for name, key in names.items():
        tensor, base = file.tensor(key), base_weight(name)
        tensors[key] = tensor if base is None else tensor + base.to("cpu", tensor.dtype)
    return ChangedTensors(file.path, tensors, file.metadata)


def _from_diffusers(file: WeightFile) -> WeightFile:
    theirs = file.tensors
    names = unet_names(diffusers_unet_config(file.shapes))
    for kind in ("weight", "bias"):
        names[f"controlnet_mid_block.{kind}"] = f"middle_block_out.0.{kind}"
        for index in range(_count(theirs, "controlnet_down_blocks.")):
            names[f"controlnet_down_blocks.{index}.{kind}"] = f"zero_convs.{index}.0.{kind}"
        num_inner = _count(theirs, "controlnet_cond_embedding.blocks.")
        names[f"controlnet_cond_embedding.conv_in.{kind}"] = f"input_hint_block.0.{kind}"
        for index in range(num_inner):
            names[f"controlnet_cond_embedding.blocks.{index}.{kind}"] = f"input_hint_block.{2 * index + 2}.{kind}"
        names[f"controlnet_cond_embedding.conv_out.{kind}"] = f"input_hint_block.{2 * num_inner + 2}.{kind}"
    if UNION_MARK in theirs:
        names |= {name: name.replace(".in_proj_", ".in_proj.") for name in theirs if name.startswith(UNION_PARTS)}
    renamed = {names[name]: file.tensor(name) for name in theirs if name in names}
    return ChangedTensors(file.path, renamed, file.metadata)


def _count(names: Mapping[str, object], prefix: str) -> int:
    numbers = {name[len(prefix) :].split(".", 1)[0] for name in names if name.startswith(prefix)}
    return len(numbers)
