"""Manifests of other tools, in the forms that their documentation shows, read as ours."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from darkroom.engine.comfy.packs.sync.manifest import read_packs
from darkroom.worker.cli.main import app
from darkroom.worker.models.errors import ManifestInvalid
from darkroom.worker.models.import_manifest import read_foreign_file
from darkroom.worker.models.manifest import load_manifest

DIGEST = "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08"

COMFY_BUILD = f"""
schema: comfy-build/1
name: mine
definition:
  schema: distribution-definition/0
  baseComfyVersion: v0.3.40
  models:
    - type: loras/styles
      filename: house.safetensors
      sourceUri: https://huggingface.co/someone/small/resolve/main/house-v2.safetensors
      sha256: {DIGEST}
    - type: vae
      blobId: abc
      filename: own.safetensors
  customNodes:
    - {{name: KJNodes, id: comfyui-kjnodes, registryVersion: 1.1.0}}
    - {{name: rgthree, repository: https://github.com/rgthree/rgthree-comfy, gitRef: main}}
    - {{name: own, blobId: abc}}
"""
COMFY_LOCK = f"""
basic:
models:
  - model: Base
    url: https://civitai.com/api/download/models/128713
    paths:
      - path: models/checkpoints/base.safetensors
    hashes:
      - {{hash: 879DB523C3, type: AutoV2}}
      - {{hash: {DIGEST}, type: SHA256}}
  - model: fine.safetensors
    url: https://example.com/files/fine.safetensors
    type: loras
custom_nodes:
  comfyui: 7a1f
  git_custom_nodes:
    https://github.com/a/one.git: {{hash: {"1" * 40}, disabled: false}}
    https://github.com/a/two: {{hash: {"2" * 40}, disabled: true}}
  cnr_custom_nodes: {{comfyui-three: 1.2.3}}
  file_custom_nodes:
    - {{filename: four.py, disabled: false}}
"""
SALAD = """
apt: [git]
custom_nodes:
  - comfyui_essentials
  - https://github.com/a/one/tree/v2
  - https://github.com/a/two@v1.0.0
  - https://gitlab.com/a/three/-/commit/abc123
  - https://github.com/a/four.git
models:
  before_start:
    - url: https://civitai.com/api/download/models/128713?type=Model&format=SafeTensor
      local_path: /opt/ComfyUI/models/checkpoints/sub/base.safetensors
  after_start:
    - url: s3://my-bucket/path/to/late.safetensors
      local_path: models/checkpoints/late.safetensors
"""
COMFY_PACK = {
    "python": "3.11",
    "comfyui": "7a1f",
    "models": [
        {
            "filename": "models/checkpoints/base.safetensors",
            "sha256": DIGEST.lower(),
            "source": {"download_url": "https://huggingface.co/a/b/resolve/main/base.safetensors"},
        },
        {"filename": "models/loras/none.safetensors", "sha256": DIGEST.lower()},
    ],
    "custom_nodes": [{"url": "https://github.com/a/one", "commit_hash": "1" * 40}],
}


def written(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_comfy_build(tmp_path: Path) -> None:
    found = read_foreign_file(written(tmp_path / "comfy-build.yaml", COMFY_BUILD))
    url = "https://huggingface.co/someone/small/resolve/main/house-v2.safetensors"
    assert found.models == {
        "house": {"kind": "loras", "name": "styles/house.safetensors", "sources": [url], "sha256": DIGEST.lower()}
    }
    assert found.packs == {
        "KJNodes": {"registry": "comfyui-kjnodes", "revision": "1.1.0"},
        "rgthree": {"url": "https://github.com/rgthree/rgthree-comfy", "revision": "main"},
    }
    assert [line.partition(":")[0] for line in found.left_out] == ["model own.safetensors", "pack own"]


def test_comfy_lock(tmp_path: Path) -> None:
    found = read_foreign_file(written(tmp_path / "comfy-lock.yaml", COMFY_LOCK))
    assert found.models["base"] == {
        "kind": "checkpoints",
        "name": "base.safetensors",
        "sources": ["https://civitai.com/api/download/models/128713"],
        "sha256": DIGEST.lower(),
    }
    assert (found.models["fine"]["kind"], found.models["fine"]["name"]) == ("loras", "fine.safetensors")
    assert found.packs == {
        "one": {"url": "https://github.com/a/one.git", "revision": "1" * 40},
        "comfyui-three": {"registry": "comfyui-three", "revision": "1.2.3"},
    }
    assert [line.partition(":")[0] for line in found.left_out] == ["pack https", "pack four.py"]


def test_salad(tmp_path: Path) -> None:
    found = read_foreign_file(written(tmp_path / "manifest.yml", SALAD))
    assert [(table["kind"], table["name"]) for table in found.models.values()] == [
        ("checkpoints", "sub/base.safetensors"),
        ("checkpoints", "late.safetensors"),
    ]
    assert found.packs == {
        "comfyui_essentials": {"registry": "comfyui_essentials"},
        "one": {"url": "https://github.com/a/one", "revision": "v2"},
        "two": {"url": "https://github.com/a/two", "revision": "v1.0.0"},
        "three": {"url": "https://gitlab.com/a/three", "revision": "abc123"},
        "four": {"url": "https://github.com/a/four.git"},
    }
    assert found.left_out == ["apt: packages are installed for packs alone"]


@pytest.mark.parametrize("is_packed", [False, True])
def test_comfy_pack(tmp_path: Path, is_packed: bool) -> None:
    path = tmp_path / ("mine.cpack.zip" if is_packed else "snapshot.json")
    if is_packed:
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("snapshot.json", json.dumps(COMFY_PACK))
    else:
        path.write_text(json.dumps(COMFY_PACK))
    found = read_foreign_file(path)
    assert found.models["base"]["sha256"] == DIGEST.lower()
    assert found.packs == {"one": {"url": "https://github.com/a/one", "revision": "1" * 40}}
    assert found.left_out == ["model models/loras/none.safetensors: no download address is told"]


def test_a_foreign_manifest_is_read_in_place_of_ours_and_written_as_ours(tmp_path: Path) -> None:
    path = written(tmp_path / "comfy-lock.yaml", COMFY_LOCK)
    required = {entry.place for entry in load_manifest(path).required()}
    assert required == {"checkpoints/base.safetensors", "loras/fine.safetensors"}
    base = tmp_path / "base"
    base.mkdir()
    done = CliRunner().invoke(app, ["models", "import", str(path), "--base-directory", str(base)])
    assert done.exit_code == 0, done.output
    assert {entry.place for entry in load_manifest(base / "models.toml").required()} == required
    assert [pack.name for pack in read_packs(base / "packs.toml")] == ["one", "comfyui-three"]
    assert "left out: pack four.py" in done.output
    again = CliRunner().invoke(app, ["models", "import", str(path), "--base-directory", str(base)])
    assert (again.exit_code, "is there already" in again.output) == (2, True)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.yaml", "- 1", "is of no known kind"),
        ("a.yaml", "a: [", "does not parse"),
        ("a.json", "{", "does not parse"),
        ("a.json", '{"nodes": [], "links": []}', "is of no known kind"),
        ("a.cpack.zip", "x", "does not parse"),
        ("manifest.yml", "models: {before_start: [{url: 'ftp://a/b', local_path: models/vae/b.bin}]}", "unknown kind"),
        (
            "manifest.yml",
            "models: {before_start: [{url: 'https://a/b', local_path: models/vae/b.exe}]}",
            "no model file",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    with pytest.raises(ManifestInvalid, match=words):
        load_manifest(written(tmp_path / name, content))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing: Any = tmp_path / "gone.yaml"
    with pytest.raises(ManifestInvalid, match="cannot be read"):
        read_foreign_file(missing)
