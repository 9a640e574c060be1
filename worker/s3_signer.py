"""S3Signer: addresses and signatures of one target's requests, by botocore, which opens no connection here.

botocore is imported with the first use, in a thread. Checksums are added only where the store asks for them, since
several stores refuse them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from worker.s3_targets import AddressingStyle, S3Target

SIGNED_SECONDS = 3600  # from the signature to the first byte of the request
PLAIN_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""A bucket that may stand before AWS's host name in a certificate: without dots."""


class NotSignable(Exception):
    """The endpoint, region, bucket or key is not one that a request can be made for. The message says which kind."""


@dataclass(frozen=True, slots=True)
class S3Signer:
    """Use `make_signer`, in a thread."""

    client: Any
    bucket_name: str

    def url(self, operation: str, seconds: int = SIGNED_SECONDS, **parameters: Any) -> str:
        """Return the address of one request with its signature in it. Raises NotSignable."""
        from botocore.exceptions import BotoCoreError

        named = {"Bucket": self.bucket_name, **parameters}
        try:
            return str(self.client.generate_presigned_url(operation, Params=named, ExpiresIn=seconds))
        except (BotoCoreError, ValueError) as error:
            raise NotSignable(type(error).__name__) from None


def make_signer(session: Any, target: S3Target, region: str = "") -> S3Signer:
    """Return the signer of a target; `region`: the one that the store itself named. Raises NotSignable."""
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    try:
        client = session.create_client(
            "s3",
            aws_access_key_id=target.access_key_id,
            aws_secret_access_key=target.secret_access_key.get_secret_value(),
            endpoint_url=target.endpoint_url or None,
            region_name=region or target.region or "us-east-1",
            config=Config(
                signature_version="s3v4",
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                ignore_configured_endpoint_urls=True,  # type: ignore[call-arg]  # its published types are older
                s3={"addressing_style": _style_of(target)},
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise NotSignable(f"the endpoint or region is not valid ({type(error).__name__})") from None
    return S3Signer(client, target.bucket_name)


def _style_of(target: S3Target) -> AddressingStyle:
    """`auto` presigns for AWS's global host, which redirects; the two others for the region's own."""
    if target.addressing_style != "auto" or target.endpoint_url:
        return target.addressing_style
    return "virtual" if PLAIN_BUCKET.fullmatch(target.bucket_name) else "path"
