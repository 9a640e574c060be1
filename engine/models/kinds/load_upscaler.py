"""Files of upscaling networks, in the layouts they come in, as networks with weights on the CPU.

ESRGAN's weights are called by place (`model.1.sub.0.RDB1.conv1.0.weight`), by the names of the first public training
code (`RRDB_trunk.0.RDB1.conv1.weight`), or by Real-ESRGAN's (`body.0.rdb1.conv1.weight`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import WeightFile, open_weights
from darkroom.engine.models.kinds.upscaler import CompactConfig, CompactNet, RrdbConfig, RrdbNet

EXPECTED = "an upscaling network of the ESRGAN family"

FIRST_NAMES = {
    "trunk_conv": "conv_body", "HRconv": "conv_hr", "upconv1": "conv_ups.0", "upconv2": "conv_ups.1",
    "conv_up1": "conv_ups.0", "conv_up2": "conv_ups.1", "conv_up3": "conv_ups.2",
}  # fmt: skip
BLOCK = re.compile(r"^(?:RRDB_trunk|body|model\.1\.sub)\.(\d+)\.(?:RDB|rdb)(\d)\.(conv\w+?)(?:\.0)?\.(weight|bias)$")
PLACE = re.compile(r"^model\.(\d+)\.(weight|bias)$")
LAST_OF_BODY = re.compile(r"^model\.1\.sub\.\d+\.(weight|bias)$")
COMPACT = re.compile(r"^body\.(\d+)\.(weight|bias)$")

Shapes = Mapping[str, tuple[int, ...]]


@refuses(EXPECTED)
def load_upscaler(path: Path, *, to: Destination = Destination.RAM) -> RrdbNet | CompactNet:
    """Load the upscaling network of a file. Raises `BadModelFile`."""
    return upscaler_of(open_weights(path), to=to)


def upscaler_of(file: WeightFile, *, to: Destination = Destination.RAM) -> RrdbNet | CompactNet:
    """Load the upscaling network of an open file. Raises `BadModelFile`."""
    prefix = next((prefix for prefix in ("params_ema.", "params.", "module.") if _all_start(file, prefix)), "")
    names = {key.removeprefix(prefix): key for key in file.tensors}
    network: RrdbNet | CompactNet
    try:
        with unfilled():
            if COMPACT.match(next(iter(names))) and "body.1.weight" in names:
                network = CompactNet(_compact_config({name: file.tensors[key].shape for name, key in names.items()}))
            else:
                names = _rrdb_names(names)
                network = RrdbNet(_rrdb_config({name: file.tensors[key].shape for name, key in names.items()}))
    except (KeyError, IndexError, StopIteration) as error:
        raise BadModelFile(file.path.name, f"no tensor {error}", EXPECTED) from error
    fill(network, file, names, torch.float32, to=to)
    return network


def _all_start(file: WeightFile, prefix: str) -> bool:
    return all(name.startswith(prefix) for name in file.tensors)


def _rrdb_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return a map from names in `RrdbNet` to the file's."""
    ours: dict[str, str] = {}
    numbers = [int(match[1]) for match in map(PLACE.match, names) if match is not None]
    by_place = _places(sorted(set(numbers)))
    for name, key in names.items():
        if match := BLOCK.match(name):
            ours[f"body.{match[1]}.rdb{match[2]}.{match[3]}.{match[4]}"] = key
        elif match := LAST_OF_BODY.match(name):
            ours[f"conv_body.{match[1]}"] = key
        elif match := PLACE.match(name):
            ours[f"{by_place[int(match[1])]}.{match[2]}"] = key
        else:
            layer, _, kind = name.rpartition(".")
            ours[f"{FIRST_NAMES.get(layer, layer)}.{kind}"] = key
    return ours


def _places(numbers: list[int]) -> dict[int, str]:
    """Return the module at each place of the old layout: first convolution, one per doubling, and the last two."""
    if len(numbers) < 3:
        return {}
    first, *ups, before_last, last = numbers
    names = {number: f"conv_ups.{index}" for index, number in enumerate(ups)}
    return {first: "conv_first", before_last: "conv_hr", last: "conv_last", **names}


def _rrdb_config(shapes: Shapes) -> RrdbConfig:
    first, last = shapes["conv_first.weight"], shapes["conv_last.weight"]
    folded = first[1] // last[0]
    shuffle = math.isqrt(folded) if first[1] == folded * last[0] and folded in (4, 16) else 1
    return RrdbConfig(
        in_channels=first[1] // shuffle**2,
        out_channels=last[0],
        width=first[0],
        growth=shapes["body.0.rdb1.conv1.weight"][0],
        num_blocks=1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("body.")),
        num_doublings=sum(name.startswith("conv_ups.") and name.endswith(".weight") for name in shapes),
        shuffle=shuffle,
        is_plus="body.0.rdb1.conv1x1.weight" in shapes,
    )


def _compact_config(shapes: Shapes) -> CompactConfig:
    last = max(int(name.split(".")[1]) for name in shapes)
    in_channels, width = shapes["body.0.weight"][1], shapes["body.0.weight"][0]
    scale = math.isqrt(shapes[f"body.{last}.weight"][0] // in_channels)
    return CompactConfig(in_channels, in_channels, width, last // 2, scale)
