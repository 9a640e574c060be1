"""The pipeline's last stages: outputs into the job's folder, then to S3 where the request or the operator wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from worker.engine.client import EngineClient
from worker.engine.outcome import RunOutcome
from worker.errors import WorkerError
from worker.jobs.job import Job
from worker.jobs.stages import OutputRecord
from worker.outputs.collect import collect_outputs
from worker.outputs.keys import make_keys
from worker.outputs.s3 import S3Uploader
from worker.s3_clients import S3Clients, S3Target, choose_target
from worker.settings import S3Config

UPLOADS_AT_ONCE = 4

log = structlog.get_logger("outputs")


@dataclass(frozen=True, slots=True)
class _EngineFiles:
    """An engine as `collect_outputs` sees it."""

    engine: EngineClient

    def folder_of(self, kind: str) -> Path | None:
        return None if self.engine.folders is None else self.engine.folders.of(kind)

    async def view(self, filename: str, subfolder: str, kind: str, target: Path) -> None:
        await self.engine.view(filename, subfolder, kind, target)


class DeliveredOutputs:
    """An OutputStage: outputs are the job's own files, with links to S3 where there is a target."""

    def __init__(self, config: S3Config, clients: S3Clients) -> None:
        self._config = config
        self._uploader = S3Uploader(clients)

    async def collect(self, outcome: RunOutcome, directory: Path, engine: EngineClient) -> Sequence[OutputRecord]:
        outputs = await collect_outputs(outcome.outputs, directory, _EngineFiles(engine))
        return [output.as_record() for output in outputs]

    async def deliver(self, job: Job, directory: Path) -> Sequence[OutputRecord]:
        """The job's outputs with `url` or `upload_error` added. One that fails does not fail the others."""
        asked = (None if job.credentials is None else job.credentials.s3) or {}
        target = choose_target(asked, self._config)
        if target is None:
            return [dict(record) for record in job.outputs]
        keys = make_keys(asked.get("key_template") or self._config.key_template, job.id, job.outputs)
        presign_seconds = int(asked.get("presign_seconds") or self._config.presign_seconds)
        at_once = asyncio.Semaphore(UPLOADS_AT_ONCE)
        return await asyncio.gather(
            *(
                self._send(record, directory, target, key, presign_seconds, at_once)
                for record, key in zip(job.outputs, keys, strict=True)
            )
        )

    async def _send(
        self,
        record: Mapping[str, Any],
        directory: Path,
        target: S3Target,
        key: str,
        presign_seconds: int,
        at_once: asyncio.Semaphore,
    ) -> OutputRecord:
        if "url" in record:  # uploaded before a restart
            return dict(record)
        path, media_type = directory / str(record["path"]), str(record.get("media_type") or "application/octet-stream")
        plain = {name: value for name, value in record.items() if name != "upload_error"}
        try:
            async with at_once:
                url = await self._uploader.upload(target, path, key, media_type, presign_seconds=presign_seconds)
                return plain | {"url": url}
        except WorkerError as failed:
            log.warning("upload failed", key=key, reason=failed.message)
            return plain | {"upload_error": failed.message}
