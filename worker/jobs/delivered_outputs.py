"""The pipeline's last stages: collection of outputs into the job's folder, processing, and upload.

Outputs are processed as the request asks, and uploaded if the request or the operator has set a target
(`worker/outputs/targets/`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.errors import DeliveryFailed, WorkerError
from darkroom.worker.jobs.priority_semaphore import PrioritySemaphores
from darkroom.worker.json.values import JsonObject
from darkroom.worker.media.facts import is_media, with_media_facts
from darkroom.worker.media.process.processes import MediaProcesses
from darkroom.worker.observe.io_metrics import IoMetrics
from darkroom.worker.outputs.claimed_outputs import ClaimedOutputs
from darkroom.worker.outputs.collect import Output, collect_outputs
from darkroom.worker.outputs.confined_coding import ConfinedCoding
from darkroom.worker.outputs.delivered import (
    OutputRecord,
    Processing,
    delivered_names,
    needs_processing,
    process_output,
)
from darkroom.worker.outputs.options import MetadataLevel
from darkroom.worker.outputs.public import files_of
from darkroom.worker.outputs.targets.target import OutputTargets, SentFile
from darkroom.worker.settings.object_keys import make_keys
from darkroom.worker.settings.outputs import S3Config
from darkroom.worker.storage.job import Credentials, Job

CONVERSIONS_AT_ONCE = 2
TEXTS_NAME = ".texts.json"

log = structlog.get_logger("outputs")


@dataclass(frozen=True, slots=True)
class _EngineFiles:
    """The FileSource of `collect_outputs` for an engine."""

    engine: EngineClient

    def folder_of(self, kind: str) -> Path | None:
        return None if self.engine.folders is None else self.engine.folders.of(kind)

    async def view(self, filename: str, subfolder: str, kind: str, target: Path, max_bytes: int | None = None) -> None:
        await self.engine.files.view(filename, subfolder, kind, target, max_bytes)


class DeliveredOutputs:
    """The JobOutputs of a front: outputs are the job's own files, with links to a store if there is a target."""

    def __init__(
        self,
        config: S3Config,
        targets: OutputTargets,
        default_metadata: MetadataLevel,
        claimed_outputs: ClaimedOutputs | None = None,
        *,
        num_delivering: int = 8,
        io_metrics: IoMetrics | None = None,
        max_bytes: int | None = None,
        media_processes: MediaProcesses | None = None,
    ) -> None:
        self._config = config
        self._coding = ConfinedCoding(media_processes or MediaProcesses(CONVERSIONS_AT_ONCE))
        self._targets = targets
        self._max_bytes = max_bytes
        self._default_metadata = default_metadata
        self._claimed_outputs = claimed_outputs or ClaimedOutputs(keeps=True)
        self._io_metrics = io_metrics or IoMetrics()
        self._delivering = PrioritySemaphores(num_delivering)
        self._converting = asyncio.Semaphore(CONVERSIONS_AT_ONCE)

    async def collect(
        self, job: Job, outcome: RunOutcome, directory: Path, engine: EngineClient
    ) -> Sequence[OutputRecord]:
        outputs = await collect_outputs(
            outcome.outputs, directory, _EngineFiles(engine), self._claimed_outputs, self._max_bytes
        )
        if self._level(job) != "none" and outputs:
            await asyncio.to_thread(_keep_texts, directory, texts_of(outcome.entry))
        records = [output.as_record() for output in outputs]
        if not any(is_media(record.get("media_type")) for record in records):
            return records
        paths = [output.path if isinstance(output, Output) else None for output in outputs]
        return await asyncio.to_thread(with_media_facts, list(zip(records, paths, strict=True)))

    def sends_away(self, job: Job) -> bool:
        return self.has_target(job.credentials)

    def has_target(self, credentials: Credentials | None) -> bool:
        """Return True if files have a store to go to: that of a request's credentials, or the operator's."""
        return self._targets.choose(_stores_of(credentials)) is not None

    async def deliver(self, job: Job, directory: Path) -> Sequence[OutputRecord]:
        """Return the job's processed outputs, with `url` or `upload_error` added.

        A failed output does not fail the others.
        """
        records = await self._finish(job, directory)
        return await self._sent(job, job.credentials, records, directory)

    async def send_again(self, job: Job, credentials: Credentials, directory: Path) -> Sequence[OutputRecord]:
        """Return the records of an ended job, what is in no store uploaded by these credentials."""
        return await self._sent(job, credentials, [dict(record) for record in job.outputs], directory)

    async def _sent(
        self, job: Job, credentials: Credentials | None, records: Sequence[OutputRecord], directory: Path
    ) -> Sequence[OutputRecord]:
        chosen = self._targets.choose(_stores_of(credentials))
        if chosen is None:
            return records
        destination = chosen.destination
        if destination.problem:
            unsent = (file for record in records if "url" not in record for file in files_of(record))
            refused = {id(file): {"upload_error": destination.problem} for file in unsent}
            return [_with_links(record, refused) for record in records]
        files, keys = _files_to_send(records, destination.key_template or self._config.key_template, job.id)
        if not files:
            return [dict(record) for record in records]
        sent = [
            SentFile(directory / str(file["path"]), key, _media_type_of(file))
            for file, key in zip(files, keys, strict=True)
        ]
        async with self._delivering.acquire(destination.queue, job.order):
            seconds = self._config.upload_timeout_seconds
            outcomes = await chosen.target.deliver(chosen.asked, job.id, sent, seconds=seconds)
        added = [await self._added(file, outcome) for file, outcome in zip(sent, outcomes, strict=True)]
        return [_with_links(record, dict(zip(map(id, files), added, strict=True))) for record in records]

    async def _added(self, file: SentFile, outcome: str | WorkerError) -> OutputRecord:
        """Return the fields of a file's record that describe its upload."""
        if isinstance(outcome, WorkerError):
            self._io_metrics.upload_failed()
            log.warning("upload failed", key=file.key, reason=outcome.message)
            return {"upload_error": outcome.message}
        self._io_metrics.output_uploaded(await asyncio.to_thread(_size_of, file.path))
        return {"url": outcome}

    async def _finish(self, job: Job, directory: Path) -> list[OutputRecord]:
        """Return the records with converted images. The work is done off the event loop, a few images at a time."""
        level = self._level(job)
        texts = {} if level == "none" else await asyncio.to_thread(_kept_texts, directory)
        wanted = Processing(job.request.output, level, texts, self._coding)

        async def one(record: JsonObject, name: str) -> OutputRecord:
            if "url" in record or not needs_processing(record, level):  # already uploaded before a restart
                return dict(record)
            try:
                async with self._converting:
                    return await asyncio.to_thread(process_output, record, name, directory, wanted)
            except Exception:  # noqa: BLE001 - one output: it is delivered unchanged
                log.exception("output processing failed", request_id=job.id)
                return dict(record) | {"conversion_error": "the worker failed; its log has the reason"}

        names = delivered_names(job.outputs, job.request.output)
        return await asyncio.gather(*(one(record, name) for record, name in zip(job.outputs, names, strict=True)))

    def _level(self, job: Job) -> MetadataLevel:
        return job.request.output.metadata or self._default_metadata


def _stores_of(credentials: Credentials | None) -> Mapping[str, JsonObject]:
    return {} if credentials is None else credentials.stores


def _files_to_send(
    records: Sequence[OutputRecord], template: str, job_id: str
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the files of a job that are in no store yet, and their keys, which are those among all of its files."""
    files = [file for record in records for file in files_of(record)]
    keys = make_keys(template, job_id, files)
    left = [(file, key) for file, key in zip(files, keys, strict=True) if "url" not in file]
    return [file for file, _ in left], [key for _, key in left]


def _media_type_of(file: Mapping[str, object]) -> str:
    return str(file.get("media_type") or "application/octet-stream")


def texts_of(entry: JsonObject) -> dict[str, str]:
    """Return the metadata of an image of this run, as in ComfyUI: the prompt that ran, the client's `extra_pnginfo`.

    `entry` is the run's history entry, whose prompt contains the names of fetched files, never their addresses.
    """
    ran: Any = entry.get("prompt") or ()
    prompt = ran[2] if len(ran) > 2 else None
    extra = ran[3] if len(ran) > 3 and isinstance(ran[3], Mapping) else {}
    texts = {} if prompt is None else {"prompt": json.dumps(prompt)}
    return texts | {str(key): json.dumps(value) for key, value in (extra.get("extra_pnginfo") or {}).items()}


def _keep_texts(directory: Path, texts: Mapping[str, str]) -> None:
    """Store the metadata on disk, because delivery may follow a restart that loses the engine's history.

    Raises DeliveryFailed.
    """
    try:
        (directory / TEXTS_NAME).write_text(json.dumps(texts), encoding="utf-8")
    except OSError as error:
        raise DeliveryFailed(f"The outputs' metadata cannot be stored: {error.strerror}") from None


def _kept_texts(directory: Path) -> dict[str, str]:
    try:
        texts: dict[str, str] = json.loads((directory / TEXTS_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return texts


def _with_links(record: OutputRecord, added: Mapping[int, OutputRecord]) -> OutputRecord:
    linked = _with_link(record, added)
    if "thumbnail" in record:
        linked["thumbnail"] = _with_link(record["thumbnail"], added)
    return linked


def _with_link(file: OutputRecord, added: Mapping[int, OutputRecord]) -> OutputRecord:
    """Return a file's record with what came of its upload, in place of an earlier failure."""
    new = added.get(id(file))
    return dict(file) if new is None else {**{key: file[key] for key in file if key != "upload_error"}, **new}


def _size_of(path: Path) -> int:
    return path.stat().st_size
