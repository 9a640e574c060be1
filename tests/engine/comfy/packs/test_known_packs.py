"""`darkroom nodes install NAME`: packs that are known by name, fetched at the commit at which they were tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from darkroom.engine.comfy.packs.commands import main
from darkroom.engine.comfy.packs.known_packs import KNOWN_PACKS, fetch_known, known_pack
from darkroom.engine.comfy.packs.sync.errors import PackNotFetched, PackUnknown
from darkroom.engine.comfy.packs.sync.manifest import PackEntry, read_packs
from darkroom.engine.comfy.packs.sync.sync import SyncOptions, sync_packs
from tests.engine.comfy.packs.sync.sources import NODE, write_manifest, write_repository


def test_each_known_pack_is_pinned_to_a_commit() -> None:
    packs = read_packs(KNOWN_PACKS)
    assert len(packs) >= 60
    assert [entry.name for entry in packs if not re.fullmatch(r"[0-9a-f]{40}", entry.revision)] == []
    assert [entry.name for entry in packs if not entry.url.startswith("https://github.com/")] == []


def test_case_and_dashes_of_a_name_do_not_matter() -> None:
    assert known_pack("comfyui_kjnodes").name == "ComfyUI-KJNodes"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(PackUnknown, match="did you mean 'ComfyUI-KJNodes'"):
        known_pack("ComfyUI-KJNode")


def test_the_pinned_commit_is_fetched_and_not_a_later_one(tmp_path: Path) -> None:
    source = tmp_path / "source"
    commit = write_repository(source, {"__init__.py": NODE})
    write_repository(source, {"__init__.py": "raise ValueError\n"})
    folder = fetch_known(PackEntry("one", str(source), revision=commit), tmp_path / "custom_nodes")
    assert (folder / "__init__.py").read_text() == NODE
    assert [path.name for path in folder.parent.iterdir()] == ["one"]


def test_a_sync_takes_over_a_pack_installed_by_name_but_prunes_none_that_no_manifest_had(tmp_path: Path) -> None:
    commit = write_repository(tmp_path / "source", {"__init__.py": NODE})
    base = tmp_path / "base"
    for name in ("one", "two"):
        fetch_known(PackEntry(name, str(tmp_path / "source"), revision=commit), base / "custom_nodes")
    write_manifest(base, f'[one]\nurl = "{tmp_path / "source"}"\nrevision = "{commit}"\n')
    options = SyncOptions(prune=True, wheels=tmp_path)
    sync_packs(base, options, lambda line: None)
    assert sorted(path.name for path in (base / "custom_nodes").iterdir()) == ["one", "two"]
    write_manifest(base, "")
    sync_packs(base, options, lambda line: None)
    assert [path.name for path in (base / "custom_nodes").iterdir()] == ["two"]


def test_a_pack_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "custom_nodes" / "one"
    own.mkdir(parents=True)
    assert fetch_known(PackEntry("one", str(tmp_path / "nowhere"), revision="a" * 40), own.parent) == own
    assert list(own.iterdir()) == []


def test_a_fetch_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(PackNotFetched, match="one: cannot be fetched"):
        fetch_known(PackEntry("one", str(tmp_path / "nowhere"), revision="a" * 40), tmp_path / "custom_nodes")
    assert list((tmp_path / "custom_nodes").iterdir()) == []


def test_the_command_names_what_it_would_fetch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "comfymath", "--dry-run", "--base-directory", str(tmp_path)]) == 0
    entry = known_pack("ComfyMath")
    assert capsys.readouterr().out == f"would fetch ComfyMath {entry.url}@{entry.revision}\n"


def test_the_command_refuses_an_unknown_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "ComfyMaths", "--base-directory", str(tmp_path)]) == 2
    assert "ComfyMaths: no such folder, and no pack is known by that name (did you mean 'ComfyMath'?)" in (
        capsys.readouterr().err
    )


def test_known_packs_are_listed_with_their_commits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--known"]) == 0
    assert f"ComfyMath\t{known_pack('ComfyMath').shown}\n" in capsys.readouterr().out
