"""The first stage of a job: what is checked before the files are there, and what the engine gets."""

from __future__ import annotations

import base64
import io
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.errors import RequestRejected
from darkroom.worker.guard.safe_address import AddressGuard, AddressRefused
from darkroom.worker.inputs.fetch import InputFetcher
from darkroom.worker.inputs.folder import InputFolder
from darkroom.worker.inputs.s3_source import S3Source
from darkroom.worker.jobs.fetched_inputs import FetchedInputs
from darkroom.worker.json.values import object_at
from darkroom.worker.s3.stores import S3Stores
from darkroom.worker.settings.outputs import InputLimits, S3Config
from darkroom.worker.storage.job import Credentials, Job, JobRequest, JobTimes

INFO = {"LoadImage": {"input": {"required": {"image": [["a.png"], {"image_upload": True}]}}}}


class Engine:
    """The part of an engine that the stage asks for; keeps the files that are uploaded to it."""

    has_check = True

    def __init__(self, folders: LocalFolders | None) -> None:
        self.folders = folders
        self.files = self
        self.uploaded: dict[str, str] = {}
        self.taken: list[str] = []

    async def object_info(self) -> dict[str, Any]:
        return INFO

    async def upload_image(self, path: Path, name: str) -> str:
        self.taken.append(name)
        return f"elsewhere/{name}"


def stage(folder: Path, *, shares_files: bool = False) -> FetchedInputs:
    guard, files = AddressGuard(), InputFolder(folder)
    limits = InputLimits(max_bytes=1_000_000, timeout_seconds=5.0)
    no_store = S3Config(connect_timeout_seconds=2.0, connect_attempts=1, presign_seconds=600, key_template="{filename}")
    fetcher = InputFetcher(guard, files, limits, S3Source(S3Stores(guard), no_store, limits))
    return FetchedInputs(fetcher, files, shares_files=shares_files)


def job(prompt: Mapping[str, Any], **s3: Any) -> Job:
    return Job("job-1", 1, "hash", JobRequest(), prompt, JobTimes(0), Credentials({"s3": s3} if s3 else {}))


def image_in_line() -> str:
    held = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(held, "PNG")
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()


def load(value: str) -> dict[str, Any]:
    return {"class_type": "LoadImage", "inputs": {"image": value}}


def test_files_still_to_come_have_names_that_the_check_knows(tmp_path: Path) -> None:
    prompt = {"1": load("https://example.com/a.png"), "2": load("a.png"), "3": load(image_in_line())}
    planned = stage(tmp_path).plan(PromptGraph(prompt, INFO))
    names = [object_at(planned.prompt, node, "inputs")["image"] for node in ("1", "3")]
    assert list(planned.pending_files) == names and len(set(names)) == 2
    assert planned.prompt["2"] == prompt["2"]


async def test_the_engine_gets_names_of_its_own_input_folder(tmp_path: Path) -> None:
    engine: Any = Engine(LocalFolders(tmp_path, tmp_path, tmp_path))
    prompt = {"1": load(image_in_line()), "2": load(image_in_line())}
    fetched = await stage(tmp_path / "darkroom").fetch(job(prompt), engine)
    names = {str(object_at(fetched, node, "inputs")["image"]) for node in ("1", "2")}
    assert len(names) == 1 and (tmp_path / names.pop()).is_file()


async def test_an_engine_elsewhere_is_sent_the_file_once(tmp_path: Path) -> None:
    engine: Any = Engine(None)
    prompt = {"1": load(image_in_line()), "2": load(image_in_line())}
    inputs = stage(tmp_path)
    fetched = await inputs.fetch(job(prompt), engine)
    assert engine.taken == []  # another one may run it
    placed = [await inputs.place(fetched, engine) for _ in range(2)]
    assert placed[0] == placed[1] and len(engine.taken) == 1
    assert object_at(placed[0], "1", "inputs")["image"] == f"elsewhere/{engine.taken[0]}"


async def test_only_names_that_the_stage_itself_makes_are_sent(tmp_path: Path) -> None:
    engine: Any = Engine(None)
    (tmp_path / "secret").write_text("keep")
    prompt = {"1": load("darkroom/../secret"), "2": load("darkroom/" + "0" * 64 + ".png"), "3": load("darkroom/secret")}
    assert await stage(tmp_path).place(prompt, engine) == prompt and engine.taken == []


async def test_a_prompt_without_files_passes_unchanged(tmp_path: Path) -> None:
    engine: Any = Engine(None)
    prompt = {"1": load("a.png")}
    assert await stage(tmp_path / "none").fetch(job(prompt), engine) is prompt


async def test_the_first_failure_is_the_callers_error_itself(tmp_path: Path) -> None:
    engine: Any = Engine(None)
    with pytest.raises(AddressRefused):
        await stage(tmp_path).fetch(job({"1": load("http://127.0.0.1/a.png"), "2": load(image_in_line())}), engine)


async def test_files_go_when_no_job_needs_them(tmp_path: Path) -> None:
    engine: Any = Engine(LocalFolders(tmp_path, tmp_path, tmp_path))
    inputs = stage(tmp_path / "darkroom")
    await inputs.fetch(job({"1": load(image_in_line())}), engine)
    await inputs.forget_unused(time.time() + 10, 0)
    assert len(os.listdir(tmp_path / "darkroom")) == 1
    inputs.release("job-1")
    await inputs.forget_unused(time.time() + 10, 0)
    assert os.listdir(tmp_path / "darkroom") == []


def test_what_cannot_be_fetched_is_reported_before_the_job_is_taken(tmp_path: Path) -> None:
    prompt = {
        "1": load("http://169.254.169.254/latest/meta-data"),
        "2": load("s3://bucket"),
        "3": load("s3://bucket/key.png"),
        "4": load("https://example.com/fine.png"),
        "5": {"class_type": "CLIPTextEncode", "inputs": {"text": "http://127.0.0.1/ as a text"}},
    }
    with pytest.raises(RequestRejected) as caught:
        stage(tmp_path).check(PromptGraph(prompt, INFO), None)
    assert [(item.node_id, item.type) for item in caught.value.problems] == [
        ("1", "address_refused"),
        ("2", "input_broken"),
        ("3", "input_rejected"),
    ]
    assert "credentials" in caught.value.problems[2].message


def test_names_of_other_jobs_files_are_refused_unless_they_are_shared(tmp_path: Path) -> None:
    prompt = {"1": load("x_00001_.png [output]"), "2": load("a.png"), "3": load(f"upload:{'0' * 64}.png")}
    with pytest.raises(RequestRejected) as rejected:
        stage(tmp_path).check(PromptGraph(prompt, INFO), None)
    assert [(problem.node_id, problem.type) for problem in rejected.value.problems] == [
        ("1", "foreign_file"),
        ("3", "foreign_file"),
    ]
    del prompt["3"]
    stage(tmp_path, shares_files=True).check(PromptGraph(prompt, INFO), None)


def test_an_engine_of_ours_receives_the_names_of_a_jobs_fetched_files(tmp_path: Path) -> None:
    own = f"darkroom/{'a' * 64}.png"
    prompt, engine = {"1": load(own), "2": load("a.png")}, cast("Any", Engine(None))
    assert stage(tmp_path).scope(prompt, engine) == {"own_files": [own]}
    assert stage(tmp_path, shares_files=True).scope(prompt, engine) == {}
    engine.has_check = False
    assert stage(tmp_path).scope(prompt, engine) == {}
