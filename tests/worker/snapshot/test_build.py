"""`darkroom build`: a snapshot with packs and models that install without a network; refusals that leave nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from darkroom.engine.comfy.packs.sync.sync import SyncOptions, sync_packs
from darkroom.engine.comfy.packs.sync.versions import pack_versions
from darkroom.worker.models.files import checksum_path
from darkroom.worker.models.library import ModelLibrary, build_library
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.snapshot.build import SnapshotContents, build_snapshot
from darkroom.worker.snapshot.errors import SnapshotFailed
from tests.engine.comfy.packs.sync.sources import NODE, write_manifest, write_repository

MODELS = '[style]\nkind = "loras"\nsources = ["/nowhere/style.safetensors"]\n'


def library_of(base: Path) -> ModelLibrary:
    return build_library(load_settings(env_file=None, base_directory=base).settings)


def put_style(base: Path) -> Path:
    path = base / "models" / "loras" / "style.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    checksum_path(path).write_text(f"{'0' * 64}  style.safetensors\n")
    return path


def built(base: Path, folder: Path, *, has_weights: bool = False) -> None:
    build_snapshot(library_of(base), folder, SnapshotContents(has_weights, only=["idna"]), lambda line: None)


def test_packs_and_models_of_a_snapshot_need_no_network(tmp_path: Path) -> None:
    base, snapshot, fresh = tmp_path / "base", tmp_path / "snapshot", tmp_path / "fresh"
    write_repository(tmp_path / "one", {"__init__.py": NODE})
    write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\n')
    sync_packs(base, SyncOptions(), lambda line: None)
    (base / "models.toml").write_text(MODELS)
    put_style(base)
    built(base, snapshot, has_weights=True)
    assert json.loads((snapshot / "snapshot.json").read_text())["models"] == ["loras/style.safetensors"]
    assert (snapshot / "requirements.txt").read_text().startswith("idna==")
    assert (snapshot / "models" / "loras" / "style.safetensors").read_bytes() == b"weights"
    assert checksum_path(snapshot / "models" / "loras" / "style.safetensors").is_file()
    assert {"install.sh", "Dockerfile", "models.toml", "python.txt"} <= {path.name for path in snapshot.iterdir()}

    (tmp_path / "one").rename(tmp_path / "gone")
    write_manifest(fresh, (snapshot / "packs.toml").read_text())
    (fresh / "packs.lock.toml").write_text((snapshot / "packs.lock.toml").read_text())
    sync_packs(fresh, SyncOptions(is_locked=True, offline=snapshot), lambda line: None)
    assert [version.state for version in pack_versions(fresh, reads_files=True)] == ["good"]


@pytest.mark.parametrize("problem", ["there", "no weights", "missing weight", "changed pack"])
def test_a_snapshot_that_would_not_be_whole_is_not_written(tmp_path: Path, problem: str) -> None:
    base, folder = tmp_path / "base", tmp_path / "snapshot"
    base.mkdir()
    if problem == "there":
        (folder / "inner").mkdir(parents=True)
    elif problem == "missing weight":
        (base / "models.toml").write_text(MODELS)
    elif problem == "changed pack":
        write_repository(tmp_path / "one", {"__init__.py": NODE})
        write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\n')
        sync_packs(base, SyncOptions(), lambda line: None)
        (base / "custom_nodes" / "One" / "__init__.py").write_text("changed")
    words = {
        "there": "expected an empty or a new directory",
        "no weights": "no manifest asks for a file",
        "missing weight": "loras/style.safetensors: missing",
        "changed pack": "One: is not as packs.lock.toml has it",
    }
    with pytest.raises(SnapshotFailed, match=words[problem]):
        built(base, folder, has_weights="weight" in problem)
    assert [path.name for path in tmp_path.iterdir() if "snapshot" in path.name] == ["snapshot"] * (problem == "there")
