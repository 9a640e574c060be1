"""Buckets that requests may use, and the key for each: the request's own, or the operator's within its limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import SecretStr

from darkroom.worker.errors import Problem
from darkroom.worker.settings.object_keys import OWN_PREFIX
from darkroom.worker.settings.outputs import S3Config

AddressingStyle = Literal["auto", "path", "virtual"]
EVERYTHING = "*"
NO_TOKEN = SecretStr("")
KEY_FIELDS = ("access_key_id", "secret_access_key")


@dataclass(frozen=True, slots=True)
class S3Target:
    """S3 bucket with the credentials to use it: keys, perhaps temporary ones with a session token, or AWS's chain.

    `is_trusted`: the endpoint came from the operator, not from a request. `has_operators_key`: the key, or a part of
    it, did; a request's use of it is limited.
    """

    access_key_id: str
    secret_access_key: SecretStr
    bucket_name: str
    endpoint_url: str
    region: str
    connect_timeout_seconds: float
    connect_attempts: int
    addressing_style: AddressingStyle
    is_trusted: bool
    has_operators_key: bool
    session_token: SecretStr = NO_TOKEN
    uses_chain: bool = False


def choose_target(asked: Mapping[str, Any] | None, config: S3Config, *, bucket: str = "") -> S3Target | None:
    """Return the target of a request: its own settings, each empty one filled from the environment's.

    The operator's key is used at the operator's endpoint alone. `bucket`, that of an input, replaces the one that
    either names; the operator's key reads inputs from the operator's bucket alone. None unless key, secret and bucket
    are all known. Neither bucket nor key of an object is checked here: see `find_write_problem` and `may_read`.
    """
    own = {key: value for key, value in (asked or {}).items() if value not in (None, "")}
    endpoint = str(own.get("endpoint_url", config.endpoint_url))
    key_id, secret = str(own.get("access_key_id", "")), str(own.get("secret_access_key", ""))
    token, has_own_key = SecretStr(str(own.get("session_token", ""))), bool(key_id and secret)
    uses_chain = False
    if not has_own_key and endpoint == config.endpoint_url and bucket in ("", config.bucket_name):
        uses_chain = config.uses_chain
        if uses_chain:
            key_id = secret = ""
        key_id = key_id or config.access_key_id.get_secret_value()
        secret = secret or config.secret_access_key.get_secret_value()
        token = config.session_token
    bucket = bucket or str(own.get("bucket_name", config.bucket_name))
    if not ((key_id and secret) or uses_chain) or not bucket:
        return None
    return S3Target(
        access_key_id=key_id,
        secret_access_key=SecretStr(secret),
        bucket_name=bucket,
        endpoint_url=endpoint,
        region=str(own.get("region", config.region)),
        connect_timeout_seconds=float(own.get("connect_timeout", config.connect_timeout_seconds)),
        connect_attempts=max(1, int(own.get("connect_attempts", config.connect_attempts))),
        addressing_style=own.get("addressing_style", config.addressing_style),
        is_trusted=endpoint == config.endpoint_url,
        has_operators_key=not has_own_key,
        session_token=token,
        uses_chain=uses_chain,
    )


def find_missing_key(asked: Mapping[str, object], config: S3Config) -> Problem | None:
    """Return the problem of a request that names a store without the credentials for it, or None."""
    has_place = any(asked.get(name) for name in ("bucket_name", "endpoint_url", "session_token", *KEY_FIELDS))
    if not has_place or choose_target({**asked, "bucket_name": asked.get("bucket_name") or "any"}, config) is not None:
        return None
    missing = [name for name in KEY_FIELDS if not asked.get(name)]
    return Problem(
        f"{' and '.join(missing)} missing; the worker has no credentials of its own for this store",
        field=f"input.s3.{missing[0]}",
        type="missing",
    )


def find_missing_bucket(asked: Mapping[str, object], config: S3Config) -> Problem | None:
    """Return the reason why credentials of a request store no outputs, or None; they may be for its inputs alone."""
    if not any(asked.get(name) for name in KEY_FIELDS) or asked.get("bucket_name") or config.bucket_name:
        return None
    message = "bucket_name: missing, so the outputs stay on the worker; expected the bucket for them"
    return Problem(message, field="input.s3.bucket_name", type="missing")


def find_write_problem(asked: Mapping[str, object] | None, config: S3Config) -> Problem | None:
    """Return the reason why a request may not store its outputs as it asks, or None.

    With the operator's key only buckets of S3_ALLOWED_BUCKETS are written to. Of the keys that a request itself names,
    only those below its job's own prefix are allowed. The operator's own template may put outputs anywhere.
    """
    target = choose_target(asked, config)
    if target is None or not target.has_operators_key:
        return None
    buckets = {config.bucket_name, *config.allowed_buckets} - {""}
    if EVERYTHING not in buckets and target.bucket_name not in buckets:
        return Problem(
            f"not a bucket for the worker's own credentials; got {target.bucket_name}, expected one of "
            "S3_ALLOWED_BUCKETS, or access_key_id and secret_access_key beside it",
            field="input.s3.bucket_name",
            type="bucket_not_allowed",
            allowed=sorted(buckets),
        )
    template = str((asked or {}).get("key_template") or "")
    if template and not template.startswith(OWN_PREFIX):
        return Problem(
            f"leaves the job's own prefix; got {template}, expected a template below {OWN_PREFIX}, or access_key_id "
            "and secret_access_key beside it",
            field="input.s3.key_template",
            type="key_not_allowed",
            allowed=f"{OWN_PREFIX}…",
        )
    return None


def may_read(target: S3Target, key: str, config: S3Config) -> bool:
    """Return True if a request may read an object: any with its own key, else those below S3_INPUT_PREFIXES."""
    if not target.has_operators_key:
        return True
    return any(prefix == EVERYTHING or key.startswith(prefix) for prefix in config.input_prefixes)
