"""`darkroom nodes sync`: packs from git and a registry, their packages in a layer, refusals that change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from darkroom.engine.comfy.packs.layer import add_layer, layer_folders, remove_layer
from darkroom.engine.comfy.packs.sync.errors import (
    FolderTaken,
    PackChanged,
    PackNotFetched,
    RequirementsRefused,
    SyncError,
)
from darkroom.engine.comfy.packs.sync.lock import PacksLock, lock_path, read_lock
from darkroom.engine.comfy.packs.sync.sync import SyncOptions, sync_packs
from darkroom.engine.comfy.packs.sync.tree import tree_sha256
from darkroom.engine.comfy.packs.sync.versions import pack_versions
from tests.engine.comfy.packs.sync.sources import NODE, serve_registry, write_manifest, write_repository
from tests.engine.comfy.packs.test_requirements import write_wheel


def synced(base: Path, options: SyncOptions = SyncOptions()) -> PacksLock:  # noqa: B008 - frozen
    return sync_packs(base, options, lambda line: None)


def state_of(base: Path) -> dict[str, str]:
    return {version.name: version.state for version in pack_versions(base, reads_files=True)}


def contents(folder: Path) -> dict[str, bytes]:
    """Files below a folder, without the guard and what git made."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".packs.guard"
    }


def test_packs_of_git_and_of_the_registry_are_installed_and_locked(tmp_path: Path) -> None:
    base = tmp_path / "base"
    commit = write_repository(tmp_path / "one", {"__init__.py": NODE, "web/a.js": "x"})
    with serve_registry({"two": {"__init__.py": NODE, "../evil.py": "x"}}) as registry:
        write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\n[Two]\nregistry = "two"\n')
        lock = synced(base, SyncOptions(registry=registry))
    one, two = base / "custom_nodes" / "One", base / "custom_nodes" / "Two"
    assert (one / "web" / "a.js").read_text() == "x"
    assert not (one / ".git").exists()
    assert (two / "evil.py").is_file(), "what leads out of the archive stays within"
    assert (lock.packs["One"].commit, lock.packs["Two"].commit) == (commit, "1.2.0")
    assert lock.packs["One"].sha256 == tree_sha256(one)
    assert read_lock(lock_path(base)) == lock
    assert state_of(base) == {"One": "good", "Two": "good"}
    # What is in place needs neither repository nor registry.
    assert synced(base, SyncOptions(registry="http://127.0.0.1:1", is_locked=True)) == lock
    (one / "__init__.py").write_text("changed")
    assert state_of(base)["One"] == "changed"


def test_the_lock_keeps_a_commit_until_an_update(tmp_path: Path) -> None:
    base, source = tmp_path / "base", tmp_path / "one"
    first = write_repository(source, {"__init__.py": NODE})
    write_manifest(base, f'[One]\nurl = "{source}"\nrevision = "main"\n')
    synced(base)
    second = write_repository(source, {"__init__.py": NODE + "# newer\n"})
    assert synced(base).packs["One"].commit == first
    other = tmp_path / "other"
    write_manifest(other, (base / "packs.toml").read_text())
    lock_path(other).write_text(lock_path(base).read_text())
    assert synced(other).packs["One"].commit == first, "a new machine gets what the lock has"
    assert synced(base, SyncOptions(is_dry=True, is_update=True)).packs["One"].commit == second
    assert read_lock(lock_path(base)).packs["One"].commit == first
    assert synced(base, SyncOptions(is_update=True)).packs["One"].commit == second
    assert "# newer" in (base / "custom_nodes" / "One" / "__init__.py").read_text()
    write_manifest(base, f'[One]\nurl = "{source}"\nrevision = "{first[:9]}"\n')
    assert state_of(base) == {"One": "not synced"}
    with pytest.raises(SyncError, match="expected a sync without --locked"):
        synced(base, SyncOptions(is_locked=True))
    assert synced(base).packs["One"].commit == first, "abbreviated commits are found in the whole repository"


def test_packages_go_to_a_layer_behind_the_engines_own(tmp_path: Path) -> None:
    base, wheels = tmp_path / "base", tmp_path / "wheels"
    write_wheel(wheels, "dr_needed", "1.5")
    write_wheel(wheels, "dr_asked", "2.0", requires="dr_needed>=1")
    write_repository(tmp_path / "one", {"__init__.py": NODE, "requirements.txt": "dr_asked\nnumpy\ntorch>=2\n"})
    write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\n')
    lock = synced(base, SyncOptions(wheels=wheels))
    assert [(item.name, item.version, bool(item.sha256)) for item in lock.packages] == [
        ("dr-asked", "2.0", True),
        ("dr-needed", "1.5", True),
    ]
    added = add_layer(base)
    try:
        assert added == [str(path) for path in layer_folders(base)]
        assert sys.path[-len(added) :] == added
        code = f"import sys; sys.path += {added!r}; import dr_asked, dr_needed; print(dr_needed.VERSION)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout == "1.5\n", done.stderr
    finally:
        remove_layer(added)
    assert not any(path.endswith("-packages") and str(base) in path for path in sys.path)
    # The same wheels again, from the lock; other ones under the same version are refused.
    (wheels / "dr_needed-1.5-py3-none-any.whl").write_bytes(b"")
    write_wheel(wheels, "dr_needed", "1.5", requires="dr_asked")
    before = os.readlink(base / "pack_packages")
    (base / "pack_packages").unlink()
    assert state_of(base) == {"One": "no packages"}
    synced(base, SyncOptions(wheels=wheels))
    assert os.readlink(base / "pack_packages") == before, "the layer itself was still there"
    other = tmp_path / "other"
    write_manifest(other, (base / "packs.toml").read_text())
    lock_path(other).write_text(lock_path(base).read_text())
    with pytest.raises(RequirementsRefused, match="(?i)hash"):
        synced(other, SyncOptions(wheels=wheels))
    assert not layer_folders(other)


def test_a_pack_that_would_move_torch_is_refused_with_the_reason_unless_it_is_told_not_to(tmp_path: Path) -> None:
    base, wheels = tmp_path / "base", tmp_path / "wheels"
    write_wheel(wheels, "torch", "0.0.1")
    write_repository(tmp_path / "mover", {"__init__.py": NODE, "requirements.txt": "torch==0.0.1\n"})
    write_manifest(base, f'[Mover]\nurl = "{tmp_path / "mover"}"\n')
    with pytest.raises(RequirementsRefused) as raised:
        synced(base, SyncOptions(wheels=wheels))
    assert str(raised.value).startswith("Mover: its requirements cannot be installed")
    assert f"torch=={metadata.version('torch')}" in str(raised.value)
    assert not list((base / "custom_nodes").iterdir())
    write_manifest(base, f'[Mover]\nurl = "{tmp_path / "mover"}"\nskip_requirements = ["torch"]\n')
    synced(base, SyncOptions(wheels=wheels))
    assert state_of(base) == {"Mover": "good"}


@pytest.mark.slow
def test_packs_that_conflict_are_refused_by_name_and_nothing_changes(tmp_path: Path) -> None:
    base, wheels = tmp_path / "base", tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        write_wheel(wheels, "dr_shared", version)
    write_repository(tmp_path / "good", {"__init__.py": NODE, "requirements.txt": "dr_shared==1.0\n"})
    write_repository(tmp_path / "other", {"__init__.py": NODE, "requirements.txt": "dr_shared==2.0\n"})
    good = f'[Good]\nurl = "{tmp_path / "good"}"\n'
    write_manifest(base, good)
    synced(base, SyncOptions(wheels=wheels))
    before = contents(base)
    write_manifest(base, good + f'[Other]\nurl = "{tmp_path / "other"}"\n')
    with pytest.raises(RequirementsRefused) as raised:
        synced(base, SyncOptions(wheels=wheels))
    assert str(raised.value).startswith("Other: its requirements cannot be installed together with those of Good")
    write_manifest(base, good)
    assert contents(base) == before


def test_what_cannot_be_fetched_is_named_for_every_pack_and_nothing_changes(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_repository(tmp_path / "one", {"__init__.py": NODE})
    write_manifest(
        base,
        f'[One]\nurl = "{tmp_path / "one"}"\n[Gone]\nurl = "{tmp_path / "gone"}"\n'
        f'[Never]\nurl = "{tmp_path / "one"}"\nrevision = "v9"\n[Unknown]\nregistry = "unknown"\n',
    )
    with serve_registry({}) as registry, pytest.raises(PackNotFetched) as raised:
        synced(base, SyncOptions(registry=registry))
    gone, never, unknown = str(raised.value).splitlines()
    assert gone.startswith("Gone: cannot be fetched from")
    assert "has no revision 'v9'" in never
    assert "has no such pack or version" in unknown
    assert not list((base / "custom_nodes").iterdir())


def test_another_tree_than_the_expected_one_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_repository(tmp_path / "one", {"__init__.py": NODE})
    write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\nsha256 = "{"0" * 64}"\n')
    with pytest.raises(PackChanged, match=f"expected {'0' * 64} of packs.toml"):
        synced(base)
    assert not list((base / "custom_nodes").iterdir())


def test_a_folder_of_the_operators_own_is_not_replaced_and_prune_removes_only_synced_packs(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_repository(tmp_path / "one", {"__init__.py": NODE})
    write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\n[Two]\nurl = "{tmp_path / "one"}"\n')
    own = base / "custom_nodes" / "One"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("mine")
    with pytest.raises(FolderTaken, match="expected it moved away"):
        synced(base)
    assert (own / "__init__.py").read_text() == "mine"
    own.rename(base / "custom_nodes" / "Mine")
    synced(base)
    write_manifest(base, f'[Two]\nurl = "{tmp_path / "one"}"\n')
    synced(base, SyncOptions(prune=True))
    assert sorted(path.name for path in (base / "custom_nodes").iterdir()) == ["Mine", "Two"]
