"""The pipeline's last stages: collection of outputs into the job's folder, processing, and upload.

Outputs are processed as the request asks, and uploaded if the request or the operator has set a target: to S3, by PUT,
or to a repository of the Hugging Face hub.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import structlog

from worker.engines.client import EngineClient
from worker.engines.outcome import RunOutcome
from worker.errors import DeliveryFailed, WorkerError
from worker.jobs.priority_semaphore import PrioritySemaphores
from worker.json.values import JsonObject
from worker.media.facts import is_media, with_media_facts
from worker.media.process.processes import MediaProcesses
from worker.observe.io_metrics import IoMetrics
from worker.outputs.claimed_outputs import ClaimedOutputs
from worker.outputs.collect import Output, collect_outputs
from worker.outputs.confined_coding import ConfinedCoding
from worker.outputs.delivered import OutputRecord, Processing, delivered_names, needs_processing, process_output
from worker.outputs.options import MetadataLevel
from worker.outputs.public import files_of
from worker.outputs.targets.hub import HubTarget, HubUploader
from worker.outputs.targets.put import PutTarget, PutUploader
from worker.outputs.targets.s3 import S3Uploader
from worker.s3.stores import S3Stores
from worker.s3.targets import choose_target, find_write_problem
from worker.settings.object_keys import make_keys
from worker.settings.outputs import S3Config
from worker.storage.job import Credentials, Job

UPLOADS_AT_ONCE = 4
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
        await self.engine.view(filename, subfolder, kind, target, max_bytes)


class _Send(Protocol):
    """The upload of one file, which returns its link. Raises UploadFailed."""

    async def __call__(self, path: Path, key: str, media_type: str, /, *, until: float) -> str: ...


@dataclass(frozen=True, slots=True)
class _Store:
    """Destination that files are sent to one by one.

    `place` is what its uploads wait in turn for. An empty template: the worker's.
    """

    place: str
    key_template: str
    send: _Send


class DeliveredOutputs:
    """An JobOutputs: outputs are the job's own files, with links to S3 if there is a target."""

    def __init__(
        self,
        config: S3Config,
        stores: S3Stores,
        default_metadata: MetadataLevel,
        claimed_outputs: ClaimedOutputs | None = None,
        *,
        num_delivering: int = 8,
        io_metrics: IoMetrics | None = None,
        max_bytes: int | None = None,
        put_uploader: PutUploader | None = None,
        hub_uploader: HubUploader | None = None,
        media_processes: MediaProcesses | None = None,
    ) -> None:
        self._config = config
        self._coding = ConfinedCoding(media_processes or MediaProcesses(CONVERSIONS_AT_ONCE))
        self._put_uploader = put_uploader
        self._hub_uploader = hub_uploader
        self._committing = asyncio.Lock()
        self._max_bytes = max_bytes
        self._default_metadata = default_metadata
        self._claimed_outputs = claimed_outputs or ClaimedOutputs(keeps=True)
        self._uploader = S3Uploader(stores)
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

    async def check_store(self) -> None:
        """Log whether the operator's store can be used, before the first upload."""
        target = choose_target(None, self._config)
        if target is None:
            return
        try:
            problem = await self._uploader.find_problem(target)
        except Exception:  # noqa: BLE001 - the store check: outputs are delivered without it
            log.exception("store check failed")
            return
        about = {"bucket": target.bucket_name, "endpoint": target.endpoint_url or "AWS"}
        if problem is None:
            log.info("store reachable", **about)
        else:
            log.error("S3 store unusable", reason=problem, **about)

    def sends_away(self, job: Job) -> bool:
        return self.has_target(job.credentials)

    def has_target(self, credentials: Credentials | None) -> bool:
        """Return True if files have a store to go to: that of a request's credentials, or the operator's."""
        has_own_store = _asked_put(credentials) is not None or _asked_hub(credentials) is not None
        return has_own_store or choose_target(_asked_s3(credentials), self._config) is not None

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
        put = _asked_put(credentials)
        if put is not None and self._put_uploader is not None:
            send = partial(self._put_uploader.upload, put)
            store = _Store(urlsplit(put.url).netloc, put.key_template, send)
            return await self._send_each(job, records, directory, store)
        hub = _asked_hub(credentials)
        if hub is not None and self._hub_uploader is not None:
            return await self._commit(job, records, directory, hub, self._hub_uploader)
        asked = _asked_s3(credentials)
        target = choose_target(asked, self._config)
        if target is None:
            return records
        if problem := find_write_problem(asked, self._config):  # the settings may have changed meanwhile
            files = (file for record in records if "url" not in record for file in files_of(record))
            refused = {id(file): {"upload_error": problem.sentence} for file in files}
            return [_with_links(record, refused) for record in records]
        own_seconds = asked.get("presign_seconds")
        seconds = own_seconds if isinstance(own_seconds, int) and own_seconds else self._config.presign_seconds
        send = partial(self._uploader.upload, target, presign_seconds=seconds)
        return await self._send_each(
            job, records, directory, _Store(target.endpoint_url, str(asked.get("key_template") or ""), send)
        )

    async def _send_each(
        self, job: Job, records: Sequence[OutputRecord], directory: Path, store: _Store
    ) -> Sequence[OutputRecord]:
        """Upload the files of a job, a few at once, and return its records with the links."""
        files, keys = _files_to_send(records, store.key_template or self._config.key_template, job.id)
        at_once = asyncio.Semaphore(UPLOADS_AT_ONCE)

        async def send(file: Mapping[str, object], key: str) -> OutputRecord:
            path = directory / str(file["path"])
            try:
                async with at_once:
                    link = await store.send(path, key, _media_type_of(file), until=until)
            except WorkerError as failed:
                return self._failed(key, failed)
            self._io_metrics.output_uploaded(await asyncio.to_thread(_size_of, path))
            return {"url": link}

        async with self._delivering.acquire(store.place, job.order):
            until = asyncio.get_running_loop().time() + self._config.upload_timeout_seconds
            sent = await asyncio.gather(*(send(file, key) for file, key in zip(files, keys, strict=True)))
        return [_with_links(record, dict(zip(map(id, files), sent, strict=True))) for record in records]

    async def _commit(
        self, job: Job, records: Sequence[OutputRecord], directory: Path, target: HubTarget, uploader: HubUploader
    ) -> Sequence[OutputRecord]:
        """Upload the files of a job as one commit to a repository of the Hugging Face hub."""
        files, keys = _files_to_send(records, target.key_template or self._config.key_template, job.id)
        paths = [directory / str(file["path"]) for file in files]
        sent: list[OutputRecord] = []
        if files:
            # One at a time: two commits at once to one branch, and the hub refuses one.
            async with self._delivering.acquire(uploader.endpoint, job.order), self._committing:
                until = asyncio.get_running_loop().time() + self._config.upload_timeout_seconds
                try:
                    links = await uploader.upload(target, job.id, dict(zip(keys, paths, strict=True)), until=until)
                    sent = [{"url": link} for link in links]
                    for path in paths:
                        self._io_metrics.output_uploaded(await asyncio.to_thread(_size_of, path))
                except WorkerError as failed:
                    sent = [self._failed(key, failed) for key in keys]
        return [_with_links(record, dict(zip(map(id, files), sent, strict=True))) for record in records]

    def _failed(self, key: str, failed: WorkerError) -> OutputRecord:
        self._io_metrics.upload_failed()
        log.warning("upload failed", key=key, reason=failed.message)
        return {"upload_error": failed.message}

    async def _finish(self, job: Job, directory: Path) -> list[OutputRecord]:
        """Return the records with converted pictures. The work is done off the event loop, a few pictures at a time."""
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


def _asked_s3(credentials: Credentials | None) -> Mapping[str, object]:
    return (None if credentials is None else credentials.s3) or {}


def _asked_put(credentials: Credentials | None) -> PutTarget | None:
    return PutTarget.of(None if credentials is None else credentials.put)


def _asked_hub(credentials: Credentials | None) -> HubTarget | None:
    return HubTarget.of(None if credentials is None else credentials.hf)


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
    """Return the metadata of a picture of this run, as in ComfyUI: the prompt that ran, the client's `extra_pnginfo`.

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
