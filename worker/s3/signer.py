"""S3Signer: URLs and signatures of one target's requests, by botocore, which opens no connection here.

botocore is imported with the first use, in a thread. Checksums are added only where the store requires them, since
several stores refuse them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from darkroom.worker.s3.credential_chain import chain_session
from darkroom.worker.s3.targets import AddressingStyle, S3Target

SIGNED_SECONDS = 3600  # from the signature to the first byte of the request
DEFAULT_REGION = "us-east-1"
PLAIN_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Pattern of a bucket that may precede AWS's host name in a certificate: without dots."""


class NotSignable(Exception):
    """Error for an endpoint, region, bucket or key that cannot be used in a request. The message names which."""


@dataclass(frozen=True, slots=True)
class S3Signer:
    """Signer of one target's requests. Use `make_signer`, in a thread."""

    client: Any
    bucket_name: str
    is_refreshing: bool = False  # `url` may block for a request that renews the credentials

    def url(self, operation: str, seconds: int = SIGNED_SECONDS, **parameters: Any) -> str:
        """Return the URL of one request with its signature in it. Raises NotSignable."""
        from botocore.exceptions import BotoCoreError, ClientError

        named = {"Bucket": self.bucket_name, **parameters}
        try:
            return str(self.client.generate_presigned_url(operation, Params=named, ExpiresIn=seconds))
        except ClientError as error:  # of the service that gives out a role's credentials
            raise NotSignable(f"credentials refused: {error.response['Error'].get('Code')}") from None
        except (BotoCoreError, ValueError) as error:
            raise NotSignable(f"the store's settings cannot be used: {_problem_of(error)}") from None


def make_signer(session: Any, target: S3Target, region: str = "") -> S3Signer:
    """Return the signer of a target; `region`: the one that the store itself named. Raises NotSignable."""
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ProfileNotFound

    try:
        if target.uses_chain:
            session, keys = chain_session(), {}
        else:
            keys = {
                "aws_access_key_id": target.access_key_id,
                "aws_secret_access_key": target.secret_access_key.get_secret_value(),
                "aws_session_token": target.session_token.get_secret_value() or None,
            }
        client = session.create_client(
            "s3",
            **keys,
            endpoint_url=target.endpoint_url or None,
            region_name=region or target.region or DEFAULT_REGION,
            config=Config(
                signature_version="s3v4",
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                ignore_configured_endpoint_urls=True,  # type: ignore[call-arg]  # its published types are older
                s3={"addressing_style": _style_of(target)},
            ),
        )
    except ProfileNotFound:
        raise NotSignable("AWS_PROFILE: no such profile in AWS's configuration files") from None
    except NoCredentialsError:
        raise NotSignable("no credentials found: no profile, web identity, container or instance role") from None
    except ClientError as error:
        raise NotSignable(f"credentials refused: {error.response['Error'].get('Code')}") from None
    except (BotoCoreError, ValueError) as error:
        raise NotSignable(f"the endpoint or region is not valid: {_problem_of(error)}") from None
    return S3Signer(client, target.bucket_name, is_refreshing=target.uses_chain)


def _problem_of(error: Exception) -> str:
    """Return botocore's finding; its words name buckets and regions, never keys."""
    text = " ".join(str(error).split())
    return text.removeprefix("Parameter validation failed: ")[:300] or "not valid"


def _style_of(target: S3Target) -> AddressingStyle:
    """Return the addressing style: `auto` presigns for AWS's global host, which redirects, others for the region's."""
    if target.addressing_style != "auto" or target.endpoint_url:
        return target.addressing_style
    return "virtual" if PLAIN_BUCKET.fullmatch(target.bucket_name) else "path"
