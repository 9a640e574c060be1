"""Loaders of GGUF files: the names they offer, what they hold, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.engine import Engine
from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.gguf_file import GgufFile
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.load import LoadTypes, load_text_encoders, load_unet
from darkroom.engine.nodes.catalogue import object_info
from darkroom.engine.settings import EngineSettings
from tests.parity.models import read_layouts, write_model
from tests.parity.quantised_models import write_gguf

LAYOUTS = {layout.name: layout for layout in read_layouts()}
NAMES = (
    "UnetLoaderGGUF", "UnetLoaderGGUFAdvanced", "CLIPLoaderGGUF", "DualCLIPLoaderGGUF", "TripleCLIPLoaderGGUF",
    "QuadrupleCLIPLoaderGGUF",
)  # fmt: skip


def touched(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_files_are_offered_by_their_ending_beside_those_of_the_folders_own_kind(tmp_path: Path) -> None:
    for name in ("unet/a.gguf", "diffusion_models/b.gguf", "diffusion_models/c.safetensors", "clip/t5.gguf"):
        touched(tmp_path / "models" / name)
    touched(tmp_path / "models/text_encoders/clip_l.safetensors")
    folders = ModelFolders(tmp_path / "models")
    assert folders.names("unet_gguf") == ["a.gguf", "b.gguf"]
    assert folders.names("diffusion_models") == ["c.safetensors"]
    assert folders.path("unet_gguf", "b.gguf") == tmp_path / "models/diffusion_models/b.gguf"
    assert "unet_gguf" not in folders.kinds()
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine:
        shown = {name: object_info(engine.catalogue[name].spec(engine.environment)) for name in NAMES}
    assert shown["UnetLoaderGGUF"]["input"]["required"]["unet_name"][0] == ["a.gguf", "b.gguf"]
    advanced = shown["UnetLoaderGGUFAdvanced"]["input"]["required"]
    choices = ["default", "target", "float32", "float16", "bfloat16"]
    assert advanced["dequant_dtype"] == [choices, {"default": "default"}]
    assert advanced["patch_on_device"] == ["BOOLEAN", {"default": False}]
    assert shown["CLIPLoaderGGUF"]["input"]["required"]["clip_name"][0] == ["clip_l.safetensors", "t5.gguf"]
    assert all(info["category"] == "bootleg" for info in shown.values())


def test_blocks_stay_as_they_are_in_the_file(tmp_path: Path) -> None:
    path = write_model(LAYOUTS["sd35_small_q4k"], tmp_path)
    network = load_unet(path, LoadTypes()).unet
    held = sum(weight.nbytes for weight in network.parameters() if weight.dtype == torch.uint8)
    file = GgufFile(path)
    assert held == sum(file.tensors[name].num_bytes for name in file.blocks)
    assert held > 0.6 * path.stat().st_size


def test_a_network_of_no_known_family_is_refused_with_the_architecture(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", {"w.weight": torch.zeros(4, 32)}, "mamba", {".": "Q8_0"})
    for load in (load_unet, lambda path, types: load_text_encoders([path], types, "stable_diffusion")):
        with pytest.raises(BadModelFile, match=r"x.gguf: a GGUF file of the architecture 'mamba': .*; expected"):
            load(tmp_path / "x.gguf", LoadTypes())
