"""Settings of model files: the manifest, downloads, and what a job may fetch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, SecretStr

from darkroom.worker.settings.section import (
    GIB,
    LOWER,
    CommaList,
    NaturalInt,
    PositiveInt,
    Seconds,
    Section,
    env,
)

_LEVEL = re.compile(r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,62}(/[\w./=-]*)?")
FetchMissing = Literal["off", "manifest", "any"]


def parse_tokens(text: str) -> list[tuple[str, SecretStr]]:
    """Parse a comma list of `https://host/folder=token`. Raises ValueError, without repeating a token."""
    found = []
    for number, part in enumerate((part.strip() for part in text.split(",") if part.strip()), start=1):
        prefix, sign, token = part.partition("=")
        parts = urlsplit(prefix.strip())
        if not sign or parts.scheme not in ("http", "https") or not parts.hostname or not token.strip():
            raise ValueError(f"entry {number}: expected https://host/folder=token")
        found.append((prefix.strip(), SecretStr(token.strip())))
    return found


def _check_tokens(value: SecretStr) -> SecretStr:
    parse_tokens(value.get_secret_value())
    return value


def _check_level(value: str) -> str:
    if value and not (_LEVEL.fullmatch(value) and ".." not in value):
        raise ValueError("expected s3://bucket/folder")
    return value


class ModelSettings(Section):
    """Sources of model files and limits of their downloads."""

    manifest: Annotated[Path | None, env("MODELS_MANIFEST")] = None
    """Manifest of model files ([model files](model_files.md#manifest)). Empty: `BASE_DIRECTORY/models.toml` if it is
    there."""

    fetch_missing: Annotated[FetchMissing, LOWER, env("FETCH_MISSING")] = "off"
    """Model files that a job fetches before it runs: `off` none, `manifest` those of the manifest and the well-known
    ones, `any` also those for which the workflow gives a download address."""

    early_seconds: Seconds = 20.0
    """Seconds before the end of its downloads, at their pace, at which a job goes to its engine, which reads the files
    while they come. What an engine reads takes about as long; until then it is free for other jobs. 0: a job waits
    until its files are there."""

    bytes_per_second: Annotated[NaturalInt, env("MODEL_BANDWIDTH")] = 0
    """Most bytes a second for all model downloads together; 0: no limit."""

    max_request_bytes: PositiveInt = 64 * GIB
    """Largest model file that a job may fetch from an address of its own: above the largest that are published."""

    disk_bytes: Annotated[NaturalInt, env("MODEL_DISK_BYTES")] = 0
    """Bytes that downloaded model files may take, and one that a job names by its address; above them those that no
    job needs are removed, the longest unused first ([model files](model_files.md#the-disk-as-a-cache)). 0: no limit."""

    shared_directories: Annotated[CommaList[Path], env("MODEL_SHARED_DIRECTORIES")] = ()
    """Comma list of folders laid out as `models/`, on a shared volume for instance, from which missing files are copied
    before any other source is read. Nothing is written there."""

    s3_level: Annotated[str, AfterValidator(_check_level), env("MODEL_S3_LEVEL")] = ""
    """`s3://bucket/folder` that workers fill for each other: files of the manifest are read from there before their
    other sources, and stored there once fetched, under their SHA-256. Credentials: the settings `S3_…`."""

    tokens: Annotated[Annotated[SecretStr, AfterValidator(_check_tokens)], env("MODEL_TOKENS")] = SecretStr("")
    """Comma list of `https://host/folder=token`: bearer tokens for downloads from these addresses. `HF_TOKEN` and
    `CIVITAI_TOKEN` are for the hub and Civitai."""

    @property
    def max_named_bytes(self) -> int:
        """Largest model file that a job may fetch from an address of its own: never more than all may take."""
        return min(self.max_request_bytes, self.disk_bytes or self.max_request_bytes)

    @property
    def limits_disk(self) -> bool:
        """True if files are ever evicted."""
        return self.disk_bytes > 0

    def manifest_path(self, base_directory: Path) -> Path | None:
        """Return the manifest to read; None without one."""
        if self.manifest is not None:
            return self.manifest
        default = base_directory / "models.toml"
        return default if default.is_file() else None
