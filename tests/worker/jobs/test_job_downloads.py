"""Downloads of a job whose engine reads the files while they come: when it may, and what a run's end waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from darkroom.worker.engines.client.lost import PromptRecalled
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.errors import ModelUnavailable, NodeFailed
from darkroom.worker.jobs import job_downloads
from darkroom.worker.jobs.job_downloads import JobDownloads, may_be_read_early
from darkroom.worker.models.download.downloader import DownloadProgress
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.sources import FileSource
from darkroom.worker.prompts.model_needs import MissingModel, ModelNeeds, NamedModel
from tests.fakes import OBJECT_INFO

DONE = RunOutcome({}, {})


def entry(name: str = "a.safetensors") -> ModelEntry:
    return ModelEntry("a", "a", "checkpoints", name, (FileSource(Path("/a")),))


def missing(class_type: str = "CheckpointLoaderSimple", name: str = "a.safetensors") -> MissingModel:
    return MissingModel(NamedModel("1", class_type, "ckpt_name", name, ("checkpoints",), False), entry(name))


class Files:
    """The downloads of one file, which come when `come` is called, or fail by `fail`."""

    def __init__(self) -> None:
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.downloads = JobDownloads([entry()])
        self.downloads.begin(self._bring())

    async def _bring(self) -> None:
        await self._end

    def come(self) -> None:
        self._end.set_result(None)

    def fail(self) -> None:
        self._end.set_exception(ModelUnavailable("a.safetensors cannot be fetched"))


async def ended() -> RunOutcome:
    return DONE


async def test_a_run_ends_once_its_files_are_there() -> None:
    files = Files()
    run = asyncio.create_task(files.downloads.beside(ended()))
    await asyncio.sleep(0.01)
    assert not run.done()
    files.come()
    assert await run is DONE


async def test_a_file_that_cannot_be_had_stops_the_run_and_is_its_error() -> None:
    files = Files()
    is_stopped = asyncio.Event()

    async def runs_on() -> RunOutcome:
        try:
            await asyncio.Event().wait()
        finally:
            is_stopped.set()
        return DONE

    run = asyncio.create_task(files.downloads.beside(runs_on()))
    await asyncio.sleep(0)
    files.fail()
    with pytest.raises(ModelUnavailable):
        await run
    assert is_stopped.is_set()
    late = Files()
    after = asyncio.create_task(late.downloads.beside(ended()))
    await asyncio.sleep(0)
    late.fail()
    with pytest.raises(ModelUnavailable):
        await after


async def test_a_run_whose_file_came_anew_is_run_once_more() -> None:
    files = Files()
    files.come()

    async def fails() -> RunOutcome:
        return RunOutcome({}, {}, error=NodeFailed("its download ended", error_type="engine.errors.DownloadEnded"))

    with pytest.raises(PromptRecalled):
        await files.downloads.beside(fails())


async def test_a_job_is_near_its_files_by_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_downloads, "MIN_SECONDS", 0.0)
    files = Files()
    progress = DownloadProgress("a", "checkpoints/a.safetensors", 1000, 1_000_000)
    waiting = asyncio.create_task(files.downloads.until_near(3600.0))
    files.downloads.progressed(progress.place, progress)
    await asyncio.sleep(0.01)
    assert not waiting.done(), "its pace is not known"
    progress.done_bytes = 999_000
    files.downloads.progressed(progress.place, progress)
    assert await waiting is False
    patient = asyncio.create_task(files.downloads.until_near(0))
    files.come()
    assert await patient is True


def test_only_loaders_of_ours_read_early() -> None:
    info = {**OBJECT_INFO, "CheckpointLoaderSimple": {"python_module": "nodes"}}
    assert may_be_read_early(ModelNeeds((), (missing(),)), info)
    for other in (missing("PackLoader"), missing(name="a.ckpt")):
        assert not may_be_read_early(ModelNeeds((), (missing(), other)), info)
    info["CheckpointLoaderSimple"] = {"python_module": "custom_nodes.pack"}
    assert not may_be_read_early(ModelNeeds((), (missing(),)), info)
