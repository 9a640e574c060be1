"""The first stage of a job: what is checked before the files are there, and what the engine gets."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from worker.engine.client import LocalFolders
from worker.guard.safe_address import AddressGuard, AddressRefused
from worker.inputs.fetch import InputFetcher
from worker.inputs.stage import FetchedInputs
from worker.settings import InputLimits

INFO = {"LoadImage": {"input": {"required": {"image": [["a.png"], {"image_upload": True}]}}}}


class Engine:
    """As much of an engine as the stage asks for; keeps what is uploaded to it."""

    def __init__(self, folders: LocalFolders | None) -> None:
        self.folders = folders
        self.uploaded: list[str] = []

    async def object_info(self) -> dict[str, Any]:
        return INFO

    async def upload_image(self, path: Path, name: str) -> str:
        self.uploaded.append(name)
        return f"elsewhere/{name}"


async def test_files_are_forgotten_by_the_time_of_their_last_fetch(tmp_path: Path) -> None:
    for name, at in (("old.png", 100), (".partial-1", 100), ("new.png", 300)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    await stage(tmp_path).forget_fetched_before(200)
    assert os.listdir(tmp_path) == ["new.png"]


def stage(folder: Path) -> FetchedInputs:
    return FetchedInputs(InputFetcher(AddressGuard(), folder, InputLimits(1_000_000, 5.0, 2)))


def picture_in_line() -> str:
    held = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(held, "PNG")
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()


def load(value: str) -> dict[str, Any]:
    return {"class_type": "LoadImage", "inputs": {"image": value}}


def test_files_still_to_come_have_names_that_the_check_knows(tmp_path: Path) -> None:
    prompt = {"1": load("https://example.com/a.png"), "2": load("a.png"), "3": load(picture_in_line())}
    planned = stage(tmp_path).plan(prompt, INFO)
    names = [planned.prompt[node]["inputs"]["image"] for node in ("1", "3")]
    assert list(planned.pending_files) == names and len(set(names)) == 2
    assert planned.prompt["2"] == prompt["2"]


async def test_the_engine_gets_names_of_its_own_input_folder(tmp_path: Path) -> None:
    engine: Any = Engine(LocalFolders(tmp_path, tmp_path, tmp_path))
    prompt = {"1": load(picture_in_line()), "2": load(picture_in_line())}
    fetched = await stage(tmp_path / "darkroom").fetch(prompt, None, engine)
    names = {fetched[node]["inputs"]["image"] for node in ("1", "2")}
    assert len(names) == 1 and (tmp_path / names.pop()).is_file()


async def test_an_engine_elsewhere_is_sent_the_file_once(tmp_path: Path) -> None:
    engine: Any = Engine(None)
    prompt = {"1": load(picture_in_line()), "2": load(picture_in_line())}
    fetched = await stage(tmp_path).fetch(prompt, None, engine)
    assert [fetched["1"]["inputs"]["image"]] == [f"elsewhere/{name}" for name in engine.uploaded]


async def test_a_prompt_without_files_passes_unchanged(tmp_path: Path) -> None:
    engine: Any = Engine(None)
    prompt = {"1": load("a.png")}
    assert await stage(tmp_path / "none").fetch(prompt, None, engine) is prompt


async def test_the_first_failure_is_the_callers_error_itself(tmp_path: Path) -> None:
    engine: Any = Engine(None)
    with pytest.raises(AddressRefused):
        await stage(tmp_path).fetch({"1": load("http://127.0.0.1/a.png"), "2": load(picture_in_line())}, None, engine)
