"""One check of the machine or the settings, and its outcome. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Status(StrEnum):
    GOOD = "good"
    WARNING = "warning"  # it runs, and something should be known or changed
    FAILED = "failed"  # the worker cannot do its work so
    SKIPPED = "skipped"  # not configured, or not for this machine


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome of a check. `remedy` says what to do, empty where there is nothing to do. Neither holds a secret."""

    name: str
    status: Status
    detail: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return {key: str(value) for key, value in asdict(self).items()}


def good(name: str, detail: str) -> Check:
    return Check(name, Status.GOOD, detail)


def warning(name: str, detail: str, remedy: str) -> Check:
    return Check(name, Status.WARNING, detail, remedy)


def failed(name: str, detail: str, remedy: str) -> Check:
    return Check(name, Status.FAILED, detail, remedy)


def skipped(name: str, detail: str) -> Check:
    return Check(name, Status.SKIPPED, detail)


def has_failed(checks: list[Check]) -> bool:
    """Return True if one of the checks has failed."""
    return any(check.status is Status.FAILED for check in checks)
