"""Model files of random weights, built from layouts: the key names and shapes of real files.

    python -m tests.parity.models --models DIR [--family NAME …] [--layout NAME …]

`layouts/FAMILY/NAME.json` lists the tensors of one file: `file` (its path in the models directory), `tensors` (key to
shape, or the name of a file beside the layout whose bytes are the tensor), `tables` (key to whole numbers), `dtype`
where it is not float16, `metadata` of the safetensors header (texts as they are, others as JSON). A layout with `of`
(FAMILY/NAME) has the weights of that one, in the form that `form` says (`quantised_models.py`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.parity.quantised_models import write_quantised
from tests.parity.weights import family_weights, sd15_weights

HERE = Path(__file__).parent
LAYOUTS = HERE / "layouts"
DIFFUSERS = "diffusers"
HYPERNETWORK = {
    "step": 100,
    "activation_func": "relu",
    "is_layer_norm": False,
    "use_dropout": False,
    "activate_output": False,
    "last_layer_dropout": False,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of one model file. A shape that is a text names a file whose bytes are the tensor."""

    family: str
    name: str
    file: str
    tensors: Mapping[str, tuple[int, ...] | str]
    folder: Path
    dtype: str = "float16"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    form: Mapping[str, Any] | None = None
    drawn_as: str = ""  # the layout by whose name weights are drawn
    tables: Mapping[str, Any] = field(default_factory=dict)

    def is_named_in(self, prompt_text: str) -> bool:
        """Return True if a prompt loads the file.

        Embeddings are named without an ending, files of diffusers by their folder, those of TAESD by their beginning.
        """
        path = Path(self.file)
        if path.parts[0] == DIFFUSERS:
            return f'"{path.parts[1]}"' in prompt_text
        if path.parts[0] == "vae_approx":
            return f'"{path.stem.partition("_")[0]}"' in prompt_text
        return (path.stem if "embeddings" in path.parts else path.name) in prompt_text


def read_layouts(folder: Path = LAYOUTS) -> Iterator[Layout]:
    """Yield every layout, family by family."""
    for path in sorted(folder.glob("*/*.json")):
        stored = json.loads(path.read_text("utf-8"))
        if "of" in stored:
            stored = json.loads((folder / f"{stored['of']}.json").read_text("utf-8")) | {"dtype": "float16"} | stored
        shapes = {key: shape if isinstance(shape, str) else tuple(shape) for key, shape in stored["tensors"].items()}
        yield Layout(
            path.parent.name,
            stored["name"],
            stored["file"],
            shapes,
            path.parent,
            stored.get("dtype", "float16"),
            stored.get("metadata", {}),
            stored.get("form"),
            Path(stored.get("of", stored["name"])).name,
            stored.get("tables", {}),
        )


def write_models_of(prompt_text: str, models: Path) -> None:
    """Write the files that a prompt names and that are not there yet."""
    for layout in read_layouts():
        if layout.is_named_in(prompt_text) and not (models / layout.file).exists():
            write_model(layout, models)


def write_model(layout: Layout, models: Path) -> Path:
    """Write one file below the models directory, as safetensors or as the pickle that its ending says."""
    target = models / layout.file
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.relative_to(models).parts[0] == DIFFUSERS:
        (target.parent.parent / "model_index.json").write_text("{}", "utf-8")  # by which such a folder is known
    tensors = make_tensors(layout)
    if layout.form is not None:
        write_quantised(target, tensors, layout.form)
    elif target.suffix == ".safetensors":
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in layout.metadata.items()}
        save_file(tensors, target, metadata=texts or None)
    else:
        torch.save(_pickled(layout, tensors), target)
    return target


def make_tensors(layout: Layout) -> dict[str, torch.Tensor]:
    """Draw every tensor of a layout, in its dtype."""
    numbers = (re.search(r"(?:^|\.)output_blocks\.(\d+)\.", key) for key in layout.tensors)
    last_block = max((int(found.group(1)) for found in numbers if found), default=None)
    tables = {key: torch.tensor(numbers, dtype=torch.int32) for key, numbers in layout.tables.items()}
    return {key: _tensor(layout, key, shape, last_block) for key, shape in layout.tensors.items()} | tables


def _tensor(layout: Layout, key: str, shape: tuple[int, ...] | str, last_block: int | None) -> torch.Tensor:
    if isinstance(shape, str):
        return torch.frombuffer(bytearray((layout.folder / shape).read_bytes()), dtype=torch.uint8)
    if layout.family == "sd15":
        drawn = sd15_weights(layout.name, key, shape, is_upscaler=layout.file.startswith("upscale_models/"))
    else:
        drawn = family_weights(layout.drawn_as or layout.name, key, shape, last_block)
    if drawn.dtype == np.int64:
        return torch.from_numpy(drawn)
    rounded = torch.from_numpy(np.ascontiguousarray(drawn)).reshape(shape).half()
    return rounded.to(getattr(torch, layout.dtype))


def _pickled(layout: Layout, tensors: Mapping[str, torch.Tensor]) -> dict[Any, Any]:
    """Return the object that the web UI stores in such a file: a textual inversion, a hypernetwork or plain tensors."""
    if "string_to_param.*" in tensors:
        return {
            "string_to_token": {"*": 265},
            "string_to_param": {"*": tensors["string_to_param.*"].float()},
            "name": layout.name,
            "step": 100,
            "sd_checkpoint": None,
            "sd_checkpoint_name": None,
        }
    if not layout.file.startswith("hypernetworks/"):
        return dict(tensors)
    network: dict[Any, Any] = {**HYPERNETWORK, "name": layout.name}
    for key, value in tensors.items():  # keys are "DIM/INDEX/LAYER.weight"
        width, index, rest = key.split("/")
        network.setdefault(int(width), [{}, {}])[int(index)][rest] = value.float()
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the model files of the parity cases.")
    parser.add_argument(
        "--models", type=Path, required=True, help="models directory; checkpoints/, vae/, … come below it"
    )
    parser.add_argument("--family", action="append", help="repeatable; all families where none is named")
    parser.add_argument("--layout", action="append", help="only this layout, repeatable")
    arguments = parser.parse_args()
    for layout in read_layouts():
        is_asked = not arguments.family or layout.family in (*arguments.family, "text", "vae", "vision", "audio")
        if is_asked and (not arguments.layout or layout.name in arguments.layout):
            write_model(layout, arguments.models)
            sys.stderr.write(f"{layout.file}\n")


if __name__ == "__main__":
    main()
