"""Uploads to any store that speaks S3, and presigned links to what was uploaded.

Files are streamed, large ones in parts. boto's errors become UploadFailed here, by type.
"""

from __future__ import annotations

import os
from pathlib import Path

from worker.errors import DeliveryFailed, InputRejected
from worker.own_thread import in_own_thread
from worker.s3_clients import S3Clients, S3Target, store_reason

PART_BYTES = 8 * 1024 * 1024
UPLOAD_THREADS = 4
MAY_NOT_LIST = "AccessDenied"


class UploadFailed(DeliveryFailed):
    """One file was not taken. `fields`: `reason` (the store's code, or what kind of trouble)."""

    code = "upload_failed"


class S3Uploader:
    """Calls run in threads."""

    def __init__(self, clients: S3Clients) -> None:
        self._clients = clients

    async def upload(self, target: S3Target, path: Path, key: str, media_type: str, *, presign_seconds: int) -> str:
        """Stores the file and gives a link to it that holds for `presign_seconds`. Raises UploadFailed."""
        return await in_own_thread(self._upload, target, path, key, media_type, presign_seconds)

    async def find_problem(self, target: S3Target) -> str | None:
        """Why nothing could be stored there, as far as a list of the bucket tells; None where it tells nothing bad."""
        return await in_own_thread(self._find_problem, target)

    def _find_problem(self, target: S3Target) -> str | None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._clients.client(target).list_objects_v2(Bucket=target.bucket_name, MaxKeys=1)
        except (ClientError, BotoCoreError, OSError, ValueError, InputRejected) as error:
            if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") == MAY_NOT_LIST:
                return None  # a key that may only write
            return error.message if isinstance(error, InputRejected) else store_reason(error)
        return None

    def _upload(self, target: S3Target, path: Path, key: str, media_type: str, presign_seconds: int) -> str:
        from boto3.exceptions import Boto3Error
        from boto3.s3.transfer import TransferConfig
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            client = self._clients.client(target)
            with path.open("rb") as file:
                transfer = TransferConfig(
                    multipart_threshold=PART_BYTES,
                    multipart_chunksize=PART_BYTES,
                    max_concurrency=UPLOAD_THREADS,
                    use_threads=os.fstat(file.fileno()).st_size > PART_BYTES,  # of boto's own, one for each part
                )
                client.upload_fileobj(
                    file, target.bucket_name, key, ExtraArgs={"ContentType": media_type}, Config=transfer
                )
            link = client.generate_presigned_url(
                "get_object", Params={"Bucket": target.bucket_name, "Key": key}, ExpiresIn=presign_seconds
            )
        except (ClientError, BotoCoreError, Boto3Error, OSError, ValueError, InputRejected) as error:
            # ValueError: what botocore raises for an endpoint that is no URL
            reason = error.message if isinstance(error, InputRejected) else store_reason(error)
            raise UploadFailed(
                f"{path.name} was not uploaded to bucket {target.bucket_name}: {reason}", reason=reason
            ) from None
        return str(link)
