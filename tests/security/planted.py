"""Secrets planted in every place that can hold one, and the search for them in every place where one could come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "planted"

ENVIRONMENT = {
    "S3_SECRET_ACCESS_KEY": "env-s3-secret",
    "WEBHOOK_SECRET": "env-hook",
    "HF_TOKEN": "env-hub",
    "CIVITAI_TOKEN": "env-civitai",
    "AWS_SECRET_ACCESS_KEY": "env-aws",
    "AWS_SESSION_TOKEN": "env-aws-session",
    "REGISTRY_TOKEN": "env-registry",
    "DATABASE_PASSWORD": "env-other",
    "OPENAI_API_KEY": "env-openai",
}
"""Variables of the worker, by what makes each value its own."""

CUSTOMER_KEY, OPERATOR_KEY, FILE_KEY, HOARDERS_KEY = (
    f"{MARK}-{name}" for name in ("key-customer", "key-operator", "key-file", "key-hoarder")
)

REQUEST = (
    "s3-secret",
    "hook-secret",
    "url-user",
    "url-password",
    "url-query",
    "url-signature",
    "hook-password",
    "hook-query",
)
"""Secrets in requests of the attack. The id of an S3 key is none: every presigned URL shows it."""


def environment() -> dict[str, str]:
    """Return the variables with their planted values."""
    return {name: f"{MARK}-{kind}" for name, kind in ENVIRONMENT.items()}


def secret(kind: str) -> str:
    """Return the planted value of one kind."""
    return f"{MARK}-{kind}"


def all_secrets() -> list[str]:
    """Return every planted value."""
    return [*environment().values(), CUSTOMER_KEY, OPERATOR_KEY, FILE_KEY, HOARDERS_KEY, *map(secret, REQUEST)]


@dataclass(frozen=True, slots=True)
class Leak:
    """A planted value that was found where none belongs."""

    secret: str
    place: str


def find_in_files(folder: Path, leave_out: frozenset[str] = frozenset()) -> Iterator[Leak]:
    """Look through every file below a folder, the database's write-ahead log included."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name not in leave_out:
            yield from find_in(path.read_bytes(), str(path.relative_to(folder)))


def find_in_processes(pids: list[int], *, with_environment: list[int]) -> Iterator[Leak]:
    """Look through command lines, and through the environment of those that may hold no secret."""
    for pid in pids:
        yield from find_in(Path(f"/proc/{pid}/cmdline").read_bytes(), f"command line of {pid}")
    for pid in with_environment:
        yield from find_in(Path(f"/proc/{pid}/environ").read_bytes(), f"environment of {pid}")


def find_in(data: bytes, place: str) -> Iterator[Leak]:
    """Yield a leak for every planted value in the data."""
    if MARK.encode() in data:
        yield from (Leak(value, place) for value in all_secrets() if value.encode() in data)
