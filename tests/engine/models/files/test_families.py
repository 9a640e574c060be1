"""The family of a model file, read from its header."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.models.files.families import FileFamilies
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.parity.layout import checkpoint_shapes

FAMILIES = registry.families()
FAST = (
    "sd15",
    "sdxl",
    "flux",
    "wan",
)  # that every family's file is recognised, `test_every_family.py` proves of shapes


def families_in(models: Path) -> FileFamilies:
    return FileFamilies(ModelFolders(models), HeaderAnswers())


def write_header(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a sparse file of as many bytes as its header claims: full size, and no disk taken."""
    start, header = 0, {}
    for name, shape in shapes.items():
        num_bytes = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [start, start + num_bytes]}
        start += num_bytes
    raw = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + start)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family.name in FAST else pytest.mark.slow, id=family.name)
        for family in FAMILIES
    ],
)
@pytest.mark.parametrize("scale", ["full", "small"])
def test_family_and_scale_are_read_from_the_header(tmp_path: Path, family: ModelFamily, scale: str) -> None:
    write_header(tmp_path / "checkpoints" / "sub" / "a.safetensors", checkpoint_shapes(family, scale))
    (found,) = families_in(tmp_path).describe("checkpoints")
    assert (found.name, found.family, found.scale) == ("sub/a.safetensors", family.name, scale)


def test_only_the_files_asked_for_are_described(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        write_random_checkpoint(tmp_path / "checkpoints" / name, family=FAMILIES[0])
    families = families_in(tmp_path)
    assert [item.name for item in families.describe("checkpoints")] == ["a.safetensors", "b.safetensors"]
    asked = families.describe("checkpoints", ["b.safetensors", "missing.safetensors", "../a.safetensors"])
    assert [item.name for item in asked] == ["b.safetensors"]
    with pytest.raises(KeyError):
        families.describe("loras")


def test_a_file_of_no_family_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write_header(folder / "other.safetensors", {"layer.weight": (4, 4)})
    (folder / "page.safetensors").write_text("<html>log in</html>")
    with (folder / "old.ckpt").open("wb") as file:
        pickle.dump({"state_dict": {}}, file)
    assert [(item.name, item.family) for item in families_in(tmp_path).describe("checkpoints")] == [
        ("old.ckpt", None),
        ("other.safetensors", None),
        ("page.safetensors", None),
    ]


def test_a_file_is_read_again_only_after_it_changed(tmp_path: Path) -> None:
    path, families = tmp_path / "checkpoints" / "a.safetensors", families_in(tmp_path)
    write_header(path, checkpoint_shapes(FAMILIES[0], "small"))
    state = path.stat()
    (first,) = families.describe("checkpoints", [path.name])
    (again,) = families.describe("checkpoints", [path.name])
    assert again is first
    write_header(path, {"layer.weight": (4, 4)})
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    (changed,) = families.describe("checkpoints", [path.name])
    assert (first.family, changed.family) == (FAMILIES[0].name, None)


def test_a_pickle_of_torch_is_described_like_a_safetensors_file(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write_random_checkpoint(folder / "a.safetensors", family=FAMILIES[0])
    from safetensors.torch import load_file

    torch.save({"state_dict": load_file(folder / "a.safetensors")}, folder / "b.ckpt")
    safetensors, pickled = families_in(tmp_path).describe("checkpoints")
    assert (pickled.family, pickled.scale) == (safetensors.family, safetensors.scale) == (FAMILIES[0].name, "small")
