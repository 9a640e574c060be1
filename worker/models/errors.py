"""Errors of model files: of manifests, of the commands, of downloads.

ModelsError
  UnknownModel          no entry has the name
  ManifestInvalid       the manifest or its lock does not parse
  SourceFailed          one source did not give the file
    SourceUnreachable   no reply within the time limit, or none at all
    SourceRefused       the repository is gated, or a credential is missing or wrong
    SourceMissing       the source has no such file
    ModelBroken         the source's file is not the expected one
    DownloadBroke       the source replied and the download did not finish; it is resumed next time
    DiskFull            the disk has no room for the file
      DiskUnwritable    the models folder cannot be written
"""

from __future__ import annotations

from typing import ClassVar


class ModelsError(Exception):
    """Failure of a model command; `exit_code` is its cause for scripts, `code` for programs."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "model_unusable"


class UnknownModel(ModelsError):
    exit_code = 2
    code = "model_unknown"


class ManifestInvalid(ModelsError):
    """Error for a manifest or a lock file that does not parse. Names the entries and what is allowed."""

    exit_code = 2
    code = "manifest_invalid"


class SourceFailed(ModelsError):
    """Error of a source of a model file. Another source of the file may have it."""

    code = "model_source_failed"


class SourceUnreachable(SourceFailed):
    """Error without a reply from the source within the time limit, or at all. Nothing was downloaded."""

    exit_code = 3
    code = "model_source_unreachable"


class ModelBroken(SourceFailed):
    """Error for a file without the expected content."""

    exit_code = 4
    code = "model_broken"


class DownloadBroke(SourceFailed):
    """Error when the source replied and the download did not finish; the partial file is kept and resumed."""

    exit_code = 5
    code = "model_download_broke"


class SourceRefused(SourceFailed):
    """Error for a gated repository, or a credential that is missing or wrong."""

    exit_code = 6
    code = "model_access_refused"


class SourceMissing(SourceFailed):
    """Error for a source without the file."""

    exit_code = 7
    code = "model_not_at_source"


class DiskFull(SourceFailed):
    """Error for a disk without room for the file; no source helps."""

    exit_code = 8
    code = "model_disk_full"


class DiskUnwritable(DiskFull):
    """Error for a models folder that cannot be written: read-only, of another user, or not a folder."""

    code = "model_disk_unwritable"
