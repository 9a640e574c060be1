"""Settings of what enters and leaves the front: inputs, S3, webhooks, outputs, and private hosts it may reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from darkroom.worker.settings.object_keys import find_template_problem
from darkroom.worker.settings.section import (
    LOWER,
    MIB,
    Address,
    CommaList,
    PositiveInt,
    PositiveSeconds,
    Section,
    env,
)
from darkroom.worker.settings.store_names import (
    REPO_NAME,
    find_bucket_problem,
    find_endpoint_problem,
    find_region_problem,
    find_secret_problem,
)

MIN_LARGEST_BYTES = 100 * MIB
MAX_PRESIGN_SECONDS = 604_800  # a week: the longest validity of a signature of version 4

Metadata = Literal["none", "prompt", "full"]


def _check_template(value: str) -> str:
    problem = find_template_problem(value)
    if problem:
        raise ValueError(problem)
    return value


def _check_secret(value: SecretStr) -> SecretStr:
    _check(value.get_secret_value(), find_secret_problem)
    return value


def _check_bucket(value: str) -> str:
    return _check(value, find_bucket_problem)


def _check_bucket_or_all(value: str) -> str:
    return value if value == "*" else _check_bucket(value)


def _check_region(value: str) -> str:
    return _check(value, find_region_problem)


def _check_repo(value: str) -> str:
    if not REPO_NAME.fullmatch(value):
        raise ValueError(f"expected owner/name of a repository; got {value[:100]!r}")
    return value


def _check(value: str, find_problem: Callable[[str], str | None]) -> str:
    """Return a value, empty or as `find_problem` wants it. Raises ValueError."""
    problem = find_problem(value) if value else None
    if problem:
        raise ValueError(problem)
    return value


Secret = Annotated[SecretStr, AfterValidator(_check_secret)]


def _folder_prefix(prefix: str) -> str:
    """Return a key prefix that ends with a slash, so that `in` does not open `internal/`; `*` stays."""
    return prefix if prefix == "*" else prefix.strip("/") + "/"


def _without_slash(url: str) -> str:
    return url.rstrip("/")


class NetworkSettings(Section):
    """Exceptions to the guard against private addresses (SSRF)."""

    private_hosts: Annotated[CommaList[str], env("ALLOWED_PRIVATE_HOSTS")] = ()
    """Comma list of hosts, addresses or networks that inputs, webhooks and S3 may reach although they are not
    public."""


class InputLimits(Section):
    """Limits of one download, and of the pixels in all frames of an image."""

    whole: ClassVar[str] = "INPUT_LIMITS"
    """Limits of an input file, `NAME=NUMBER` by commas: `INPUT_LIMITS=bytes=10485760,seconds=60`. Each has a variable
    of its own, too, which wins."""

    max_bytes: Annotated[PositiveInt, env("INPUT_MAX_BYTES", key="bytes")] = MIN_LARGEST_BYTES
    """Largest input file. A download of one may take a minute, and longer by as much as this is above its default."""

    timeout_seconds: PositiveSeconds = 60.0
    """Seconds for one download of `MIN_LARGEST_BYTES` or less: 1.7 MB a second, as the slowest hosts of images have."""

    max_pixels: Annotated[PositiveInt, env("INPUT_MAX_PIXELS", key="pixels")] = 1 << 27
    """Pixels that all frames of an input image may have together; free memory may allow fewer."""

    max_seconds: Annotated[PositiveSeconds, env("INPUT_MAX_SECONDS", key="seconds")] = 3600.0
    """Seconds of an input video or audio."""

    are_shared: Annotated[bool, env("SHARED_FILES")] = False
    """true: a workflow may name files of all jobs (`x.png [output]`, `[temp]`, `darkroom/…`), as in ComfyUI."""

    @property
    def download_seconds(self) -> float:
        """Seconds for one download, in proportion to the largest file where that is above the default."""
        return self.timeout_seconds * max(1.0, self.max_bytes / MIN_LARGEST_BYTES)


class S3Config(Section):
    """Default destination of uploads. Used only when key, secret and bucket are all known.

    With this key a request writes to `bucket_name` and `allowed_buckets`, and reads inputs below `input_prefixes` (each
    ends with a slash); `*` in either means all.
    """

    access_key_id: Annotated[Secret, env("S3_ACCESS_KEY_ID")] = SecretStr("")
    """Access key. Uploads happen when bucket, key and secret are known, or the bucket and another source of
    credentials (`S3_CREDENTIALS`)."""

    secret_access_key: Annotated[Secret, env("S3_SECRET_ACCESS_KEY")] = SecretStr("")
    """Its secret."""

    session_token: Annotated[Secret, env("S3_SESSION_TOKEN")] = SecretStr("")
    """Session token that belongs to temporary keys."""

    credentials: Annotated[Literal["keys", "chain"], LOWER, env("S3_CREDENTIALS")] = "keys"
    """`keys`: those above. `chain`: AWS's default chain of environment, profile (`AWS_PROFILE`, which may assume a
    role), web identity, container and instance role ([files](files.md#s3))."""

    bucket_name: Annotated[str, AfterValidator(_check_bucket), env("S3_BUCKET_NAME")] = ""
    """Bucket that outputs are uploaded to."""

    endpoint_url: Annotated[Address, env("S3_ENDPOINT_URL")] = ""
    """Address of the store. Empty: AWS."""

    region: Annotated[str, AfterValidator(_check_region), env("S3_REGION")] = ""
    """Region of the bucket."""

    connect_timeout_seconds: Annotated[PositiveSeconds, env("S3_CONNECT_TIMEOUT")] = 60.0
    """Seconds to connect to the store."""

    connect_attempts: Annotated[PositiveInt, env("S3_CONNECT_ATTEMPTS")] = 3
    """Attempts for each file."""

    presign_seconds: Annotated[int, Field(gt=0, le=MAX_PRESIGN_SECONDS), env("S3_PRESIGN_SECONDS")] = (
        MAX_PRESIGN_SECONDS
    )
    """Seconds for which presigned URLs of uploads are valid."""

    key_template: Annotated[str, AfterValidator(_check_template), env("S3_KEY_TEMPLATE")] = "{request_id}/{filename}"
    """Key of an upload in the bucket. A request's own template stays below `{request_id}/` unless the request has its
    own credentials."""

    addressing_style: Annotated[Literal["auto", "path", "virtual"], LOWER, env("S3_ADDRESSING_STYLE")] = "auto"
    """`path`, `virtual` (the bucket in the host name), or `auto`: as boto3 decides."""

    allowed_buckets: Annotated[
        CommaList[Annotated[str, AfterValidator(_check_bucket_or_all)]], env("S3_ALLOWED_BUCKETS")
    ] = ()
    """Comma list of buckets, besides `S3_BUCKET_NAME`, that a request may name with the worker's own credentials; `*`:
    all."""

    input_prefixes: Annotated[CommaList[Annotated[str, AfterValidator(_folder_prefix)]], env("S3_INPUT_PREFIXES")] = ()
    """Comma list of folders of `S3_BUCKET_NAME` that inputs are read from with the worker's own credentials; `*`: all
    of it."""

    upload_timeout_seconds: PositiveSeconds = 3600.0
    """Seconds for all uploads of one job together: as long as a job may run by default."""

    @property
    def uses_chain(self) -> bool:
        """True if the operator's credentials are not the fixed keys alone."""
        return self.credentials == "chain"

    @model_validator(mode="after")
    def _has_one_source(self) -> S3Config:
        has_keys = bool(self.access_key_id.get_secret_value() or self.secret_access_key.get_secret_value())
        if has_keys and self.uses_chain:
            raise ValueError("S3_CREDENTIALS=chain excludes S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY")
        return self

    @model_validator(mode="after")
    def _has_an_endpoint(self) -> S3Config:
        problem = find_endpoint_problem(self.endpoint_url, self.bucket_name)
        if problem:
            raise ValueError(f"S3_ENDPOINT_URL: {problem}")
        return self

    @property
    def missing_names(self) -> tuple[str, ...]:
        """Variables without which the worker has no store of its own; empty where it has one."""
        given = {
            "S3_ACCESS_KEY_ID": self.access_key_id.get_secret_value(),
            "S3_SECRET_ACCESS_KEY": self.secret_access_key.get_secret_value(),
            "S3_BUCKET_NAME": self.bucket_name,
        }
        is_keyless = self.uses_chain and not any(list(given.values())[:2])
        return tuple(
            name for name, value in given.items() if not value and (name == "S3_BUCKET_NAME" or not is_keyless)
        )


class WebhookConfig(Section):
    """Webhook of every request that names none; the secret signs for this URL alone. An empty URL sends nothing."""

    url: Annotated[Address, env("WEBHOOK_URL")] = ""
    """Receiver of the webhooks of requests that name none."""

    secret: Annotated[SecretStr, env("WEBHOOK_SECRET")] = SecretStr("")
    """Key of the signature for `WEBHOOK_URL`; it signs for no other address."""

    timeout_seconds: Annotated[PositiveSeconds, env("WEBHOOK_TIMEOUT")] = 30.0
    """Seconds for one delivery."""


class OutputConfig(Section):
    """Form of results and of the files in them."""

    base64_max_bytes: Annotated[PositiveInt, env("OUTPUT_BASE64_MAX_BYTES")] = 10485760
    """Larger outputs are not put into results as base64; they stay fetchable."""

    public_url: Annotated[Address, AfterValidator(_without_slash), env("PUBLIC_URL")] = ""
    """Base of links in results. Empty: the Host header of the request. Its host counts as the worker's own name."""

    keeps_engine_output: Annotated[bool, env("KEEP_ENGINE_OUTPUT")] = True
    """false: outputs that a job has claimed are removed from the engine's `output/` folder. Unset it is false where
    `ENGINE_SANDBOX` is not `off`."""

    include_engine_response: Annotated[bool, env("INCLUDE_COMFYUI_RESPONSE")] = False
    """Put the engine's history entry into results (also by the header `X-Include-ComfyUI-Response`)."""

    hub_repos: Annotated[CommaList[Annotated[str, AfterValidator(_check_repo)]], env("HF_OUTPUT_REPOS")] = ()
    """Comma list of `owner/name`: repositories of the Hugging Face hub that requests may write to with `HF_TOKEN`."""

    metadata: Annotated[Metadata, LOWER, env("METADATA")] = "none"
    """Metadata in images: `none`, `prompt` or `full` (prompt and workflow)."""
