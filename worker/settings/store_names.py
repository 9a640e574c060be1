"""Checks of what names a store: buckets, endpoints, regions, keys, presigned addresses. Pure.

They find before a job runs what a store would refuse afterwards. No problem repeats a key or a signature.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs, urlsplit

MAX_SHOWN: Final = 80
REPO_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_-][A-Za-z0-9._-]{0,95}")
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]{1,255}")
_ARN: Final = re.compile(r"arn:aws[a-z-]*:(?:s3|s3-object-lambda|s3-outposts):[A-Za-z0-9:/._-]{1,300}")
_REGION: Final = re.compile(r"[A-Za-z0-9-]{1,63}")
_AMZ_DATE: Final = "%Y%m%dT%H%M%SZ"
KEY_MARK: Final = "{key}"


def find_bucket_problem(name: str) -> str | None:
    """Return the problem of a bucket's name, or None. An access point's ARN stands for a bucket, too."""
    if _BUCKET.fullmatch(name) or _ARN.fullmatch(name):
        return None
    shown = repr(name[:MAX_SHOWN])
    if name != name.strip():
        return f"white space around a bucket's name; got {shown}, expected {name.strip()[:MAX_SHOWN]!r}"
    if "://" in name:
        host, _, path = name.partition("://")[2].partition("/")
        if name.lower().startswith(("s3://", "gs://")):
            folder = f", and {path.strip('/')}/{{request_id}}/{{filename}} as key_template" if path.strip("/") else ""
            return f"an address in place of a bucket's name; got {shown}, expected {host[:MAX_SHOWN]!r}{folder}"
        return f"an address in place of a bucket's name; got {shown}, expected the name alone"
    bucket, slash, folder = name.strip("/").partition("/")
    if "/" in name and _BUCKET.fullmatch(bucket):
        more = f", and {folder}/{{request_id}}/{{filename}} as key_template" if slash else ""
        return f"a folder in a bucket's name; got {shown}, expected {bucket!r}{more}"
    return f"no bucket's name; got {shown}, expected letters, digits, '.', '-' and '_'"


def find_secret_problem(value: str) -> str | None:
    """Return the problem of a key, a secret or a token, or None; the value is not shown."""
    if value != value.strip():
        return "white space around it, of a copy perhaps; expected the value alone"
    if not value.isascii() or not value.isprintable():
        return "a character that no key has (a line break, say, or other than ASCII); expected the value alone"
    return None


def find_region_problem(region: str) -> str | None:
    """Return the problem of a region's name, or None; empty is the store's default."""
    if not region or _REGION.fullmatch(region):
        return None
    return f"no region; got {region[:MAX_SHOWN]!r}, expected a name such as us-east-1 or auto, or nothing"


def find_endpoint_problem(url: str, bucket: str = "") -> str | None:
    """Return the problem of a store's address, or None."""
    if not url:
        return None
    if url != url.strip() or not url.isprintable() or " " in url:
        return "white space in an address; expected https://HOST"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "no address; expected https://HOST"
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        return "no address of the web; expected one that begins with https:// or http://"
    if parts.query or parts.fragment:
        return "a query in the address of a store; expected https://HOST"
    if bucket and bucket in parts.path.split("/"):
        return (
            f"the bucket {bucket[:MAX_SHOWN]!r} is in its path, so that files would go to {bucket}/{bucket}/...; "
            f"expected the address without it: {parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        )
    return None


def find_endpoint_doubt(url: str, bucket: str) -> str | None:
    """Return the doubt about the address of a store for a bucket, or None."""
    host = urlsplit(url).hostname or "" if url else ""
    if bucket and host.startswith(f"{bucket.lower()}."):
        return (
            f"endpoint_url: its host begins with the bucket {bucket[:MAX_SHOWN]!r}; if that is the bucket, files go to "
            "a folder of its name: expected the host without it"
        )
    return None


def find_put_problem(url: str, now: datetime) -> str | None:
    """Return the reason why a presigned address takes no file with a key of the worker's, or None.

    Read are signatures of AWS (version 4), Google (version 4) and Azure (SAS).
    """
    if url != url.strip() or not url.isprintable() or " " in url:
        return "white space in the address"
    parts = urlsplit(url)
    if KEY_MARK in parts.netloc:
        return f"{KEY_MARK} is in the host; expected it in the path"
    query = {name.lower(): values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    for system in ("x-amz", "x-goog"):
        if f"{system}-signature" in query:
            if KEY_MARK in parts.path:
                return (
                    f"a presigned address is for the key that was signed, so {KEY_MARK} cannot be in its path; "
                    "expected `s3` with credentials, or a server of your own that takes PUT"
                )
            expired = _expired_signature(query.get(f"{system}-date", ""), query.get(f"{system}-expires", ""), now)
            if expired:
                return expired
    return _sas_problem(query, now) if "sig" in query and "se" in query else None


def _expired_signature(signed: str, seconds: str, now: datetime) -> str | None:
    try:
        until = datetime.strptime(signed, _AMZ_DATE).replace(tzinfo=UTC).timestamp() + int(seconds)
    except (ValueError, OverflowError):
        return None
    return f"the address expired at {_shown(until)}" if until < now.timestamp() else None


def _sas_problem(query: dict[str, str], now: datetime) -> str | None:
    """Return the reason why a shared access signature of Azure takes no new files, or None."""
    try:
        moment = datetime.fromisoformat(query["se"].replace("Z", "+00:00"))
        until = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return f"se (its expiry) is no time; got {query['se'][:MAX_SHOWN]!r}, expected one such as 2030-01-01T00:00:00Z"
    if until < now.timestamp():
        return f"the shared access signature expired at {_shown(until)}"
    if query.get("sr") == "b":
        return "the shared access signature is for one blob (sr=b); expected one for the container (sr=c)"
    if "sp" in query and not set(query["sp"]) & {"c", "w"}:
        return f"the shared access signature permits no writing; got sp={query['sp'][:20]}, expected c or w among it"
    return None


def find_revision_problem(revision: str) -> str | None:
    """Return the problem of the name of a branch, or None; empty is the main one."""
    is_good = re.fullmatch(r"(?![/.-])[^\s~^:?*\[\\\x00-\x20\x7f]*(?<![/.])", revision)
    if is_good and ".." not in revision and "//" not in revision and "@{" not in revision:
        return None
    return f"no name of a branch; got {revision[:MAX_SHOWN]!r}"


def _shown(epoch_seconds: float) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
