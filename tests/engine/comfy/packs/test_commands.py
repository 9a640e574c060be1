"""`darkroom nodes check`: the folder it is given may be a pack, a folder of packs or a base directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine.comfy.packs.commands import main

PACK = "NODE_CLASS_MAPPINGS = {}\n"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    pack = tmp_path / "base" / "custom_nodes" / "one"
    pack.mkdir(parents=True)
    (pack / "__init__.py").write_text(PACK)
    return tmp_path / "base"


@pytest.mark.parametrize(
    "arguments",
    [("{base}",), ("{base}/custom_nodes",), ("{base}/custom_nodes/one",), ("--base-directory", "{base}")],
)
@pytest.mark.slow
def test_a_base_directory_a_folder_of_packs_and_a_pack_are_checked_alike(
    arguments: tuple[str, ...], base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *(item.format(base=base) for item in arguments)]) == 0
    assert "| one |" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_named_with_the_nearest(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(base / "custom_node")]) == 1
    assert f"no such folder (did you mean '{base / 'custom_nodes'}'?)" in capsys.readouterr().err


def test_a_folder_without_packs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "custom_nodes").mkdir()
    assert main(["check", str(tmp_path)]) == 1
    assert f"{tmp_path / 'custom_nodes'} holds no custom nodes" in capsys.readouterr().err
