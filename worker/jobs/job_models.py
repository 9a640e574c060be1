"""JobModels: fetches the model files that a job names and the engine lacks, before the job runs (FETCH_MISSING)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from worker.errors import DiskLow, ModelSourceFailed, ModelUnavailable, WorkerError
from worker.jobs.job import Job
from worker.jobs.model_needs import MissingModel, ModelNeeds, find_needs
from worker.json_values import JsonObject, object_at
from worker.models.download.downloader import DownloadProgress, ModelDownloader
from worker.models.errors import DiskFull, DownloadBroke, ModelsError, SourceUnreachable
from worker.models.library import ModelLibrary
from worker.settings.models import FetchMissing
from worker.workflows.node_uses import ModelHint, NodeUse, model_hints, running_part, uses_in_prompt

SAID_SECONDS: Final = 0.25  # between two messages of one job's downloads
RETRY_AFTER_SECONDS: Final = 60.0

log = structlog.get_logger("jobs")


class JobModels:
    """Owner of the front's downloads of model files. Use `close()` at the end."""

    def __init__(self, library: ModelLibrary, mode: FetchMissing = "off") -> None:
        self.library = library
        self.mode = mode
        self._downloader: ModelDownloader | None = None

    async def close(self) -> None:
        if self._downloader is not None:
            await self._downloader.close()

    def needs(self, uses: Sequence[NodeUse], object_info: JsonObject, page: JsonObject) -> ModelNeeds:
        """Return the model files that nodes name, with every source that is known, whatever a job may fetch.

        `page` is the workflow as the page saved it, which may give download addresses; empty without one.
        """
        return find_needs(uses, object_info, self.library.manifest, model_hints(page))

    def may_fetch(self, missing: MissingModel) -> bool:
        """Return True if a job may fetch a missing file."""
        if missing.entry is None or self.mode == "off":
            return False
        return missing.is_operators or self.mode == "any"

    def fetchable(self, prompt: JsonObject, object_info: JsonObject, page: JsonObject) -> list[MissingModel]:
        """Return the missing files of a prompt that its job may fetch, each once."""
        if self.mode == "off":
            return []
        hints: Sequence[ModelHint] = model_hints(page) if self.mode == "any" else ()
        uses = uses_in_prompt(running_part(prompt, object_info))
        needs = find_needs(uses, object_info, self.library.manifest, hints)
        return [item for item in needs.to_fetch().values() if self.may_fetch(item)]

    def pending_names(self, prompt: JsonObject, object_info: JsonObject, page: JsonObject) -> list[str]:
        """Return the names of model files that will be there when the prompt runs."""
        return [item.model.name for item in self.fetchable(prompt, object_info, page)]

    async def fetch(self, job: Job, object_info: JsonObject, say: Callable[[str], None]) -> bool:
        """Fetch the files that a job's prompt lacks; `say` is called with the progress in words.

        Returns True if files have come. The first failure ends the others, unless further jobs wait for them. Raises
        ModelUnavailable, ModelSourceFailed, DiskLow.
        """
        missing = self.fetchable(job.prompt, object_info, page_of(job.request.extra))
        if not missing:
            return False
        log.info("model files missing", request_id=job.id, models=[item.model.name for item in missing])
        said = _Said(say)
        try:
            async with asyncio.TaskGroup() as group:
                for item in missing:
                    group.create_task(self._bring(item, job, said))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return True

    async def _bring(self, item: MissingModel, job: Job, said: _Said) -> None:
        assert item.entry is not None
        if self._downloader is None:
            self._downloader = self.library.downloader()
        said.begun(item.entry.name)
        try:
            await self._downloader.fetch(
                item.entry, priority=job.order, on_progress=said.progressed, is_operators=item.is_operators
            )
        except ModelsError as failed:
            raise _error_of(item, failed) from None

    def in_flight(self) -> list[DownloadProgress]:
        """Return the progress of every download that runs or waits."""
        return [] if self._downloader is None else self._downloader.in_flight()


class _Said:
    """Messages about the downloads of one job: at most a few a second, and none twice."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._at = 0.0
        self._last = ""

    def begun(self, name: str) -> None:
        self._pass_on(f"fetching {name}")
        self._at = 0.0  # so that its size comes at once

    def progressed(self, progress: DownloadProgress) -> None:
        if time.monotonic() - self._at >= SAID_SECONDS:
            self._pass_on(f"fetching {progress.name} {progress.percent:.0f} %")

    def _pass_on(self, message: str) -> None:
        if message != self._last:
            self._last, self._at = message, time.monotonic()
            self._say(message)


def page_of(extra: JsonObject) -> JsonObject:
    """Return the workflow as the page saved it, from a request's extra data; empty without one."""
    return object_at(extra, "extra_pnginfo", "workflow")


def _error_of(item: MissingModel, failed: ModelsError) -> WorkerError:
    model = item.model
    fields = {
        "model": model.name,
        "reason": failed.code,
        "node_id": model.node_id,
        "class_type": model.class_type,
        "field": model.field,
    }
    message = f"The model {model.name} of node {model.node_id} cannot be fetched: {failed}"
    if isinstance(failed, DiskFull):
        return DiskLow(message, retry_after_seconds=RETRY_AFTER_SECONDS, **fields)
    if isinstance(failed, SourceUnreachable | DownloadBroke):
        return ModelSourceFailed(message, **fields)
    return ModelUnavailable(message, **fields)
