"""Uploads to S3-compatible stores, and presigned URLs of the uploaded files, each with a deadline."""

from __future__ import annotations

import asyncio
from pathlib import Path

from worker.errors import DeliveryFailed, InputRejected
from worker.guard.network_errors import cause_of
from worker.s3.stores import S3Stores, StoreFailed
from worker.s3.targets import S3Target

LOOK_SECONDS = 60.0


class UploadFailed(DeliveryFailed):
    """A rejected upload. `fields`: `reason` is the store's error code or the kind of failure."""

    code = "upload_failed"


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
            reason = "the uploads of the job took longer than S3_UPLOAD_TIMEOUT"
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
