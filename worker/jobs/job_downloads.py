"""JobDownloads: the model files that one job waits for, which its engine may read while the last of them comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final

from darkroom.contract.graph.facts import Facts
from darkroom.worker.engines.client.lost import PromptRecalled
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.errors import NodeFailed
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.models.download.downloader import DownloadProgress
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.prompts.model_needs import ModelNeeds

DOWNLOAD_ENDED: Final = "DownloadEnded"
"""Type of an engine's error: a download that failed, or began anew, while the engine read its file."""

EARLY_ENDINGS: Final = (".safetensors", ".sft")
MIN_SECONDS: Final = 0.25  # before a pace can be estimated


class JobDownloads:
    """Downloads of one job, which `begin` gives the coroutine that brings them and raises why one cannot be had."""

    def __init__(self, entries: Iterable[ModelEntry]) -> None:
        self.places = tuple(entry.place for entry in entries)
        self._task: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._progress: dict[str, DownloadProgress] = {}
        self._began = time.monotonic()
        self._begun_with: dict[str, int] = {}
        self._moved = asyncio.Event()

    def begin(self, bringing: Coroutine[Any, Any, None]) -> None:
        """Start the downloads. Call it once."""
        self._task = asyncio.ensure_future(bringing)
        self._task.add_done_callback(lambda task: None if task.cancelled() else task.exception())  # it may be read late

    def progressed(self, place: str, progress: DownloadProgress) -> None:
        """Note the progress of one file."""
        self._progress[place] = progress
        self._begun_with.setdefault(place, progress.done_bytes)
        self._moved.set()

    @property
    def is_over(self) -> bool:
        """True when all files are there, or one of them cannot be had."""
        return self._task.done()

    def result(self) -> None:
        """Raise why a file cannot be had, if one cannot; for downloads that are over."""
        self._task.result()

    def cancel(self) -> None:
        """Leave the downloads to other jobs that wait for them; without any they end."""
        self._task.cancel()

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all files are there at the pace so far; None before all have begun and it is known."""
        seconds = time.monotonic() - self._began
        if len(self._progress) < len(self.places) or seconds < MIN_SECONDS:
            return None
        come = sum(item.done_bytes - self._begun_with[place] for place, item in self._progress.items())
        left = sum(item.total_bytes - item.done_bytes for item in self._progress.values())
        return left * seconds / come if come else None

    async def until_near(self, seconds: float) -> bool:
        """Wait until all files are there, or are to be within so many seconds. Return True if all are there.

        With 0 the files are waited for. Raises why a file cannot be had.
        """
        while not self._task.done():
            left = self.seconds_left
            if seconds > 0 and left is not None and left <= seconds:
                return False
            self._moved.clear()
            moved = asyncio.ensure_future(self._moved.wait())
            either: set[asyncio.Future[Any]] = {self._task, moved}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                moved.cancel()
        self._task.result()
        return True

    async def beside(self, running: Coroutine[Any, Any, RunOutcome]) -> RunOutcome:
        """Return the outcome of a run that reads the files while they come, once they have been checked.

        A run is stopped when a file cannot be had, and that is raised. Raises PromptRecalled for a run whose file began
        anew under it: it has computed nothing with it.
        """
        run = asyncio.ensure_future(running)
        either: set[asyncio.Future[Any]] = {run, self._task}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done():
                self._task.result()
            outcome = await run
            await asyncio.shield(self._task)
        finally:
            if not run.done():
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)
        if isinstance(outcome.error, NodeFailed) and _type_of(outcome.error) == DOWNLOAD_ENDED:
            raise PromptRecalled("A model file came anew while the prompt read it")
        return outcome


def may_be_read_early(needs: ModelNeeds, object_info: JsonObject) -> bool:
    """Return True if all files that a job brings are read by nodes of ours, which can wait for the rest of them."""
    facts = Facts(object_info)
    return all(
        item.entry is None
        or (
            facts.of(item.model.class_type).reads_early
            and object_at(object_info, item.model.class_type).get("python_module") == "nodes"
            and item.model.name == item.entry.name
            and item.entry.name.lower().endswith(EARLY_ENDINGS)
        )
        for item in needs.missing
    )


def _type_of(error: NodeFailed) -> str:
    fields: Mapping[str, object] = error.fields
    return str(fields.get("error_type") or "").rpartition(".")[2]
