"""BucketLevel: model files in a bucket that workers fill for each other, under their SHA-256. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from darkroom.worker.models.sources import S3_SCHEME, BucketSource

_LEVEL = re.compile(r"s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,62})(?:/(?P<prefix>[\w./=-]*))?")


@dataclass(frozen=True, slots=True)
class BucketLevel:
    """A folder of a bucket. Files of the same content are one object, so that no worker can change another's file."""

    bucket: str
    prefix: str = ""

    def source_of(self, sha256: str) -> BucketSource:
        """Return the place of a file with this hash."""
        return BucketSource(self.bucket, f"{self.prefix}{sha256[:2]}/{sha256}")

    def has(self, source: str) -> bool:
        """Return True if a source, as text, is a file of this level."""
        return source.startswith(f"{S3_SCHEME}{self.bucket}/{self.prefix}")


def parse_level(text: str) -> BucketLevel | None:
    """Parse `s3://bucket/folder`; an empty text is no level. Raises ValueError.

    >>> parse_level("s3://models/shared").source_of("ab12").key
    'shared/ab/ab12'
    """
    if not text:
        return None
    found = _LEVEL.fullmatch(text)
    if found is None or ".." in text:
        raise ValueError(f"is not a folder of a bucket; got {text[:200]!r}, expected s3://bucket/folder")
    folder = (found["prefix"] or "").strip("/")
    return BucketLevel(found["bucket"], f"{folder}/" if folder else "")
