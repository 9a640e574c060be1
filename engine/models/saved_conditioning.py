"""Conditionings in files: an entry's tokens and options as tensors, the options that are none in the metadata.

An option that is a list of tensors has a tensor for each, named `OPTION.INDEX`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch

from darkroom.engine.errors import BadModelFile

TOKENS = "conditioning"
METADATA = "conditioning_options"
EXPECTED = f"a conditioning saved by SaveConditioning ({TOKENS!r})"

Option = torch.Tensor | list[torch.Tensor] | bool | int | float | str


def read_conditioning(
    file_name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> tuple[torch.Tensor, dict[str, Option]]:
    """Return the tokens [B, T, D] and the options of the entry in a file. Raises `BadModelFile` for another file."""
    tokens = tensors.get(TOKENS)
    if tokens is None:
        found = f"tensors {', '.join(sorted(tensors)[:8]) or '(none)'}"
        raise BadModelFile(file_name, found, EXPECTED)
    if tokens.ndim != 3 or not tokens.is_floating_point():
        raise BadModelFile(file_name, f"{TOKENS!r} of {tokens.dtype} {list(tokens.shape)}", "numbers [1, tokens, size]")
    options: dict[str, Option] = dict(_values(file_name, metadata))
    lists: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        option, _, index = name.rpartition(".")
        if option and index.isdecimal():
            lists.setdefault(option, {})[int(index)] = tensor
        elif name != TOKENS:
            options[name] = tensor
    options |= {option: [items[index] for index in sorted(items)] for option, items in lists.items()}
    return tokens, options


def _values(file_name: str, metadata: Mapping[str, str]) -> dict[str, bool | int | float | str]:
    """Return the options that are no tensors. Raises `BadModelFile` for metadata that are none by name."""
    try:
        found = json.loads(metadata.get(METADATA, "{}"))
    except (ValueError, RecursionError) as error:
        raise BadModelFile(file_name, f"{METADATA} that is not JSON", EXPECTED) from error
    if not isinstance(found, dict) or not all(isinstance(value, bool | int | float | str) for value in found.values()):
        raise BadModelFile(file_name, f"{METADATA} that is no numbers and texts by name", EXPECTED)
    return found


def written_conditioning(
    tokens: torch.Tensor, options: Mapping[str, object]
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors, on the CPU, and the metadata of a file for an entry; options that are None are left out.

    Raises ValueError for an option that is no tensor, list of tensors, number or text.
    """
    tensors, values = {TOKENS: tokens}, {}
    for name, value in options.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, Sequence) and not isinstance(value, str) and _are_tensors(value):
            tensors |= {f"{name}.{index}": item for index, item in enumerate(value)}
        elif isinstance(value, bool | int | float | str):
            values[name] = value
        elif value is not None:
            raise ValueError(
                f"conditioning: its option {name!r} is in no file; got {type(value).__name__}, expected a tensor, a "
                "list of tensors, a number or a text"
            )
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return copies, {METADATA: json.dumps(values)}


def _are_tensors(items: Sequence[object]) -> bool:
    return all(isinstance(item, torch.Tensor) for item in items)
