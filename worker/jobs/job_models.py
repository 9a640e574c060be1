"""JobModels: the model files that jobs name: found on disk, on shared volumes or fetched before the job runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.errors import DiskLow, ModelSourceFailed, ModelUnavailable, RequestRejected, WorkerError
from darkroom.worker.jobs.job_downloads import JobDownloads, may_be_read_early
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.models.disk_level import DiskLevel
from darkroom.worker.models.download.bucket_level import parse_level
from darkroom.worker.models.download.downloader import DownloadProgress, ModelDownloader
from darkroom.worker.models.entry import ModelEntry, find_name_problem
from darkroom.worker.models.errors import DiskFull, DownloadBroke, ModelsError, SourceUnreachable
from darkroom.worker.models.files import list_models
from darkroom.worker.models.library import ModelLibrary
from darkroom.worker.models.preload import preload_names
from darkroom.worker.models.sources import FileSource
from darkroom.worker.observe.model_metrics import ModelMetrics
from darkroom.worker.prompts.missing_words import explained
from darkroom.worker.prompts.model_needs import MissingModel, ModelNeeds, find_needs
from darkroom.worker.prompts.workflows.node_uses import NodeUse, model_hints, uses_in_prompt
from darkroom.worker.settings.models import ModelSettings
from darkroom.worker.storage.job import Job

SAID_SECONDS: Final = 0.25  # between two messages of one job's downloads
RETRY_AFTER_SECONDS: Final = 60.0
SWEEP_SECONDS: Final = 60.0

log = structlog.get_logger("jobs")


class JobModels:
    """Owner of the front's downloads of model files and of their level on disk. Use `close()` at the end.

    `on_change` is called when files have come or gone, so that lists of them are read anew.
    """

    def __init__(
        self,
        library: ModelLibrary,
        settings: ModelSettings,
        state_directory: Path,
        metrics: ModelMetrics | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.library = library
        self._settings = settings
        self._metrics = metrics or ModelMetrics()
        self._on_change = on_change
        self.disk = DiskLevel(
            library.directory,
            state_directory / "model_uses.json",
            settings.disk_bytes,
            {entry.place for entry in library.manifest.required()},
            self._evicted,
        )
        self._downloader: ModelDownloader | None = None
        self._opening = asyncio.Lock()
        self._downloads: dict[str, JobDownloads] = {}  # by job

    async def close(self) -> None:
        for job_id in list(self._downloads):
            self._stop(job_id)
        if self._downloader is not None:
            await self._downloader.close()
        await asyncio.to_thread(self.disk.sweep)

    async def run_forever(self) -> None:
        """Evict files above the limit, again and again."""
        while True:
            await asyncio.to_thread(self.disk.sweep)
            await asyncio.sleep(SWEEP_SECONDS)

    def in_flight(self) -> list[DownloadProgress]:
        """Return the progress of every download that runs or waits."""
        return [] if self._downloader is None else self._downloader.in_flight()

    def preload_names(self, names: Sequence[str]) -> list[str]:
        """Return the places of the files that names of PRELOAD_MODELS stand for. Reads the folder of models."""
        there = {file.name for file in list_models(self.library.directory)}
        entries = list(self.library.manifest.entries.values())
        return preload_names(names, entries, there, self.disk.listed(), time.time())

    # what a workflow needs

    def needs(self, uses: Sequence[NodeUse], object_info: JsonObject, page: JsonObject) -> ModelNeeds:
        """Return the model files that nodes name, with every source that is known, whatever a job may fetch.

        `page` is the workflow as the page saved it, which may give download addresses; empty without one. Reads shared
        volumes.
        """
        needs = find_needs(uses, object_info, self.library.manifest, model_hints(page))
        return replace(needs, missing=tuple(map(self._on_shared, needs.missing)))

    def may_fetch(self, missing: MissingModel) -> bool:
        """Return True if a job may bring a missing file."""
        if missing.entry is None or self._settings.fetch_missing == "off":
            return False
        return missing.is_operators or self._settings.fetch_missing == "any"

    async def pending_names(self, graph: PromptGraph, page: JsonObject) -> list[str]:
        """Return the names of model files that will be there when the prompt runs."""
        if self._settings.fetch_missing == "off":
            return []
        needs = await self._needs_of_run(graph, page)
        return [item.model.name for item in needs.to_fetch().values() if self.may_fetch(item)]

    async def explained(self, rejected: RequestRejected, graph: PromptGraph, page: JsonObject) -> RequestRejected:
        """Return an engine's refusal of a prompt with what is known of the files that it lacks."""
        manifest = self.library.manifest

        def with_needs() -> RequestRejected:
            needs = self.needs(uses_in_prompt(graph.possible_part()), graph.object_info, page)
            return explained(rejected, graph, needs, manifest)

        return await asyncio.to_thread(with_needs)

    async def _needs_of_run(self, graph: PromptGraph, page: JsonObject) -> ModelNeeds:
        """Return the needs of the nodes that run, with addresses of the workflow where those may be used."""
        allowed = page if self._settings.fetch_missing == "any" else {}
        is_slow = needs_thread(graph.prompt) or bool(self._settings.shared_directories)
        return await off_loop(
            is_slow, lambda: self.needs(uses_in_prompt(graph.running_part()), graph.object_info, allowed)
        )

    def _on_shared(self, missing: MissingModel) -> MissingModel:
        """Return a missing file with the shared volume that has it as its first source."""
        entry, model = missing.entry, missing.model
        name = model.name.replace("\\", "/")
        if find_name_problem(name):
            return missing
        kinds = model.kinds if entry is None else (entry.kind,)
        for directory in self._settings.shared_directories:
            for kind in kinds:
                path = directory / kind / name
                if path.is_file():
                    source = FileSource(path.absolute())
                    if entry is None or not missing.is_operators:
                        found = ModelEntry(f"{kind}/{name}", name, kind, name, (source,))
                    else:
                        found = replace(entry, sources=(source, *entry.sources))
                    return MissingModel(model, found)
        return missing

    def level_beyond_disk(self, name: str) -> str:
        """Return the source of a file that is not on disk: `shared`, `network`, or `none`.

        `name` is a place below `models/` or a file's name. Reads shared volumes.
        """
        entry = next((item for item in self.library.manifest.entries.values() if name in (item.name, item.place)), None)
        place = name if entry is None else entry.place
        if not find_name_problem(place) and any((path / place).is_file() for path in self._settings.shared_directories):
            return "shared"
        return "network" if entry is not None and self._settings.fetch_missing != "off" else "none"

    # a job

    async def fetch(
        self, job: Job, object_info: JsonObject, say: Callable[[str], None], *, reads_early: bool = False
    ) -> bool:
        """Bring the files that a job's prompt lacks; `say` is called with the progress in words.

        Its files are held until `release`. Returns True if files have come. With `reads_early` the job's engine reads
        files while they come: this returns before their end, and `downloads_of` has the rest. The first failure ends
        the others, unless further jobs wait for them. Raises ModelUnavailable, ModelSourceFailed, DiskLow.
        """
        if (begun := self._downloads.get(job.id)) is not None:
            await begun.until_near(0)
            del self._downloads[job.id]
            return True
        if self._settings.fetch_missing == "off" and not self._settings.limits_disk:
            return False
        needs = await self._needs_of_run(PromptGraph(job.prompt, object_info), page_of(job.request.extra))
        self._use(needs, job)
        missing = [item for item in needs.to_fetch().values() if self.may_fetch(item)]
        if not missing:
            return False
        log.info("model files missing", request_id=job.id, models=[item.model.name for item in missing])
        downloads = JobDownloads(item.entry for item in missing if item.entry is not None)
        downloads.begin(self._bring_all(missing, job, downloads, _Said(say)))
        self._downloads[job.id] = downloads
        is_early = reads_early and may_be_read_early(needs, object_info)
        try:
            is_there = await downloads.until_near(self._settings.early_seconds if is_early else 0)
        except BaseException:
            self._stop(job.id)
            raise
        if is_there:
            del self._downloads[job.id]
        return True

    async def _bring_all(self, missing: Sequence[MissingModel], job: Job, downloads: JobDownloads, said: _Said) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for item in missing:
                    group.create_task(self._bring(item, job, downloads, said))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        self._on_change()

    def downloads_of(self, job_id: str) -> JobDownloads | None:
        """Return the downloads of a job whose engine may read their files now; None for a job that has its files.

        Raises as `fetch` does where they have failed.
        """
        downloads = self._downloads.get(job_id)
        if downloads is None or not downloads.is_over:
            return downloads
        del self._downloads[job_id]
        downloads.result()
        return None

    def is_fetching(self, job_id: str) -> bool:
        """Return True if files of a job are on their way."""
        downloads = self._downloads.get(job_id)
        return downloads is not None and not downloads.is_over

    def release(self, job_id: str) -> None:
        """Release the files of a job that has ended, and its downloads if no other job waits for them."""
        self._stop(job_id)
        self.disk.release(job_id)

    def _stop(self, job_id: str) -> None:
        downloads = self._downloads.pop(job_id, None)
        if downloads is not None:
            downloads.cancel()

    def _use(self, needs: ModelNeeds, job: Job) -> None:
        for model in needs.named:
            if model.is_here:
                self._metrics.found("disk")
                for kind in model.kinds:
                    if self.disk.has(place := f"{kind}/{model.name}"):
                        self.disk.use(place, job.id)

    async def _bring(self, item: MissingModel, job: Job, downloads: JobDownloads, said: _Said) -> None:
        entry = item.entry
        assert entry is not None
        said.begun(entry.name)
        downloader = await self.downloader()
        self.disk.hold(entry.place, job.id)
        self._metrics.fetch_began()
        size_bytes: int | None = None
        read_from = [""]

        def progressed(progress: DownloadProgress) -> None:
            read_from[0] = progress.source
            downloads.progressed(progress.place, progress)
            said.progressed(progress)

        try:
            path = await downloader.fetch(
                entry, priority=job.order, on_progress=progressed, is_operators=item.is_operators
            )
            size_bytes = (await asyncio.to_thread(path.stat)).st_size
            self.disk.use(entry.place, job.id)
        except ModelsError as failed:
            raise _error_of(item, failed) from None
        finally:
            self._metrics.found(self._level_of(entry, read_from[0]))
            self._metrics.fetch_ended(size_bytes)

    def _level_of(self, entry: ModelEntry, read_from: str) -> str:
        """Return the level that a file came from: `shared`, `bucket` or `network`."""
        level = parse_level(self._settings.s3_level)
        if level is not None and level.has(read_from):
            return "bucket"
        return "shared" if isinstance(entry.sources[0], FileSource) else "network"

    async def downloader(self) -> ModelDownloader:
        """Return the downloader, made at its first use in a thread: the hub's library takes half a second to import."""
        async with self._opening:
            if self._downloader is None:
                self._downloader = await asyncio.to_thread(self.library.downloader, self._make_room)
        return self._downloader

    def _make_room(self, num_bytes: int, lacking_bytes: int) -> None:
        self.disk.sweep(num_bytes)
        if lacking_bytes:
            self.disk.make_room(lacking_bytes)

    def _evicted(self, place: str, num_bytes: int) -> None:
        self._metrics.evicted()
        self._on_change()


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
