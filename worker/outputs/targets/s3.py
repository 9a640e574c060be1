"""Uploads to S3-compatible stores, and presigned URLs of the uploaded files, each with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import structlog
from pydantic import ConfigDict, Field, field_validator

from darkroom.worker.errors import InputRejected, Problem, RequestRejected, WorkerError
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.json.request_model import RequestModel
from darkroom.worker.json.values import JsonObject
from darkroom.worker.outputs.targets.form import check_template, checked
from darkroom.worker.outputs.targets.target import Destination, SentFile, UploadFailed, check_address, send_each
from darkroom.worker.s3.stores import S3Stores, StoreFailed
from darkroom.worker.s3.targets import (
    S3Target,
    choose_target,
    find_missing_bucket,
    find_missing_key,
    find_write_problem,
)
from darkroom.worker.settings.outputs import MAX_PRESIGN_SECONDS, S3Config
from darkroom.worker.settings.store_names import (
    find_bucket_problem,
    find_endpoint_doubt,
    find_endpoint_problem,
    find_region_problem,
    find_secret_problem,
)

LOOK_SECONDS = 60.0

log = structlog.get_logger("outputs")


class S3Input(RequestModel):
    """Destination of this request's outputs. Empty fields come from the environment."""

    model_config = ConfigDict(extra="ignore")

    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    endpoint_url: str = ""
    bucket_name: str = ""
    region: str = ""
    connect_timeout: float | None = Field(default=None, gt=0)
    connect_attempts: int | None = Field(default=None, gt=0)
    addressing_style: Literal["auto", "path", "virtual"] | None = None
    key_template: str = ""
    presign_seconds: int | None = Field(default=None, gt=0, le=MAX_PRESIGN_SECONDS)

    @field_validator("access_key_id", "secret_access_key", "session_token")
    @classmethod
    def _are_keys(cls, value: str) -> str:
        return checked(value, find_secret_problem)

    @field_validator("bucket_name")
    @classmethod
    def _is_a_bucket(cls, value: str) -> str:
        return checked(value, find_bucket_problem)

    @field_validator("region")
    @classmethod
    def _is_a_region(cls, value: str) -> str:
        return checked(value, find_region_problem)

    @field_validator("endpoint_url")
    @classmethod
    def _is_an_endpoint(cls, value: str) -> str:
        return checked(value, find_endpoint_problem)

    @field_validator("key_template")
    @classmethod
    def _makes_keys(cls, value: str) -> str:
        return check_template(value)


class S3Uploader:
    """Uploads with deadlines. Cancelling an upload closes its connections, and so does its deadline."""

    def __init__(self, stores: S3Stores) -> None:
        self._stores = stores

    async def upload(
        self, target: S3Target, path: Path, key: str, media_type: str, *, presign_seconds: int, until: float
    ) -> str:
        """Upload a file and return a URL of it that is valid for `presign_seconds`. Raises UploadFailed.

        `until` is a time of the event loop's clock.
        """
        try:
            async with asyncio.timeout_at(until):
                await self._stores.write(target, path, key, media_type)
                return await self._stores.link(target, key, presign_seconds)
        except StoreFailed as failed:
            reason = failed.reason
        except InputRejected as refused:  # by the address guard
            reason = refused.message
        except FileNotFoundError:
            reason = "the file is gone"
        except TimeoutError:
            reason = "the uploads of the job took longer than an hour"
        except OSError as error:
            reason = cause_of(error)
        raise UploadFailed(f"{path.name} was not uploaded to bucket {target.bucket_name}: {reason}", reason=reason)

    async def find_problem(self, target: S3Target) -> str | None:
        """Return the reason why uploads would fail, as far as listing the bucket shows, or None."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._stores.find_problem(target)
        except TimeoutError:
            return "the store takes too long"


class S3OutputTarget:
    """The OutputTarget of S3: a request's bucket, or the operator's."""

    def __init__(self, config: S3Config, stores: S3Stores, addresses: AddressGuard) -> None:
        self._config = config
        self._uploader = S3Uploader(stores)
        self._addresses = addresses

    def check(self, asked: JsonObject) -> Problem | None:
        """Check a request's settings; return what is doubtful about them and no reason to refuse it, or None.

        Raises RequestRejected for an address that cannot be a store's, for another one than the operator's without its
        own credentials, and for uses that the operator's credentials do not permit.
        """
        url = str(asked.get("endpoint_url") or "")
        if url and url != self._config.endpoint_url:
            check_address(self._addresses, url, "input.s3.endpoint_url")
            if not (asked.get("access_key_id") and asked.get("secret_access_key")):
                message = "another endpoint than the worker's needs access_key_id and secret_access_key beside it"
                raise RequestRejected([Problem(message, field="input.s3.access_key_id", type="missing")])
        if problem := find_missing_key(asked, self._config) or find_write_problem(asked, self._config):
            raise RequestRejected([problem])
        own = url or self._config.endpoint_url, str(asked.get("bucket_name") or self._config.bucket_name)
        if wrong := find_endpoint_problem(*own):
            raise RequestRejected([Problem(wrong, field="input.s3.endpoint_url", type="bucket_in_address")])
        if doubt := find_endpoint_doubt(*own):
            return Problem(doubt, field="input.s3.endpoint_url", type="bucket_in_address")
        return find_missing_bucket(asked, self._config)

    def describe(self, asked: JsonObject) -> Destination | None:
        """Return the destination of files, None without a bucket and the credentials for it."""
        target = choose_target(asked, self._config)
        if target is None:
            return None
        problem = find_write_problem(asked, self._config)  # the settings may have changed since the check
        template = str(asked.get("key_template") or "")
        return Destination(target.endpoint_url, template, "" if problem is None else problem.sentence)

    async def deliver(
        self, asked: JsonObject, job_id: str, files: Sequence[SentFile], *, seconds: float
    ) -> list[str | WorkerError]:
        """Upload files within some seconds; return the link of each, or why it was not uploaded."""
        target = choose_target(asked, self._config)
        if target is None:
            raise ValueError("asked: names no bucket; expected settings that `describe` has a destination for")
        own_seconds = asked.get("presign_seconds")
        link_seconds = own_seconds if isinstance(own_seconds, int) and own_seconds else self._config.presign_seconds
        until = asyncio.get_running_loop().time() + seconds

        async def send(file: SentFile) -> str:
            return await self._uploader.upload(
                target, file.path, file.key, file.media_type, presign_seconds=link_seconds, until=until
            )

        return await send_each(files, send)

    async def report_own_store(self) -> None:
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
