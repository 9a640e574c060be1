"""The check of the fallback engine, with stand-ins for ComfyUI and its Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.doctor.check import Status
from darkroom.worker.doctor.fallback import check_fallback
from tests.fakes import FakeEngine


def comfyui(folder: Path, python: str) -> Path:
    """A folder as ComfyUI's, whose Python is a shell script with these lines."""
    program = folder / "venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{python}\n")
    program.chmod(0o755)
    (folder / "main.py").touch()
    (folder / "comfyui_version.py").write_text('__version__ = "0.33.0"\n')
    return folder


async def test_a_folder_is_good_where_its_python_has_what_comfyui_needs(tmp_path: Path) -> None:
    check = await check_fallback(str(comfyui(tmp_path / "good", "echo 2.9.0")))
    assert (check.status, check.detail) == (Status.GOOD, "ComfyUI 0.33.0 with torch 2.9.0")
    lacking = comfyui(tmp_path / "bad", "echo \"ModuleNotFoundError: No module named 'aiohttp'\" >&2; exit 1")
    check = await check_fallback(str(lacking))
    assert check.status is Status.FAILED and "aiohttp" in check.detail
    assert check.remedy.endswith(f"pip install -r {lacking}/requirements.txt")


async def test_an_address_is_good_where_it_answers(engine: FakeEngine) -> None:
    assert (await check_fallback(engine.url)).status is Status.GOOD
    engine.is_down = True
    assert (await check_fallback(engine.url)).status is Status.WARNING


@pytest.mark.parametrize(("setting", "status"), [("", Status.SKIPPED), ("/nowhere", Status.FAILED)])
async def test_none_is_skipped_and_nonsense_fails(setting: str, status: Status) -> None:
    assert (await check_fallback(setting)).status is status
