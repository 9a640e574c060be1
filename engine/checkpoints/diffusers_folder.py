"""Models in the folder layout of the diffusers library: which files count, and their tensors under our names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.architectures.diffusers_names import unet_names, vae_tensors
from engine.checkpoints.inspect import NotRecognised, describe, diffusers_unet_config
from engine.errors import BadModelFile
from engine.formats.weight_file import ChangedTensors, WeightFile

EXPECTED = "a Stable Diffusion 1 model in diffusers layout"
NETWORK_FILES = tuple(
    f"diffusion_pytorch_model.{ending}" for ending in ("fp16.safetensors", "safetensors", "fp16.bin", "bin")
)
TEXT_ENCODER_FILES = ("model.fp16.safetensors", "model.safetensors", "pytorch_model.fp16.bin", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class DiffusersFiles:
    unet: Path
    text_encoder: Path
    vae: Path


def diffusers_files(folder: Path) -> DiffusersFiles:
    """Raises `BadModelFile` when a part is missing, or one is there that SD1 does not have."""
    if (folder / "text_encoder_2").is_dir():
        raise BadModelFile(folder.name, "a model with two text encoders (Stable Diffusion XL)", EXPECTED)
    return DiffusersFiles(
        unet=_first(folder, "unet", NETWORK_FILES),
        text_encoder=_first(folder, "text_encoder", TEXT_ENCODER_FILES),
        vae=_first(folder, "vae", NETWORK_FILES),
    )


def _first(folder: Path, part: str, names: Sequence[str]) -> Path:
    found = next((folder / part / name for name in names if (folder / part / name).is_file()), None)
    if found is None:
        raise BadModelFile(folder.name, f"no weights in its folder {part!r}", EXPECTED)
    return found


def unet_from_diffusers(file: WeightFile) -> WeightFile:
    """Raises `NotRecognised`."""
    if any(name.startswith(("add_embedding.", "class_embedding.")) for name in file.tensors):
        raise NotRecognised("the UNet of Stable Diffusion XL or of another family")
    try:
        names = unet_names(diffusers_unet_config(file.shapes))
    except (KeyError, StopIteration) as error:
        raise NotRecognised(describe(file.shapes)) from error
    renamed = {names[name]: file.tensor(name) for name in file.tensors if name in names}
    return ChangedTensors(file.path, renamed, file.metadata)


def vae_from_diffusers(file: WeightFile) -> WeightFile:
    tensors = {name: file.tensor(name) for name in file.tensors}
    return ChangedTensors(file.path, vae_tensors(tensors), file.metadata)
