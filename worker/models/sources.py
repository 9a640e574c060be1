"""Addresses of model files: `hf://`, `civitai://`, `s3://`, `https://`, and paths on this machine. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from darkroom.worker.guard.plain_paths import plain_path

HUB_SCHEME = "hf://"
CIVITAI_SCHEME = "civitai://"
S3_SCHEME = "s3://"
WEB_SCHEMES = ("https://", "http://")
FILE_SCHEME = "file://"
DEFAULT_REVISION = "main"
ALLOWED = "hf://owner/repo/path[@revision], civitai://version, s3://bucket/key, https://…, or an absolute path"

_HUB = re.compile(
    r"hf://(?P<repository>[\w.-]+/[\w.-]+)/(?P<path>[^@?#\s][^@?#]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII
)
_CIVITAI = re.compile(r"civitai://(?P<version>[0-9]{1,12})")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_HUB_PAGE = re.compile(r"/(?P<repository>[\w.-]+/[\w.-]+)/(?:resolve|blob)/(?P<revision>[^/]+)/(?P<path>.+)", re.ASCII)
_CIVITAI_PAGE = re.compile(r"/api/download/models/(?P<version>[0-9]{1,12})")
HUB_HOSTS = frozenset({"huggingface.co", "hf.co", "www.huggingface.co"})
CIVITAI_HOSTS = frozenset({"civitai.com", "www.civitai.com"})


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a repository on a hub of the Hugging Face kind, at a branch, tag or commit."""

    repository: str
    path: str
    revision: str = DEFAULT_REVISION

    def __str__(self) -> str:
        return f"{HUB_SCHEME}{self.repository}/{self.path}@{self.revision}"

    @property
    def file_name(self) -> str:
        return self.path.rpartition("/")[2]

    def url(self, endpoint: str) -> str:
        """Return the address of the file's content at a hub."""
        return f"{endpoint.rstrip('/')}/{self.repository}/resolve/{quote(self.revision, safe='')}/{quote(self.path)}"


@dataclass(frozen=True, slots=True)
class CivitaiSource:
    """The primary file of a version of a model on Civitai."""

    version: str

    def __str__(self) -> str:
        return f"{CIVITAI_SCHEME}{self.version}"

    @property
    def file_name(self) -> str:
        """Empty: the version alone does not give it."""
        return ""

    def url(self, endpoint: str) -> str:
        """Return the address of the file's content."""
        return f"{endpoint.rstrip('/')}/api/download/models/{self.version}"


@dataclass(frozen=True, slots=True)
class BucketSource:
    """An object in S3."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{S3_SCHEME}{self.bucket}/{self.key}"

    @property
    def file_name(self) -> str:
        return self.key.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class WebSource:
    """A file of a web server. `address` may hold secrets in its query; the text form leaves them out."""

    address: str

    def __str__(self) -> str:
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def file_name(self) -> str:
        return unquote(urlsplit(self.address).path.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file on this machine, on a shared volume for instance."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def file_name(self) -> str:
        return self.path.name


Source = HubSource | CivitaiSource | BucketSource | WebSource | FileSource


def parse_source(text: str) -> Source:
    """Parse the address of a model file. Raises ValueError saying what is allowed.

    Addresses of pages and files at the hub and at Civitai are the same as their short forms, so that credentials,
    endpoints and published hashes apply to both.
    """
    if text.startswith(HUB_SCHEME):
        return _parse_hub(text)
    if text.startswith(CIVITAI_SCHEME):
        found = _CIVITAI.fullmatch(text)
        if found is None:
            raise ValueError(f"is not civitai://version; got {text!r}, expected the number of a model's version")
        return CivitaiSource(found["version"])
    if text.startswith(S3_SCHEME):
        return _parse_bucket(text)
    if text.lower().startswith(WEB_SCHEMES):
        return _parse_web(text)
    path = text.removeprefix(FILE_SCHEME)
    if path.startswith("/"):
        return FileSource(Path(unquote(path) if text.startswith(FILE_SCHEME) else path))
    raise ValueError(f"unknown kind of source; got {_shown(text)!r}, expected {ALLOWED}")


def _parse_hub(text: str) -> HubSource:
    found = _HUB.fullmatch(text)
    if found is None or _leaves_repository(found):
        raise ValueError(f"is not a file of the hub; got {text!r}, expected hf://owner/repo/path[@revision]")
    return HubSource(found["repository"], found["path"], found["revision"] or DEFAULT_REVISION)


def _parse_bucket(text: str) -> BucketSource:
    bucket, _, key = text.removeprefix(S3_SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket) or not key or key.endswith("/") or _climbs(key):
        raise ValueError(f"is not an object in S3; got {text!r}, expected s3://bucket/key")
    return BucketSource(bucket, key)


def _parse_web(text: str) -> Source:
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").lower()
    except ValueError:
        host = ""
    if not host or any(letter.isspace() for letter in text):
        raise ValueError("is not an address; expected https://host/path")
    if plain_path(parts.path) is None:
        raise ValueError("has a part . or .., an empty part or a backslash in its path; expected https://host/path")
    if host in HUB_HOSTS and (found := _HUB_PAGE.fullmatch(unquote(parts.path))):
        if _leaves_repository(found):
            raise ValueError("is not a file of the hub; expected https://host/owner/repo/resolve/revision/path")
        return HubSource(found["repository"], found["path"], found["revision"])
    if host in CIVITAI_HOSTS and (found := _CIVITAI_PAGE.fullmatch(parts.path)) and not _chooses_file(parts.query):
        return CivitaiSource(found["version"])
    return WebSource(text)


def _chooses_file(query: str) -> bool:
    """Return True if a query of Civitai asks for another file than the version's primary one."""
    return any(part.partition("=")[0] in ("type", "format", "size", "fp") for part in query.split("&"))


def _leaves_repository(found: re.Match[str]) -> bool:
    """Return True if a part of a file's address at the hub would be read as another folder."""
    return any(_climbs(found[part] or DEFAULT_REVISION) for part in ("repository", "revision", "path"))


def _climbs(path: str) -> bool:
    return bool({"", ".", ".."} & set(path.split("/")))


def _shown(text: str) -> str:
    return text.partition("?")[0][:200]
