"""GLIGEN files as networks on the CPU: the gates of each transformer, in the UNet's order, and the net for boxes."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.registry import gligen_heads
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import WeightFile, open_weights
from darkroom.engine.models.kinds.gligen import POSITION_WIDTH, Gligen

EXPECTED = "a GLIGEN model for text boxes"
PLACES = ("input_blocks", "middle_block", "output_blocks")
FUSER = re.compile(r"(?:^|\.)(input_blocks|middle_block|output_blocks)\.(\d+)\..*\.fuser\.(.+)$")


@refuses(EXPECTED)
def load_gligen(path: Path, *, to: Destination = Destination.RAM) -> Gligen:
    """Load the network of a file, float32 as in ComfyUI. Raises `BadModelFile`."""
    file = open_weights(path)
    gates, names = _names(file)
    try:
        widths = [file.tensors[names[f"module_list.{index}.linear.weight"]].shape for index in range(gates)]
        text_width = file.tensors["position_net.null_positive_feature"].shape[0]
        has_boxes = file.tensors["position_net.null_position_feature"].shape[0] == POSITION_WIDTH
    except KeyError as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    if not widths or not has_boxes:
        raise BadModelFile(path.name, f"{len(widths)} transformers with gates", EXPECTED)
    with unfilled():
        heads = partial(gligen_heads, widths[0][1])
        network = Gligen([shape[0] for shape in widths], widths[0][1], text_width, heads=heads)
    fill(network, file, names, torch.float32, to=to)
    return network


def _names(file: WeightFile) -> tuple[int, dict[str, str]]:
    """Return the number of gates, and a map from the network's names to the file's."""
    gates: dict[tuple[int, int], dict[str, str]] = {}
    names = {key: key for key in file.tensors if key.startswith("position_net.")}
    for key in file.tensors:
        found = FUSER.search(key)
        if found:
            gates.setdefault((PLACES.index(found[1]), int(found[2])), {})[found[3]] = key
    for index, place in enumerate(sorted(gates)):
        names |= {f"module_list.{index}.{name}": key for name, key in gates[place].items()}
    return len(gates), names
