"""Layouts of a family's checkpoints, from the family's own test scale.

    python -m tests.parity.layout --family NAME [--scale small] [--name NAME]

Writes `layouts/FAMILY/NAME.json`, by default called `FAMILY_SCALE`: the tensors that a checkpoint of that scale has.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from pathlib import Path

from torch import nn

from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.saved_layout import denoiser_tensors, text_tensors, vae_tensors
from tests.parity.models import LAYOUTS


def checkpoint_shapes(family: ModelFamily, scale: str) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a checkpoint of a family at a scale by name. No weights are made."""
    return dict(_shapes(family.name, scale))


@functools.lru_cache(maxsize=2)  # the networks of large families take a while even without weights
def weightless_denoiser(name: str, scale: str) -> nn.Module:
    """Return the denoising network of a family at a scale, on the device `meta`."""
    family = registry.family_named(name)
    with unfilled():
        network: nn.Module = family.denoiser.build(family.scales[scale].denoiser)
    return network


@functools.cache
def _shapes(name: str, scale: str) -> dict[str, tuple[int, ...]]:
    family = registry.family_named(name)
    config = family.scales[scale]
    unet = weightless_denoiser(name, scale)
    with unfilled():
        vae = family.vae.build(config.vae)
        encoders = {
            item.encoding.key: item.network.build(config.text[item.encoding.slot]) for item in family.text_of(config)
        }
    text = {
        f"{key}.transformer.{name}": weight
        for key, network in encoders.items()
        for name, weight in network.state_dict().items()
    }
    tensors = denoiser_tensors(family, unet.state_dict()) | text_tensors(family, text)
    tensors |= vae_tensors(family, vae.state_dict())
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def write_layout(family: ModelFamily, scale: str, name: str, folder: Path = LAYOUTS) -> Path:
    """Write the layout of a checkpoint, a line for each tensor."""
    shapes = checkpoint_shapes(family, scale)
    head = {
        "name": name,
        "family": family.name,
        "file": f"checkpoints/{name}.safetensors",
        "parameters": sum(math.prod(shape) for shape in shapes.values()),
    }
    path = folder / family.name / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {key: list(shape) for key, shape in shapes.items()} | _vocabularies(family, scale, path)
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(shape)}" for key, shape in tensors.items())
    start = ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    path.write_text(f'{{{start},\n "tensors": {{\n{lines}\n }}}}\n', encoding="utf-8")
    return path


def _vocabularies(family: ModelFamily, scale: str, layout: Path) -> dict[str, str]:
    """Write the tokenizers that the checkpoint holds beside the layout, and return their files by tensor."""
    files: dict[str, str] = {}
    for encoder in family.text_of(family.scales[scale]):
        for ending, vocabulary in (("tokenizer", encoder.vocabulary), ("second", encoder.second_vocabulary)):
            if vocabulary is not None:
                file = layout.with_name(f"{layout.stem}.{encoder.encoding.slot}.{ending}")
                file.write_bytes(vocabulary.random())
                files[vocabulary.in_checkpoint] = file.name
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the layout of a family's checkpoint from its test scale.")
    parser.add_argument("--family", required=True, choices=registry.family_names())
    parser.add_argument("--scale", default="small")
    parser.add_argument("--name", help="of the layout and the file")
    arguments = parser.parse_args()
    family = registry.family_named(arguments.family)
    path = write_layout(family, arguments.scale, arguments.name or f"{family.name}_{arguments.scale}")
    sys.stderr.write(f"{path}\n")


if __name__ == "__main__":
    main()
