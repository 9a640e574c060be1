"""AskedDownloads: model files that an operator has asked for on the page, fetched while jobs run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from darkroom.worker.concurrency.background_tasks import BackgroundTasks
from darkroom.worker.models.download.downloader import ModelDownloader
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.errors import ModelsError
from darkroom.worker.observe.model_metrics import ModelMetrics

log = structlog.get_logger("models")


class AskedDownloads:
    """Owner of these downloads, and of the reason why one has failed. Use `close()` at the end.

    `open_downloader` returns the worker's downloader; `on_change` is called when a file has come.
    """

    def __init__(
        self,
        open_downloader: Callable[[], Awaitable[ModelDownloader]],
        metrics: ModelMetrics,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._open_downloader = open_downloader
        self._metrics = metrics
        self._on_change = on_change
        self._tasks = BackgroundTasks(self._broke)
        self._under_way: set[str] = set()
        self._problems: dict[str, str] = {}

    def begin(self, entries: Iterable[ModelEntry]) -> None:
        """Begin to fetch files, by manifest entries; one that is on its way is not begun again."""
        for entry in entries:
            if entry.place not in self._under_way:
                self._under_way.add(entry.place)
                self._problems.pop(entry.place, None)
                self._tasks.spawn(self._fetch(entry), name=f"asked-{entry.place}")

    def is_under_way(self, place: str) -> bool:
        """Return True while a file, by its place below `models/`, is fetched or waits for its turn."""
        return place in self._under_way

    def problem_of(self, place: str) -> str:
        """Return why the last download of a file failed; empty without a failure."""
        return self._problems.get(place, "")

    async def close(self) -> None:
        """End the downloads; what has come is kept and resumed."""
        await self._tasks.close()

    async def _fetch(self, entry: ModelEntry) -> None:
        size_bytes: int | None = None
        self._metrics.fetch_began()
        try:
            downloader = await self._open_downloader()
            path = await downloader.fetch(entry)
            size_bytes = (await asyncio.to_thread(path.stat)).st_size
            self._on_change()
        except (ModelsError, OSError) as error:
            self._problems[entry.place] = str(error)
            log.warning("model not fetched", model=entry.name, reason=str(error))
        finally:
            self._under_way.discard(entry.place)
            self._metrics.fetch_ended(size_bytes)

    def _broke(self, task: asyncio.Task[None], error: BaseException) -> None:
        place = task.get_name().removeprefix("asked-")
        self._problems[place] = f"{place}: the download failed; got {type(error).__name__}, the log has the reason"
        log.error("model not fetched", model=place, exc_info=error)
