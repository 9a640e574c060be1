"""Errors of `darkroom nodes sync`: of the manifest, of a source, of requirements."""

from __future__ import annotations

from typing import ClassVar


class SyncError(Exception):
    """Failure of a sync, which has changed nothing. `exit_code` is its cause for scripts."""

    exit_code: ClassVar[int] = 1


class PacksInvalid(SyncError):
    """Error for a `packs.toml` or a lock that does not parse. Names every problem and what is allowed."""

    exit_code = 2


class PackUnknown(SyncError):
    """Error for a name that is neither a folder nor that of a known pack."""

    exit_code = 2


class PackNotFetched(SyncError):
    """Error for a source that is out of reach, refuses, or lacks the revision."""

    exit_code = 3


class PackChanged(SyncError):
    """Error for a tree with another hash than the manifest or the lock has."""

    exit_code = 4


class RequirementsRefused(SyncError):
    """Error for packs whose requirements conflict with the engine's packages or with each other's."""


class InstallScriptFailed(SyncError):
    """Error for an `install.py` that failed, took too long, or would have moved the engine's packages."""


class FolderTaken(SyncError):
    """Error for a folder in `custom_nodes/` that a pack would replace and that was not put there by a sync."""
