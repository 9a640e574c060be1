"""Errors of inputs that cannot be fetched; each names the responsible party, the node, the field and the address."""

from __future__ import annotations

import errno

from darkroom.worker.errors import DiskLow, InputRejected

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
RETRY_AFTER_SECONDS = 30.0


def disk_low(what: str) -> DiskLow:
    return DiskLow(f"The disk has no room for {what}", retry_after_seconds=RETRY_AFTER_SECONDS)


class DownloadFailed(InputRejected):
    """A download without a usable response: no connection, an error status, a timeout or too many redirects."""

    code = "download_failed"


class InputTooLarge(InputRejected):
    code = "input_too_large"


class InputBroken(InputRejected):
    """A fetched file that is not of the kind the node takes, or inline data that does not decode."""

    code = "input_broken"
