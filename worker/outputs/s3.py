"""Uploads to any store that speaks S3, and presigned links to what was uploaded.

boto3 is imported with the first upload, in a thread. Files are streamed, large ones in parts; checksums are added only
where the store asks for them, since several stores refuse them. boto's errors become UploadFailed here, by type.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import SecretStr

from worker.errors import DeliveryFailed
from worker.settings import S3Config

PART_BYTES = 8 * 1024 * 1024
READ_TIMEOUT_SECONDS = 60.0
CLIENTS_KEPT = 8

AddressingStyle = Literal["auto", "path", "virtual"]


class UploadFailed(DeliveryFailed):
    """One file was not taken. `fields`: `reason` (the store's code, or what kind of trouble)."""

    code = "upload_failed"


@dataclass(frozen=True, slots=True)
class S3Target:
    """A bucket and the right to write to it. `is_trusted`: the endpoint came from the operator, not from a request."""

    access_key_id: str
    secret_access_key: SecretStr
    bucket_name: str
    endpoint_url: str
    region: str
    connect_timeout_seconds: float
    connect_attempts: int
    addressing_style: AddressingStyle
    is_trusted: bool


def choose_target(asked: Mapping[str, Any] | None, config: S3Config) -> S3Target | None:
    """The target of a request: its own settings, each empty one filled from the environment's.

    None unless key, secret and bucket are all known.
    """
    own = {key: value for key, value in (asked or {}).items() if value not in (None, "")}
    endpoint = str(own.get("endpoint_url", config.endpoint_url))
    key_id = str(own.get("access_key_id", config.access_key_id.get_secret_value()))
    secret = str(own.get("secret_access_key", config.secret_access_key.get_secret_value()))
    bucket = str(own.get("bucket_name", config.bucket_name))
    if not (key_id and secret and bucket):
        return None
    style = own.get("addressing_style", "auto")
    return S3Target(
        access_key_id=key_id,
        secret_access_key=SecretStr(secret),
        bucket_name=bucket,
        endpoint_url=endpoint,
        region=str(own.get("region", config.region)),
        connect_timeout_seconds=float(own.get("connect_timeout", config.connect_timeout_seconds)),
        connect_attempts=max(1, int(own.get("connect_attempts", config.connect_attempts))),
        addressing_style=cast(AddressingStyle, style) if style in ("path", "virtual") else "auto",
        is_trusted=endpoint == config.endpoint_url,
    )


class S3Uploader:
    """Owns the S3 clients, the last few used ones. Calls run in threads."""

    def __init__(self, presign_seconds: int) -> None:
        self._presign_seconds = presign_seconds
        self._clients: OrderedDict[S3Target, Any] = OrderedDict()
        self._lock = threading.Lock()

    async def upload(self, target: S3Target, path: Path, key: str, media_type: str) -> str:
        """Stores the file and gives a link to it that holds for `presign_seconds`. Raises UploadFailed."""
        return await asyncio.to_thread(self._upload, target, path, key, media_type)

    def _upload(self, target: S3Target, path: Path, key: str, media_type: str) -> str:
        from boto3.exceptions import Boto3Error
        from boto3.s3.transfer import TransferConfig
        from botocore.exceptions import BotoCoreError, ClientError

        transfer = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4)
        try:
            client = self._client(target)
            with path.open("rb") as file:
                client.upload_fileobj(
                    file, target.bucket_name, key, ExtraArgs={"ContentType": media_type}, Config=transfer
                )
            link = client.generate_presigned_url(
                "get_object",
                Params={"Bucket": target.bucket_name, "Key": key},
                ExpiresIn=self._presign_seconds,
            )
        except (ClientError, BotoCoreError, Boto3Error, OSError, ValueError) as error:
            # ValueError: what botocore raises for an endpoint that is no URL
            reason = _reason(error)
            raise UploadFailed(
                f"{path.name} was not uploaded to bucket {target.bucket_name}: {reason}", reason=reason
            ) from None
        return str(link)

    def _client(self, target: S3Target) -> Any:
        with self._lock:
            client = self._clients.pop(target, None)
            self._clients[target] = client = client or _make_client(target)
            if len(self._clients) > CLIENTS_KEPT:
                self._clients.popitem(last=False)
        return client


def _make_client(target: S3Target) -> Any:
    from boto3.session import Session
    from botocore.config import Config

    return Session().client(
        "s3",
        aws_access_key_id=target.access_key_id,
        aws_secret_access_key=target.secret_access_key.get_secret_value(),
        endpoint_url=target.endpoint_url or None,
        region_name=target.region or "us-east-1",
        config=Config(
            signature_version="s3v4",
            connect_timeout=target.connect_timeout_seconds,
            read_timeout=READ_TIMEOUT_SECONDS,
            retries={"total_max_attempts": target.connect_attempts, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": target.addressing_style},
        ),
    )


def _reason(error: Exception) -> str:
    """Short and without the store's own words, which may repeat keys and signatures."""
    from botocore.exceptions import ClientError, ConnectTimeoutError, HTTPClientError, ReadTimeoutError

    match error:
        case ClientError():
            response: Mapping[str, Any] = error.response
            code = response.get("Error", {}).get("Code") or "refused"
            return f"{code} ({response.get('ResponseMetadata', {}).get('HTTPStatusCode')})"
        case ConnectTimeoutError() | ReadTimeoutError():
            return "the store takes too long"
        case HTTPClientError():
            return "the store cannot be reached"
        case FileNotFoundError():
            return "the file is gone"
        case _:
            return type(error).__name__
