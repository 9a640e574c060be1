"""Model files that their headers show to be broken, refused when a prompt is checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models.files import faults as file_faults
from darkroom.engine.models.files.faults import FileFaults
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.settings import EngineSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole file, one cut off, a web page and a pickle, in the folder of LoRAs."""
    folder = tmp_path / "models" / "loras"
    write_safetensors(folder / "whole.safetensors", {"a": torch.zeros(64), "b": torch.zeros(64)})
    (folder / "cut.safetensors").write_bytes((folder / "whole.safetensors").read_bytes()[:-1])
    (folder / "page.safetensors").write_text("<html>log in</html>")
    (folder / "old.pt").write_bytes(b"anything")
    return folder


@pytest.fixture
def faults(folder: Path, tmp_path: Path) -> FileFaults:
    return FileFaults(ModelFolders(tmp_path / "models"), HeaderAnswers())


@pytest.mark.parametrize("name", ["whole.safetensors", "old.pt", "absent.safetensors", "../cut.safetensors", "a\0"])
def test_other_files_have_no_fault(faults: FileFaults, name: str) -> None:
    assert faults.find("loras", name) is None


def test_a_file_cut_off_is_named_with_its_first_broken_tensor(faults: FileFaults) -> None:
    found = faults.find("loras", "cut.safetensors")
    assert found is not None and "cut.safetensors: a file cut off at" in found and "'b'" in found


def test_a_page_by_another_name_is_distinguished_from_a_model(faults: FileFaults) -> None:
    assert "a web page" in str(faults.find("loras", "page.safetensors"))


def test_a_kind_that_is_none_has_no_faults(faults: FileFaults) -> None:
    assert faults.find("no such kind", "cut.safetensors") is None


def test_a_header_is_read_once_for_each_state_of_a_file(
    faults: FileFaults, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def opening(path: Path) -> SafetensorsFile:
        opened.append(path.name)
        return SafetensorsFile(path)

    monkeypatch.setattr(file_faults, "SafetensorsFile", opening)
    assert [faults.find("loras", "cut.safetensors") is None for _ in range(3)] == [False] * 3
    assert opened == ["cut.safetensors"]
    (folder / "cut.safetensors").write_bytes((folder / "whole.safetensors").read_bytes())
    assert faults.find("loras", "cut.safetensors") is None and len(opened) == 2


@pytest.fixture
def engine(folder: Path, tmp_path: Path) -> Iterator[Engine]:
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine:
        yield engine


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_prompt_with_a_broken_file_is_refused_before_it_runs(engine: Engine, folder: Path, is_whole: bool) -> None:
    checkpoints = folder.parent / "checkpoints"
    checkpoints.mkdir()
    whole = (folder / "whole.safetensors").read_bytes()
    (checkpoints / "m.safetensors").write_bytes(whole if is_whole else whole[:-1])
    prompt: dict[str, Any] = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "m.safetensors"}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a"}},
        "3": {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}},
    }
    with pytest.raises(PromptRejected) as refused:
        engine.check(prompt)
    expected = "m.safetensors: 2 tensors of no known network" if is_whole else "m.safetensors: a file cut off at"
    assert expected in str(refused.value.as_json()["node_errors"])


@pytest.mark.parametrize("kind", ["checkpoints", "diffusion_models", "vae", "text_encoders", "controlnet"])
def test_a_file_of_no_known_layout_has_a_fault_that_says_what_is_expected(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "models" / kind / "mystery.safetensors"
    write_safetensors(path, {"a": torch.zeros(64), "b": torch.zeros(64)})
    faults = FileFaults(ModelFolders(tmp_path / "models"), HeaderAnswers())
    found = faults.find(kind, "mystery.safetensors")
    assert found is not None and found.startswith("mystery.safetensors: ") and "Stable Diffusion 1" in found


FAST = ("sd15", "flux", "wan")


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(item, marks=() if item.name in FAST else pytest.mark.slow, id=item.name)
        for item in registry.families()
    ],
)
def test_files_of_every_family_have_no_fault(tmp_path: Path, family: ModelFamily) -> None:
    faults = FileFaults(ModelFolders(tmp_path / "models"), HeaderAnswers())
    write_random_checkpoint(tmp_path / "models" / "checkpoints" / "whole.safetensors", family=family)
    assert faults.find("checkpoints", "whole.safetensors") is None
