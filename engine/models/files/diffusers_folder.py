"""Files of a model in the folder layout of the diffusers library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from darkroom.engine.errors import BadModelFile

EXPECTED = "a model in diffusers layout"
NETWORK_FILES = tuple(
    f"diffusion_pytorch_model.{ending}" for ending in ("fp16.safetensors", "safetensors", "fp16.bin", "bin")
)
TEXT_ENCODER_FILES = ("model.fp16.safetensors", "model.safetensors", "pytorch_model.fp16.bin", "pytorch_model.bin")
DENOISER_FOLDERS = ("unet", "transformer")
TEXT_FOLDERS = ("text_encoder", "text_encoder_2", "text_encoder_3")


@dataclass(frozen=True, slots=True)
class DiffusersFiles:
    unet: Path
    text_encoders: tuple[Path, ...]
    vae: Path


def diffusers_files(folder: Path) -> DiffusersFiles:
    """Return the files of a folder's networks. Raises `BadModelFile` when a part is missing."""
    denoiser = next((name for name in DENOISER_FOLDERS if (folder / name).is_dir()), DENOISER_FOLDERS[0])
    texts = [name for name in TEXT_FOLDERS if (folder / name).is_dir()] or TEXT_FOLDERS[:1]
    return DiffusersFiles(
        unet=_first(folder, denoiser, NETWORK_FILES),
        text_encoders=tuple(_first(folder, name, TEXT_ENCODER_FILES) for name in texts),
        vae=_first(folder, "vae", NETWORK_FILES),
    )


def _first(folder: Path, part: str, names: Sequence[str]) -> Path:
    found = next((folder / part / name for name in names if (folder / part / name).is_file()), None)
    if found is None:
        raise BadModelFile(folder.name, f"no weights in its folder {part!r}", EXPECTED)
    return found
