"""Kinds of evaluations of a network: those of one kind fit into one batch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.options import Network, OptionDict, Options
from darkroom.engine.layers.attention import KERNEL_OPTION
from darkroom.engine.tuning.strategy import NETWORK_OPTIONS

OPTIONS_KEY = "transformer_options"
CUSTOM_CODE = ("model_function_wrapper", "context_handler", "registered_hooks")
WRAPPERS_OF_NETWORKS = ("apply_model", "diffusion_model", "calc_cond_batch")

# Options that say what the rows of a batch are, or that the network never sees.
OPTIONS_OF_ROWS = ("uuids", "cond_or_uncond", "sigmas", "sample_sigmas")
OPTIONS_OUTSIDE = ("wrappers", "callbacks", "easycache", KERNEL_OPTION, *NETWORK_OPTIONS)

CONSTANTS = (bool, int, float, str, type(None))


def kind_of(model: Network, x: torch.Tensor, arguments: Options, options: Options) -> Hashable | None:
    """Return the key that evaluations share if they fit into one batch; None for one computed separately.

    `arguments` are those of `model.apply_model`, `options` the model options of the sampling run.
    """
    inner = arguments[OPTIONS_KEY]
    if any(options.get(key) is not None for key in CUSTOM_CODE) or reaches_into_network(inner):
        return None
    if getattr(getattr(model, "diffusion_model", model), "depends_on_schedule", False):
        return None
    described = _described(arguments, x.shape[0])
    constants = _constants(inner)
    if described is None or constants is None:
        return None
    return tuple(x.shape[1:]), x.dtype, str(x.device), described, constants


def reaches_into_network(inner: Options) -> bool:
    """Return True where nodes' code runs within an evaluation with these transformer options."""
    wrappers = inner.get("wrappers", {})
    has_wrappers = any(any(wrappers.get(kind, {}).values()) for kind in WRAPPERS_OF_NETWORKS)
    return has_wrappers or any(inner.get(key) for key in NETWORK_OPTIONS)


def _described(arguments: Options, num_rows: int) -> Hashable | None:
    found: list[Hashable] = []
    for name, value in sorted(arguments.items()):
        if name == OPTIONS_KEY:
            continue
        if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == num_rows:
            found.append((name, tuple(value.shape[1:]), value.dtype))
        elif isinstance(value, CONSTANTS):
            found.append((name, value))
        else:
            return None
    return tuple(found)


def _constants(inner: Options) -> Hashable | None:
    rest = {key: value for key, value in inner.items() if key not in (*OPTIONS_OF_ROWS, *OPTIONS_OUTSIDE)}
    if not all(isinstance(value, CONSTANTS) for value in rest.values()):
        return None
    return tuple(sorted((key, str(value)) for key, value in rest.items()))


def joined_arguments(parts: list[OptionDict], num_padding: int) -> OptionDict:
    """Return the arguments of evaluations of one kind as those of their batch; the last row is repeated as padding."""
    first = parts[0]
    joined: OptionDict = {}
    for name, value in first.items():
        if name == OPTIONS_KEY:
            joined[name] = _joined_options([part[name] for part in parts])
        elif isinstance(value, torch.Tensor):
            joined[name] = padded([part[name] for part in parts], num_padding)
        else:
            joined[name] = value
    return joined


def padded(parts: list[torch.Tensor], num_padding: int) -> torch.Tensor:
    """Return the tensors [n, ...] below each other, with the last row repeated."""
    rest = [parts[-1][-1:]] * num_padding
    return torch.cat([*parts, *rest]) if len(parts) + len(rest) > 1 else parts[0]


def _joined_options(options: list[Mapping[str, Any]]) -> OptionDict:
    """Return the options of a batch. What its rows are is left out: they belong to different prompts."""
    return {key: value for key, value in options[0].items() if key not in OPTIONS_OF_ROWS}
